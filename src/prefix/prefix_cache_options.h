// The user's options for prefixes, and the meaning of the eviction policies.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "base/file_system.h"

namespace dsv32 {

// Which page in memory is evicted first.
enum class EvictionPolicy {
  lru,   // least recently used first
  lfu,   // fewest hits first, then least recently used
  fifo,  // oldest first, however often it is used
  slru,  // pages with fewer than two hits first; least recently used first within both groups
};

struct UseRecord {
  uint64_t last_use = 0, created = 0;  // logical times: they grow with every use
  uint64_t n_hits = 0;                 // uses since its creation
};

constexpr uint64_t kSlruHits = 2;  // hits that protect a page

// The page with the smallest key goes first.
using EvictionKey = std::pair<uint64_t, uint64_t>;
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

// How long a prompt waits for pages that are being read: not at all; until all are there; or, by default, at
// most as long as computing them would take (PrefixCache::deadline).
enum class PrefetchPolicy { best_effort, wait_complete, timeout };

struct CacheLimits {
  // Of the directory; default: a tenth of the free disk, up to 256 GB.
  std::optional<uint64_t> max_bytes = {};
  std::optional<uint64_t> min_free_bytes = {};  // of the disk; default: 5 % of it, up to 10 GB
};

struct PrefixCacheOptions {
  std::string directory = {};  // empty: prefixes are kept only in memory
  CacheLimits limits = {};
  std::string model_path = {};  // only shown, by cache list
  EvictionPolicy eviction = EvictionPolicy::lru;
  WritePolicy write = WritePolicy::write_through;
  PrefetchPolicy prefetch = PrefetchPolicy::timeout;
  // A model up to this size whose digest is unknown is hashed before anything else; a larger one during the
  // run, and the disk is not used until its digest is known.
  uint64_t most_hashed_first = uint64_t{64} << 20;
  FileSystem* files = &real_file_system();
  std::function<void(const std::string&)> warn = [](const std::string&) {};  // called by any thread
};

}  // namespace dsv32
