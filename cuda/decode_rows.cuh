// Weight rows times up to eight vectors: what matmul_decode.cu and experts_decode.cu are made of. More are
// decode_columns.cu's; those of F32, F16 and BF16 come in groups of sixteen.
//
// The weights are read once for a group, so their bytes are the bound, and everything serves to keep
// many of them in flight. A warp owns 16 rows and a W-th of the steps of their columns; it copies a step
// (cp.async, past the registers, several steps ahead) into its own ring in shared memory, where blocks of any
// alignment are cheap to take apart. The products are fp16 tensor-core products, summed in f32: x is rounded
// to fp16 in units of its own for each step (2^-11 at most), codes become fp16 by masks (decode_weights.cuh).
// Eight tokens cost little more than one. F16 and BF16 weights are TF32 products, with x split in two; F32 is
// float_rows.cuh's, whose blocks may come beside those of another product.
//
// Where tiles are too few for the device, the blocks of a cluster share each, and the first adds up their
// sums.
//
// The f32 sums of a row run in an order that depends on the matrix's shape alone: the bits of a token's
// result do not depend on the other tokens, on their number or on its place among them.
//
// Weights never change: unless a kernel chooses the matrix (experts), a block starts its copies while the
// kernel ahead still runs (dependent.cuh), and asks for no more shared memory than its steps fill, so that
// the next kernel finds room to do likewise.
#pragma once

#include <cooperative_groups.h>

#include <utility>

#include "cuda/float_rows.cuh"

namespace dsv32::cuda {

namespace decode {

// Shared memory of a block, in this order.
template <TensorType kType, int kMats, bool kInBands>
struct SharedSizes {
  static constexpr int kTile = kTileRows * slot_bytes<kType>(kInBands), kStage = kMats * kTile;  // of a warp
  static __host__ __device__ int ring(int n_slots) { return kWarps * n_slots * kStage; }
  static __host__ __device__ int x(int n_steps, int n_tokens) {
    if constexpr (kIsFloat<kType>)
      return 0;
    else
      return n_steps * n_tokens * Record<kType>::kBytes;
  }
  static __host__ __device__ int partial(int stride) { return 2 * kWarps * kMats * kTileRows * stride * 4; }
};

// How a warp's weights of bands come in, tile after tile: copies run ahead by all stages but one, and what is
// known beforehand is not computed again at each step.
template <TensorType kType, int kMats>
struct BandWay {
  static constexpr int kBytes = Steps<kType>::kBytes, kTile = kTileRows * kBytes, kStage = kMats * kTile;

  static constexpr int kMiddle = kTile / 32 * 16;  // near which places are parts of the copies' instructions

  const uint8_t* middle;  // of the lane's pieces of the step that is copied next
  int n_left;             // steps of its tile from there on; 0 or less: there is none
  int group;              // of tiles
  int least_left;         // with more steps left than that it has one of the last few pieces
  // The lane's pieces of the stage taken last, of the first one and past the last one, and from there to its
  // first row.
  uint32_t taken, first, end, to_row;

