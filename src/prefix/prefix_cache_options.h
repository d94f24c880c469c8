// What a user may choose about remembered prefixes.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/file_system.h"
#include "prefix/eviction_policy.h"

namespace dsv32 {

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
