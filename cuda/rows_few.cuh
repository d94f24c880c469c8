// Weight rows times up to kFewTokens vectors: what matmul_few.cu and experts_few.cu are made of.
//
// The weights are read once, so their bytes are the bound, and everything serves to keep many of them in
// flight. A warp owns 16 rows and every W-th step of their columns; it copies a step (cp.async, past the
// registers, several steps ahead) into its own ring in shared memory, where blocks of any alignment are cheap
// to take apart. The products are integer tensor-core products: x becomes 16-bit integers with one scale per
// 32 values (error 2e-5 of x), split into a high and a low signed byte; the codes of the weights are bytes
// already. So sums over a group of weights are exact and eight tokens cost little more than one. F32, F16 and
// BF16 weights are TF32 products, with x (and F32 weights) split in two as well.
//
// The f32 sums of a row run in an order that depends on the matrix's shape alone: the bits of a token's
// result do not depend on the other tokens.
#pragma once

#include <algorithm>
#include <climits>

#include "cuda/few_steps.cuh"
#include "cuda/kernels.h"

namespace dsv32::cuda {

// y[p, t] = sum over parts i of W[mats[p, i]] @ x[p / x_sharing, t, i] for n_problems problems. Two matrices
// at once (kMats) are the gated product instead: y = silu(W0 x) * (W1 x) * factor[p].
struct RowsFew {
  const uint8_t* weights[2] = {};
  int64_t row_bytes = 0, mat_bytes = 0;
  int n_rows = 0, n_cols = 0;  // of one part
  int n_problems = 1, n_parts = 1;
  int n_problems_token = 1;       // with one token: how rows are cut must not depend on the others
  const int32_t* mats = nullptr;  // [n_problems, n_parts]; null: problem p has the one matrix p
  const float* x = nullptr;       // [n_problems / x_sharing, n_tokens, n_parts * n_cols]
  int64_t x_problem_stride = 0, x_token_stride = 0;
  int x_sharing = 1;
  int n_tokens = 0;
  float* y = nullptr;  // [n_problems, n_tokens, n_rows]
  int64_t y_problem_stride = 0, y_token_stride = 0;
  const float* factors = nullptr;  // [n_problems] or null
};

// The plain product, of any type; in matmul_few.cu.
void rows_few(const RowsFew& rows, TensorType type, const Launch& launch);

namespace few {

constexpr int kWarps = 8, kThreads = 32 * kWarps, kTileRows = 16, kMaxParts = 32, kMaxStages = 6;

// What a launch adds to the problem.
struct Layout {
  int n_steps_part, n_steps;  // of one part, of all
  int warps_per_tile;         // W
  int n_groups;               // groups of 8 / W tiles: what a block works on at a time
  int n_stages;
  int n_x_groups;     // groups of 32 values of x, padded to whole steps
  bool is_x_aligned;  // rows of x may be read 16 bytes at a time
  IntegerX x_memory;  // of all problems, prepared by another kernel; words null: in shared memory
};

__device__ __forceinline__ float4 load_x4(const float* x, bool is_aligned) {
  if (is_aligned) return __ldg(reinterpret_cast<const float4*>(x));
  return {__ldg(x), __ldg(x + 1), __ldg(x + 2), __ldg(x + 3)};
}

// One problem's x to integers by teams of eight lanes, a group of 32 values each; team `first` of n_teams.
// Whole warps enter: n_teams and n_x_groups are multiples of four.
__device__ inline void make_integer_x(const RowsFew& rows, const Layout& layout, const float* x,
                                      const IntegerX& to, int first, int n_teams) {
  constexpr float kLargest = 32512;  // 127 * 256: the high byte of its rounding stays below 128
  const int lane = threadIdx.x % 8, half = lane / 4;
  const int n_part = layout.n_x_groups / rows.n_parts;
  for (int t = 0; t < to.stride; ++t) {
#pragma unroll 4
    for (int group = first; group < layout.n_x_groups; group += n_teams) {
      const int part = rows.n_parts == 1 ? 0 : group / n_part;
      const int col = (group - part * n_part) * 32 + 4 * lane;
      float4 v = {0, 0, 0, 0};
      if (col < rows.n_cols && t < rows.n_tokens)
        v = load_x4(x + t * rows.x_token_stride + static_cast<int64_t>(part) * rows.n_cols + col,
                    layout.is_x_aligned);
      float largest = fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
      float sum = (v.x + v.y) + (v.z + v.w);
#pragma unroll
      for (int offset = 1; offset < 8; offset *= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
        if (offset < 4) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
      }
      const bool is_zero = !(largest > 1e-30f);
      const float factor = is_zero ? 0 : kLargest / largest;
      const float values[4] = {v.x, v.y, v.z, v.w};
      uint32_t high = 0, low = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int q = __float2int_rn(values[i] * factor), upper = (q + 128) >> 8;
        high |= (static_cast<uint32_t>(upper) & 255u) << (8 * i);
        low |= (static_cast<uint32_t>(q) & 255u) << (8 * i);  // q - 256 upper, as a signed byte
      }
      const int64_t at = static_cast<int64_t>(group) * to.stride + t;
      auto* words = reinterpret_cast<uint32_t*>(to.words + at * 4 + lane % 4);
      words[half] = high;
      words[2 + half] = low;
      // 0 * sum: a NaN or an infinity in x, of which the integers know nothing, reaches the result.
      const float other = __shfl_xor_sync(0xffffffffu, sum, 4);
      if (lane == 0) to.scales[at] = (is_zero ? 0 : largest / kLargest) + 0 * (sum + other);
      if (lane % 4 == 0) reinterpret_cast<float*>(to.sums + at)[half] = sum;
    }
  }
}

// x of one problem, in memory or in shared memory.
__device__ __forceinline__ IntegerX problem_x(const IntegerX& all, int64_t problem, int n_x_groups) {
  const int64_t at = problem * n_x_groups * all.stride;
  return {all.words + at * 4, all.scales + at, all.sums + at, all.stride};
}

// Integers of x for a matrix too wide for shared memory. Who: a team of 8 lanes per group of 32 values; grid
// (blocks, problems). Layout: as IntegerX. Bound: latency; x is small.
static __global__ void make_integer_x_kernel(const RowsFew rows, const Layout layout) {
  const float* x = rows.x + blockIdx.y / rows.x_sharing * rows.x_problem_stride;
  make_integer_x(rows, layout, x, problem_x(layout.x_memory, blockIdx.y, layout.n_x_groups),
                 (blockIdx.x * blockDim.x + threadIdx.x) / 8, gridDim.x * blockDim.x / 8);
}

// A warp's way through its steps: the group of tiles, and the step in it.
struct Cursor {
  int group, step;
  __device__ void advance(const Layout& layout, int first_step) {
    step += layout.warps_per_tile;
    if (step < layout.n_steps) return;
    step = first_step;
    group += gridDim.x;
  }
};

// Shared memory of a block, in this order.
template <TensorType kType, int kMats>
struct SharedSizes {
  static constexpr int kStage = kMats * kTileRows * Steps<kType>::kSlot;  // of one warp
  static __host__ __device__ int ring(int n_stages) { return kWarps * n_stages * kStage; }
  static __host__ __device__ int x_words(int n_x_groups, int stride) { return n_x_groups * stride * 64; }
  static __host__ __device__ int x_scales(int n_x_groups, int stride) { return n_x_groups * stride * 4; }
  static __host__ __device__ int x_sums(int n_x_groups, int stride) { return n_x_groups * stride * 8; }
  static __host__ __device__ int partial(int stride) { return 2 * kWarps * kMats * kTileRows * stride * 4; }
};

// y = W @ x, or silu(W0 x) * (W1 x) * factor, for a few tokens; see RowsFew.
// Who: grid (blocks, problems), persistent over groups of tiles; a warp has 16 rows and every W-th step of
// their columns. Layout: head of this file. Sums of the W warps meet in shared memory, added in ascending
// order; two buffers, so that one barrier a group of tiles suffices. Bound: bytes of the weights.
template <TensorType kType, int kMats, bool kOne>
__global__ void __launch_bounds__(kThreads, 2)
    rows_few_kernel(const __grid_constant__ RowsFew rows, const __grid_constant__ Layout layout) {
  using Step = Steps<kType>;
  using Sizes = SharedSizes<kType, kMats>;
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ uint32_t grid[kGridWords<kType> + 1];
  __shared__ int32_t mats[kMaxParts];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, i = lane % 4;
  const int n_warps_tile = layout.warps_per_tile, n_tiles = kWarps / n_warps_tile;
  const int own_tile = warp / n_warps_tile, first_step = warp % n_warps_tile;
  const int stride = layout.x_memory.stride;
  uint8_t* ring = shared + warp * layout.n_stages * Sizes::kStage;

  fill_grid<kType>(grid);
  if (threadIdx.x < rows.n_parts)
    mats[threadIdx.x] =
        rows.mats ? rows.mats[blockIdx.y * rows.n_parts + threadIdx.x] : static_cast<int>(blockIdx.y);
  __syncthreads();

  // Where a step's bytes of a row begin, and the bytes from there to the row's end.
  const auto source = [&](const Cursor& at, int m, int r, int& n_bytes) {
    const int part = rows.n_parts == 1 ? 0 : at.step / layout.n_steps_part;
    const int64_t offset = static_cast<int64_t>(at.step - part * layout.n_steps_part) * Step::kBytes;
    const int row = min((at.group * n_tiles + own_tile) * kTileRows + r, rows.n_rows - 1);
    n_bytes = static_cast<int>(min(rows.row_bytes - offset, static_cast<int64_t>(Step::kBytes)));
    return rows.weights[m] + mats[part] * rows.mat_bytes + row * rows.row_bytes + offset;
  };
  // Four lanes copy a row: 64 bytes at a time. Past the row's end are zeros, which are weights of 0 in every
  // format.
  const auto copy_step = [&](const Cursor& at, int stage) {
#pragma unroll
    for (int k = 0; k < 2 * kMats; ++k) {
      int n_bytes;
      const int m = k / 2, r = g + k % 2 * 8;
      const uint8_t* from = source(at, m, r, n_bytes);
      const int shift = static_cast<int>(reinterpret_cast<uintptr_t>(from) % 32);
      uint8_t* to = ring + stage * Sizes::kStage + (m * kTileRows + r) * Step::kSlot;
#pragma unroll
      for (int c = 16 * i; c < Step::kSlot; c += 64)
        if (c < shift + Step::kBytes)
          copy_async(to + c, from - shift + c, max(0, min(16, shift + n_bytes - c)));
    }
  };
  Cursor put{static_cast<int>(blockIdx.x), first_step};
  const auto put_step = [&](int stage) {
    if (put.group < layout.n_groups) copy_step(put, stage);
    commit_copies();
    put.advance(layout, first_step);
  };
  for (int stage = 0; stage < layout.n_stages - 1; ++stage) put_step(stage);

  IntegerX x{};
  uint8_t* x_begin = shared + Sizes::ring(layout.n_stages);
  uint8_t* partial_begin = x_begin;
  const float* x_floats = rows.x + blockIdx.y / rows.x_sharing * rows.x_problem_stride;
  if constexpr (!kIsFloat<kType>) {
    if (layout.x_memory.words) {
      x = problem_x(layout.x_memory, blockIdx.y, layout.n_x_groups);
    } else {
      x.stride = stride;
      x.words = reinterpret_cast<uint4*>(x_begin);
      uint8_t* scales = x_begin + Sizes::x_words(layout.n_x_groups, stride);
      x.scales = reinterpret_cast<float*>(scales);
      uint8_t* sums = scales + Sizes::x_scales(layout.n_x_groups, stride);
      x.sums = reinterpret_cast<float2*>(sums);
      partial_begin = sums + Sizes::x_sums(layout.n_x_groups, stride);
      make_integer_x(rows, layout, x_floats, x, threadIdx.x / 8, kThreads / 8);
      __syncthreads();
    }
  }

  int taken = 0, n_done = 0;
  for (int group = blockIdx.x; group < layout.n_groups; group += gridDim.x, ++n_done) {
    Sums<kType, kMats, kOne> sums;
    for (int s = first_step; s < layout.n_steps; s += n_warps_tile) {
      wait_copies(layout.n_stages - 2);
      __syncwarp();  // every lane's copies of this step are there, and no lane reads the step before any more
      put_step(taken == 0 ? layout.n_stages - 1 : taken - 1);
      const uint8_t* step[kMats][2];
#pragma unroll
      for (int k = 0; k < 2 * kMats; ++k) {
        int n_bytes;
        const int m = k / 2, r = g + k % 2 * 8;
        step[m][k % 2] = ring + taken * Sizes::kStage + (m * kTileRows + r) * Step::kSlot +
                         reinterpret_cast<uintptr_t>(source({group, s}, m, r, n_bytes)) % 32;
      }
      if constexpr (kIsFloat<kType>) {
        const int part = s / layout.n_steps_part, col = (s - part * layout.n_steps_part) * Step::kCols;
        const float* from =
            x_floats + g * rows.x_token_stride + static_cast<int64_t>(part) * rows.n_cols + col;
        add_step_float<kType, kMats, kOne>(sums, step, from, g < rows.n_tokens ? rows.n_cols - col : 0);
      } else {
        add_step<kType, kMats, kOne>(sums, step, x, s * (Step::kCols / 32), rows.n_tokens, grid);
      }
      taken = taken + 1 == layout.n_stages ? 0 : taken + 1;
    }

    // [2][warp][mat][row][token]
    float* partial =
        reinterpret_cast<float*>(partial_begin) + (n_done % 2) * (kWarps * kMats * kTileRows * stride);
#pragma unroll
    for (int m = 0; m < kMats; ++m) {
      float* to = partial + (warp * kMats + m) * kTileRows * stride;
      if constexpr (kOne && !kIsFloat<kType>) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          float sum = sums.of[m][0][r];
          sum += __shfl_xor_sync(0xffffffffu, sum, 1);
          sum += __shfl_xor_sync(0xffffffffu, sum, 2);
          if (i == 0) to[g + 8 * r] = sum;
        }
      } else {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          float sum = sums.of[m][0][k];
          if constexpr (!kIsFloat<kType>)
            sum = (sum + sums.of[m][1][k]) + (sums.of[m][2][k] + sums.of[m][3][k]);
          const int t = 2 * i + k % 2;
          if (t < stride) to[(g + k / 2 * 8) * stride + t] = sum;
        }
      }
    }
    __syncthreads();
    for (int k = threadIdx.x; k < n_tiles * kTileRows * rows.n_tokens; k += kThreads) {
      const int t = k / (n_tiles * kTileRows), tile = k / kTileRows % n_tiles, r = k % kTileRows;
      const int row = (group * n_tiles + tile) * kTileRows + r;
      if (row >= rows.n_rows) continue;
      float totals[kMats] = {};
#pragma unroll
      for (int m = 0; m < kMats; ++m)
        for (int w = tile * n_warps_tile; w < (tile + 1) * n_warps_tile; ++w)
          totals[m] += partial[((w * kMats + m) * kTileRows + r) * stride + t];
      float y = totals[0];
      if constexpr (kMats == 2) y = y / (1.0f + expf(-y)) * totals[1];
      if (rows.factors) y *= rows.factors[blockIdx.y];
      rows.y[blockIdx.y * rows.y_problem_stride + t * rows.y_token_stride + row] = y;
    }
  }
}

