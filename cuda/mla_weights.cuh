// What the kernels of decode's attention on Hopper share (mla_decode.cu): what weights are, and how they lie
// between the two of a pair.
#pragma once

#include "cuda/mla_fill.cuh"

namespace dsv32::cuda {

// Weights are 2^(score - power + kWeightPower): the largest of a block lies between 2^14 and 2^15, and those
// down to 2^-28 of it keep all their bits. It cancels where sums are divided by the weights' sum.
inline constexpr float kWeightPower = 15;

// Of a warp's 16 heads and a block: a thread's operands of the products with 16 rows each, and a line of what
// is known of its two heads (float4: their powers, the sums of their weights).
inline constexpr int kOperandLines = kBlockRows / 16, kWeightLines = kOperandLines + 1;

// Those for many tokens have groups of four warps that multiply, 64 heads each, and two that bring in.
inline constexpr int kFillWarps = 8;
constexpr int threads_of(int n_groups) { return n_groups * kGroupThreads + kFillWarps * 32; }

__host__ __device__ constexpr int64_t weights_of(int64_t n_head_warps) {
  return n_head_warps * kWeightLines * 32;
}

}  // namespace dsv32::cuda
