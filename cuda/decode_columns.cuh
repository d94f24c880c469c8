// Weight rows times the uses of experts, sorted into runs: what decode_rows.cuh computes for one vector, for
// up to 8 of them at once, with the same bits.
//
// Codes are taken apart once for all columns, which share the cost; x comes as integers from memory, where
// the first cache holds what the warps of a block read at the same time. The steps of a row are added in the
// order that decode_rows.cuh has them in, as divided over W warps or the blocks of a cluster; who adds them
// is free: here a warp has a tile of 16 rows to itself, or the warps of a block share it where tiles are few.
// Dense products of 32 columns were tried here: with x from the cache they took as long as groups of eight
// with x in shared memory, and at 9 to 16 tokens longer (H100).
#pragma once

#include "cuda/decode_problem.cuh"

namespace dsv32::cuda::decode {

inline int device_attribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&value, attribute, device));
  return value;
}

// Groups of n_tiles tiles of 16 rows: of all matrices, each of which begins a group of its own.
inline int count_groups(const DecodeRows& rows, int n_tiles) {
  int64_t n = 0;
  for (int k = 0; k < rows.n_matrices; ++k) n += ceil_div(rows.matrices[k].n_rows, kTileRows * n_tiles);
  return static_cast<int>(n);
}

// Tells each matrix its last group; returns their number.
inline int number_groups(DecodeRows& rows, int n_tiles) {
  int n = 0;
  for (int k = 0; k < rows.n_matrices; ++k) {
    n += static_cast<int>(ceil_div(rows.matrices[k].n_rows, kTileRows * n_tiles));
    rows.matrices[k].end_group = n;
  }
  return n;
}

// The columns of a block: tokens of a problem, or uses of a run. blockIdx is (chunk of tokens, tiles, problem
// or run).
struct BlockColumns {
  const int32_t* uses = nullptr;  // [n], or null
  int mat, first, n;              // first: of the tokens

  // Reads what a kernel wrote when there are runs.
  __device__ __forceinline__ BlockColumns(const DecodeRows& rows, const UseRuns& runs, unsigned chunk,
                                          unsigned problem, int stride) {
    if (runs.runs) {
      const UseRuns::Run run = runs.runs[problem];
      uses = runs.uses + run.first, mat = run.mat, first = 0, n = run.n;
    } else {
      mat = static_cast<int>(problem), first = static_cast<int>(chunk) * stride;
      n = min(stride, rows.n_tokens - first);
    }
  }
};

// x of each chunk and problem, or of each run, as integers.
// A team of 4 lanes has a group of 32 values of a column; grid (teams, chunks, problems or runs).
// Layout: [problem or run, chunk, n_x_groups, stride], as IntegerX.
// Bound by bytes: 128 read and 76 written a group.
static __global__ void make_columns_kernel(const __grid_constant__ DecodeRows rows,
                                           const __grid_constant__ Layout layout, const UseRuns runs) {
  let_next_start();
  wait_for_inputs();
  const int stride = layout.x_memory.stride, n_groups = layout.n_x_groups;
  const BlockColumns columns(rows, runs, blockIdx.y, blockIdx.z, stride);
  const int team = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) / 4, c = team / n_groups,
            group = team % n_groups;
  const int column =
      min(c, columns.n - 1);  // an odd number gets one of zeros, since columns are read in pairs
  const int64_t problem = columns.uses ? columns.uses[max(column, 0)] : static_cast<int>(blockIdx.z);
  const float* x = rows.x + problem / rows.x_sharing * rows.x_problem_stride +
                   (columns.uses ? 0 : columns.first + column) * rows.x_token_stride;
  float4 v[2] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int col = group * 32 + half * 16 + static_cast<int>(threadIdx.x) % 4 * 4;
    if (c < columns.n && col < rows.n_cols) v[half] = load_x4(x + col, layout.is_x_aligned);
  }
  const int64_t block = static_cast<int64_t>(blockIdx.z) * gridDim.y + blockIdx.y;
  make_integer_group(v[0], v[1], layout.x_memory, (block * n_groups + group) * stride + c,
                     c < (columns.n + 1) / 2 * 2);
}

// The steps of a warp: units of steps W apart, one after the other. A unit is what a warp of decode_rows.cuh
// adds up.
template <TensorType kType>
struct UnitWalk {
  int unit, end_unit;  // of the warp
  int base, end_step;  // unit u has the steps base + u, base + u + W, ... before end_step
  StepPlace at;

  __device__ __forceinline__ bool is_done() const { return unit >= end_unit; }
  __device__ __forceinline__ void advance(int log_warps) {
    const int before = at.step;
    at.step += 1 << log_warps;
    while (at.step >= end_step && ++unit < end_unit) at.step = base + unit;
    at.row += static_cast<int64_t>(at.step - before) * Steps<kType>::kBytes;
  }
};

