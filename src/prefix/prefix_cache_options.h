// The user's options for prefixes, and the meaning of the eviction policies.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "base/file_system.h"

namespace dsv32 {

// Which entry is evicted first, for pages in memory and for segments on disk. A policy turns an entry's use
// record into a key; the entry with the smallest key goes first. Times are logical: they grow with every use,
// even when a clock jumps back.
enum class EvictionPolicy {
  lru,   // least recently used first
  lfu,   // fewest hits first, then least recently used
  fifo,  // oldest first, however often it is used
  slru,  // entries with fewer than two hits first; least recently used first within both groups
};

struct UseRecord {
  uint64_t last_use = 0, created = 0;  // logical times
  uint64_t n_hits = 0;                 // uses since its creation
};

constexpr uint64_t kSlruHits = 2;  // hits that protect an entry

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

// When pages go to disk: as soon as they are computed; or when their memory is needed, and at the end.
enum class WritePolicy { write_through, write_back };

// How long a prompt waits for pages that are being read: not at all; until all are there; or, by default, as
// long as that seems worth it (PrefixCache::deadline).
enum class PrefetchPolicy { best_effort, wait_complete, timeout };

struct PrefixCacheOptions {
  std::string directory;              // empty: prefixes are kept only in memory
  std::optional<uint64_t> max_bytes;  // of the directory; nothing: a share of the free disk
  std::string salt;                   // prefixes with another salt are not found
  std::string model_path;             // only shown, by cache list
  EvictionPolicy eviction = EvictionPolicy::lru;
  WritePolicy write = WritePolicy::write_through;
  PrefetchPolicy prefetch = PrefetchPolicy::timeout;
  // Shorter prefixes are not read from disk. Nothing: 256 until the speed of computing is known; then reading
  // must be quicker than computing.
  std::optional<int64_t> least_tokens;
  // A model up to this size whose digest is unknown is hashed before anything else; a larger one during the
  // run, and the disk is not used until its digest is known.
  uint64_t most_hashed_first = uint64_t{64} << 20;
  FileSystem* files = &real_file_system();
  std::function<void(const std::string&)> warn = [](const std::string&) {};  // called by any thread
};

}  // namespace dsv32
