// Text to token ids and back, for both kinds of tokenizers that a model file may have.
//
// The base class owns the vocabulary and does what both kinds share: special tokens, malformed bytes, and ids
// back to bytes. A derived class turns well-formed text into ids. Immutable after make(); any number of
// threads may use it.
//
// Any bytes can be encoded, and the ids decode to the same bytes: text is cut at bytes that are not UTF-8,
// and each of these bytes becomes its byte token. (A "llama" vocabulary with add_space_prefix adds one space
// before each text, and cannot tell U+2581 from a space.) Text encoded with parse_special = false never
// yields a control or user-defined token, so nobody can forge a turn by typing its marker.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "text/vocabulary.h"

namespace dsv32 {

class Tokenizer {
 public:
  // Throws Error{model} when the vocabulary contradicts itself or names a kind that is not supported.
  static std::unique_ptr<Tokenizer> make(Vocabulary vocabulary);
  virtual ~Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // No BOS is added. With `parse_special`, the longest special token at each place is taken, and the text
  // between two of them is encoded on its own. Throws Error{usage} for a text of more than 1 GiB.
  // Of a text with far more than `n_most` tokens only a beginning is encoded, which has more than that.
  std::vector<int32_t> encode(std::string_view text, bool parse_special, size_t n_most = SIZE_MAX) const;

  // The bytes that the token adds to the output; control, unknown and unused tokens add none, apart from
  // ｜DSML｜, the mark of tool calls. The view lives as long as the tokenizer. Throws Error{usage} for an id
  // outside the vocabulary, as do the three functions after it.
  std::string_view bytes_of(int32_t id) const { return bytes_[checked(id)]; }
  // The same for display: a token without bytes shows its name.
  std::string_view piece(int32_t id) const;
  bool is_control(int32_t id) const { return vocabulary_.types[checked(id)] == TokenType::control; }
  // Structure rather than text, printed or not.
  bool is_special(int32_t id) const {
    return is_control(id) || vocabulary_.types[checked(id)] == TokenType::user_defined;
  }
  // EOS under either of its names, <|EOT|>, and <｜User｜>: a model that begins the user's turn has finished
  // its own.
  bool is_end_of_generation(int32_t id) const { return checked(id), end_ids_.contains(id); }

  // A warning about the vocabulary for the user, escaped; empty if there is none.
  virtual std::string warning() const { return {}; }

  // The token that the file writes as `name`.
  std::optional<int32_t> find(std::string_view name) const;
  int32_t bos_id() const { return vocabulary_.bos_id; }
  int32_t eos_id() const { return vocabulary_.eos_id; }
  // The file's; empty if it has none.
  std::string_view chat_template() const { return vocabulary_.chat_template; }
  int32_t n_vocab() const { return static_cast<int32_t>(vocabulary_.tokens.size()); }

 protected:
  // `bytes_of_text` undoes the file's spelling of a normal token. `vocabulary` has passed check_vocabulary().
  Tokenizer(Vocabulary vocabulary, std::string (*bytes_of_text)(const std::string& token));

  // Appends the ids of `text`, which is well-formed UTF-8 and not empty.
  virtual void encode_utf8(std::string_view text, std::vector<int32_t>& ids) const = 0;

  // The token of a byte; the constructor of a derived class sets all 256.
  void set_byte_id(uint8_t byte, int32_t id) { byte_ids_[byte] = id; }
  int32_t byte_id(char byte) const { return byte_ids_[static_cast<uint8_t>(byte)]; }
  const Vocabulary& vocabulary() const { return vocabulary_; }
  TokenType type_of(int32_t id) const { return vocabulary_.types[static_cast<size_t>(id)]; }

 private:
  using SpecialTokens = std::map<std::string_view, int32_t>;

  size_t checked(int32_t id) const;
  SpecialTokens::const_iterator special_at(std::string_view text) const;
  void encode_plain(std::string_view text, std::vector<int32_t>& ids) const;
  void encode_any_bytes(std::string_view text, std::vector<int32_t>& ids) const;

  const Vocabulary vocabulary_;
  std::vector<std::string> bytes_;                            // [n_vocab]
  std::unordered_map<std::string_view, int32_t> id_of_name_;  // views into vocabulary_.tokens
  SpecialTokens specials_;                                    // likewise
  std::unordered_set<int32_t> end_ids_;
  std::array<int32_t, 256> byte_ids_{};
};

// The two kinds, for Tokenizer::make(). `vocabulary` has passed check_vocabulary(). They throw Error{model}
// when a byte has no token, a merge is malformed, or the library refuses the vocabulary.
std::unique_ptr<Tokenizer> make_bpe_tokenizer(Vocabulary vocabulary);
std::unique_ptr<Tokenizer> make_spm_tokenizer(Vocabulary vocabulary);

}  // namespace dsv32
