// What decode_rows.cuh computes, how the work is cut, and the two ways of data into a block: x as integers,
// and the weights a step at a time.
#pragma once

#include <algorithm>
#include <climits>

#include "cuda/decode_steps.cuh"
#include "cuda/kernels.h"

namespace dsv32::cuda {

// y[p, t] = sum over parts i of W[mats[p, i]] @ x[p / x_sharing, t, i] for n_problems problems. Two matrices
// at once (kMats) are the gated product instead: y = silu(W0 x) * (W1 x) * factor[p].
struct DecodeRows {
  const uint8_t* weights[2] = {};
  int64_t row_bytes = 0, mat_bytes = 0;
  int n_rows = 0, n_cols = 0;  // of one part
  int n_problems = 1, n_parts = 1;
  int n_problems_token = 1;       // of one token: how sums are divided must not depend on the others
  const int32_t* mats = nullptr;  // [n_problems, n_parts]; null: problem p has the one matrix p
  const float* x = nullptr;       // [n_problems / x_sharing, n_tokens, n_parts * n_cols]
  int64_t x_problem_stride = 0, x_token_stride = 0;
  int x_sharing = 1;
  int n_tokens = 0;
  float* y = nullptr;  // [n_problems, n_tokens, n_rows]
  int64_t y_problem_stride = 0, y_token_stride = 0;
  const float* factors = nullptr;  // [n_problems] or null
};

// The plain product, of any type and number of tokens; in matmul_decode.cu.
void decode_rows(const DecodeRows& rows, TensorType type, const Launch& launch);

namespace decode {

constexpr int kWarps = 8, kThreads = 32 * kWarps, kTileRows = 16, kMaxParts = 32, kMaxStages = 6;
constexpr int kGroupTokens = 8;  // the columns of the tensor cores' products

// The eight tokens, or fewer, of a problem that a block computes: blockIdx is (tiles, problem, tokens).
struct BlockTokens {
  const float* x;  // [n, n_parts * n_cols], rows x_token_stride apart
  float* y;        // [n, n_rows], rows y_token_stride apart
  int n;
  __device__ explicit BlockTokens(const DecodeRows& rows) {
    const int first = static_cast<int>(blockIdx.z) * kGroupTokens;
    x = rows.x + blockIdx.y / rows.x_sharing * rows.x_problem_stride + first * rows.x_token_stride;
    y = rows.y + blockIdx.y * rows.y_problem_stride + first * rows.y_token_stride;
    n = min(kGroupTokens, rows.n_tokens - first);
  }
};

// What a launch adds to the problem.
struct Layout {
  int n_steps_part, n_steps;  // of one part, of all
  int log_warps;              // log2 of W
  int n_split;                // blocks of a cluster that share a tile, each a run of its steps; W is 8 then
  int n_steps_block;          // of one part: n_steps_part / n_split, rounded up
  int n_groups;               // groups of 8 / W tiles: what a block works on at a time
  int n_stages;               // steps in the ring, of which n_slots need room: a warp may have fewer
  int n_slots;
  int n_x_groups;     // groups of 32 values of x, padded to whole steps
  int n_x_block;      // those that a block needs
  bool is_x_aligned;  // rows of x may be read 16 bytes at a time
  IntegerX x_memory;  // of all problems, prepared by another kernel; words null: in shared memory
};

__device__ __forceinline__ float4 load_x4(const float* x, bool is_aligned) {
  if (is_aligned) return *reinterpret_cast<const float4*>(x);
  return {x[0], x[1], x[2], x[3]};
}

// A group of 32 values to integers: four of each of eight lanes.
__device__ __forceinline__ void make_integer_group(const float4& v, const IntegerX& to, int64_t at) {
  constexpr float kLargest = 32512;  // 127 * 256: the high byte of its rounding stays below 128
  const int lane = threadIdx.x % 8, half = lane / 4;
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
  auto* words = reinterpret_cast<uint32_t*>(to.words + at * 4 + lane % 4);
  words[half] = high;
  words[2 + half] = low;
  // 0 * sum: a NaN or an infinity in x, of which the integers know nothing, reaches the result.
  const float other = __shfl_xor_sync(0xffffffffu, sum, 4);
  if (lane == 0) to.scales[at] = (is_zero ? 0 : largest / kLargest) + 0 * (sum + other);
  if (lane % 4 == 0) reinterpret_cast<float*>(to.sums + at)[half] = sum;
}

// A block's x to integers by teams of eight lanes, a group of 32 values each; team `first` of n_teams.
// n_groups groups of all parts, from the column first_col on. Whole warps enter: n_teams and n_groups are
// multiples of four. Several loads of a lane are on their way together.
__device__ inline void make_integer_x(const DecodeRows& rows, const Layout& layout, const BlockTokens& tokens,
                                      int first_col, int n_groups, const IntegerX& to, int first,
                                      int n_teams) {
  constexpr int kTogether = 8;
  const int n_part = n_groups / rows.n_parts;
  const auto load = [&](int t, int group) -> float4 {
    const int part = rows.n_parts == 1 ? 0 : group / n_part;
    const int col = first_col + (group - part * n_part) * 32 + static_cast<int>(threadIdx.x) % 8 * 4;
    if (group >= n_groups || col >= rows.n_cols || t >= tokens.n) return {0, 0, 0, 0};
    return load_x4(tokens.x + t * rows.x_token_stride + static_cast<int64_t>(part) * rows.n_cols + col,
                   layout.is_x_aligned);
  };
#pragma unroll 1
  for (int t = 0; t < to.stride; ++t) {
#pragma unroll 1
    for (int begin = first; begin < n_groups; begin += kTogether * n_teams) {
      float4 v[kTogether];
#pragma unroll
      for (int k = 0; k < kTogether; ++k) v[k] = load(t, begin + k * n_teams);
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
        const int group = begin + k * n_teams;
        if (group < n_groups) make_integer_group(v[k], to, static_cast<int64_t>(group) * to.stride + t);
      }
    }
  }
}

// The block's part of x in memory, [groups of tokens, problems, n_x_groups, stride].
__device__ __forceinline__ IntegerX block_x(const IntegerX& all, int n_x_groups) {
  const int64_t at = static_cast<int64_t>(blockIdx.z * gridDim.y + blockIdx.y) * n_x_groups * all.stride;
  return {all.words + at * 4, all.scales + at, all.sums + at, all.stride};
}

// The steps of a part that the block has, and how far apart its groups of tiles are.
struct BlockShare {
  int first, end;
  int n_groups_apart;
};

template <bool kSplits>
__device__ __forceinline__ BlockShare share_of_block(const Layout& layout) {
  if (!kSplits || layout.n_split == 1) return {0, layout.n_steps_part, static_cast<int>(gridDim.x)};
  const int first = static_cast<int>(blockIdx.x) % layout.n_split * layout.n_steps_block;
  return {first, min(first + layout.n_steps_block, layout.n_steps_part),
          static_cast<int>(gridDim.x) / layout.n_split};
}

// A warp's way through its steps, W apart, part after part and tile after tile, and where the step lies for
// this lane.
template <TensorType kType>
struct Walk {
  int group, part, step;  // step: of the part
  const uint8_t* row;     // the step's first byte of row g
  int next;               // from there to that of row g + 8

