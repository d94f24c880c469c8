// What the disk cache of all models holds, and which pages leave it when there is no room.
//
// Files keep all state: a page exists while its file does, and its mtime is its last use. There is no lock:
// names come and go atomically. Processes that make room at the same time may remove the same pages, so
// together they may exceed the limit by what they are writing.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "prefix/cache_files.h"
#include "prefix/page_file.h"

namespace dsv32 {

struct CacheLimits {
  // For everything in the directory; default: a tenth of the free disk, at most 256 GB.
  std::optional<uint64_t> max_bytes = {};
  std::optional<uint64_t> min_free_bytes = {};  // of the disk; default: 5 % of it, at most 10 GB
};

struct StoredPage {
  std::string folder;
  PageName name;
  uint64_t n_bytes = 0;  // on the disk
  int64_t used_ns = 0;   // its last use, since 1970
};

struct CacheContent {
  uint64_t n_bytes = 0;  // on the disk, of all files
  std::vector<StoredPage> pages;
};
// `sweeps`: removes temporary files that nobody is writing.
CacheContent content_of(const CacheFiles& files, bool sweeps = false);

bool remove_page(const CacheFiles& files, const StoredPage& page);  // true: it is gone

// Evicts pages until `n_bytes` more fit under the limits: first those that no prompt can reach, then those
// that no page follows, the least recently used first. Returns how many bytes then fit, which may be too few.
// `kept` stays. removed() is told each page that went.
uint64_t make_room(const CacheFiles& files, const CacheLimits& limits, uint64_t n_bytes,
                   const PageHash& kept = {}, const std::function<void(const StoredPage&)>& removed = {});

}  // namespace dsv32