  __device__ __forceinline__ BandWay(const DecodeRows& rows, const Layout& layout, const WarpShare& share,
                                     int64_t mat_offset, int first_group, int lane, uint8_t* ring)
      : group(first_group),
        least_left(static_cast<int>(opaque(lane < kBytes % 32 ? 0 : INT_MAX))),
        first(opaque(shared_address(ring) + 16 * lane)),
        to_row(opaque(lane / 4 * kBytes - 16 * lane)) {
    end = opaque(first + layout.n_stages * kStage);
    taken = end - kStage;
    start(rows, layout, share, mat_offset, lane);
  }
  __device__ __forceinline__ void start(const DecodeRows& rows, const Layout& layout, const WarpShare& share,
                                        int64_t mat_offset, int lane) {
    n_left = 0;
    if (group >= layout.n_groups) return;
    n_left = share.end - share.first;
    middle = band_step<kType>(rows, layout, share.first, mat_offset, group) + kMiddle + 16 * lane;
  }
  // Starts the copies of the next step.
  __device__ __forceinline__ void put(const DecodeRows& rows, const Layout& layout, const WarpShare& share,
                                      int64_t mat_offset, int lane, uint32_t to) {
    constexpr std::make_integer_sequence<int, kBytes / 32> kPieces;
    copy(middle, to, kPieces);
    if constexpr (kMats == 2) copy(middle + rows.gate_offset, to + kTile, kPieces);
    commit_copies();
    middle += kTile;
    if (--n_left == 0) {
      group += share.n_groups_apart;
      start(rows, layout, share, mat_offset, lane);
    }
  }
  template <int... kPieces>
  __device__ __forceinline__ void copy(const uint8_t* from, uint32_t to,
                                       std::integer_sequence<int, kPieces...>) {
    (copy_passing_async_if<512 * kPieces, 512 * kPieces - kMiddle>(to, from, n_left > 0), ...);
    constexpr int kWhole = kBytes / 32 * 512;
    if constexpr (kWhole < kTile)
      copy_passing_async_if<kWhole, kWhole - kMiddle>(to, from, n_left > least_left);
  }
  // Where the lane reads its rows of the next step, which has come; copies another over the step before.
  __device__ __forceinline__ void take(const DecodeRows& rows, const Layout& layout, const WarpShare& share,
                                       int64_t mat_offset, int lane, const uint8_t* (&step)[kMats][2]) {
    put(rows, layout, share, mat_offset, lane, taken);
    taken += kStage;
    taken = taken == end ? first : taken;
    const auto* own = static_cast<const uint8_t*>(__cvta_shared_to_generic(taken + to_row));
#pragma unroll
    for (int m = 0; m < kMats; ++m)
#pragma unroll
      for (int k = 0; k < 2; ++k) step[m][k] = own + m * kTile + k * kTile / 2;
  }
};

// The same of rows that lie whole.
template <TensorType kType, int kMats>
struct RowsWay {
  static constexpr int kTile = kTileRows * slot_bytes<kType>(false), kStage = kMats * kTile;

  Walk<kType> copied, taken;
  uint8_t* ring;
  uint32_t first;
  int at, before, end;

