// Byte-level BPE, the tokenizer of DeepSeek-V3.2: split into words, then merge the bytes of each word.
//
// The file writes every byte as one printable character (a space is Ġ), so tokens are text. A word starts as
// its byte tokens; then the pair of neighbours with the lowest rank becomes one token, the leftmost first,
// until no pair has a rank. A queue of pairs does this in O(n log n), so a word of a megabyte is no trap.
#pragma once

#include "text/merge_table.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer.h"

namespace dsv32 {

class BpeTokenizer : public Tokenizer {
 public:
  // Throws Error{model} when a byte has no token or MergeTable does. Use Tokenizer::make().
  explicit BpeTokenizer(Vocabulary vocabulary);
  std::string warning() const override { return merges_.warning(); }

 protected:
  void encode_utf8(std::string_view text, std::vector<int32_t>& ids) const override;

 private:
  // The state of one merge run, reused from word to word. Arrays are indexed by where a token begins in the
  // word.
  struct Workspace {
    std::vector<int32_t> ids;    // [n_bytes] the token that begins here
    std::vector<uint32_t> prev;  // [n_bytes] where the token before begins
    std::vector<uint32_t> next;  // [n_bytes] where the token after begins; n_bytes at the end
    std::vector<uint32_t> rank;  // [n_bytes] of the pair that begins here, or MergeTable::kNone
    std::vector<uint64_t> heap;  // rank << 32 | place; the smallest comes first
  };
  void fill(std::string_view word, Workspace& work) const;
  void encode_word(std::string_view word, Workspace& work, std::vector<int32_t>& ids) const;

  PreTokenizer pre_tokenizer_;
  MergeTable merges_;
};

}  // namespace dsv32
