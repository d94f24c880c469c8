// Where each position of a top-k buffer lies, for a block that looks many of them up: the slots in order, and
// a hash table of their positions. In shared memory, or in the workspace where a buffer is too large.
#pragma once

#include <climits>

#include "cuda/kernels.h"

namespace dsv32::cuda {

constexpr int kResolveThreads = 1024;

// What a block takes for the largest buffer and selection, and for n_rows missing rows on their way.
struct Room {
  int n_slots, topk, n_rows, row_bytes;

  static constexpr int kChainBits = 13, kChains = 1 << kChainBits;
  __host__ __device__ static int words(int n) { return (n + 31) / 32; }
  __host__ __device__ int64_t n_row_bytes() const { return (int64_t{n_rows} * row_bytes + 15) / 16 * 16; }
  __host__ __device__ int64_t n_bytes() const {
    const int64_t n_values = int64_t{3} * n_slots + words(n_slots) + words(topk) + int64_t{3} * topk;
    return n_row_bytes() + 4 * (kChains + (n_values + 31) / 32 * 32);
  }
};

struct SlotTable {
  uint8_t* rows;       // [n_rows, row_bytes]
  int32_t* chains;     // [kChains] a place in order of that hash, or -1
  int2* nodes;         // [n_slots] in order: position, next place of the same hash
  int32_t* slots;      // [n_slots] in order
  uint32_t* hits;      // [n_slots] bits, in order
  uint32_t* misses;    // [topk] bits
  int32_t* places;     // [topk] the slot of a hit; ~number of a miss that this block fetches; else kNotOurs
  int32_t* positions;  // [topk] the selection, then the slots of all
  int32_t* victims;    // [topk] slots that the misses take

  static constexpr int kNotOurs = INT_MIN;

  __device__ SlotTable(uint8_t* memory, const Room& room)
      : rows(memory),
        chains(reinterpret_cast<int32_t*>(memory + room.n_row_bytes())),
        nodes(reinterpret_cast<int2*>(chains + Room::kChains)),
        slots(reinterpret_cast<int32_t*>(nodes + room.n_slots)),
        hits(reinterpret_cast<uint32_t*>(slots + room.n_slots)),
        misses(hits + Room::words(room.n_slots)),
        places(reinterpret_cast<int32_t*>(misses + Room::words(room.topk))),
        positions(places + room.topk),
        victims(positions + room.topk) {}

  __device__ static uint32_t hash(int pos) {
    return static_cast<uint32_t>(pos) * 2654435761u >> (32 - Room::kChainBits);
  }
  __device__ void insert(int i, int pos) const {
    nodes[i] = make_int2(pos, atomicExch(chains + hash(pos), i));
  }
  __device__ int find(int pos) const {  // its place in order, or -1
    for (int i = chains[hash(pos)]; i >= 0;) {
      const int2 node = nodes[i];
      if (node.x == pos) return i;
      i = node.y;
    }
    return -1;
  }

  // The buffer with the newest position claimed as claim_newest() does: it is the last in order. Called by
  // all threads; the state is read past the first cache. All threads see the table after the next barrier.
  __device__ __forceinline__ void read(const TopkBuffer& buffer, int newest) const {
    constexpr int kBatch = 5;  // loads of a thread in flight together
    __shared__ int own_slot, own_place;
    const int thread = static_cast<int>(threadIdx.x), n = buffer.n_slots;
    if (thread == 0) own_slot = kEmptySlot, own_place = 0;
    for (int i = thread; i < Room::kChains / 4; i += kResolveThreads)
      reinterpret_cast<int4*>(chains)[i] = make_int4(-1, -1, -1, -1);
    for (int i = thread; i < Room::words(n); i += kResolveThreads) hits[i] = 0;
    __syncthreads();
#pragma unroll kBatch
    for (int slot = thread; slot < n; slot += kResolveThreads)
      if (__ldcg(buffer.slot_pos + slot) == newest) own_slot = slot;
    __syncthreads();
    if (own_slot != kEmptySlot) {
      for (int i = thread; i < n; i += kResolveThreads)
        if (__ldcg(buffer.order + i) == own_slot) own_place = i;
      __syncthreads();
    }
    const int own = own_place;  // of the slot that it has, or takes
    for (int first = thread; first < n; first += kBatch * kResolveThreads) {
      int slot[kBatch], pos[kBatch];
      DSV32_UNROLLED (int k = 0; k < kBatch; ++k) {
        const int i = first + k * kResolveThreads;
        slot[k] = i < n ? __ldcg(buffer.order + i) : 0;
      }
      DSV32_UNROLLED (int k = 0; k < kBatch; ++k) pos[k] = __ldcg(buffer.slot_pos + slot[k]);
      DSV32_UNROLLED (int k = 0; k < kBatch; ++k) {
        const int i = first + k * kResolveThreads, to = i < own ? i : i == own ? n - 1 : i - 1;
        if (i >= n) break;
        slots[to] = slot[k];
        const int known = i == own ? newest : pos[k];
        if (known != kEmptySlot) insert(to, known);
      }
    }
  }
};

}  // namespace dsv32::cuda