  __device__ __forceinline__ RowsWay(const DecodeRows& rows, const Layout& layout, const WarpShare& share,
                                     int64_t mat_offset, int first_group, int, uint8_t* its_ring)
      : copied{first_group},
        ring(its_ring),
        first(opaque(shared_address(its_ring))),
        at(0),
        before((layout.n_stages - 1) * kStage),
        end(layout.n_stages * kStage) {
    copied.start(rows, layout, share, mat_offset);
    taken = copied;
  }
  __device__ __forceinline__ void put(const DecodeRows& rows, const Layout& layout, const WarpShare& share,
                                      int64_t mat_offset, int lane, uint32_t to) {
    const bool is_there = copied.group < layout.n_groups;
    if (is_there) copy_step<kType, kMats, true>(rows, layout, copied.at, lane, to);
    commit_copies();
    if (is_there) copied.advance(rows, layout, share, mat_offset);
  }
  __device__ __forceinline__ void take(const DecodeRows& rows, const Layout& layout, const WarpShare& share,
                                       int64_t mat_offset, int lane, const uint8_t* (&step)[kMats][2]) {
    put(rows, layout, share, mat_offset, lane, first + before);
    before = at;
#pragma unroll
    for (int m = 0; m < kMats; ++m) {
      StepPlace place = taken.at;
      place.row += m ? rows.gate_offset : 0;
      find_step<kType>(rows, place, lane, ring + at + m * kTile, step[m]);
    }
    at += kStage;
    if (at == end) at = 0;
    taken.advance(rows, layout, share, mat_offset);
  }
};

// The sum of a value over the blocks of the cluster, in the order of their ranks; valid in the first block.
// `value`: in the same place of each block's shared memory. All threads of all blocks call it.
__device__ __forceinline__ float sum_over_cluster(float* value, int n_blocks) {
  float sum = 0;
#if __CUDA_ARCH__ >= 900
  const auto cluster = cooperative_groups::this_cluster();
  cluster.sync();
  if (cluster.block_rank() == 0) {
    sum = *value;
    for (int block = 1; block < n_blocks; ++block) sum += *cluster.map_shared_rank(value, block);
  }
  cluster.sync();  // until all is read
#endif
  return sum;
}

// A block's x to records [n_steps, tokens.n] of a type that has codes, from the step first_step on.
// Several loads of a lane are on their way together, and two steps are worked on.
template <TensorType kType>
__device__ inline void make_records(const DecodeRows& rows, const Layout& layout, const BlockTokens& tokens,
                                    int first_step, uint8_t* to) {
  using X = Record<kType>;
  constexpr int kTogether = 4, kTeams = kThreads / X::kLanes, kWarpTeams = 32 / X::kLanes;
  const int thread = static_cast<int>(threadIdx.x), team = thread / X::kLanes, lane = thread % X::kLanes;
  const int col = column_of<kType>(lane / 4, lane % 4);
#pragma unroll 1
  for (int t = 0; t < tokens.n; ++t) {
#pragma unroll 1
    for (int begin = 0; begin + team / kWarpTeams * kWarpTeams < layout.n_steps_block;
         begin += kTogether * kTeams) {
      float4 v[kTogether][2];
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
        const int step = begin + k * kTeams + team;
        load_x8(tokens.x + t * rows.x_token_stride, (first_step + step) * Steps<kType>::kCols + col,
                step < layout.n_steps_block ? rows.n_cols : 0, layout.is_x_aligned, v[k]);
      }
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
        const int step = begin + k * kTeams + team;
        if (k % 2 == 0 && step - team % kWarpTeams >= layout.n_steps_block) break;  // of the whole warp
        make_record<kType>(v[k], to + (step * tokens.n + t) * X::kBytes, step < layout.n_steps_block);
      }
    }
  }
}

