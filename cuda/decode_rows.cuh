// Multiplies weight rows by up to eight vectors (sixteen for F16 and BF16), reading the weights once for all.
// Bound by the weights' bytes.
//
// A warp owns 16 rows and a W-th of their steps. It copies steps (cp.async, several ahead) into its own ring
// in shared memory, where any alignment is cheap to take apart. Products are fp16 on tensor cores with f32
// sums: x is rounded in a unit of its own for each step (error 2^-11 at most), codes become fp16 by masks
// (decode_weights.cuh). Q2_K, Q3_K, IQ4_NL, IQ4_XS and MXFP4 are multiplied as integers (decode_integers.cuh,
// decode_nibbles.cuh). F16 and BF16 weights use TF32 products with x split in two; F32 is in float_rows.cuh.
// Where there are too few tiles for the device, the blocks of a cluster share each tile, and the first block
// adds up their sums.
//
// The order of a row's f32 sum depends on the matrix's shape alone, so a token's bits depend neither on the
// other tokens nor on their number.
//
// Weights never change. So a block starts copying them while the kernel before still runs (dependent.cuh),
// unless a kernel chooses the matrix (experts). It takes only as much shared memory as its steps fill, which
// leaves the next kernel room to do the same.
#pragma once

#include "cuda/beside.cuh"

namespace dsv32::cuda::decode {

// ---- how a warp's weights are copied, step after step, into its ring in shared memory ----

// Copies run ahead by all stages but one. In bands a step is one piece of memory, in whole rows sixteen.

// What a warp walks through: its steps of its tile in each group, in the matrix mat_offset bytes from the
// first.
struct WarpSteps {
  const DecodeRows& rows;
  const Layout& layout;
  const WarpShare& share;
  const int64_t mat_offset;
  const int lane;
};

// For bands.
template <TensorType kType, int kMats>
struct BandWay {
  static constexpr int kBytes = Steps<kType>::kBytes, kTile = kBandTile * kBytes, kStage = kMats * kTile;
  static constexpr int kMiddle = kTile / 32 * 16;  // small offsets from here fit into the copy instructions

  const WarpSteps of;
  const uint8_t* middle;  // the lane's pieces in the middle of the next step to copy
  int n_left;             // steps left of the tile, including that one; 0 or less: nothing to copy
  int group;              // group of tiles
  int least_left;         // the lane copies one of the last few pieces if n_left is larger
  // This lane's pieces: of the stage taken last, of the first stage, and past the last stage; from there to
  // its first row.
  uint32_t taken, first, end, to_row;

  DSV32_DEVICE BandWay(const WarpSteps& steps, int first_group, uint8_t* ring)
      : of(steps),
        group(first_group),
        least_left(static_cast<int>(opaque(of.lane < kBytes % 32 ? 0 : INT_MAX))),
        first(opaque(shared_address(ring) + 16 * of.lane)),
        to_row(opaque(of.lane / 4 * kBytes - 16 * of.lane)) {
    end = opaque(first + of.layout.n_stages * kStage);
    taken = end - kStage;
    start();
  }
  DSV32_DEVICE void start() {
    n_left = 0;
    if (group >= of.layout.n_groups) return;
    n_left = of.share.end - of.share.first;
    int first_row;
    const DecodeRows::Matrix& matrix = find_tile(of.rows, of.layout, group, &first_row);
    // Past the end the last tile is read again.
    middle = matrix.weights + of.mat_offset + min(first_row, matrix.n_rows - kBandTile) * of.rows.row_bytes +
             of.share.first * kTile + kMiddle + 16 * of.lane;
  }
  // Starts the copies of the next step.
  DSV32_DEVICE void put(uint32_t to) {
    constexpr std::make_integer_sequence<int, kBytes / 32> kPieces;
    copy(middle, to, kPieces);
    if constexpr (kMats == 2) copy(middle + of.rows.gate_offset, to + kTile, kPieces);
    commit_copies();
    middle += kTile;
    if (--n_left == 0) group += of.share.n_groups_apart, start();
  }
  template <int... kPieces>
  DSV32_DEVICE void copy(const uint8_t* from, uint32_t to, std::integer_sequence<int, kPieces...>) {
    (copy_passing_async_if<512 * kPieces, 512 * kPieces - kMiddle>(to, from, n_left > 0), ...);
    constexpr int kWhole = kBytes / 32 * 512;
    if constexpr (kWhole < kTile)
      copy_passing_async_if<kWhole, kWhole - kMiddle>(to, from, n_left > least_left);
  }
  // Where the lane reads its rows of the next step, which has arrived. Starts a copy over the step before.
  DSV32_DEVICE void take(const uint8_t* (&step)[kMats][2]) {
    put(taken);
    taken += kStage;
    taken = taken == end ? first : taken;
    const auto* own = static_cast<const uint8_t*>(__cvta_shared_to_generic(taken + to_row));
    DSV32_UNROLL for (int m = 0; m < kMats; ++m) {
      DSV32_UNROLL for (int k = 0; k < 2; ++k) step[m][k] = own + m * kTile + k * kTile / 2;
    }
  }
};

// For rows that lie whole.
template <TensorType kType, int kMats>
struct RowsWay {
  static constexpr int kTile = kBandTile * Steps<kType>::kSlot, kStage = kMats * kTile;

