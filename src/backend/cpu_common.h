// What the CPU's operations share: when work is worth dividing over threads, where a token's rows and keys
// lie, and how what the kernels read is laid out.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/backend.h"

namespace dsv32 {

// Waking threads costs some microseconds, so a piece of work must take some tens of them. n_values: values
// that an operation touches, each with a few instructions.
constexpr bool worth_sharing(int64_t n_values) { return n_values >= 1 << 16; }

// n_products: multiplications and additions in vectors, some sixteen an instruction.
constexpr bool products_worth_sharing(int64_t n_products) { return n_products >= 1 << 20; }

// The number of the row in the pool that `pages` leads to.
inline int64_t row_number(const int32_t* pages, const CacheView& cache, int64_t seq, int64_t pos) {
  return pages[seq * cache.max_pages + pos / kPageTokens] * kPageTokens + pos % kPageTokens;
}

// Where the scales, the key and the key's scales of one token lie.
struct KeyEntry {
  uint8_t* scales;      // [tiles(kv_lora_rank)] ue8m0
  uint8_t* key;         // [index_head_dim] e4m3 or f32
  uint8_t* key_scales;  // [tiles(index_head_dim)] f32
};

inline KeyEntry key_entry(const CacheView& cache, int64_t seq, int64_t pos) {
  const CacheLayout& layout = cache.layout;
  const int64_t row = row_number(cache.key_page_ids, cache, seq, pos), entry = row % kPageTokens;
  uint8_t* page = cache.key_pages + row / kPageTokens * layout.key_page_bytes();
  return {page + entry * layout.scale_bytes(), page + layout.keys_offset() + entry * layout.key_bytes(),
          page + layout.key_scales_offset() + entry * layout.key_scale_bytes()};
}

// What vectors of sixteen take at a time.
constexpr int64_t padded(int64_t n) { return (n + 15) / 16 * 16; }

// Where a line of the caches begins in `scratch`, which has room for n values from there on.
inline float* aligned(std::vector<float>& scratch, int64_t n) {
  if (std::ssize(scratch) < n + 16) scratch.resize(static_cast<size_t>(n) + 16);
  return scratch.data() + (64 - reinterpret_cast<uintptr_t>(scratch.data()) % 64) % 64 / sizeof(float);
}

}  // namespace dsv32
