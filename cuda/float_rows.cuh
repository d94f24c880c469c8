// Rows of F32 weights times vectors, in f32 without any rounding: routers, the indexer's weights_proj.
//
// Such matrices are small, so that launches and waiting are what they take: their blocks are the last ones of
// a quantised product of the same x (beside.cuh). A thread has some columns of two rows in registers before
// it waits for x. Of more tokens float_tiles.cuh has the same sums. The order of a row's sum depends on its
// number of columns alone.
#pragma once

#include "cuda/decode_problem.cuh"

namespace dsv32::cuda::decode {

constexpr int kFloatRows = 2;               // of a block: two of a matrix, or one of each of two
constexpr int kFloatTokens = kGroupTokens;  // that a block has room for: as many as a product beside it
constexpr int kFloatHeld = 7;               // float4 of a row that a thread holds: 7168 columns a block
constexpr int kFloatColumns = 4 * kThreads * kFloatHeld;
constexpr size_t kFloatSumBytes = kFloatTokens * kWarps * kFloatRows * sizeof(float);

__device__ __forceinline__ float4 load_f32x4(const float* row, int col, int n_cols, bool is_aligned) {
  if (is_aligned && col < n_cols) return *reinterpret_cast<const float4*>(row + col);
  float v[4];
  DSV32_UNROLLED (int k = 0; k < 4; ++k) v[k] = col + k < n_cols ? row[col + k] : 0.0f;
  return {v[0], v[1], v[2], v[3]};
}

// The rows of job `job` of a problem, of at most kFloatTokens tokens. A block; a thread four columns of each
// 1024. A warp's sums of each token are in `partial`, shared memory [kFloatTokens, kWarps, kFloatRows], added
// in the warps' order. With mats the block has waited for its inputs, else it waits here. Bound by latency, a
// token after the other.
template <int kMats>
__device__ __forceinline__ void float_rows(const DecodeRows& rows, int job, int problem, bool is_aligned,
                                           float* partial) {
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const DecodeRows::Matrix& matrix = rows.matrices[0];
  const int first_row = job * (kFloatRows / kMats);
  const int64_t mat = rows.mats ? __ldcg(rows.mats + problem) : problem;
  const float* w[kFloatRows];
  DSV32_UNROLLED (int r = 0; r < kFloatRows; ++r) {
    const int row = min(first_row + (kMats == 1 ? r : 0), matrix.n_rows - 1);
    w[r] = reinterpret_cast<const float*>(matrix.weights + (kMats == 2 && r ? rows.gate_offset : 0) +
                                          mat * rows.mat_bytes + row * rows.row_bytes);
  }
  float4 held[kFloatRows][kFloatHeld];
  const auto hold = [&](int first) {
    DSV32_UNROLLED (int r = 0; r < kFloatRows; ++r)
      DSV32_UNROLLED (int k = 0; k < kFloatHeld; ++k)
        held[r][k] = load_f32x4(w[r], first + 4 * (k * kThreads + thread), rows.n_cols, is_aligned);
  };
  hold(0);
  if (!rows.mats) wait_for_inputs();
  const float* x = rows.x + problem / rows.x_sharing * rows.x_problem_stride;
#pragma unroll 1
  for (int t = 0; t < rows.n_tokens; ++t) {
    const float* from = x + t * rows.x_token_stride;
    float sums[kFloatRows] = {};
#pragma unroll 1
    for (int first = 0; first < rows.n_cols; first += kFloatColumns) {
      if (rows.n_cols > kFloatColumns && first + t > 0) hold(first);
      DSV32_UNROLLED (int k = 0; k < kFloatHeld; ++k) {
        const float4 v = load_f32x4(from, first + 4 * (k * kThreads + thread), rows.n_cols, is_aligned);
        DSV32_UNROLLED (int r = 0; r < kFloatRows; ++r) {
          sums[r] = fmaf(held[r][k].x, v.x, sums[r]), sums[r] = fmaf(held[r][k].y, v.y, sums[r]);
          sums[r] = fmaf(held[r][k].z, v.z, sums[r]), sums[r] = fmaf(held[r][k].w, v.w, sums[r]);
        }
      }
    }
    DSV32_UNROLLED (int r = 0; r < kFloatRows; ++r) {
      sums[r] = warp_sum(sums[r]);
      if (lane == 0) partial[(t * kWarps + warp) * kFloatRows + r] = sums[r];
    }
  }
  __syncthreads();
  for (int k = thread; k < rows.n_tokens * (kFloatRows / kMats); k += kThreads) {
    const int t = k / (kFloatRows / kMats), r = k % (kFloatRows / kMats);
    if (first_row + r >= matrix.n_rows) continue;
    float totals[kMats] = {};
    DSV32_UNROLLED (int m = 0; m < kMats; ++m)
      for (int i = 0; i < kWarps; ++i) totals[m] += partial[(t * kWarps + i) * kFloatRows + r + m];
    finish_row<kMats>(rows, matrix, totals, problem, t, first_row + r);
  }
}

}  // namespace dsv32::cuda::decode
