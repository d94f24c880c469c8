// The inner loops of sparse attention and of the indexer, for the instruction set of this CPU.
//
// Each result is one chain of operations; its order depends only on the shapes.
#pragma once

#include <cstdint>

namespace dsv32 {

// out[i] = values[i] * scale, e4m3 (base/numbers.h).
void cpu_decode_e4m3(const uint8_t* values, int64_t n, float scale, float* out);

// in: n bf16 values at any address.
void cpu_decode_bf16(const uint8_t* in, int64_t n, float* out);

constexpr int64_t kKeyTile = 48;  // keys scored side by side: three vectors of any width

// keys [kKeyTile, dim] e4m3; scales [tiles(dim), kKeyTile]  ->  out [dim, kKeyTile], aligned to 64 bytes. dim
// is a multiple of 16.
void cpu_decode_keys(const uint8_t* keys, int64_t dim, const float* scales, float* out);

// scores[s] = sum over h of weights[h] * max(0, q[h] . key s), h ascending, for s < n_keys; scores[n_keys ..
// kKeyTile) are undefined. keys [dim, kKeyTile]; q [n_heads, dim]; weights [n_heads].
void cpu_score_keys(const float* keys, int64_t dim, const float* q, const float* weights, int64_t n_heads,
                    int64_t n_keys, float* scores);

// selected [k] = the ascending indices of the k largest of n scores, k <= n; of equal scores the first. NaN
// ranks below everything.
void cpu_select_largest(const float* scores, int64_t n, int64_t k, int32_t* selected);

constexpr int64_t kAttentionBlock = 64;  // rows processed together

// Attention of some heads of one token.
struct CpuAttention {
  const float* const* rows = nullptr;  // [n_rows] of `width` values each, the first `rank` are c
  int64_t n_rows = 0;
  int64_t width = 0, rank = 0;  // multiples of 16
  const float* q = nullptr;     // [n_heads, width]
  int64_t n_heads = 0;
  float scale = 0;
  float* weights = nullptr;  // [n_heads, kAttentionBlock] for the function's own use
  float* out = nullptr;      // [n_heads, rank]
};

// out[h] = sum over j of softmax(scale * rows . q[h])(j) * c_j, j ascending; each block's exponents are
// relative to the largest score so far.
void cpu_attend(const CpuAttention& op);

}  // namespace dsv32