template <TensorType kType>
__device__ __forceinline__ UnitWalk<kType> walk_of_warp(const DecodeRows& rows, const Layout& layout,
                                                        const DecodeRows::Matrix& matrix, int mat,
                                                        int first_row) {
  const int n_warps = 1 << layout.log_warps, part = static_cast<int>(threadIdx.x) / 32 % layout.n_tile_warps;
  UnitWalk<kType> walk;
  walk.base = layout.n_split > 1 ? part * layout.n_steps_block : 0;
  walk.end_step = min(walk.base + layout.n_steps_block, layout.n_steps);
  const bool has_one = layout.n_split == 1 && layout.n_tile_warps > 1;
  walk.unit = has_one ? part : 0;
  walk.end_unit = has_one ? part + 1 : n_warps;
  while (!walk.is_done() && walk.base + walk.unit >= walk.end_step) ++walk.unit;
  walk.at = place_step<kType>(rows, matrix, mat, first_row, walk.base + walk.unit);
  return walk;
}

// y as in decode_rows_kernel, for the columns of a chunk or run.
// Grid (chunks, groups of 8 / n_tile_warps tiles, problems or runs); n_tile_warps warps share a tile.
// Layout: a ring of steps a warp, then the sums of each warp's tile [kMats, 16, 8].
// A warp adds its units to its sums in ascending order, and at the end the warps' sums are added likewise.
// Bound: issue slots: some 30 instructions for each 16 x 32 weights and 8 columns, and 40 to take them apart.
template <TensorType kType, int kMats>
__global__ void __launch_bounds__(kThreads, 2)
    decode_columns_kernel(const __grid_constant__ DecodeRows rows, const __grid_constant__ Layout layout,
                          const UseRuns runs) {
  using Step = Steps<kType>;
  constexpr int kStage = kMats * kTileRows * Step::kSlot, kSums = kTileRows * kGroupTokens;
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ uint32_t grid[kGridWords<kType> + 1];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, i = lane % 4;
  const int n_tiles = kWarps / layout.n_tile_warps;
  uint8_t* ring = shared + warp * layout.n_stages * kStage;
  float* all_sums = reinterpret_cast<float*>(shared + kWarps * layout.n_stages * kStage);
  float* own_sums = all_sums + warp * kMats * kSums;

  let_next_start();
  fill_grid<kType>(grid);
  if (runs.runs) wait_for_inputs();  // which matrix
  const BlockColumns columns(rows, runs, blockIdx.x, blockIdx.z, layout.x_memory.stride);
  if (runs.runs && columns.n == 0) return;
  int first_group;
  const DecodeRows::Matrix& matrix = matrix_of(rows, static_cast<int>(blockIdx.y), &first_group);
  const int first_row = (static_cast<int>(blockIdx.y) - first_group) * n_tiles * kTileRows;
  UnitWalk<kType> put = walk_of_warp<kType>(rows, layout, matrix, columns.mat,
                                            first_row + warp / layout.n_tile_warps * kTileRows);
  UnitWalk<kType> take = put;
  const auto put_step = [&](int stage) {
    if (!put.is_done())
      copy_step<kType, kMats>(rows, layout, put.at, lane, shared_address(ring) + stage * kStage);
    commit_copies();
    if (!put.is_done()) put.advance(layout.log_warps);
  };
  for (int stage = 0; stage < layout.n_stages - 1; ++stage) put_step(stage);
  for (int k = lane; k < kMats * kSums; k += 32) own_sums[k] = 0;
  if (!runs.runs) wait_for_inputs();
  if constexpr (kGridWords < kType >> 0) __syncthreads();
  __syncwarp();

  IntegerX x = layout.x_memory;
  const int64_t block = static_cast<int64_t>(blockIdx.z) * gridDim.x + blockIdx.x;
  const int64_t n_before = block * layout.n_x_groups * x.stride;
  x.words += 4 * n_before, x.scales += n_before, x.sums += n_before;

  int taken = 0;
  while (!take.is_done()) {
    Sums<kType, kMats, false> sums;
    for (const int unit = take.unit; !take.is_done() && take.unit == unit;) {
      wait_until_pending(layout.n_stages - 2);
      __syncwarp();  // every lane's copies of this step are there, and no lane reads the step before any more
      put_step(taken == 0 ? layout.n_stages - 1 : taken - 1);
      const uint8_t* step[kMats][2];
      find_step<kType, kMats>(rows, take.at, lane, ring + taken * kStage, step);
      add_step<kType, kMats>(sums, step, x, take.at.step * (Step::kCols / 32), columns.n, grid);
      taken = taken + 1 == layout.n_stages ? 0 : taken + 1;
      take.advance(layout.log_warps);
    }
#pragma unroll
    for (int m = 0; m < kMats; ++m)
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const auto& of = sums.of[m];
        own_sums[m * kSums + (g + k / 2 * 8) * kGroupTokens + 2 * i + k % 2] +=
            (of[0][k] + of[1][k]) + (of[2][k] + of[3][k]);
      }
  }
  __syncthreads();
  for (int k = threadIdx.x; k < n_tiles * kTileRows * columns.n; k += kThreads) {
    const int c = k / (n_tiles * kTileRows), tile = k / kTileRows % n_tiles, r = k % kTileRows;
    const int row = first_row + tile * kTileRows + r;
    if (row >= matrix.n_rows) continue;
    float totals[kMats] = {};
    for (int w = tile * layout.n_tile_warps; w < (tile + 1) * layout.n_tile_warps; ++w)
#pragma unroll
      for (int m = 0; m < kMats; ++m) totals[m] += all_sums[(w * kMats + m) * kSums + r * kGroupTokens + c];
    finish_row<kMats>(rows, matrix, totals, columns.uses ? columns.uses[c] : static_cast<int>(blockIdx.z),
                      columns.uses ? 0 : columns.first + c, row);
  }
}

