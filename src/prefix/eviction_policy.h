// Which of many leaves first: one rule for pages in memory and for segments on disk.
//
// A policy turns what is known about an entry's use into a key; the entry with the smallest key goes first.
// Times are values of a logical counter that grows by every use, never of a clock: a clock that jumps changes
// nothing. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <utility>

namespace dsv32 {

enum class EvictionPolicy {
  lru,   // least recently used first
  lfu,   // fewest hits first, then least recently used
  fifo,  // oldest first, however often it is used
  slru,  // what has not been hit twice goes before what has; least recently used first in both halves
};

struct UseRecord {
  uint64_t last_use = 0, created = 0;  // logical times
  uint64_t n_hits = 0;                 // uses after it was made
};

constexpr uint64_t kSlruHits = 2;  // as often hit, an entry is protected

using EvictionKey = std::pair<uint64_t, uint64_t>;  // compared in this order

constexpr EvictionKey eviction_key(EvictionPolicy policy, const UseRecord& record) {
  switch (policy) {
    case EvictionPolicy::lru: return {record.last_use, 0};
    case EvictionPolicy::lfu: return {record.n_hits, record.last_use};
    case EvictionPolicy::fifo: return {record.created, 0};
    case EvictionPolicy::slru: return {record.n_hits >= kSlruHits ? 1 : 0, record.last_use};
  }
  return {0, 0};
}

}  // namespace dsv32