// y = W @ x, or silu(W0 x) * (W1 x) * factor; see DecodeRows. Of a type with codes kTiles is 1, and what is
// beside takes the blocks past the last problem.
// Who: grid (blocks, problems, groups of 8 kTiles tokens), persistent over groups of tiles; a warp has 16
// rows and a W-th of the steps of their columns. Layout: head of this file. Sums of the W warps meet in
// shared memory, added by sum_units(); two buffers, so that one barrier a group of tiles suffices. Bound:
// bytes of the weights. Measured (H200, 2026-11-21): 7168 x 18432 of one token, Q4_K 1987, Q8_0 2401, BF16
// 3416 GB/s.
template <TensorType kType, int kMats, int kTiles, bool kInBands>
__global__ void __launch_bounds__(kThreads, 2)
    decode_rows_kernel(const __grid_constant__ DecodeRows rows, const __grid_constant__ Layout layout,
                       const __grid_constant__ Beside beside) {
  using Sizes = SharedSizes<kType, kMats, kInBands>;
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ uint32_t grid[kGridWords<kType> + 1];
  __shared__ float block_sums[kMats == 1 ? kThreads : 1];
  if constexpr (kInBands) {
    const int past = static_cast<int>(blockIdx.y) - rows.n_problems;
    if (past >= 0)
      return work_beside(beside, past * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x),
                         reinterpret_cast<float*>(shared));
  }
  const int warp = threadIdx.x / 32, lane = opaque(threadIdx.x) % 32, g = lane / 4, i = lane % 4;
  const int n_tiles = kWarps >> layout.log_warps;
  const int stride = layout.stride;
  uint8_t* ring = shared + static_cast<int>(opaque(warp * layout.n_slots * Sizes::kStage));
  const WarpShare share = share_of_warp<kType, kMats == 1>(layout);
  const int n_warps_tile = 1 << layout.log_warps;

  // A product by mats lets the next one in when it knows them itself: then that one does.
  const bool is_chosen = rows.mats && !rows.is_known;
  if (is_chosen) wait_for_inputs();
  let_next_start();
  fill_grid<kType>(grid);
  const int64_t mat = mat_offset(rows);
  if constexpr (kGridWords < kType >> 0) __syncthreads();

  const int first_group = static_cast<int>(blockIdx.x) / layout.n_split;
  using Way = std::conditional_t<kInBands, BandWay<kType, kMats>, RowsWay<kType, kMats>>;
  Way way(rows, layout, share, mat, first_group, lane, ring);
  for (int stage = 0; stage < layout.n_stages - 1; ++stage)
    way.put(rows, layout, share, mat, lane, way.first + stage * Sizes::kStage);
  if (!is_chosen) wait_for_inputs();

  const BlockTokens tokens(rows, kTiles * kGroupTokens);
  uint8_t* x = shared + Sizes::ring(layout.n_slots);
  uint8_t* partial_begin = x + Sizes::x(layout.n_steps_block, tokens.n);
  LaneX lane_x;
  int n_x_bytes = 0;  // of a step
  if constexpr (!kIsFloat<kType>) {
    make_records<kType>(rows, layout, tokens, share.first_of_block, x);
    __syncthreads();
    lane_x = LaneX::of<kType>(x, lane, tokens.n - 1), n_x_bytes = tokens.n * Record<kType>::kBytes;
  }

  const Lane<kType> quarter(i);
  int n_done = 0;
  const int first_step = share.first - share.first_of_block, end_step = share.end - share.first_of_block;
  for (int group = first_group; group < layout.n_groups; group += share.n_groups_apart, ++n_done) {
    Sums<kMats, kTiles> sums = {};
    for (int s = first_step; s < end_step; s += kIsFloat<kType> ? share.n_apart : 1) {
      wait_until_pending(layout.n_stages - 2);
      __syncwarp();  // every lane's copies of this step are there, and no lane reads the step before any more
      const uint8_t* step[kMats][2];
      way.take(rows, layout, share, mat, lane, step);
      if constexpr (kIsFloat<kType>) {
        const int col = (share.first_of_block + s) * Steps<kType>::kCols;
        const float* from = tokens.x + g * rows.x_token_stride + col;
        add_step_float<kType>(sums, step, from, 8 * rows.x_token_stride, rows.n_cols - col, tokens.n - g);
      } else {
        add_step<kType, 1>(sums, step, lane_x.after(s * n_x_bytes), quarter, grid);
      }
    }

    // [2][warp][mat][row][token]
    float* partial =
        reinterpret_cast<float*>(partial_begin) + (n_done % 2) * (kWarps * kMats * kTileRows * stride);
#pragma unroll
    for (int m = 0; m < kMats; ++m) {
      float* to = partial + (warp * kMats + m) * kTileRows * stride;
#pragma unroll
      for (int k = 0; k < 4 * kTiles; ++k) {
        const int t = k / 4 * 8 + 2 * i + k % 2;
        if (t < stride) to[(g + k / 2 % 2 * 8) * stride + t] = sums[m][k / 4][k % 4];
      }
    }
    __syncthreads();
    int first_of_matrix;
    const DecodeRows::Matrix& matrix = matrix_of(rows, group, &first_of_matrix);
    const int first_row = (group - first_of_matrix) * n_tiles * kTileRows;
    if constexpr (kMats == 1) {
      if (layout.n_split > 1) {
        const int t = threadIdx.x / kTileRows, r = threadIdx.x % kTileRows, row = first_row + r;
        float total = 0;
        if (t < tokens.n)
          total = sum_units(kWarps, [&](int w) { return partial[(w * kTileRows + r) * stride + t]; });
        block_sums[threadIdx.x] = total;
        const float sum[1] = {sum_over_cluster(block_sums + threadIdx.x, layout.n_split)};
        if (blockIdx.x % layout.n_split == 0 && t < tokens.n && row < matrix.n_rows)
          finish_row<1>(rows, matrix, sum, static_cast<int>(blockIdx.y), tokens.first + t, row);
        continue;
      }
    }
    for (int k = threadIdx.x; k < n_tiles * kTileRows * tokens.n; k += kThreads) {
      const int t = k / (n_tiles * kTileRows), tile = k / kTileRows % n_tiles, r = k % kTileRows;
      const int row = first_row + tile * kTileRows + r;
      if (row >= matrix.n_rows) continue;
      float totals[kMats] = {};
#pragma unroll
      for (int m = 0; m < kMats; ++m)
        totals[m] = sum_units(n_warps_tile, [&](int w) {
          return partial[(((tile * n_warps_tile + w) * kMats + m) * kTileRows + r) * stride + t];
        });

      finish_row<kMats>(rows, matrix, totals, static_cast<int>(blockIdx.y), tokens.first + t, row);
    }
  }
}

