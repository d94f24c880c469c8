// What a user may want to know of the disk cache, and do to it, without a model: list, verify, prune.
//
// Each works on what is there at its moment; other processes may go on meanwhile. One thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "prefix/cache_directory.h"

namespace dsv32 {

struct CachedModel {
  std::string fingerprint;  // hexadecimal, of all 32 bytes
  std::string path;         // of the file that was last used with it; empty when that is not known
  int64_t n_segments = 0, n_pages = 0;
  uint64_t n_bytes = 0, n_hits = 0;
  uint64_t last_use = 0;  // microseconds since 1970
};

// One element for each fingerprint, the largest first.
std::vector<CachedModel> list_models(CacheDirectory& cache);

// The segments of the fingerprint whose hexadecimal form begins with `prefix`, in the order of their first
// pages, with their tokens.
std::vector<CachedSegment> list_segments(CacheDirectory& cache, const std::string& prefix);

struct Verification {
  struct Damaged {
    std::string name, reason;
    bool is_removed = false;  // if that was asked for, as it is where the directory can be written
  };
  int64_t n_segments = 0, n_pages = 0;  // that were looked at; pages: that are whole
  int64_t n_unreadable = 0;             // could not be looked at now
  std::vector<Damaged> damaged;
};
// Reads every page of every segment and verifies its checksum; with `removes` what is damaged goes. Segments
// of a newer version are passed over.
Verification verify(CacheDirectory& cache, bool removes);

struct Pruned {
  uint64_t n_bytes = 0;  // gained
  bool is_done = false;  // so few bytes are left, or no segment
};
// Evicts until the directory holds at most `max_bytes`; 0: all segments, and what is known of models' bytes.
Pruned prune(CacheDirectory& cache, uint64_t max_bytes);

}  // namespace dsv32
