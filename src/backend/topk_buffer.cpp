#include "backend/topk_buffer.h"

#include <algorithm>
#include <cassert>
#include <numeric>
#include <vector>

namespace dsv32 {

void reset(const TopkBuffer& buffer) {
  std::fill_n(buffer.slot_pos, buffer.n_slots, kEmptySlot);
  std::iota(buffer.order, buffer.order + buffer.n_slots, 0);
}

int32_t claim_newest(const TopkBuffer& buffer, int32_t pos) {
  int32_t* const end = buffer.order + buffer.n_slots;
  int32_t* place =
      std::find_if(buffer.order, end, [&](int32_t slot) { return buffer.slot_pos[slot] == pos; });
  if (place == end) place = buffer.order;
  const int32_t slot = *place;
  std::rotate(place, place + 1, end);
  buffer.slot_pos[slot] = pos;
  return slot;
}

int32_t resolve(const TopkBuffer& buffer, const int32_t* selected, int32_t n_selected, int32_t* slots,
                int32_t* misses) {
  assert(n_selected < buffer.n_slots);
  std::vector<int32_t> stale, hits;
  stale.reserve(static_cast<size_t>(buffer.n_slots));
  hits.reserve(static_cast<size_t>(n_selected));
  std::fill_n(slots, n_selected, kEmptySlot);
  for (int32_t i = 0; i < buffer.n_slots; ++i) {
    const int32_t slot = buffer.order[i];
    const int32_t* found = std::lower_bound(selected, selected + n_selected, buffer.slot_pos[slot]);
    const bool is_hit = found != selected + n_selected && *found == buffer.slot_pos[slot];
    (is_hit ? hits : stale).push_back(slot);
    if (is_hit) slots[found - selected] = slot;
  }
  int32_t n_misses = 0;
  for (int32_t i = 0; i < n_selected; ++i) {
    if (slots[i] != kEmptySlot) continue;
    slots[i] = stale[static_cast<size_t>(n_misses)];  // the victim
    buffer.slot_pos[slots[i]] = selected[i];
    misses[n_misses++] = i;
  }
  const auto loaded_end = stale.begin() + n_misses;
  int32_t* next = std::copy(loaded_end, stale.end(), buffer.order);
  next = std::copy(stale.begin(), loaded_end, next);
  std::copy(hits.begin(), hits.end(), next);
  return n_misses;
}

}  // namespace dsv32