// The same for F32, F16 and BF16 rows that are no multiple of 16 bytes or x that is not so aligned: small
// models only. Who: a warp per row, grid (blocks of 8 rows, problems). Layout: values one at a time, in
// memory order over the lanes. Bound: latency.
template <TensorType kType, int kMats>
__global__ void rows_plain_kernel(const __grid_constant__ RowsFew rows) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (row >= rows.n_rows) return;
  const float* x = rows.x + blockIdx.y / rows.x_sharing * rows.x_problem_stride;
  for (int t = 0; t < rows.n_tokens; ++t) {
    float totals[kMats] = {};
    for (int m = 0; m < kMats; ++m) {
      for (int part = 0; part < rows.n_parts; ++part) {
        const int64_t mat =
            rows.mats ? rows.mats[blockIdx.y * rows.n_parts + part] : static_cast<int>(blockIdx.y);
        const uint8_t* from = rows.weights[m] + mat * rows.mat_bytes + row * rows.row_bytes;
        const float* x_part = x + t * rows.x_token_stride + static_cast<int64_t>(part) * rows.n_cols;
        for (int col = lane; col < rows.n_cols; col += 32)
          totals[m] = fmaf(load_float<kType>(from, col), x_part[col], totals[m]);
      }
      totals[m] = warp_sum(totals[m]);
    }
    float y = totals[0];
    if constexpr (kMats == 2) y = y / (1.0f + expf(-y)) * totals[1];
    if (rows.factors) y *= rows.factors[blockIdx.y];
    if (lane == 0) rows.y[blockIdx.y * rows.y_problem_stride + t * rows.y_token_stride + row] = y;
  }
}

