// Which two neighbouring tokens may become one, and which pair goes first.
//
// A hash table with open addressing from a pair of ids to its rank (the order of the lines in the file, lower
// goes first); the lookup is the innermost step of byte-level BPE, several per byte of text. Immutable after
// construction.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dsv32 {

class MergeTable {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;
  using FindToken = std::function<std::optional<int32_t>(std::string_view)>;

  // `lines` are "left right"; `find` gives the id of a token that text may become. A line that joins or makes
  // none is passed over. Throws Error{model} for a line of another form and a pair that occurs twice.
  MergeTable(const std::vector<std::string>& lines, const FindToken& find);

  // The rank of the pair, or kNone.
  uint32_t rank(int32_t left, int32_t right) const;
  // What the pair of that rank becomes.
  int32_t result(uint32_t rank) const { return results_[rank]; }
  // How many lines were passed over, with the first as an example; empty if none was.
  const std::string& warning() const { return warning_; }

 private:
  struct Slot {
    uint64_t pair = 0;
    uint32_t rank = kNone;  // kNone: the slot is free
  };
  size_t slot_of(uint64_t pair) const;

  std::vector<Slot> slots_;  // [a power of two, at least twice the number of merges]
  int shift_ = 0;            // 64 - log2(number of slots)
  std::vector<int32_t> results_;
  std::string warning_;
};

}  // namespace dsv32