// The same for F16 and BF16 rows that are no multiple of 16 bytes or x that is not so aligned: small models
// only. Who: a warp per row, grid (blocks of 8 rows, problems, groups of tokens). Layout: values one
// at a time, in memory order over the lanes. Bound: latency.
template <TensorType kType, int kMats>
__global__ void rows_plain_kernel(const __grid_constant__ DecodeRows rows) {
  const int row = static_cast<int>(blockIdx.x * kWarps + threadIdx.x / 32), lane = threadIdx.x % 32;
  const DecodeRows::Matrix& matrix = rows.matrices[0];
  wait_for_inputs();
  let_next_start();  // late: the next one may go by the same mats
  if (row >= matrix.n_rows) return;
  const BlockTokens tokens(rows, kGroupTokens);
  const int64_t mat = rows.mats ? rows.mats[blockIdx.y] : static_cast<int>(blockIdx.y);
  for (int t = 0; t < tokens.n; ++t) {
    float totals[kMats] = {};
    for (int m = 0; m < kMats; ++m) {
      const uint8_t* from =
          matrix.weights + (m ? rows.gate_offset : 0) + mat * rows.mat_bytes + row * rows.row_bytes;
      const float* x = tokens.x + t * rows.x_token_stride;
      for (int col = lane; col < rows.n_cols; col += 32)
        totals[m] = fmaf(load_float<kType>(from, col), x[col], totals[m]);
      totals[m] = warp_sum(totals[m]);
    }
    if (lane == 0)
      finish_row<kMats>(rows, matrix, totals, static_cast<int>(blockIdx.y), tokens.first + t, row);
  }
}

// The same for F32 rows. Who: grid (blocks of kFloatRows rows, problems, kFloatTokens tokens). See
// float_rows.cuh.
template <int kMats>
__global__ void __launch_bounds__(kThreads, 2)
    float_rows_kernel(const __grid_constant__ DecodeRows rows, bool is_aligned) {
  extern __shared__ __align__(128) uint8_t shared[];
  if (rows.mats) wait_for_inputs();  // late: the next one may go by the same mats
  let_next_start();
  const int first = static_cast<int>(blockIdx.z) * kFloatTokens;
  float_rows<kMats>(rows, static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y), first,
                    min(kFloatTokens, rows.n_tokens - first), is_aligned, reinterpret_cast<float*>(shared));
}

// log2 of W: the one with which the busiest warp has the fewest steps when two blocks fit on a
// multiprocessor; the larger of equals. A few steps a unit are worth adding up: 8 experts' w2 in units of one
// step took 27.5 us, of four 22.8 (H200, 2026-11-24). By the first matrix's shape alone: no sum's order may
// depend on more.
inline int choose_log_warps(const DecodeRows& rows, int n_steps) {
  constexpr int64_t kLeastUnitSteps = 3;
  int best = 0;
  int64_t least = INT64_MAX;
  for (int log = 3; log >= 0; --log) {
    const int64_t w = int64_t{1} << log;
    if ((w > 1 && w > n_steps) || (w > 2 && w * kLeastUnitSteps > n_steps)) continue;
    const int64_t n_groups =
        ceil_div(rows.matrices[0].n_rows, kTileRows * (kWarps >> log)) * rows.n_problems_token;
    const int64_t most = ceil_div(n_groups, 2 * kPlannedSms) * ceil_div(n_steps, w);
    if (most < least) least = most, best = log;
  }
  return best;
}

