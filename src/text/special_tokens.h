// The tokens that are structure rather than text (<｜User｜>, <think>), and where they occur in a text.
//
// Kept as one sorted list; all names that begin with the same bytes are neighbours in it, so that reading a
// text byte by byte narrows a range of the list. No text, however hostile, costs more than its length times
// the longest common start.
#pragma once

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
  void sort();

  // The longest special token that begins at `text[at]`.
  std::optional<Match> longest_at(std::string_view text, size_t at) const;

 private:
  struct Entry {
    std::string name;
    int32_t id;
  };
  std::vector<Entry> entries_;  // by name, bytes as unsigned
};

}  // namespace dsv32
