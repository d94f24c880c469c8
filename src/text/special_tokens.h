// The tokens that are structure rather than text (<｜User｜>, <think>), and where they occur in a text.
//
// A sorted list: names that begin with the same bytes are neighbours, so reading a text byte by byte narrows
// a range of the list. A search of a text takes at most its length times the longest common start of two
// names.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dsv32 {

class SpecialTokens {
 public:
  struct Match {
    int32_t id;
    size_t n_bytes;
  };

  // `name` must not be empty. Call sort() once after the last one.
  void add(std::string name, int32_t id) { entries_.push_back({std::move(name), id}); }
  void sort() { std::ranges::sort(entries_, {}, &Entry::name); }

  // The longest special token that begins at `text[at]`.
  std::optional<Match> longest_at(std::string_view text, size_t at) const {
    std::optional<Match> longest;
    auto first = entries_.begin(), last = entries_.end();
    for (size_t depth = 0; at + depth < text.size() && first != last; ++depth) {
      // The byte of a name at `depth`; the end of a name sorts before every byte.
      const auto byte_of = [depth](const Entry& e) {
        return depth < e.name.size() ? static_cast<uint8_t>(e.name[depth]) : -1;
      };
      const int byte = static_cast<uint8_t>(text[at + depth]);
      first = std::partition_point(first, last, [&](const Entry& e) { return byte_of(e) < byte; });
      last = std::partition_point(first, last, [&](const Entry& e) { return byte_of(e) <= byte; });
      if (first != last && first->name.size() == depth + 1) longest = Match{first->id, depth + 1};
    }
    return longest;
  }

 private:
  struct Entry {
    std::string name;
    int32_t id;
  };
  std::vector<Entry> entries_;  // sorted by name, bytes as unsigned
};

}  // namespace dsv32