  // A warp without any step is past the last group at once.
  __device__ __forceinline__ void start(const DecodeRows& rows, const Layout& layout, const BlockShare& share,
                                        const int32_t* mats) {
    part = 0, step = share.first + (static_cast<int>(threadIdx.x / 32) & ((1 << layout.log_warps) - 1));
    enter_part(share);
    if (part < rows.n_parts)
      place(rows, layout, mats);
    else
      group = layout.n_groups;
  }
  __device__ __forceinline__ void advance(const DecodeRows& rows, const Layout& layout,
                                          const BlockShare& share, const int32_t* mats) {
    step += 1 << layout.log_warps;
    row += Steps<kType>::kBytes << layout.log_warps;
    if (step < share.end) return;
    enter_part(share);
    if (part < rows.n_parts) {
      place(rows, layout, mats);
    } else {
      group += share.n_groups_apart;
      start(rows, layout, share, mats);
    }
  }
  __device__ __forceinline__ bool is_last_tile(const DecodeRows& rows, const Layout& layout) const {
    return first_row(layout) + kTileRows >= rows.n_rows;
  }

 private:
  __device__ __forceinline__ void enter_part(const BlockShare& share) {
    for (; step >= share.end; step -= share.end - share.first) ++part;
  }
  __device__ __forceinline__ int first_row(const Layout& layout) const {
    const int warp = threadIdx.x / 32;
    return (group * (kWarps >> layout.log_warps) + (warp >> layout.log_warps)) * kTileRows;
  }
  // Rows past the last one are read as the last one.
  __device__ __forceinline__ void place(const DecodeRows& rows, const Layout& layout, const int32_t* mats) {
    const int g = threadIdx.x % 32 / 4, last = rows.n_rows - 1;
    const int first = min(first_row(layout) + g, last), second = min(first + 8, last);
    row = rows.weights[0] + mats[part] * rows.mat_bytes + first * rows.row_bytes +
          static_cast<int64_t>(step) * Steps<kType>::kBytes;
    next = static_cast<int>((second - first) * rows.row_bytes);
  }
};

// Copies a step of kMats times 16 rows to the warp's ring. Four lanes copy a row, 64 bytes at a time, whole
// lines of 32 bytes. Past the row's end are zeros, which are weights of 0 in every format.
template <TensorType kType, int kMats>
__device__ __forceinline__ void copy_step(const DecodeRows& rows, const Layout& layout, const Walk<kType>& at,
                                          uint8_t* stage) {
  using Step = Steps<kType>;
  const int i = threadIdx.x % 4, g = threadIdx.x % 32 / 4;
  // More of the same matrix follows: what is read beyond the step is there, and not used.
  const bool is_inside =
      at.step + 1 < layout.n_steps_part || (rows.n_cols % Step::kCols == 0 && !at.is_last_tile(rows, layout));
#pragma unroll
  for (int k = 0; k < 2 * kMats; ++k) {
    const int m = k / 2, r = g + k % 2 * 8;
    const uint8_t* from = at.row + (k % 2 ? at.next : 0) + (m ? rows.weights[1] - rows.weights[0] : 0);
    const int shift = static_cast<int>(reinterpret_cast<uintptr_t>(from) % 32),
              end = shift + Step::kBytes - 16 * i;
    from += 16 * i - shift;
    uint8_t* to = stage + (m * kTileRows + r) * Step::kSlot + 16 * i;
    if (is_inside) {
#pragma unroll
      for (int c = 0; c < Step::kSlot; c += 64)
        if (c + 48 < Step::kBytes || c < end) copy_line_async(shared_address(to + c), from + c);
    } else {
      const int64_t rest = rows.row_bytes - static_cast<int64_t>(at.step) * Step::kBytes;  // of the row
      const int there = end - Step::kBytes + static_cast<int>(min(rest, static_cast<int64_t>(Step::kBytes)));
#pragma unroll 1
      for (int c = 0; c < end; c += 64)
        copy_async(shared_address(to + c), from + c, max(0, min(16, there - c)));
    }
  }
}

}  // namespace decode
}  // namespace dsv32::cuda
