// How fast pages of a fingerprint were read and computed in earlier runs: a file of 64 bytes in its folder,
// made anew at each change. In any doubt nothing is known, and is measured again.
//
// Nothing here throws but what failed allocations throw; a failure to write is not reported.
#pragma once

#include "prefix/cache_directory.h"

namespace dsv32 {

// What was measured on the runs so far; 0: not yet.
struct CacheSpeeds {
  double read_bytes_per_second = 0, prefill_tokens_per_second = 0;
  bool operator==(const CacheSpeeds&) const = default;
};

CacheSpeeds read_speeds(CacheDirectory& cache, const Hash256& fingerprint);
void write_speeds(CacheDirectory& cache, const Hash256& fingerprint, const CacheSpeeds& speeds);

}  // namespace dsv32
