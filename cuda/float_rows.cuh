// Multiplies rows of F32 weights by vectors in f32, without rounding operands: routers, the indexer's
// weights_proj.
//
// Such matrices are small; launches and waiting take most of the time. So their blocks belong to the launch
// of a quantised product of the same x (beside.cuh), and a thread loads some columns of two rows before it
// waits for x. The order of a row's sum depends on its number of columns alone.
#pragma once

#include "cuda/decode_problem.cuh"

namespace dsv32::cuda::decode {

constexpr int kFloatRows = 2;               // of a block: two of one matrix, or one of each of two
constexpr int kFloatTokens = kGroupTokens;  // of a block: as many as of a product beside it
constexpr int kFloatHeld = 7;               // float4 that a thread holds of a row: 7168 columns a block
constexpr int kFloatColumns = 4 * kThreads * kFloatHeld;
constexpr size_t kFloatSumBytes = kFloatTokens * kWarps * kFloatRows * sizeof(float);

DSV32_DEVICE float4 load_f32x4(const float* row, int col, int n_cols, bool is_aligned) {
  if (is_aligned && col < n_cols) return *reinterpret_cast<const float4*>(row + col);
  float v[4];
  DSV32_UNROLL for (int k = 0; k < 4; ++k) v[k] = col + k < n_cols ? row[col + k] : 0.0f;
  return {v[0], v[1], v[2], v[3]};
}

// Multiplies the rows of job `job` of a problem by at most kFloatTokens tokens. One block; a thread has four
// columns of each 1024. `partial` is shared memory [kFloatTokens, kWarps, kFloatRows] for the warps' sums,
// which are added in the warps' order. With mats the caller has waited for inputs; else it waits here. Bound
// by latency, two tokens at a time.
template <int kMats>
DSV32_DEVICE void float_rows(const DecodeRows& rows, int job, int problem, bool is_aligned, float* partial) {
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const DecodeRows::Matrix& matrix = rows.matrices[0];
  const int first_row = job * (kFloatRows / kMats);
  const int64_t mat = rows.mats ? __ldcg(rows.mats + problem) : problem;
  const float* w[kFloatRows];
  DSV32_UNROLL for (int r = 0; r < kFloatRows; ++r) {
    const int row = min(first_row + (kMats == 1 ? r : 0), matrix.n_rows - 1);
    w[r] = reinterpret_cast<const float*>(matrix.weights + (kMats == 2 && r ? rows.gate_offset : 0) +
                                          mat * rows.mat_bytes + row * rows.row_bytes);
  }
  float4 held[kFloatRows][kFloatHeld];
  const auto hold = [&](int first) {
    DSV32_UNROLL for (int r = 0; r < kFloatRows; ++r) {
      DSV32_UNROLL for (int k = 0; k < kFloatHeld; ++k) held[r][k] =
          load_f32x4(w[r], first + 4 * (k * kThreads + thread), rows.n_cols, is_aligned);
    }
  };
  hold(0);
  if (!rows.mats) wait_for_inputs();
  const float* x = rows.x + problem / rows.x_sharing * rows.x_problem_stride;
  const auto multiply = [&]<int kTokens>(int first_token, std::integral_constant<int, kTokens>) {
    const float* from = x + first_token * rows.x_token_stride;
    float sums[kTokens][kFloatRows] = {};
    DSV32_NO_UNROLL for (int first = 0; first < rows.n_cols; first += kFloatColumns) {
      if (rows.n_cols > kFloatColumns && first + first_token > 0) hold(first);
      DSV32_UNROLL for (int k = 0; k < kFloatHeld; ++k) {
        float4 v[kTokens];
        DSV32_UNROLL for (int t = 0; t < kTokens; ++t) v[t] = load_f32x4(
            from + t * rows.x_token_stride, first + 4 * (k * kThreads + thread), rows.n_cols, is_aligned);
        DSV32_UNROLL for (int t = 0; t < kTokens; ++t) {
          DSV32_UNROLL for (int r = 0; r < kFloatRows; ++r) {
            float& sum = sums[t][r];
            sum = fmaf(held[r][k].x, v[t].x, sum), sum = fmaf(held[r][k].y, v[t].y, sum);
            sum = fmaf(held[r][k].z, v[t].z, sum), sum = fmaf(held[r][k].w, v[t].w, sum);
          }
        }
      }
    }
    DSV32_UNROLL for (int t = 0; t < kTokens; ++t) {
      DSV32_UNROLL for (int r = 0; r < kFloatRows; ++r) {
        const float sum = warp_sum(sums[t][r]);
        if (lane == 0) partial[((first_token + t) * kWarps + warp) * kFloatRows + r] = sum;
      }
    }
  };
  int t = 0;
  DSV32_NO_UNROLL for (; t + 2 <= rows.n_tokens; t += 2) multiply(t, std::integral_constant<int, 2>());
  if (t < rows.n_tokens) multiply(t, std::integral_constant<int, 1>());
  __syncthreads();
  for (int k = thread; k < rows.n_tokens * (kFloatRows / kMats); k += kThreads) {
    const int t = k / (kFloatRows / kMats), r = k % (kFloatRows / kMats);
    if (first_row + r >= matrix.n_rows) continue;
    float totals[kMats] = {};
    DSV32_UNROLL for (int m = 0; m < kMats; ++m) for (int i = 0; i < kWarps; ++i) totals[m] +=
        partial[(t * kWarps + i) * kFloatRows + r + m];
    finish_row<kMats>(rows, matrix, totals, problem, t, first_row + r);
  }
}

// ---- many vectors: the same sums in the same order, so that no token's bits depend on their number ----

// In float_rows() a thread sums every 256th four columns, and the warps' sums are added. Here each of a
// cluster's eight blocks has the columns of one of those warps, and a lane those of its lane. A warp has
// eight rows times eight tokens in registers, 64 products per 16 values read; a block's warps make up to 32
// rows times 32 tokens.

constexpr int kSide = 8;       // rows of a warp, and its tokens (choose_float_sides)
constexpr int kMostSides = 4;  // of a block, for rows and for tokens
constexpr int kMostTileThreads = 32 * kMostSides * kMostSides;
constexpr int kLaneColumns = 4;  // neighbouring columns

// How a product is divided.
struct FloatTiles {
  int n_row_sides, n_token_sides;  // of a block; a warp has one of each
  int n_stages;
  bool is_aligned;
  float* parts = nullptr;  // without clusters: [all blocks, n_tokens(), n_rows()] their sums