inline int device_attribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&value, attribute, device));
  return value;
}

// W: the one with which the busiest warp has the fewest steps when two blocks fit on a multiprocessor; the
// larger of equals. Not by n_tokens, on which no sum's order may depend.
inline int choose_warps_per_tile(const RowsFew& rows, int n_steps, int n_sms) {
  int64_t best = 1, least = INT64_MAX;
  for (int64_t w = kWarps; w >= 1; w /= 2) {
    if (w > n_steps && w > 1) continue;
    const int64_t n_groups = ceil_div(ceil_div(rows.n_rows, kTileRows), kWarps / w) * rows.n_problems_token;
    const int64_t most = ceil_div(n_groups, 2 * n_sms) * ceil_div(n_steps, w);
    if (most < least) least = most, best = w;
  }
  return static_cast<int>(best);
}

template <TensorType kType, int kMats, bool kOne>
void launch_rows(const RowsFew& rows, Layout layout, const Launch& launch) {
  using Sizes = SharedSizes<kType, kMats>;
  const int stride = layout.x_memory.stride, n_x = layout.n_x_groups;
  const int partial = Sizes::partial(stride);
  const int x_bytes = kIsFloat<kType> ? 0
                                      : Sizes::x_words(n_x, stride) + Sizes::x_scales(n_x, stride) +
                                            Sizes::x_sums(n_x, stride);
  // Static shared memory and the 1 KiB that the system takes of each block count too.
  constexpr int kReserved = 1024 + (kGridWords<kType> + 1) * 4 + kMaxParts * 4 + 128;
  const int block_limit = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) - kReserved;
  const int half_sm = device_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor) / 2 - kReserved;
  const auto stages_in = [&](int64_t n_bytes) { return static_cast<int>(n_bytes / Sizes::ring(1)); };

  const int n_blocks_all = layout.n_groups * rows.n_problems;
  bool is_x_shared = true;
  int n_stages = stages_in(half_sm - partial - x_bytes), n_blocks_sm = 2;
  if (n_stages < 2 || n_blocks_all <= launch.n_sms) {
    n_stages = stages_in(static_cast<int64_t>(block_limit) - partial - x_bytes), n_blocks_sm = 1;
    if (n_stages < 2) is_x_shared = false, n_stages = stages_in(half_sm - partial), n_blocks_sm = 2;
    if (n_stages < 2) n_stages = stages_in(block_limit - partial), n_blocks_sm = 1;
  }
  if (n_stages < 2)
    fail(ErrorKind::internal,
         format("%d bytes of shared memory a block are too few for products with %s weights", block_limit,
                type_name(kType)));
  layout.n_stages = std::min(n_stages, kMaxStages);
  if (!is_x_shared) {
    const size_t n = static_cast<size_t>(rows.n_problems) * n_x * stride;
    layout.x_memory.words = launch.workspace->take<uint4>(n * 4);
    layout.x_memory.scales = launch.workspace->take<float>(n);
    layout.x_memory.sums = launch.workspace->take<float2>(n);
    const dim3 blocks(static_cast<unsigned>(ceil_div(n_x, kThreads / 8)),
                      static_cast<unsigned>(rows.n_problems));
    make_integer_x_kernel<<<blocks, kThreads, 0, launch.stream>>>(rows, layout);
    check_launch("make_integer_x_kernel");
  }
  const int n_shared = Sizes::ring(layout.n_stages) + (is_x_shared ? x_bytes : 0) + partial;
  CUDA_CHECK(cudaFuncSetAttribute(rows_few_kernel<kType, kMats, kOne>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, n_shared));
  const int n_x_blocks = std::clamp(n_blocks_sm * launch.n_sms / rows.n_problems, 1, layout.n_groups);
  const dim3 blocks(static_cast<unsigned>(n_x_blocks), static_cast<unsigned>(rows.n_problems));
  rows_few_kernel<kType, kMats, kOne><<<blocks, kThreads, n_shared, launch.stream>>>(rows, layout);
  check_launch("rows_few_kernel");
}

