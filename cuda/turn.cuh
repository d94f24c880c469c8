// What the queries of a token go through, by blocks of kTurnThreads: heads of q are turned, index heads are
// turned, multiplied by the Hadamard matrix and rounded (TurnQueries).
#pragma once

#include "cuda/common.cuh"

namespace dsv32::cuda {

// A block has so many heads of q, or so many index heads, a warp each.
constexpr int kTurnThreads = 256, kTurnHeads = 32, kIndexHeads = kTurnThreads / 32;

// The blocks of a token: those of q, then those of index heads.
struct TurnBlocks {
  int n_heads, n_index_heads;

  explicit TurnBlocks(const TurnQueries& op)
      : n_heads(static_cast<int>(ceil_div(op.n_heads, kTurnHeads))),
        n_index_heads(op.index_q ? static_cast<int>(ceil_div(op.n_index_heads, kIndexHeads)) : 0) {}
  TurnBlocks() : n_heads(0), n_index_heads(0) {}
  __host__ __device__ int n() const { return n_heads + n_index_heads; }
};

// Shared memory of a block of index heads.
inline size_t turn_bytes(const TurnQueries& op) {
  return op.index_q ? static_cast<size_t>(kIndexHeads * op.index_dim) * sizeof(float) : 0;
}

// (a, b) -> (a cos - b sin, a sin + b cos) at angle pos * frequency, rounded to f32 as in model.py,
// full-range sincosf: angles reach a million radians. With a whole number of rounds over the pairs a thread's
// first sine and cosine are those of all its heads.
__device__ inline void turn_heads(const TurnQueries& op, int64_t t, int64_t first_head) {
  const int64_t n_pairs = op.rope_dim / 2, n_heads = min(op.n_heads - first_head, int64_t{kTurnHeads});
  const float pos = static_cast<float>(__ldcg(op.step.pos + t));
  int64_t known_pair = threadIdx.x % n_pairs;
  float sine, cosine;
  sincosf(__fmul_rn(pos, op.frequencies[known_pair]), &sine, &cosine);
  wait_for_inputs();
  float* q = op.q + (t * op.n_heads + first_head) * op.head_dim + (op.head_dim - op.rope_dim);
  for (int64_t i = threadIdx.x; i < n_pairs * n_heads; i += blockDim.x) {
    const int64_t pair = i % n_pairs;
    float* x = q + i / n_pairs * op.head_dim + 2 * pair;
    if (pair != known_pair) sincosf(__fmul_rn(pos, op.frequencies[pair]), &sine, &cosine), known_pair = pair;
    const float a = x[0], b = x[1];
    x[0] = a * cosine - b * sine;
    x[1] = a * sine + b * cosine;
  }
}

// x [dim] of a warp, in shared memory, times the orthonormal Hadamard matrix.
__device__ inline void transform(float* x, int64_t dim) {
  const int lane = threadIdx.x % 32;
  hadamard_stages(x, dim, lane, 32, [] { __syncwarp(); });
  const float factor = 1.0f / sqrtf(static_cast<float>(dim));
  for (int64_t i = lane; i < dim; i += 32) x[i] *= factor;
  __syncwarp();
}

__device__ inline void turn_index_head(const TurnQueries& op, int64_t t, int64_t head, float* x) {
  const int64_t dim = op.index_dim, n_pairs = op.rope_dim / 2, row = t * op.n_index_heads + head,
                n_tiles = CacheLayout::tiles(dim);
  const int lane = threadIdx.x % 32;
  const float pos = static_cast<float>(op.step.pos[t]);
  float* q = op.index_q + row * dim;
  for (int64_t i = lane; i < dim; i += 32) x[i] = q[i];
  __syncwarp();
  for (int64_t i = lane; i < n_pairs; i += 32) {
    float sine, cosine;
    sincosf(__fmul_rn(pos, op.frequencies[i]), &sine, &cosine);
    const float a = x[i], b = x[i + n_pairs];
    q[i] = x[i] = a * cosine - b * sine;
    q[i + n_pairs] = x[i + n_pairs] = a * sine + b * cosine;
  }
  transform(x, dim);
  if (op.turned)
    for (int64_t i = lane; i < dim; i += 32) op.turned[row * dim + i] = x[i];
  if (!op.turned_fp8) return;
  for (int64_t tile = 0; tile < n_tiles; ++tile) {
    const int64_t begin = tile * kTileValues, end = min(begin + kTileValues, dim);
    float amax = 0;
    for (int64_t i = begin + lane; i < end; i += 32) amax = fmaxf(amax, fabsf(x[i]));
    const float scale = from_ue8m0(tile_scale(warp_max(amax)));
    for (int64_t i = begin + lane; i < end; i += 32) op.turned_fp8[row * dim + i] = to_e4m3(x[i] / scale);
    if (lane == 0) op.turned_scales[row * n_tiles + tile] = scale;
  }
}

// A block of token t; shared: turn_bytes(). Waits for the inputs.
__device__ inline void turn_block(const TurnQueries& op, const TurnBlocks& blocks, int64_t t, int block,
                                  float* shared) {
  if (block < blocks.n_heads) return turn_heads(op, t, int64_t{block} * kTurnHeads);
  wait_for_inputs();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t head = int64_t{block - blocks.n_heads} * kIndexHeads + warp;
  if (head < op.n_index_heads) turn_index_head(op, t, head, shared + warp * op.index_dim);
}

}  // namespace dsv32::cuda