  // A place on the way: the group of tiles, and where its step lies for this lane.
  struct Walk {
    int group;
    StepPlace at;
  };
  const WarpSteps of;
  Walk copied, taken;
  uint8_t* ring;
  uint32_t first;
  int at, before, end;

  DSV32_DEVICE RowsWay(const WarpSteps& steps, int first_group, uint8_t* its_ring)
      : of(steps),
        copied{first_group},
        ring(its_ring),
        first(opaque(shared_address(its_ring))),
        at(0),
        before((of.layout.n_stages - 1) * kStage),
        end(of.layout.n_stages * kStage) {
    start(copied);
    taken = copied;
  }
  // A warp without steps starts past the last group.
  DSV32_DEVICE void start(Walk& walk) const {
    if (of.share.first >= of.share.end) walk.group = of.layout.n_groups;
    if (walk.group >= of.layout.n_groups) return;
    int first_row;
    const DecodeRows::Matrix& matrix = find_tile(of.rows, of.layout, walk.group, &first_row);
    walk.at = place_step<kType>(of.rows, matrix, of.mat_offset, first_row, of.share.first);
  }
  DSV32_DEVICE void advance(Walk& walk) const {
    const int n_apart = kIsFloat<kType> ? of.share.n_apart : 1;
    walk.at.step += n_apart;
    walk.at.row += n_apart * step_apart<kType>(of.rows);
    if (walk.at.step < of.share.end) return;
    walk.group += of.share.n_groups_apart;
    start(walk);
  }
  DSV32_DEVICE void put(uint32_t to) {
    const bool is_there = copied.group < of.layout.n_groups;
    if (is_there) copy_step<kType, kMats, true>(of.rows, of.layout, copied.at, of.lane, to);
    commit_copies();
    if (is_there) advance(copied);
  }
  DSV32_DEVICE void take(const uint8_t* (&step)[kMats][2]) {
    put(first + before);
    before = at;
    DSV32_UNROLL for (int m = 0; m < kMats; ++m) {
      StepPlace place = taken.at;
      place.row += m ? of.rows.gate_offset : 0;
      find_step<kType>(of.rows, place, of.lane, ring + at + m * kTile, step[m]);
    }
    at += kStage;
    if (at == end) at = 0;
    advance(taken);
  }
};

// ---- the kernels ----

// Shared memory of a block, in this order; each of its teams has a ring and partial sums.
template <TensorType kType, int kMats, bool kInBands>
struct SharedSizes {
  static constexpr int kTile = kBandTile * (kInBands ? Steps<kType>::kBytes : Steps<kType>::kSlot),
                       kStage = kMats * kTile;  // of a warp
  static __host__ __device__ int ring(int n_slots) { return kWarps * n_slots * kStage; }
  static __host__ __device__ int x(int n_steps, int n_tokens) {
    if constexpr (kIsFloat<kType>)
      return 0;
    else
      return n_steps * n_tokens * Record<kType>::kBytes;
  }
  static __host__ __device__ int partial(int stride) { return 2 * kWarps * kMats * kBandTile * stride * 4; }
};

// The sum of a value over the cluster's blocks in the order of their ranks; valid in the first block.
// `value`: the same place in each block's shared memory. All threads of all blocks call it.
DSV32_DEVICE float sum_over_cluster(float* value, int n_blocks) {
  float sum = 0;
#if __CUDA_ARCH__ >= 900
  sync_cluster();
  if (block_of_cluster() == 0) {
    sum = *value;
    for (int block = 1; block < n_blocks; ++block) sum += *shared_of_block(value, block);
  }
  sync_cluster();  // until all values are read
#endif
  return sum;
}

// v = v * factor * w
DSV32_DEVICE void multiply_x8(float4 (&v)[2], float factor, const float4 (&w)[2]) {
  DSV32_UNROLL for (int half = 0; half < 2; ++half) {
    v[half].x = v[half].x * factor * w[half].x, v[half].y = v[half].y * factor * w[half].y;
    v[half].z = v[half].z * factor * w[half].z, v[half].w = v[half].w * factor * w[half].w;
  }
}

// Rounds a block's x to records [n_steps, tokens.n] of a type with codes, from step first_step on. kNorms: x
// of at most kFewTokens tokens may have to be normed. Reads::arriving: waits for the values.
template <TensorType kType, bool kNorms, Reads kReads>
__device__ inline void make_records(const DecodeRows& rows, const Layout& layout, const BlockTokens& tokens,
                                    int first_step, uint8_t* to) {
  using X = Record<kType>;
  constexpr int kTogether = 4, kWarpTeams = 32 / X::kLanes;
  constexpr int kMostNormed = kNorms ? int{kFewTokens} : 1;
  const int thread = static_cast<int>(threadIdx.x), team = thread / X::kLanes, lane = thread % X::kLanes,
            n_apart = static_cast<int>(blockDim.x) / X::kLanes, n_records = layout.n_steps_block * tokens.n,
            first_of_warp = team / kWarpTeams * kWarpTeams;
  const int col = first_step * Steps<kType>::kCols + column_of<kType>(lane / 4, lane % 4);
  const auto step_of = [&](int record) { return tokens.n == 1 ? record : record / tokens.n; };
  const auto load = [&](int begin, float4(&v)[kTogether][2]) {
    DSV32_UNROLL for (int k = 0; k < kTogether; ++k) {
      const int record = begin + k * n_apart + team, step = step_of(record);
      load_x8<kHalvesApart<kType>, kReads>(tokens.x + (record - step * tokens.n) * rows.x_token_stride,
                                           col + step * Steps<kType>::kCols,
                                           record < n_records ? rows.n_cols : 0, layout.is_x_aligned, v[k]);
    }
  };
  [[maybe_unused]] const auto load_norm = [&](int record, float4(&w)[2]) {
    load_x8<kHalvesApart<kType>>(rows.x_norm, col + step_of(record) * Steps<kType>::kCols,
                                 record < n_records ? rows.n_cols : 0, layout.is_x_aligned, w);
  };
  // A column of these that has not arrived, or -1.
  [[maybe_unused]] const auto find_absent = [&](int begin, const float4(&v)[kTogether][2]) {
    int absent = -1;
    DSV32_UNROLL for (int k = 0; k < kTogether; ++k) {
      DSV32_UNROLL for (int half = 0; half < 2; ++half) if (has_absent(v[k][half])) absent =
          col + step_of(begin + k * n_apart + team) * Steps<kType>::kCols + kHalvesApart<kType> * half;
    }
    return absent;
  };
  float factors[kMostNormed] = {};
  float4 first_weights[2] = {};  // loaded while the factors are computed
  if constexpr (kNorms)
    if (rows.x_norm) {
      load_norm(team, first_weights);
      const auto find = [&]<int kTokens>(std::integral_constant<int, kTokens>) {
        rms_factors<kTokens>(tokens.x, rows.x_token_stride, rows.n_cols, rows.norm_eps, factors);
      };
      static_assert(kMostNormed == 4);
      switch (tokens.n) {
        case 1: find(std::integral_constant<int, 1>()); break;
        case 2: find(std::integral_constant<int, 2>()); break;
        case 3: find(std::integral_constant<int, 3>()); break;
        default: find(std::integral_constant<int, 4>());
      }
    }
  [[maybe_unused]] const auto norm = [&](int record, float4(&v)[2]) {
    const int t = record - step_of(record) * tokens.n;
    float4 w[2] = {first_weights[0], first_weights[1]};
    if (record != team) load_norm(record, w);
    float factor = factors[0];
    DSV32_UNROLL for (int i = 1; i < kMostNormed; ++i) if (i == t) factor = factors[i];
    multiply_x8(v, factor, w);
  };
  DSV32_NO_UNROLL for (int begin = 0; begin + first_of_warp < n_records; begin += kTogether * n_apart) {
    float4 v[kTogether][2];
    load(begin, v);
    if constexpr (kReads == Reads::arriving) {
      Patience patience;
      for (int absent = find_absent(begin, v);
           absent >= 0 && !patience.ends(rows.alarm, absent / (rows.n_cols / rows.alarm.n_members));
           absent = find_absent(begin, v))
        load(begin, v);
    }
    DSV32_UNROLL for (int k = 0; k < kTogether; ++k) {
      const int record = begin + k * n_apart + team;
      if (k % 2 == 0 && record - team + first_of_warp >= n_records) break;  // the whole warp
      if constexpr (kNorms)
        if (rows.x_norm) norm(record, v[k]);
      make_record<kType>(v[k], to + record * X::kBytes, record < n_records);
    }
  }
}

// As finish_row(), for the block's problem; in a team also sends the result.
template <int kMats>
DSV32_DEVICE void finish_and_send(const DecodeRows& rows, const DecodeRows::Matrix& matrix,
                                  const float (&totals)[kMats], int token, int row) {
  const auto problem = static_cast<int>(blockIdx.y);
  const float y = finish_row<kMats>(rows, matrix, totals, problem, token, row);
  if (rows.mail.n_members > 0) send_row(rows.mail, problem, token, row, y);
}

// Makes records of values that arrive.
template <TensorType kType>
__device__ __noinline__ void await_records(const DecodeRows& rows, const Layout& layout,
                                           const BlockTokens& tokens, int first_step, uint8_t* to) {
  make_records<kType, false, Reads::arriving>(rows, layout, tokens, first_step, to);
}

// y = W @ x, or silu(W0 x) * (W1 x) * factor; see DecodeRows. With codes kTiles is 1, and other work (Beside)
// takes blocks before those of a single problem or after those of several.
// Grid (blocks, problems, groups of 8 kTiles tokens), persistent over groups of tiles; a warp has 16 rows and
// a W-th of the steps. Layout: head of this file. The sums of the W warps meet in shared memory (sum_units),
// in two buffers, so that a group of tiles takes one barrier of a team's threads. Blocks of two teams: where
// x and a few steps take more than half of a multiprocessor's shared memory; without clusters and Beside.
// Bound by the weights' bytes. Measured (H200, 2026-11-21): 7168 x 18432 of one token, Q4_K 1987, Q8_0 2401,
// BF16 3416 GB/s.
template <TensorType kType, int kMats, int kTiles, bool kInBands>
__global__ void __launch_bounds__(2 * kThreads, 1)
    decode_rows_kernel(const __grid_constant__ DecodeRows rows, const __grid_constant__ Layout layout,
                       const __grid_constant__ Beside beside) {
  using Sizes = SharedSizes<kType, kMats, kInBands>;
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ uint32_t grid[kGridWords<kType> + 1];
  __shared__ float block_sums[kMats == 1 ? kThreads : 1];
  if constexpr (kInBands) {
    const int past = static_cast<int>(blockIdx.y) - rows.n_problems, x = static_cast<int>(blockIdx.x);
    if (past >= 0 || x < layout.n_front_blocks)
      return work_beside(beside, past >= 0 ? past * static_cast<int>(gridDim.x) + x : x, rows.lets_next_late,
                         reinterpret_cast<float*>(shared));
  }
  const int warp = threadIdx.x / 32, lane = opaque(threadIdx.x) % 32, g = lane / 4, i = lane % 4;
  const int team = team_of_block(), n_teams = teams_of_block(), thread = threadIdx.x % kThreads;
  const int n_tiles = kWarps >> layout.log_warps;
  const int stride = layout.stride;
  uint8_t* ring = shared + static_cast<int>(opaque(warp * layout.n_slots * Sizes::kStage));
  const WarpShare share = share_of_warp<kType, kMats == 1>(layout);
  const int n_warps_tile = 1 << layout.log_warps;

  // A product that waits for mats lets the next one start only then; the next one knows mats (is_known).
  const bool is_chosen = rows.mats && !rows.is_known;
  if constexpr (kMats == 2 && kInBands)
    if (is_chosen && rows.is_x_older)
      make_records<kType, false, Reads::past_l1>(rows, layout, BlockTokens(rows, kGroupTokens),
                                                 share.first_of_block,
                                                 shared + n_teams * Sizes::ring(layout.n_slots));
  if (is_chosen) wait_for_inputs();
  if (!rows.lets_next_late) let_next_start();
  fill_grid<kType>(grid);
  const int64_t mat = mat_offset(rows);
  if constexpr (kGridWords < kType >> 0) __syncthreads();

  const int first_group =
      (static_cast<int>(blockIdx.x) - layout.n_front_blocks) / layout.n_split * n_teams + team;
  using Way = std::conditional_t<kInBands, BandWay<kType, kMats>, RowsWay<kType, kMats>>;
  Way way({rows, layout, share, mat, lane}, first_group, ring);
  for (int stage = 0; stage < layout.n_stages - 1; ++stage) way.put(way.first + stage * Sizes::kStage);
  if (!is_chosen) wait_for_inputs();
  if (rows.lets_next_late) let_next_start();

  const BlockTokens tokens(rows, kTiles * kGroupTokens);
  uint8_t* x = shared + n_teams * Sizes::ring(layout.n_slots);
  uint8_t* partial_begin = x + Sizes::x(layout.n_steps_block, tokens.n) + team * Sizes::partial(stride);
  LaneXOf<kType> lane_x;
  int n_x_bytes = 0;  // of a step
  if constexpr (!kIsFloat<kType>) {
    constexpr bool kIsOneInBands = kMats == 1 && kInBands;
    if (kIsOneInBands && rows.is_x_arriving) {
      if constexpr (kIsOneInBands) await_records<kType>(rows, layout, tokens, share.first_of_block, x);
    } else if (!(kMats == 2 && kInBands && is_chosen && rows.is_x_older)) {
      make_records<kType, kIsOneInBands, Reads::plain>(rows, layout, tokens, share.first_of_block, x);
    }
    __syncthreads();
    lane_x = decltype(lane_x)::template of<kType>(x, lane, tokens.n - 1),
    n_x_bytes = tokens.n * Record<kType>::kBytes;
  }

  const Lane<kType> quarter(i);
  int n_done = 0;
  const int first_step = share.first - share.first_of_block, end_step = share.end - share.first_of_block;
  for (int group = first_group; group < layout.n_groups; group += share.n_groups_apart, ++n_done) {
    Sums<kMats, kTiles> sums = {};
    for (int s = first_step; s < end_step; s += kIsFloat<kType> ? share.n_apart : 1) {
      wait_until_pending(layout.n_stages - 2);
      __syncwarp();  // all lanes' copies of this step are complete; all lanes have read the step before
      const uint8_t* step[kMats][2];
      way.take(step);
      if constexpr (kIsFloat<kType>) {
        const int col = (share.first_of_block + s) * Steps<kType>::kCols;
        const float* from = tokens.x + g * rows.x_token_stride + col;
        add_step_float<kType>(sums, step, from, 8 * rows.x_token_stride, rows.n_cols - col, tokens.n - g);
      } else {
        add_step_of<kType>(tokens.n, sums, step, lane_x.after(s * n_x_bytes), quarter, grid);
      }
    }

    // [2][warp][mat][row][token]
    float* partial =
        reinterpret_cast<float*>(partial_begin) + (n_done % 2) * (kWarps * kMats * kBandTile * stride);
    DSV32_UNROLL for (int m = 0; m < kMats; ++m) {
      float* to = partial + (warp % kWarps * kMats + m) * kBandTile * stride;
      DSV32_UNROLL for (int k = 0; k < 4 * kTiles; ++k) {
        const int t = k / 4 * 8 + token_of_sum<kType>(i, k);
        if (t < stride) to[(g + k / 2 % 2 * 8) * stride + t] = sums[m][k / 4][k % 4];
      }
    }
    sync_at<kThreads>(1 + team);
    int first_of_matrix;
    const DecodeRows::Matrix& matrix = matrix_of(rows, group, &first_of_matrix);
    const int first_row = (group - first_of_matrix) * n_tiles * kBandTile;
    if constexpr (kMats == 1) {
      if (layout.n_split > 1) {
        const int t = threadIdx.x / kBandTile, r = threadIdx.x % kBandTile, row = first_row + r;
        float total = 0;
        if (t < tokens.n)
          total = sum_units(kWarps, [&](int w) { return partial[(w * kBandTile + r) * stride + t]; });
        block_sums[threadIdx.x] = total;
        const float sum[1] = {sum_over_cluster(block_sums + threadIdx.x, layout.n_split)};
        if (blockIdx.x % layout.n_split == 0 && t < tokens.n && row < matrix.n_rows)
          finish_and_send<1>(rows, matrix, sum, tokens.first + t, row);
        continue;
      }
    }
    for (int k = thread; k < n_tiles * kBandTile * tokens.n; k += kThreads) {
      const int t = k / (n_tiles * kBandTile), tile = k / kBandTile % n_tiles, r = k % kBandTile;
      const int row = first_row + tile * kBandTile + r;
      if (row >= matrix.n_rows) continue;
      float totals[kMats] = {};
      DSV32_UNROLL for (int m = 0; m < kMats; ++m) totals[m] = sum_units(n_warps_tile, [&](int w) {
        return partial[(((tile * n_warps_tile + w) * kMats + m) * kBandTile + r) * stride + t];
      });

      finish_and_send<kMats>(rows, matrix, totals, tokens.first + t, row);
    }
  }
}

// The same for F16 and BF16 where rows or x are not aligned: small models only. A warp per row; grid (blocks
// of 8 rows, problems, groups of tokens). Bound by latency.
template <TensorType kType, int kMats>
__global__ void rows_plain_kernel(const __grid_constant__ DecodeRows rows) {
  const int row = static_cast<int>(blockIdx.x * kWarps + threadIdx.x / 32), lane = threadIdx.x % 32;
  const DecodeRows::Matrix& matrix = rows.matrices[0];
  wait_for_inputs();
  let_next_start();  // late: the next kernel may use the same mats
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

// The same for F32 rows and few tokens; grid (blocks of kFloatRows rows, problems). See float_rows.cuh.
template <int kMats>
__global__ void __launch_bounds__(kThreads, 2)
    float_rows_kernel(const __grid_constant__ DecodeRows rows, bool is_aligned) {
  extern __shared__ __align__(128) uint8_t shared[];
  if (rows.mats) wait_for_inputs();  // late: the next kernel may use the same mats
  let_next_start();
  float_rows<kMats>(rows, static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y), is_aligned,
                    reinterpret_cast<float*>(shared));
}

}  // namespace dsv32::cuda::decode
