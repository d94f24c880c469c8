// What a user may choose about remembered prefixes, and what the policies of eviction mean.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "base/file_system.h"

namespace dsv32 {

// Which of many leaves first: one rule for pages in memory and for segments on disk. A policy turns what is
// known about an entry's use into a key; the entry with the smallest key goes first. Times are values of a
// logical counter that grows by every use, never of a clock: a clock that jumps changes nothing.
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

// When pages go to disk: as soon as they are computed; or when memory wants their place, and at the end.
enum class WritePolicy { write_through, write_back };

// How long a prompt waits for pages that are on their way from the disk: not at all; until they are there;
// or, by default, as long as seems worth it (PrefixCache::deadline).
enum class PrefetchPolicy { best_effort, wait_complete, timeout };

struct PrefixCacheOptions {
  std::string directory;              // empty: prefixes are remembered in memory alone
  std::optional<uint64_t> max_bytes;  // of the directory; nothing: a share of the free disk
  std::string salt;                   // prefixes under another salt are not seen
  std::string model_path;             // shown by cache list; decides nothing
  EvictionPolicy eviction = EvictionPolicy::lru;
  WritePolicy write = WritePolicy::write_through;
  PrefetchPolicy prefetch = PrefetchPolicy::timeout;
  // Fewer are not read from disk. Nothing: 256 while the speeds of reading and computing are unknown, then
  // what is read is what that is quicker for.
  std::optional<int64_t> least_tokens;
  // A model of at most so many bytes, whose digest is not known yet, is hashed before anything else happens;
  // a larger one meanwhile, and nothing is found or stored until that is done.
  uint64_t most_hashed_first = uint64_t{64} << 20;
  FileSystem* files = &real_file_system();
  std::function<void(const std::string&)> warn = [](const std::string&) {};  // called by any thread
};

}  // namespace dsv32
