// Where the CPU finds what is remembered of a token, and how it lays out what its kernels read.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/backend.h"

namespace dsv32 {

// A place in a paged pool: the page and the entry within it.
struct PagedPlace {
  int64_t page, entry;
};

inline PagedPlace find_place(const int32_t* pages, int64_t max_pages, int64_t seq, int64_t pos) {
  return {pages[seq * max_pages + pos / kPageTokens], pos % kPageTokens};
}

// The number of the row in the pool that `pages` leads to.
inline int64_t row_number(const int32_t* pages, const CacheView& cache, int64_t seq, int64_t pos) {
  const PagedPlace place = find_place(pages, cache.max_pages, seq, pos);
  return place.page * kPageTokens + place.entry;
}

// Where the scales, the key and the key's scales of one token lie.
struct KeyEntry {
  uint8_t* scales;      // [tiles(kv_lora_rank)] ue8m0
  uint8_t* key;         // [index_head_dim] e4m3 or f32
  uint8_t* key_scales;  // [tiles(index_head_dim)] f32
};

inline KeyEntry key_entry(const CacheView& cache, int64_t seq, int64_t pos) {
  const PagedPlace place = find_place(cache.key_page_ids, cache.max_pages, seq, pos);
  uint8_t* page = cache.key_pages + place.page * cache.layout.key_page_bytes();
  return {page + place.entry * cache.layout.scale_bytes(),
          page + cache.layout.keys_offset() + place.entry * cache.layout.key_bytes(),
          page + cache.layout.key_scales_offset() + place.entry * cache.layout.key_scale_bytes()};
}

// What vectors of sixteen take at a time.
constexpr int64_t padded(int64_t n) { return (n + 15) / 16 * 16; }

// Where a line of the caches begins in `scratch`, which has room for n values from there on.
inline float* aligned(std::vector<float>& scratch, int64_t n) {
  if (std::ssize(scratch) < n + 16) scratch.resize(static_cast<size_t>(n) + 16);
  return scratch.data() + (64 - reinterpret_cast<uintptr_t>(scratch.data()) % 64) % 64 / sizeof(float);
}

}  // namespace dsv32
