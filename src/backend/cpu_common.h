// Shared by the CPU's operations: when work is worth dividing over threads, where a token's rows and keys
// lie, padding and alignment for the kernels, and the routed experts.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "backend/attention_ops.h"
#include "backend/expert_ops.h"
#include "base/worker_pool.h"

namespace dsv32 {

// Waking threads takes some microseconds, so a piece of work must take some tens of microseconds. n_values:
// values that an operation touches, with a few instructions each.
constexpr bool worth_sharing(int64_t n_values) { return n_values >= 1 << 16; }

// n_products: multiply-adds in vectors, about sixteen per instruction.
constexpr bool products_worth_sharing(int64_t n_products) { return n_products >= 1 << 20; }

// The row's number in the pool, by the page table `pages`.
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
  const int64_t row = row_number(cache.pages, cache, seq, pos), entry = row % kPageTokens;
  uint8_t* page = cache.key_pages + row / kPageTokens * layout.key_page_bytes();
  return {page + entry * layout.scale_bytes(), page + layout.keys_offset() + entry * layout.key_bytes(),
          page + layout.key_scales_offset() + entry * layout.key_scale_bytes()};
}

// n rounded up to whole vectors of sixteen.
constexpr int64_t padded(int64_t n) { return (n + 15) / 16 * 16; }

// cpu_attention.cpp
// A stored row as f32: out [padded kv_lora_rank | padded qk_rope_head_dim], padded with zeros.
void decode_row(const CacheLayout& layout, const uint8_t* row, const uint8_t* scales, float* out);

// The first 64-byte boundary in `scratch`, which is resized to hold n values from there on.
inline float* aligned(std::vector<float>& scratch, int64_t n) {
  if (std::ssize(scratch) < n + 16) scratch.resize(static_cast<size_t>(n) + 16);
  return scratch.data() + (64 - reinterpret_cast<uintptr_t>(scratch.data()) % 64) % 64 / sizeof(float);
}

// scales: the factors of gate and up, or null.
inline float cpu_silu_mul(float gate, float up, const float* scales) {
  if (scales) gate *= scales[0], up *= scales[1];
  return gate / (1.0f + std::exp(-gate)) * up;
}

// RunExperts (expert_ops.h) on matrices and vectors in host memory: for the CPU backend, and for other
// backends' experts in host memory. Ignores `window` and `next`. The bits of a token's y depend only on its
// x, its experts and their weights, not on other tokens or the number of threads. scratch: kept by the caller
// to save allocations. Throws Error{memory}.
void cpu_run_experts(const RunExperts& op, WorkerPool& workers, std::vector<float>& scratch);

}  // namespace dsv32