  __host__ __device__ int n_rows() const { return kSide * n_row_sides; }
  __host__ __device__ int n_tokens() const { return kSide * n_token_sides; }
  __host__ __device__ int n_threads() const { return 32 * n_row_sides * n_token_sides; }
  // Float4 in a stage of the ring: 32 per row and token.
  __host__ __device__ int stage() const { return 32 * (n_rows() + n_tokens()); }
  __host__ __device__ size_t n_bytes() const {
    return static_cast<size_t>(n_stages * stage()) * sizeof(float4) +
           static_cast<size_t>(n_rows() * n_tokens()) * sizeof(float);
  }
};

// Adds up 64 values over the warp's lanes, in warp_sum()'s order: the sum of v[i] goes to lane i / 2 as its
// value i % 2. Lanes exchange halves of what they have left, instead of all values.
template <int kOffset = 16>
DSV32_DEVICE void spread_warp_sums(float (&v)[kSide * kSide], int lane) {
  const bool is_upper = lane & kOffset;
  DSV32_UNROLL for (int i = 0; i < 2 * kOffset; ++i) {
    const float kept = is_upper ? v[i + 2 * kOffset] : v[i], sent = is_upper ? v[i] : v[i + 2 * kOffset];
    v[i] = kept + __shfl_xor_sync(0xffffffffu, sent, kOffset);
  }
  if constexpr (kOffset > 1) spread_warp_sums<kOffset / 2>(v, lane);
}

// The block's number in the grid.
DSV32_DEVICE int64_t block_number() {
  return (int64_t{blockIdx.z} * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
}

// Writes share `share` of n_shares of a tile's results. sum_of(k, block): that block's sum k of the tile.
template <int kMats, typename SumOf>
DSV32_DEVICE void finish_tile(const DecodeRows& rows, const FloatTiles& tiles, int problem, int first_row,
                              int first_token, int share, int n_shares, const SumOf& sum_of) {
  const DecodeRows::Matrix& matrix = rows.matrices[0];
  const int n_rows = tiles.n_rows(), n_results = n_rows / kMats * tiles.n_tokens() / n_shares;
  for (int k = static_cast<int>(threadIdx.x); k < n_results; k += static_cast<int>(blockDim.x)) {
    const int t = (share * n_results + k) / (n_rows / kMats), r = (share * n_results + k) % (n_rows / kMats);
    if (first_token + t >= rows.n_tokens || first_row + r >= matrix.n_rows) continue;
    float sums[kMats];
    DSV32_UNROLL for (int m = 0; m < kMats; ++m) {
      sums[m] = 0;
      DSV32_UNROLL for (int block = 0; block < kWarps; ++block) sums[m] +=
          sum_of(t * n_rows + r * kMats + m, block);
    }
    finish_row<kMats>(rows, matrix, sums, problem, first_token + t, first_row + r);
  }
}

// y = W @ x, or silu(W0 x) * (W1 x) * factor; see DecodeRows. In a tile the rows of the two matrices
// alternate. Grid (tiles of rows times kWarps, problems, tiles of tokens); a warp has kSide rows and tokens.
// Layout: a ring of stages [rows, then tokens][32] float4, each with the block's 128 columns of a step of
// 1024; then the block's sums [tokens][rows]. kWarps blocks have the columns of a tile. They are a cluster,
// which adds their sums in the order of the blocks; without clusters add_tiles_kernel does. Bound by f32
// products and shared memory alike; with few tokens by latency.
template <int kMats>
__global__ void __launch_bounds__(kMostTileThreads, 1)
    float_tiles_kernel(const __grid_constant__ DecodeRows rows, const __grid_constant__ FloatTiles tiles) {
  extern __shared__ __align__(128) uint8_t shared[];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int n_warps = static_cast<int>(blockDim.x) / 32;
  const int n_rows = tiles.n_rows(), n_tokens = tiles.n_tokens(), stage = tiles.stage();
  const int rank = static_cast<int>(blockIdx.x) % kWarps;
  const int first_row = static_cast<int>(blockIdx.x) / kWarps * (n_rows / kMats),
            first_token = static_cast<int>(blockIdx.z) * n_tokens, problem = static_cast<int>(blockIdx.y);
  const DecodeRows::Matrix& matrix = rows.matrices[0];
  float4* ring = reinterpret_cast<float4*>(shared);
  float* block_sums = reinterpret_cast<float*>(ring + tiles.n_stages * stage);

  if (rows.mats) wait_for_inputs();  // late: the next kernel may use the same mats
  let_next_start();
  const uint8_t* w = matrix.weights + mat_offset(rows);
  const float* x = rows.x + problem / rows.x_sharing * rows.x_problem_stride;
  constexpr int kStepColumns = kLaneColumns * kThreads;
  const int n_steps = (rows.n_cols + kStepColumns - 1) / kStepColumns;
  // The block's first column of a step.
  const auto column_of = [&](int step) { return step * kStepColumns + rank * (kStepColumns / kWarps); };
  // Past the last row or token the last one is read again.
  const auto row_at = [&](int i) {
    return reinterpret_cast<const float*>(w + (kMats == 2 && i % 2 ? rows.gate_offset : 0) +
                                          min(first_row + i / kMats, matrix.n_rows - 1) * rows.row_bytes);
  };
  const auto token_at = [&](int i) {
    return x + min(first_token + i, rows.n_tokens - 1) * rows.x_token_stride;
  };
  const auto put = [&](int step) {
    const int col = column_of(step) + kLaneColumns * lane;
    float4* to = ring + step % tiles.n_stages * stage + lane;
    for (int i = warp; i < n_rows + n_tokens; i += n_warps) {
      const float* from = i < n_rows ? row_at(i) : token_at(i - n_rows);
      if (tiles.is_aligned)
        copy_line_async(shared_address(to + 32 * i), from + col, col < rows.n_cols);
      else
        to[32 * i] = load_f32x4(from, col, rows.n_cols, false);
    }
  };
  if (!rows.mats) {  // weights to L2 only: copies end in order, and x's start later
    constexpr int kLine = 32, kLines = kStepColumns / kWarps / kLine;  // the block's columns of a step
    for (int i = warp; i < n_rows; i += n_warps)
      for (int k = lane; k < kLines * n_steps; k += 32) {
        const int col = column_of(k / kLines) + k % kLines * kLine;
        if (col < rows.n_cols) prefetch_constant(row_at(i) + col);
      }
    wait_for_inputs();
  }
  for (int step = 0; step < tiles.n_stages - 1; ++step) {
    if (step < n_steps) put(step);
    commit_copies();
  }

  const int row_side = warp % tiles.n_row_sides, token_side = warp / tiles.n_row_sides;
  const bool has_tokens = first_token + kSide * token_side < rows.n_tokens;
  float sums[kSide * kSide] = {};  // [token][row]
  DSV32_NO_UNROLL for (int step = 0; step < n_steps; ++step) {
    wait_until_pending(tiles.n_stages - 2);
    __syncthreads();  // all copies of this step are complete; all warps have read the step before
    if (step + tiles.n_stages - 1 < n_steps) put(step + tiles.n_stages - 1);
    commit_copies();
    if (!has_tokens) continue;
    const float4* from = ring + step % tiles.n_stages * stage + lane;
    const float4* of_rows = from + 32 * kSide * row_side;
    const float4* of_tokens = from + 32 * (n_rows + kSide * token_side);
    float4 held[kSide];
    DSV32_UNROLL for (int r = 0; r < kSide; ++r) held[r] = of_rows[32 * r];
    DSV32_UNROLL for (int t = 0; t < kSide; ++t) {
      const float4 v = of_tokens[32 * t];
      DSV32_UNROLL for (int r = 0; r < kSide; ++r) {
        float& sum = sums[t * kSide + r];
        sum = fmaf(held[r].x, v.x, sum), sum = fmaf(held[r].y, v.y, sum);
        sum = fmaf(held[r].z, v.z, sum), sum = fmaf(held[r].w, v.w, sum);
      }
    }
  }
  spread_warp_sums(sums, lane);
  *reinterpret_cast<float2*>(block_sums + (kSide * token_side + lane / 4) * n_rows + kSide * row_side +
                             2 * (lane % 4)) = {sums[0], sums[1]};

  if (tiles.parts) {
    __syncthreads();
    float* part = tiles.parts + block_number() * (n_rows * n_tokens);
    for (int k = static_cast<int>(threadIdx.x); k < n_rows * n_tokens; k += static_cast<int>(blockDim.x))
      part[k] = block_sums[k];
    return;
  }
  arrive_at_cluster(), wait_for_cluster();
  // Each block finishes a part of the cluster's sums.
  finish_tile<kMats>(rows, tiles, problem, first_row, first_token, rank, kWarps,
                     [&](int k, int block) { return *Team(rank, kWarps).of(block_sums + k, block); });
  arrive_at_cluster(), wait_for_cluster();  // until all sums are read
}

// Adds the sums of float_tiles_kernel's blocks and finishes the rows. Grid: tiles of rows, problems, tiles of
// tokens. Bound by latency.
template <int kMats>
__global__ void __launch_bounds__(kThreads)
    add_tiles_kernel(const __grid_constant__ DecodeRows rows, const __grid_constant__ FloatTiles tiles) {
  let_next_start();
  wait_for_inputs();
  const int n_sums = tiles.n_rows() * tiles.n_tokens();
  const float* parts = tiles.parts + block_number() * (kWarps * n_sums);
  finish_tile<kMats>(rows, tiles, static_cast<int>(blockIdx.y),
                     static_cast<int>(blockIdx.x) * (tiles.n_rows() / kMats),
                     static_cast<int>(blockIdx.z) * tiles.n_tokens(), 0, 1,
                     [&](int k, int block) { return parts[block * n_sums + k]; });
}

template <int kMats>
void launch_float_tiles(const DecodeRows& rows, bool is_aligned, const Launch& launch) {
  const auto [n_row_sides, n_token_sides] =
      choose_float_sides(rows.matrices[0].n_rows * kMats, rows.n_tokens, rows.n_problems, launch.n_sms);
  FloatTiles tiles{};
  tiles.n_row_sides = n_row_sides, tiles.n_token_sides = n_token_sides;
  tiles.is_aligned = is_aligned;
  const int room = most_shared_bytes(float_tiles_kernel<kMats>, tiles.n_threads() > kThreads ? 1 : 2);
  const int n_steps = ceil_div(rows.n_cols, kLaneColumns * kThreads);
  for (tiles.n_stages = std::min(kMaxStages, n_steps + 1);
       tiles.n_stages > 2 && tiles.n_bytes() > static_cast<size_t>(room);)
    --tiles.n_stages;
  const int n_row_tiles = ceil_div(rows.matrices[0].n_rows * kMats, tiles.n_rows()),
            n_token_tiles = ceil_div(rows.n_tokens, tiles.n_tokens());
  Workspace scratch = *launch.workspace;
  if (!card().has_clusters)
    tiles.parts = scratch.take<float>(int64_t{kWarps} * n_row_tiles * rows.n_problems * n_token_tiles *
                                      tiles.n_rows() * tiles.n_tokens());
  launch_kernel(float_tiles_kernel<kMats>,
                {{n_row_tiles * kWarps, rows.n_problems, n_token_tiles},
                 tiles.n_threads(),
                 tiles.n_bytes(),
                 tiles.parts ? 1 : kWarps},
                launch, rows, tiles);
  if (tiles.parts)
    launch_kernel(add_tiles_kernel<kMats>, {{n_row_tiles, rows.n_problems, n_token_tiles}, kThreads}, launch,
                  rows, tiles);
}

}  // namespace dsv32::cuda::decode
