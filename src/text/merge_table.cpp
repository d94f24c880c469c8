// Building and searching the table of merges.
//
// Every line of the file is resolved to ids once, here: after construction a merge cannot fail. Collisions go
// to the next slot; multiplicative hashing spreads the pairs.
#include "text/merge_table.h"

#include <bit>

#include "base/error.h"
#include "base/text.h"

namespace dsv32 {
namespace {

uint64_t pair_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

std::string named(size_t number, const std::string& line) {
  return format("line %zu, \"%s\"", number, visible(line, false, 80).c_str());
}

[[noreturn]] void fail_line(size_t number, const std::string& line, const char* problem) {
  fail(ErrorKind::model, format("tokenizer.ggml.merges %s, %s", named(number, line).c_str(), problem));
}

}  // namespace

MergeTable::MergeTable(const std::vector<std::string>& lines, const FindToken& find) {
  const size_t n_slots = std::bit_ceil(2 * lines.size() + 2);
  slots_.resize(n_slots);
  shift_ = 64 - std::countr_zero(n_slots);
  results_.reserve(lines.size());
  size_t first_unsound = 0;
  for (size_t number = 0; number < lines.size(); ++number) {
    const std::string& line = lines[number];
    const size_t space = line.find(' ');
    if (space == std::string::npos || space == 0 || space + 1 == line.size() ||
        line.find(' ', space + 1) != std::string::npos) {
      fail_line(number, line, "is not of the form \"left right\"");
    }
    const std::string left_text = line.substr(0, space), right_text = line.substr(space + 1);
    const std::optional<int32_t> left = find(left_text), right = find(right_text);
    const std::optional<int32_t> result = find(left_text + right_text);
    if (!left || !right || !result) {
      if (results_.size() == number) first_unsound = number;  // all before it were sound
      continue;
    }
    Slot& slot = slots_[slot_of(pair_of(*left, *right))];
    if (slot.rank != kNone) fail_line(number, line, "occurs twice");
    slot = {pair_of(*left, *right), static_cast<uint32_t>(results_.size())};
    results_.push_back(*result);
  }
  if (const size_t n_unsound = lines.size() - results_.size(); n_unsound > 0)
    warning_ = format(
        "%zu of %zu tokenizer.ggml.merges are passed over, as they join or make what is no token "
        "of text, such as %s",
        n_unsound, lines.size(), named(first_unsound, lines[first_unsound]).c_str());
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
