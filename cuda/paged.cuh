// Where a token's row and its key entry lie in the paged pools (backend/cache_layout.h), on the device.
#pragma once

#include "backend/backend.h"
#include "cuda/common.cuh"

namespace dsv32::cuda {

// The number of the row of `pos` in the pool that `pages` leads to.
__device__ __forceinline__ int64_t paged_row(const int32_t* pages, const CacheView& cache, int64_t seq,
                                             int64_t pos) {
  return static_cast<int64_t>(pages[seq * cache.max_pages + pos / kPageTokens]) * kPageTokens +
         pos % kPageTokens;
}

// Whether rows are copied 16 bytes at a time.
inline bool has_whole_words(const CacheView& cache) {
  return is_aligned(cache.rows, 16) && is_aligned(cache.slots, 16) && cache.layout.row_bytes() % 16 == 0;
}

// Whether the sequence's slots are a top-k buffer's; else each row lies in the slot of its position.
__device__ __forceinline__ bool has_buffer(const CacheView& cache, int64_t seq) {
  return cache.buffers && cache.buffers[seq].n_slots > 0;
}

// The beginning of the key page that holds `pos`.
__device__ __forceinline__ uint8_t* key_page(const CacheView& cache, int64_t page_bytes, int64_t seq,
                                             int64_t pos) {
  return cache.key_pages +
         static_cast<int64_t>(cache.key_page_ids[seq * cache.max_pages + pos / kPageTokens]) * page_bytes;
}

}  // namespace dsv32::cuda
