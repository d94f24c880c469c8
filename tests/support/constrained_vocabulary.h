// A vocabulary for the tests of src/constrain: a tokenizer with its trie, and what the tests must know of its
// tokens from another source than the trie: the vocabulary as the file states it.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "constrain/constraint.h"
#include "text/tokenizer.h"
#include "text/vocabulary.h"

namespace dsv32 {

class ConstrainedVocabulary {
 public:
  explicit ConstrainedVocabulary(Vocabulary vocabulary);

  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const std::shared_ptr<const TokenTrie>& trie() const { return trie_; }
  int32_t n_vocab() const { return tokenizer_->n_vocab(); }
  // Whether the token is text, neither special nor without bytes.
  bool is_text(int32_t id) const { return is_text_[static_cast<size_t>(id)]; }
  // Of text; 256 for other tokens.
  size_t first_byte(int32_t id) const { return first_bytes_[static_cast<size_t>(id)]; }
  const std::vector<int32_t>& end_ids() const { return end_ids_; }
  // The token of one byte; -1 if there is none.
  int32_t byte_id(uint8_t byte) const { return byte_ids_[byte]; }

  // At each place the longest token of text.
  std::vector<int32_t> longest_tokens(std::string_view text) const;
  std::vector<int32_t> byte_tokens(std::string_view text) const;

 private:
  std::unique_ptr<Tokenizer> tokenizer_;
  std::shared_ptr<const TokenTrie> trie_;
  std::vector<bool> is_text_;
  std::vector<uint16_t> first_bytes_;
  std::vector<int32_t> end_ids_;
  std::array<int32_t, 256> byte_ids_;
  std::unordered_map<std::string, int32_t> id_of_;  // of text
  size_t most_bytes_ = 1;                           // of a token
};

// Of models/demo.gguf.
const ConstrainedVocabulary& demo_vocabulary();
// Bytes, common pieces, and tokens that cross what a grammar tells apart: `"},{"`, `":[`, `true}`, halves of
// characters.
const ConstrainedVocabulary& crossing_vocabulary();

// The mask of `constraint`, a bit a token.
std::vector<uint32_t> mask_of(Constraint& constraint, const ConstrainedVocabulary& vocabulary);
inline bool is_allowed(const std::vector<uint32_t>& mask, int32_t id) {
  return mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1;
}

}  // namespace dsv32
