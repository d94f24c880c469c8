#include "constrain/token_trie.h"

#include <optional>

#include "base/text.h"

namespace dsv32 {
namespace {

constexpr size_t kMostCharacters = 128;  // of a plain token; longer ones are walked with the others

// Characters that mean themselves within a JSON string; nothing when the token is not only of these.
std::optional<size_t> n_plain_characters(std::string_view bytes) {
  size_t n = 0;
  for (size_t at = 0; at < bytes.size(); ++n) {
    uint32_t code = 0;
    const int n_bytes = decode_utf8(bytes, at, &code);
    if (n_bytes == 0 || code < 0x20 || code == '"' || code == '\\') return std::nullopt;
    at += static_cast<size_t>(n_bytes);
  }
  if (n > kMostCharacters) return std::nullopt;
  return n;
}

// The bytes before the first quotation mark; 0 where a control character forbids the token in a string.
int64_t n_in_string(std::string_view bytes) {
  const std::string_view inside = bytes.substr(0, bytes.find('"'));
  const auto is_control = [](char byte) { return static_cast<uint8_t>(byte) < 0x20; };
  return std::ranges::any_of(inside, is_control) ? 0 : std::ssize(inside);
}

size_t n_common_bytes(std::string_view a, std::string_view b) {
  return static_cast<size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

// A token with the bytes of another one gets a node of its own beside that one's.
TokenTrie::Tree tree_of(std::vector<int32_t> tokens, const Tokenizer& tokenizer) {
  std::ranges::sort(tokens, {}, [&](int32_t id) { return tokenizer.bytes_of(id); });
  TokenTrie::Tree tree;
  std::vector<size_t> open;  // the nodes on the way to the last one, by depth
  const auto close = [&](size_t depth) {
    for (; open.size() > depth; open.pop_back()) tree[open.back()].next = static_cast<int32_t>(tree.size());
  };
  std::string_view last;
  for (const int32_t id : tokens) {
    const std::string_view bytes = tokenizer.bytes_of(id);
    close(std::min(n_common_bytes(last, bytes), bytes.size() - 1));
    for (size_t depth = open.size(); depth < bytes.size(); ++depth) {
      open.push_back(tree.size());
      tree.push_back({-1, 0, static_cast<uint16_t>(depth + 1), static_cast<uint8_t>(bytes[depth])});
    }
    tree.back().token = id;
    last = bytes;
  }
  close(0);
  return tree;
}

}  // namespace

TokenTrie::TokenTrie(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {
  const Words none((static_cast<size_t>(tokenizer.n_vocab()) + 31) / 32);
  plain_up_to_.push_back(none);
  std::vector<int32_t> plain, others;
  for (int32_t id = 0; id < tokenizer.n_vocab(); ++id) {
    const std::string_view bytes = tokenizer.bytes_of(id);
    if (tokenizer.is_end_of_generation(id)) ends_.push_back(id);
    if (bytes.empty() || tokenizer.is_end_of_generation(id)) continue;
    n_most_bytes_ = std::max(n_most_bytes_, bytes.size());
    const std::optional<size_t> n = tokenizer.is_special(id) ? std::nullopt : n_plain_characters(bytes);
    if (tokenizer.is_special(id)) marks_.push_back(id);
    (n ? plain : others).push_back(id);
    if (!n) n_most_in_string_ = std::max(n_most_in_string_, n_in_string(bytes));
    if (!n) continue;
    if (plain_up_to_.size() <= *n) plain_up_to_.resize(*n + 1, none);
    set(plain_up_to_[*n], id);
  }
  plain_ = tree_of(std::move(plain), tokenizer), others_ = tree_of(std::move(others), tokenizer);
  for (size_t n = 1; n < plain_up_to_.size(); ++n) add(plain_up_to_[n], plain_up_to_[n - 1]);
}

}  // namespace dsv32