inline bool is_aligned(const void* p, size_t n_bytes) {
  return reinterpret_cast<uintptr_t>(p) % n_bytes == 0;
}

template <TensorType kType, int kMats>
void launch_type(const RowsFew& rows, const Launch& launch) {
  Layout layout{};
  layout.is_x_aligned = is_aligned(rows.x, 16) && rows.x_problem_stride % 4 == 0 &&
                        rows.x_token_stride % 4 == 0 && rows.n_cols % 4 == 0;
  if constexpr (kIsFloat<kType>) {
    if (!layout.is_x_aligned || rows.row_bytes % 16 != 0 || rows.mat_bytes % 16 != 0 ||
        !is_aligned(rows.weights[0], 16) || !is_aligned(rows.weights[kMats - 1], 16)) {
      const dim3 blocks(static_cast<unsigned>(ceil_div(rows.n_rows, kWarps)),
                        static_cast<unsigned>(rows.n_problems));
      rows_plain_kernel<kType, kMats><<<blocks, kThreads, 0, launch.stream>>>(rows);
      check_launch("rows_plain_kernel");
      return;
    }
  } else {
    for (int m = 0; m < kMats; ++m)
      if (!is_aligned(rows.weights[m], Codes<kType>::kAlign))
        fail(ErrorKind::internal, format("%s weights lie at %p, expected a multiple of %d", type_name(kType),
                                         static_cast<const void*>(rows.weights[m]), Codes<kType>::kAlign));
  }
  layout.n_steps_part = static_cast<int>(ceil_div(rows.n_cols, Steps<kType>::kCols));
  layout.n_steps = layout.n_steps_part * rows.n_parts;
  layout.warps_per_tile = choose_warps_per_tile(rows, layout.n_steps, launch.n_sms);
  layout.n_groups =
      static_cast<int>(ceil_div(ceil_div(rows.n_rows, kTileRows), kWarps / layout.warps_per_tile));
  layout.n_x_groups = layout.n_steps * (Steps<kType>::kCols / 32);
  layout.x_memory.stride = rows.n_tokens == 1 ? 1 : (rows.n_tokens + 1) / 2 * 2;
  if (rows.n_tokens == 1 || kIsFloat<kType>)
    launch_rows<kType, kMats, true>(rows, layout, launch);
  else if constexpr (kMats == 1 && !kIsFloat<kType>)
    launch_rows<kType, kMats, false>(rows, layout, launch);
  else
    fail(ErrorKind::internal, "a gated product takes one token a problem");
}