// The blocks of a cluster that share a tile: as many as make up two blocks for each multiprocessor, while
// each has steps for most of its warps. By the first matrix's shape alone, as above.
inline int choose_split(const DecodeRows& rows, int n_steps, int log_warps) {
  if (rows.is_undivided || rows.n_problems_token > 1 || log_warps < 3 || !is_hopper_or_later()) return 1;
  constexpr int kLeastSteps = kWarps - 2, kMostBlocks = 8;
  const auto n_tiles = static_cast<int>(ceil_div(rows.matrices[0].n_rows, kTileRows));
  int n = 1;
  for (int m = 2; m <= kMostBlocks && n_tiles * m <= 2 * kPlannedSms; m *= 2) {
    const int n_steps_block = static_cast<int>(ceil_div(n_steps, m));
    if (n_steps_block < kLeastSteps) break;
    if ((m - 1) * n_steps_block < n_steps) n = m;  // the last block has some too
  }
  return n;
}

// Returns whether a block's shared memory has room for x beside two steps; if not, nothing is done.
template <TensorType kType, int kMats, int kTiles, bool kInBands>
bool launch_rows(DecodeRows rows, Layout layout, const Beside& beside, const Launch& launch) {
  using Sizes = SharedSizes<kType, kMats, kInBands>;
  constexpr int kBlockTokens = kTiles * kGroupTokens;
  const int n_together = std::min(rows.n_tokens, kBlockTokens);
  layout.n_groups = number_groups(rows, kWarps >> layout.log_warps);
  layout.stride = n_together == 1 ? 1 : (n_together + 1) / 2 * 2;
  const int n_beside = Sizes::partial(layout.stride) + Sizes::x(layout.n_steps_block, n_together);
  // Static shared memory and the 1 KiB that the system takes of each block count too.
  constexpr int kReserved = 1024 + (kGridWords<kType> + 1) * 4 + kThreads * 4 + 128;
  const int block_limit = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) - kReserved;
  const int half_sm = device_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor) / 2 - kReserved;
  const auto stages_in = [&](int64_t n_bytes) { return static_cast<int>(n_bytes / Sizes::ring(1)); };

  const int n_token_groups = static_cast<int>(ceil_div(rows.n_tokens, kBlockTokens));
  const int n_problems = rows.n_problems * n_token_groups;
  const int n_blocks_all = layout.n_groups * n_problems * layout.n_split;
  int n_stages = stages_in(half_sm - n_beside), n_blocks_sm = 2;
  if (n_stages < 2 || n_blocks_all + beside.n_jobs <= launch.n_sms)
    n_stages = stages_in(block_limit - n_beside), n_blocks_sm = 1;
  if (n_stages < 2) return false;
  const int n_x_blocks = layout.n_split > 1
                             ? layout.n_groups
                             : std::clamp(n_blocks_sm * launch.n_sms / n_problems, 1, layout.n_groups);
  const int64_t n_steps_warp =
      ceil_div(layout.n_groups, n_x_blocks) * ceil_div(layout.n_steps_block, int64_t{1} << layout.log_warps);
  layout.n_stages = static_cast<int>(std::min<int64_t>({n_stages, kMaxStages, n_steps_warp + 1}));
  layout.n_slots = static_cast<int>(std::min<int64_t>(layout.n_stages, n_steps_warp));
  const int n_shared = Sizes::ring(layout.n_slots) + n_beside;
  CUDA_CHECK(cudaFuncSetAttribute(decode_rows_kernel<kType, kMats, kTiles, kInBands>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, block_limit));
  const int n_grid_x = n_x_blocks * layout.n_split;
  const dim3 blocks(static_cast<unsigned>(n_grid_x),
                    static_cast<unsigned>(rows.n_problems + ceil_div(beside.n_jobs, n_grid_x)),
                    static_cast<unsigned>(n_token_groups));
  launch_kernel("decode_rows_kernel", decode_rows_kernel<kType, kMats, kTiles, kInBands>,
                {blocks, kThreads, static_cast<size_t>(n_shared), static_cast<unsigned>(layout.n_split)},
                launch, rows, layout, beside);
  return true;
}

