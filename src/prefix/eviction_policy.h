// Which of many leaves first: one rule for pages in memory and for segments on disk.
//
// A policy turns what is known about an entry's use into a key; the entry with the smallest key goes first.
// Times are values of a logical counter that grows by every use, never of a clock: a clock that jumps changes
// nothing. Entries with equal keys are ordered by their owner. Pure functions, any thread.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

namespace dsv32 {

enum class EvictionPolicy {
  lru,       // least recently used first
  lfu,       // fewest hits first, then least recently used
  fifo,      // oldest first, however often it is used
  slru,      // what has not been hit twice goes before what has; least recently used first in both halves
  priority,  // lowest priority first, then least recently used
};

constexpr std::array kEvictionPolicies = {EvictionPolicy::lru, EvictionPolicy::lfu, EvictionPolicy::fifo,
                                          EvictionPolicy::slru, EvictionPolicy::priority};

struct UseRecord {
  uint64_t last_use = 0, created = 0;  // logical times
  uint64_t n_hits = 0;                 // uses after it was made
  int32_t priority = 0;                // a higher one stays longer
};

constexpr uint64_t kSlruHits = 2;  // as often hit, an entry is protected

using EvictionKey = std::pair<uint64_t, uint64_t>;  // compared in this order

constexpr EvictionKey eviction_key(EvictionPolicy policy, const UseRecord& record) {
  // The lowest priority becomes 0.
  constexpr int64_t kLowest = std::numeric_limits<int32_t>::min();
  switch (policy) {
    case EvictionPolicy::lru: return {record.last_use, 0};
    case EvictionPolicy::lfu: return {record.n_hits, record.last_use};
    case EvictionPolicy::fifo: return {record.created, 0};
    case EvictionPolicy::slru: return {record.n_hits >= kSlruHits ? 1 : 0, record.last_use};
    case EvictionPolicy::priority: return {static_cast<uint64_t>(record.priority - kLowest), record.last_use};
  }
  return {0, 0};
}

// The name as flags spell it.
constexpr std::string_view name_of(EvictionPolicy policy) {
  switch (policy) {
    case EvictionPolicy::lru: return "lru";
    case EvictionPolicy::lfu: return "lfu";
    case EvictionPolicy::fifo: return "fifo";
    case EvictionPolicy::slru: return "slru";
    case EvictionPolicy::priority: return "priority";
  }
  return "";
}

// Nothing for a name that is none; the caller says which there are.
constexpr std::optional<EvictionPolicy> parse_eviction_policy(std::string_view name) {
  for (const EvictionPolicy policy : kEvictionPolicies)
    if (name_of(policy) == name) return policy;
  return std::nullopt;
}

}  // namespace dsv32
