// What the CPU's operations share: when work is worth dividing over threads, where a token's rows and keys
// lie, how what the kernels read is laid out, and the routed experts.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "backend/backend.h"
#include "base/worker_pool.h"

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

// scales: of both, or null.
inline float cpu_silu_mul(float gate, float up, const float* scales) {
  if (scales) gate *= scales[0], up *= scales[1];
  return gate / (1.0f + std::exp(-gate)) * up;
}

// RunExperts (backend.h), on matrices and vectors in host memory, for the CPU's backend and for another one's
// experts in host memory; `window` and `next` are not looked at. The bits of a token's y depend on its x, its
// experts and their weights alone, whatever else is in the step and however many threads there are. scratch:
// kept so that it is not allocated at every step. Throws Error{memory}.
void cpu_run_experts(const RunExperts& op, WorkerPool& workers, std::vector<float>& scratch);

}  // namespace dsv32
