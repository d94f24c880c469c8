// The top-k buffer's policy: which latent rows of a sequence and layer lie in device slots, as an exact LRU.
//
// Plain C++ over plain arrays, without a backend. The CPU backend calls it on arrays in host memory; a CUDA
// kernel follows the same rules on the same layout.
//
// A buffer of capacity B has at least B + 1 slots: the newest token's row always has its own slot, so that a
// selection of B other rows still fits. B is at least the number of rows that a step selects.
//
// Invariants, between calls:
//   1. order is a permutation of the slots, from the next victim to the last;
//   2. slot_pos[s] is the position whose row lies in slot s, or kEmptySlot; no position lies in two slots;
//   3. after resolve(), order = stale rows | rows just loaded | hits, so that a hit outlives a newcomer; in
//      each part the former order is kept (loaded rows: ascending position); every selected row has a slot.
#pragma once

#include <cstdint>

namespace dsv32 {

constexpr int32_t kEmptySlot = -1;

// The state of one buffer; non-owning.
struct TopkBuffer {
  int32_t n_slots = 0;          // at least B + 1; 0: no buffer
  int32_t* slot_pos = nullptr;  // [n_slots] position whose row lies there
  int32_t* order = nullptr;     // [n_slots] slots, next victim first
};

// Empties all slots; they become victims in ascending order.
void reset(const TopkBuffer& buffer);

// Gives the newest position's row the next victim's slot and makes that slot the last victim. Returns the
// slot. A position that has a slot already (a step is repeated) keeps it.
int32_t claim_newest(const TopkBuffer& buffer, int32_t pos);

// Finds a slot for every selected position, or takes a victim's.
//   selected  [n_selected] ascending positions, n_selected < n_slots
//   slots     [n_selected] out: where each selected row lies, or will lie once the misses are copied
//   misses    [n_selected] out: the indices into `selected` of the rows that must be copied in, ascending
// Returns the number of misses.
int32_t resolve(const TopkBuffer& buffer, const int32_t* selected, int32_t n_selected, int32_t* slots,
                int32_t* misses);

}  // namespace dsv32
