// Building and searching the table of merges.
//
// Every line of the file is resolved to ids once, here, and whatever does not resolve is refused with its
// number: after construction a merge cannot fail. Collisions go to the next slot; multiplicative hashing
// spreads the pairs.
#include "text/merge_table.h"

#include <bit>

#include "base/error.h"
#include "base/text.h"

namespace dsv32 {
namespace {

uint64_t pair_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

[[noreturn]] void fail_line(size_t rank, const std::string& line, const char* problem) {
  fail(ErrorKind::model,
       format("tokenizer.ggml.merges line %zu, \"%s\", %s", rank, visible(line, false, 80).c_str(), problem));
}

}  // namespace

MergeTable::MergeTable(const std::vector<std::string>& lines, const FindToken& find) {
  const size_t n_slots = std::bit_ceil(2 * lines.size() + 2);
  slots_.resize(n_slots);
  shift_ = 64 - std::countr_zero(n_slots);
  results_.reserve(lines.size());
  for (size_t rank = 0; rank < lines.size(); ++rank) {
    const std::string& line = lines[rank];
    const size_t space = line.find(' ');
    if (space == std::string::npos || space == 0 || space + 1 == line.size() ||
        line.find(' ', space + 1) != std::string::npos) {
      fail_line(rank, line, "is not of the form \"left right\"");
    }
    const std::string left_text = line.substr(0, space), right_text = line.substr(space + 1);
    const std::optional<int32_t> left = find(left_text), right = find(right_text);
    if (!left || !right) fail_line(rank, line, "names a token that the vocabulary does not have");
    const std::optional<int32_t> result = find(left_text + right_text);
    if (!result) fail_line(rank, line, "makes a token that the vocabulary does not have");
    Slot& slot = slots_[slot_of(pair_of(*left, *right))];
    if (slot.rank != kNone) fail_line(rank, line, "occurs twice");
    slot = {pair_of(*left, *right), static_cast<uint32_t>(rank)};
    results_.push_back(*result);
  }
}

uint32_t MergeTable::rank(int32_t left, int32_t right) const {
  return slots_[slot_of(pair_of(left, right))].rank;
}

// The slot that holds `pair`, or the free one where it would go. Half of the slots are free, so the search
// ends.
size_t MergeTable::slot_of(uint64_t pair) const {
  size_t slot = (pair * 0x9e3779b97f4a7c15u) >> shift_;
  while (slots_[slot].rank != kNone && slots_[slot].pair != pair) slot = (slot + 1) & (slots_.size() - 1);
  return slot;
}

}  // namespace dsv32
