// The bytes of a vocabulary's tokens as two trees, walked to find which tokens may come next.
//
// Plain tokens are whole characters without a quotation mark, a backslash or a control character: text that
// means itself within a JSON string. A string that only bounds its length takes each plain token that is
// short enough, so these are not walked. All others are in the second tree. Nodes are in preorder. Immutable.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace dsv32 {

class TokenTrie {
 public:
  struct Node {
    int32_t token;   // that ends here, or -1
    int32_t next;    // the first node that is not below this one
    uint16_t depth;  // bytes up to here, at least 1
    uint8_t byte;
  };
  using Tree = std::vector<Node>;
  using Words = std::vector<uint32_t>;  // a bit for each token
  static void set(Words& words, int32_t id) {
    words[static_cast<size_t>(id) / 32] |= 1u << static_cast<uint32_t>(id) % 32;
  }
  static void add(Words& words, const Words& more) {
    for (size_t i = 0; i < words.size(); ++i) words[i] |= more[i];
  }

  explicit TokenTrie(const Tokenizer& tokenizer);  // which must outlive it

  const Tree& plain() const { return plain_; }
  const Tree& others() const { return others_; }
  // Plain tokens of at most n characters, n at least 0.
  const Words& plain_up_to(int64_t n) const {
    return plain_up_to_[std::min(static_cast<size_t>(n), plain_up_to_.size() - 1)];
  }
  // The tokens that end an answer; special tokens that have bytes, such as <think>.
  std::span<const int32_t> ends() const { return ends_; }
  std::span<const int32_t> marks() const { return marks_; }
  std::string_view bytes_of(int32_t id) const { return tokenizer_.bytes_of(id); }
  bool is_end(int32_t id) const { return tokenizer_.is_end_of_generation(id); }
  size_t n_words() const { return plain_up_to_.front().size(); }
  size_t n_most_bytes() const { return n_most_bytes_; }  // of a token
  // Of a token that is not plain, the most characters that can be within one JSON string.
  int64_t n_most_in_string() const { return n_most_in_string_; }

 private:
  const Tokenizer& tokenizer_;
  Tree plain_, others_;
  std::vector<Words> plain_up_to_;  // by characters, from 0
  std::vector<int32_t> ends_, marks_;
  size_t n_most_bytes_ = 0;
  int64_t n_most_in_string_ = 0;
};

}  // namespace dsv32
