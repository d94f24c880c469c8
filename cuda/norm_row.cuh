// The norm of a row by a block, the same bits in every kernel that makes it.
#pragma once

#include "cuda/common.cuh"

namespace dsv32::cuda {

constexpr int kNormThreads = 512;

// Threads of a row's block: they decide the order of its sum.
constexpr int norm_threads(int64_t width) { return width > 8 * 128 ? kNormThreads : 128; }

// The weights of a thread's first values, which may be loaded before the row is there.
struct NormWeights {
  static constexpr int kHeld = 16;
  float held[kHeld];

  DSV32_DEVICE explicit NormWeights(const RmsNorm& op) {
    DSV32_UNROLL for (int k = 0; k < kHeld; ++k) {
      const int i = static_cast<int>(threadIdx.x + k * blockDim.x);
      held[k] = i < op.width ? op.weight[i] : 0.0f;
    }
  }
};

// out = x * rsqrt(mean(x^2) + eps) * weight, f32. A thread has every blockDim-th value, keeps the first ones
// in registers and reads the others twice. x and out may be the same row: a thread writes only the values
// that it has read.
DSV32_DEVICE void norm_row(const RmsNorm& op, const NormWeights& weights, const float* x, float* out) {
  constexpr int kHeld = NormWeights::kHeld;
  const int first = threadIdx.x, step = blockDim.x, width = static_cast<int>(op.width);
  float values[kHeld];
  DSV32_UNROLL for (int k = 0; k < kHeld; ++k) values[k] =
      first + k * step < width ? x[first + k * step] : 0.0f;
  float sum = 0;
  DSV32_UNROLL for (int k = 0; k < kHeld; ++k) sum += values[k] * values[k];
  for (int i = first + kHeld * step; i < width; i += step) sum += x[i] * x[i];
  const float factor = rsqrtf(block_sum(sum) / static_cast<float>(width) + op.eps);
  DSV32_UNROLL for (int k = 0; k < kHeld; ++k) if (first + k * step < width) out[first + k * step] =
      values[k] * factor * weights.held[k];
  for (int i = first + kHeld * step; i < width; i += step) out[i] = x[i] * factor * op.weight[i];
}

}  // namespace dsv32::cuda