inline bool is_aligned(const void* p, size_t n_bytes) {
  return reinterpret_cast<uintptr_t>(p) % n_bytes == 0;
}

// Whether x and weights of F32, F16 or BF16 may be read 16 bytes at a time.
inline bool is_float_aligned(const DecodeRows& rows) {
  return is_aligned(rows.x, 16) && rows.x_problem_stride % 4 == 0 && rows.x_token_stride % 4 == 0 &&
         rows.n_cols % 4 == 0 && rows.row_bytes % 16 == 0 && rows.mat_bytes % 16 == 0 &&
         is_aligned(rows.matrices[0].weights, 16) && rows.gate_offset % 16 == 0;
}

inline int float_jobs(const DecodeRows& rows, int n_mats) {
  return static_cast<int>(ceil_div(rows.matrices[0].n_rows, kFloatRows / n_mats));
}

template <int kMats>
void launch_float_rows(const DecodeRows& rows, const Launch& launch) {
  const dim3 blocks(static_cast<unsigned>(float_jobs(rows, kMats)), static_cast<unsigned>(rows.n_problems),
                    static_cast<unsigned>(ceil_div(rows.n_tokens, kFloatTokens)));
  launch_kernel("float_rows_kernel", float_rows_kernel<kMats>, {blocks, kThreads, kFloatSumBytes}, launch,
                rows, is_float_aligned(rows));
}

// Returns whether `beside` is done too.
template <TensorType kType, int kMats>
bool launch_type(const DecodeRows& rows, const UseRuns& runs, const Beside& beside, const Launch& launch) {
  const DecodeRows::Matrix& matrix = rows.matrices[0];
  Layout layout{};
  layout.is_x_aligned = is_aligned(rows.x, 16) && rows.x_problem_stride % 4 == 0 &&
                        rows.x_token_stride % 4 == 0 && rows.n_cols % 4 == 0;
  if constexpr (kIsFloat<kType>) {
    if (!is_float_aligned(rows)) {
      const dim3 blocks(static_cast<unsigned>(ceil_div(matrix.n_rows, kWarps)),
                        static_cast<unsigned>(rows.n_problems),
                        static_cast<unsigned>(ceil_div(rows.n_tokens, kGroupTokens)));
      launch_kernel("rows_plain_kernel", rows_plain_kernel<kType, kMats>, {blocks, kThreads}, launch, rows);
      return false;
    }
  } else {
    for (int k = 0; k < rows.n_matrices; ++k)
      if (!is_aligned(rows.matrices[k].weights, kWeightAlign<kType>) ||
          rows.gate_offset % kWeightAlign<kType> != 0)
        fail(ErrorKind::internal,
             format("%s weights lie at %p, expected a multiple of %d", type_name(kType),
                    static_cast<const void*>(rows.matrices[k].weights), kWeightAlign<kType>));
  }
  layout.n_steps = static_cast<int>(ceil_div(rows.n_cols, Steps<kType>::kCols));
  layout.log_warps = choose_log_warps(rows, layout.n_steps);
  layout.n_split = kMats == 1 ? choose_split(rows, layout.n_steps, layout.log_warps) : 1;
  layout.n_steps_block = static_cast<int>(ceil_div(layout.n_steps, layout.n_split));
  if constexpr (kIsFloat<kType>) {
    if (rows.n_tokens > kGroupTokens ? launch_rows<kType, kMats, 2, false>(rows, layout, {}, launch)
                                     : launch_rows<kType, kMats, 1, false>(rows, layout, {}, launch))
      return false;
  } else if (!runs.runs && rows.n_tokens <= (kMats == 2 ? 1 : kGroupTokens)) {
    const bool has_room = layout.n_split == 1 && rows.in_bands;  // other blocks are no cluster's
    const Beside& added = has_room ? beside : Beside{};
    if (rows.in_bands ? launch_rows<kType, kMats, 1, true>(rows, layout, added, launch)
                      : launch_rows<kType, kMats, 1, false>(rows, layout, added, launch))
      return has_room;
  } else if (!runs.runs && rows.n_tokens > kMostTogether) {
    if (multiply_wide(rows, layout, kMats == 2, kType, launch)) return false;
  }
  multiply_columns(rows, layout, runs, kMats == 2, kType, launch);
  return false;
}