// The weights' part of a RowsFew. Throws Error{internal} when rows are not as the type says.
inline RowsFew rows_of(const WeightMatrix& w) {
  if (w.n_cols <= 0 || w.n_cols % traits(w.type).block_values != 0 ||
      w.row_bytes != row_bytes(w.type, w.n_cols) || w.n_rows > INT_MAX / 2 || w.n_cols > INT_MAX / 64)
    fail(ErrorKind::internal, format("a matrix of %lld rows of %lld %s values has %zu bytes a row",
                                     static_cast<long long>(w.n_rows), static_cast<long long>(w.n_cols),
                                     type_name(w.type), w.row_bytes));
  RowsFew rows;
  rows.weights[0] = w.data;
  rows.row_bytes = static_cast<int64_t>(w.row_bytes);
  rows.mat_bytes = static_cast<int64_t>(w.mat_bytes);
  rows.n_rows = static_cast<int>(w.n_rows);
  rows.n_cols = static_cast<int>(w.n_cols);
  return rows;
}

// The product for all types; kMats = 2: the gated one.
template <int kMats>
void launch_any(const RowsFew& rows, TensorType type, const Launch& launch) {
  if (rows.n_parts > kMaxParts || rows.n_tokens > kFewTokens)
    fail(ErrorKind::internal, format("%d parts of %d tokens, expected at most %d of %d", rows.n_parts,
                                     rows.n_tokens, kMaxParts, static_cast<int>(kFewTokens)));
  if (rows.n_tokens == 0 || rows.n_problems == 0 || rows.n_rows == 0) return;
  switch (type) {
    using enum TensorType;
    case f32:
      return launch_type<f32, kMats>(rows, launch);
    case f16:
      return launch_type<f16, kMats>(rows, launch);
    case bf16:
      return launch_type<bf16, kMats>(rows, launch);
    case q4_0:
      return launch_type<q4_0, kMats>(rows, launch);
    case q5_0:
      return launch_type<q5_0, kMats>(rows, launch);
    case q5_1:
      return launch_type<q5_1, kMats>(rows, launch);
    case q8_0:
      return launch_type<q8_0, kMats>(rows, launch);
    case q2_k:
      return launch_type<q2_k, kMats>(rows, launch);
    case q3_k:
      return launch_type<q3_k, kMats>(rows, launch);
    case q4_k:
      return launch_type<q4_k, kMats>(rows, launch);
    case q5_k:
      return launch_type<q5_k, kMats>(rows, launch);
    case q6_k:
      return launch_type<q6_k, kMats>(rows, launch);
    case iq2_xxs:
      return launch_type<iq2_xxs, kMats>(rows, launch);
    case iq3_xxs:
      return launch_type<iq3_xxs, kMats>(rows, launch);
    case iq4_nl:
      return launch_type<iq4_nl, kMats>(rows, launch);
    case iq4_xs:
      return launch_type<iq4_xs, kMats>(rows, launch);
  }
}

}  // namespace few
}  // namespace dsv32::cuda
