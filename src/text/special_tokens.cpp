// The search for special tokens.
//
// One step per byte of the text: the neighbours in the list that share the bytes read so far, found by two
// binary searches. Where a name ends with the byte just read it comes first among them, and is the longest so
// far.
#include "text/special_tokens.h"

#include <algorithm>

namespace dsv32 {
namespace {

// The byte of `name` at `depth`; the end of a name sorts before every byte.
int byte_at(const std::string& name, size_t depth) {
  return depth < name.size() ? static_cast<uint8_t>(name[depth]) : -1;
}

}  // namespace

void SpecialTokens::sort() {
  std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) { return a.name < b.name; });
}

std::optional<SpecialTokens::Match> SpecialTokens::longest_at(std::string_view text, size_t at) const {
  std::optional<Match> longest;
  auto first = entries_.begin(), last = entries_.end();
  for (size_t depth = 0; at + depth < text.size() && first != last; ++depth) {
    const int byte = static_cast<uint8_t>(text[at + depth]);
    first = std::partition_point(first, last, [&](const Entry& e) { return byte_at(e.name, depth) < byte; });
    last = std::partition_point(first, last, [&](const Entry& e) { return byte_at(e.name, depth) <= byte; });
    if (first != last && first->name.size() == depth + 1) longest = Match{first->id, depth + 1};
  }
  return longest;
}

}  // namespace dsv32