// The weights' part of a DecodeRows. Throws Error{internal} when rows are not as the type says.
inline DecodeRows rows_of(const WeightMatrix& w) {
  if (w.n_cols <= 0 || w.n_cols % traits(w.type).block_values != 0 ||
      w.row_bytes != row_bytes(w.type, w.n_cols) || w.n_rows > INT_MAX / 2 || w.n_cols > INT_MAX / 64)
    fail(ErrorKind::internal, format("a matrix of %lld rows of %lld %s values has %zu bytes a row",
                                     static_cast<long long>(w.n_rows), static_cast<long long>(w.n_cols),
                                     type_name(w.type), w.row_bytes));
  DecodeRows rows;
  rows.matrices[0].weights = w.data;
  rows.matrices[0].n_rows = static_cast<int>(w.n_rows);
  rows.matrices[0].y_token_stride = w.n_rows;
  rows.row_bytes = static_cast<int64_t>(w.row_bytes);
  rows.mat_bytes = static_cast<int64_t>(w.mat_bytes);
  rows.in_bands = w.step_bytes > 0;
  rows.n_cols = static_cast<int>(w.n_cols);
  return rows;
}

// The product for all types; kMats = 2: the gated one. Runs: none, or all of the uses. Returns whether what
// is beside it is done too: where tokens are few and blocks are no clusters.
template <int kMats>
bool launch_any(const DecodeRows& rows, const UseRuns& runs, TensorType type, const Launch& launch,
                const Beside& beside = {}) {
  if (rows.n_problems == 0 || rows.matrices[0].n_rows == 0) return false;
  constexpr int kMostTokens = 32 * kGroupTokens;  // that have room as fp16 in the scratch memory
  bool is_beside_done = false;
  for (int first = 0; first < rows.n_tokens; first += kMostTokens) {
    DecodeRows part = rows;
    part.x += first * rows.x_token_stride;
    for (int k = 0; k < rows.n_matrices; ++k) part.matrices[k].y += first * rows.matrices[k].y_token_stride;
    if (rows.plus) part.plus += first * rows.matrices[0].y_token_stride;
    if (rows.sum) part.sum += first * rows.matrices[0].y_token_stride;
    part.n_tokens = std::min(kMostTokens, rows.n_tokens - first);
    Workspace scratch = *launch.workspace;  // each part's x takes the place of those before
    Launch here = launch;
    here.workspace = &scratch;
    with_type(type, [&]<TensorType kType>() {
      if constexpr (kType == TensorType::f32)
        launch_float_rows<kMats>(part, here);
      else
        is_beside_done |= launch_type<kType, kMats>(part, runs, beside, here);
    });
  }
  return is_beside_done;
}

// Work to be done beside another product of few tokens: a product of F32 rows, of one problem.
inline Beside beside_of(const DecodeRows& rows) {
  Beside beside;
  beside.rows = rows, beside.n_jobs = float_jobs(rows, 1), beside.is_aligned = is_float_aligned(rows);
  return beside;
}

}  // namespace decode
}  // namespace dsv32::cuda