// Warps that share a tile: those that the order of its sums names where tiles are few; else one does all.
inline int choose_tile_warps(const DecodeRows& rows, const Layout& layout, int n_blocks_beside,
                             const Launch& launch) {
  if (layout.n_split > 1) return layout.n_split;
  const int64_t n_blocks = int64_t{count_groups(rows, kWarps)} * n_blocks_beside;
  return n_blocks >= 2 * launch.n_sms ? 1 : 1 << layout.log_warps;
}

template <TensorType kType, int kMats>
void launch_columns(DecodeRows rows, Layout layout, const UseRuns& runs, const Launch& launch) {
  constexpr int kRing = kWarps * kMats * kTileRows * Steps<kType>::kSlot;
  constexpr int kSums = kWarps * kMats * kTileRows * kGroupTokens * 4;
  constexpr int kReserved = 1024 + (kGridWords<kType> + 1) * 4 + 128;
  if (runs.most > kGroupTokens)
    fail(ErrorKind::internal, format("runs of %d uses, expected at most %d", runs.most, kGroupTokens));
  const int stride = runs.runs ? runs.most : kGroupTokens;
  const int n_chunks = runs.runs ? 1 : static_cast<int>(ceil_div(rows.n_tokens, stride));
  const int n_problems = runs.runs ? runs.n_runs : rows.n_problems;

  const size_t n_x = static_cast<size_t>(n_problems) * n_chunks * layout.n_x_groups * stride;
  layout.x_memory = {launch.workspace->take<uint4>(n_x * 4), launch.workspace->take<float>(n_x),
                     launch.workspace->take<float2>(n_x), stride};
  const dim3 x_blocks(static_cast<unsigned>(ceil_div(layout.n_x_groups * stride, kThreads / 4)),
                      static_cast<unsigned>(n_chunks), static_cast<unsigned>(n_problems));
  launch_kernel("make_columns_kernel", make_columns_kernel, {x_blocks, kThreads}, launch, rows, layout, runs);

  layout.n_tile_warps = choose_tile_warps(rows, layout, n_chunks * n_problems, launch);
  layout.n_groups = number_groups(rows, kWarps / layout.n_tile_warps);
  const int half_sm = device_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor) / 2 - kReserved;
  const int block_limit = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) - kReserved;
  const int room = half_sm - kSums >= 2 * kRing ? half_sm : block_limit;
  layout.n_stages = std::min((room - kSums) / kRing, kMats == 1 ? 3 : 2);
  if (layout.n_stages < 2)
    fail(ErrorKind::internal,
         format("%d bytes of shared memory a block are too few for products with %s weights", block_limit,
                type_name(kType)));
  CUDA_CHECK(cudaFuncSetAttribute(decode_columns_kernel<kType, kMats>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, block_limit));
  const auto n_bytes = static_cast<size_t>(layout.n_stages * kRing + kSums);
  // Two blocks; the rest of an SM's memory is the cache of x.
  const int shared_percent = std::min(100, static_cast<int>(100 * (n_bytes + kReserved)) / half_sm + 1);
  const dim3 blocks(static_cast<unsigned>(n_chunks), static_cast<unsigned>(layout.n_groups),
                    static_cast<unsigned>(n_problems));
  launch_kernel("decode_columns_kernel", decode_columns_kernel<kType, kMats>,
                {blocks, kThreads, n_bytes, 1, shared_percent}, launch, rows, layout, runs);
}

}  // namespace dsv32::cuda::decode
