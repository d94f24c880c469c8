// Which pairs of neighbouring tokens are merged into one, and in which order.
//
// A table from a pair of ids to its rank: the order of the lines in the file, lower goes first. Immutable
// after construction.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "base/text.h"

namespace dsv32 {

class MergeTable {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  // `lines` are "left right"; `find` returns the id of the token of that name if text may become it. A line
  // is skipped if `find` fails for left, right or both joined. Throws Error{model} for a line of another form
  // and a pair that occurs twice.
  template <class Find>
  MergeTable(const std::vector<std::string>& lines, const Find& find) {
    ranks_.reserve(lines.size());
    size_t first_skipped = 0;
    for (size_t number = 0; number < lines.size(); ++number) {
      const std::string_view line = lines[number];
      const size_t space = line.find(' ');
      if (space == line.npos || space == 0 || space + 1 == line.size() || space != line.rfind(' '))
        fail_line(lines, number, "is not of the form \"left right\"");
      const std::string left_text(line.substr(0, space)), right_text(line.substr(space + 1));
      const std::optional<int32_t> left = find(left_text), right = find(right_text);
      const std::optional<int32_t> result = find(left_text + right_text);
      if (!left || !right || !result) {
        if (results_.size() == number) first_skipped = number;
        continue;
      }
      if (!ranks_.emplace(pair_of(*left, *right), static_cast<uint32_t>(results_.size())).second)
        fail_line(lines, number, "occurs twice");
      results_.push_back(*result);
    }
    if (const size_t n_skipped = lines.size() - results_.size(); n_skipped > 0)
      warning_ = format(
          "%zu of %zu tokenizer.ggml.merges are passed over, as they join or make what is no token of text, "
          "such "
          "as %s",
          n_skipped, lines.size(), shown(lines, first_skipped).c_str());
  }

  // The rank of the pair, or kNone.
  uint32_t rank(int32_t left, int32_t right) const {
    const auto found = ranks_.find(pair_of(left, right));
    return found == ranks_.end() ? kNone : found->second;
  }
  // The token that the pair of that rank becomes.
  int32_t result(uint32_t rank) const { return results_[rank]; }
  // How many lines were skipped, with the first as an example; empty if none was.
  const std::string& warning() const { return warning_; }

 private:
  static uint64_t pair_of(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  static std::string shown(const std::vector<std::string>& lines, size_t number) {
    return format("line %zu, \"%s\"", number, visible(lines[number], false, 80).c_str());
  }
  [[noreturn]] static void fail_line(const std::vector<std::string>& lines, size_t number,
                                     const char* problem) {
    fail(ErrorKind::model, "tokenizer.ggml.merges " + shown(lines, number) + ", " + problem);
  }

  std::unordered_map<uint64_t, uint32_t> ranks_;
  std::vector<int32_t> results_;  // by rank
  std::string warning_;
};

}  // namespace dsv32
