// The problem of a decode product, how its work is divided, and how x and weights are loaded into a block.
#pragma once

#include <climits>

#include "cuda/decode_any.cuh"
#include "cuda/inbox.cuh"

namespace dsv32::cuda {

constexpr int kMostMatrices = 4;  // matrices of one product

// y[p, t] = W[mats[p]] @ x[p / x_sharing, t] (+ plus) for n_problems problems, and sum += y. Up to four
// matrices of the same x, type and width make one product, each with its own y. kMats = 2 is the gated
// product: y = silu(W0 x) * (W1 x) * factor, where the gate scales multiply both sums first.
struct DecodeRows {
  struct Matrix {
    const uint8_t* weights = nullptr;
    float* y = nullptr;  // [n_problems, n_tokens, n_rows]
    int64_t y_token_stride = 0;
    int n_rows = 0;
    int end_group = 0;  // end of its groups of tiles; set at launch
  };
  Matrix matrices[kMostMatrices];
  int n_matrices = 1;
  // Of the first matrix, or of the one that it is a share of: division of sums depends on these.
  int n_whole_rows = 0;
  // Do not divide sums among a cluster's blocks: other steps may group other matrices with this one, or none.
  bool is_undivided = false;
  int64_t gate_offset = 0;  // from W0 to W1, bytes
  int64_t row_bytes = 0, mat_bytes = 0;
  bool in_bands = false;  // how rows lie (backend/matrix.h); else whole
  int n_cols = 0;
  int n_problems = 1;
  int n_problems_token = 1;       // problems per token: division of sums depends on these too
  const int32_t* mats = nullptr;  // [n_problems]; null: problem p has matrix p
  bool is_known = false;          // mats is older than the kernel before, which is a product by mats too
  // x is older than the kernel before, which lets this one start late: x is read before mats.
  bool is_x_older = false;
  bool lets_next_late = false;  // the next kernel may start after this one's wait
  // The last problem's matrix and x, if it is one that all tokens share; it has no entry in mats. Null: none.
  // Its tokens' rows of x are x_token_stride apart; the other problems then have one token each.
  const uint8_t* shared_weights = nullptr;
  const float* shared_x = nullptr;
  int n_shared_tokens = 0;
  const float* x = nullptr;  // [n_problems / x_sharing, n_tokens, n_cols]
  int64_t x_problem_stride = 0, x_token_stride = 0;
  int x_sharing = 1;
  const float* x_norm = nullptr;  // [n_cols] RMS-norm x, then multiply by these; null: x as is
  float norm_eps = 0;
  int n_tokens = 0;
  int64_t y_problem_stride = 0;
  const float* plus = nullptr;     // as y, or null
  float* sum = nullptr;            // as y, or null
  const float* factors = nullptr;  // [n_problems] or null
  GateScales scales = {};
  // In a team (inbox.h): where the first matrix's results go too, set at launch; whether x, with shared_x,
  // lies where its values arrive; whether the results may be sent; and who is told if values do not arrive.
  // Each member sends n_cols / n_members values of a row of x.
  Mail mail;
  bool is_x_arriving = false, may_send = false;
  Alarm alarm;
};

// The product of any type and number of tokens. Runs, for types with codes, group the problems by matrix.
// matmul_decode.cu.
void decode_rows(const DecodeRows& rows, const UseRuns& runs, TensorType type, const Launch& launch);

namespace decode {

constexpr int kWarps = kRowsWarps, kThreads = 32 * kWarps, kMaxStages = 6;
constexpr int kBandTile = static_cast<int>(kBandRows);  // rows of a warp's tile: a band
constexpr int kGroupTokens = kRowsTokens;               // columns of one tensor-core product
constexpr int kMostTogether = kColumnsTokens;           // columns that decode_columns.cu multiplies at a time

// Whether the block's problem is the shared one (shared_weights).
DSV32_DEVICE bool is_shared(const DecodeRows& rows) {
  return rows.shared_weights && static_cast<int>(blockIdx.y) == rows.n_problems - 1;
}

// Byte offset of the block's matrix from the first one.
DSV32_DEVICE int64_t mat_offset(const DecodeRows& rows) {
  if (is_shared(rows)) return rows.shared_weights - rows.matrices[0].weights;
  return (rows.mats ? __ldcg(rows.mats + blockIdx.y) : static_cast<int64_t>(blockIdx.y)) * rows.mat_bytes;
}

// The tokens of a problem that a block computes, at most n_most; blockIdx is (tiles, problem, tokens).
struct BlockTokens {
  const float* x;  // [n, n_cols], rows x_token_stride apart
  int first, n;
  __device__ BlockTokens(const DecodeRows& rows, int n_most) {
    first = static_cast<int>(blockIdx.z) * n_most;
    x = is_shared(rows) ? rows.shared_x : rows.x + blockIdx.y / rows.x_sharing * rows.x_problem_stride;
    x += first * rows.x_token_stride;
    n = min(n_most, (is_shared(rows) ? rows.n_shared_tokens : rows.n_tokens) - first);
  }
};

// The matrix to which a group of tiles belongs.
DSV32_DEVICE const DecodeRows::Matrix& matrix_of(const DecodeRows& rows, int group, int* first_group) {
  int k = 0;
  *first_group = 0;
  while (k + 1 < rows.n_matrices && group >= rows.matrices[k].end_group)
    *first_group = rows.matrices[k++].end_group;
  return rows.matrices[k];
}

// A row's sum over its n units (n a power of two, at most kWarps): adds each half in ascending order, then
// both halves.
template <typename Value>
DSV32_DEVICE float sum_units(int n, const Value& value_of) {
  float first = 0, second = 0;
  DSV32_UNROLL for (int k = 0; k < kWarps; ++k) {
    if (k >= n) break;
    const float value = value_of(k);
    k < n / 2 ? first += value : second += value;
  }
  return first + second;
}

// Writes the result of one row for a token of a problem, from its kMats sums, and returns it.
template <int kMats>
DSV32_DEVICE float finish_row(const DecodeRows& rows, const DecodeRows::Matrix& matrix,
                              const float (&totals)[kMats], int problem, int token, int row) {
  const int64_t at = problem * rows.y_problem_stride + token * matrix.y_token_stride + row;
  float y = totals[0];
  if constexpr (kMats == 2) {
    float up = totals[1];
    scale_pair(rows.scales, problem, y, up);
    y = y / (1.0f + expf(-y)) * up;
  }
  if (rows.factors) y *= rows.factors[problem];
  if (rows.plus) y += rows.plus[at];
  matrix.y[at] = y;
  if (rows.sum) rows.sum[at] += y;
  return y;
}

// Parameters that a launch adds to the problem.
struct Layout {
  int n_steps;
  int log_warps;       // log2 of W, the warps of a tile
  int n_split;         // blocks of a cluster that share a tile, each with a range of its steps; W is then 8
  int n_steps_block;   // n_steps / n_split, rounded up
  int n_front_blocks;  // blocks at the front of grid x for work beside a single problem
  int n_groups;        // groups of 8 / W tiles, what a block works on at a time
  int n_stages;        // steps in the ring; only n_slots have memory, as a warp may have fewer steps
  int n_slots;
  int stride;         // tokens for which a block has room for sums: 1 or an even number
  bool is_x_aligned;  // rows of x may be read 16 bytes at a time
};

// How x is read. past_l1: before the wait (dependent.cuh). arriving: in an inbox, where words may be absent,
// and aligned.
enum class Reads { plain, past_l1, arriving };

// Loads eight values of a row of x, four from col on and four kApart further; zeros past its end, which is at
// a multiple of 32 values.
template <int kApart, Reads kReads = Reads::plain>
DSV32_DEVICE void load_x8(const float* x, int col, int n_cols, bool is_aligned, float4 (&v)[2]) {
  DSV32_UNROLL for (int half = 0; half < 2; ++half) {
    const float* from = x + col + kApart * half;
    v[half] = {0, 0, 0, 0};
    if (col >= n_cols) continue;
    if constexpr (kReads == Reads::arriving) {
      const uint4 words = load_arriving(from);
      v[half] = {__uint_as_float(words.x), __uint_as_float(words.y), __uint_as_float(words.z),
                 __uint_as_float(words.w)};
    } else if constexpr (kReads == Reads::past_l1)
      v[half] = is_aligned ? __ldcg(reinterpret_cast<const float4*>(from))
                           : float4{__ldcg(from), __ldcg(from + 1), __ldcg(from + 2), __ldcg(from + 3)};
    else
      v[half] =
          is_aligned ? *reinterpret_cast<const float4*>(from) : float4{from[0], from[1], from[2], from[3]};
  }
}

// A block is one or two teams of kWarps warps, which take different groups of tiles and share x.
DSV32_DEVICE int team_of_block() { return static_cast<int>(threadIdx.x) / kThreads; }
DSV32_DEVICE int teams_of_block() { return static_cast<int>(blockDim.x) / kThreads; }
DSV32_DEVICE int warp_of_team() { return static_cast<int>(threadIdx.x) % kThreads / 32; }

// A block's steps. Each of the W warps of a tile adds up one unit, a range of consecutive steps.
struct StepShare {
  int first, n;

  DSV32_DEVICE StepShare(const Layout& layout, int part)
      : first(part * layout.n_steps_block), n(min(layout.n_steps_block, layout.n_steps - first)) {}
  // First step of a unit, which is also the end of the unit before.
  DSV32_DEVICE int begin_of(const Layout& layout, int unit) const {
    return first + (unit * n >> layout.log_warps);
  }
};

// A warp's steps of each tile, and the distance between the block's groups of tiles. Float rows have short
// steps, so there a warp takes every W-th step, and the warps of a tile read neighbouring bytes.
struct WarpShare {
  int first_of_block, first, end, n_apart;
  int n_groups_apart;
};

template <TensorType kType, bool kSplits>
DSV32_DEVICE WarpShare share_of_warp(const Layout& layout) {
  const int n_split = kSplits ? layout.n_split : 1;
  const StepShare share(layout, n_split == 1 ? 0 : static_cast<int>(blockIdx.x) % n_split);
  const int n_warps = 1 << layout.log_warps, unit = static_cast<int>(threadIdx.x) / 32 & (n_warps - 1);
  const int n_groups_apart =
      (static_cast<int>(gridDim.x) - layout.n_front_blocks) / n_split * teams_of_block();
  if constexpr (kIsFloat<kType>)
    return {share.first, share.first + unit, share.first + share.n, n_warps, n_groups_apart};
  return {share.first, share.begin_of(layout, unit), share.begin_of(layout, unit + 1), 1, n_groups_apart};
}

// Where a step of a tile of 16 rows lies. Whole rows: for this lane's rows g and g + 8. Bands: for rows 0 and
// 8 of the tile, the same in all lanes.
struct StepPlace {
  int step;
  const uint8_t* row;  // the step's first byte of row g, or of row 0
  int64_t next;        // from there to row g + 8, or row 8
};

// Bytes from one step of a row to the next.
template <TensorType kType>
DSV32_DEVICE int step_apart(const DecodeRows& rows) {
  return Steps<kType>::kBytes * (!kIsFloat<kType> && rows.in_bands ? kBandTile : 1);
}

// Of n_rows rows (8 or 16) from first_row, a multiple of n_rows, in the matrix mat_offset bytes from the
// first. Past the end the last rows are read again.
template <TensorType kType>
DSV32_DEVICE StepPlace place_step(const DecodeRows& rows, const DecodeRows::Matrix& matrix,
                                  int64_t mat_offset, int first_row, int step, int n_rows = kBandTile) {
  if constexpr (!kIsFloat<kType>) {
    if (rows.in_bands) {
      const int row = min(first_row, matrix.n_rows - n_rows), in_band = row % kBandTile;
      return {step,
              matrix.weights + mat_offset + (row - in_band) * rows.row_bytes +
                  (step * kBandTile + in_band) * Steps<kType>::kBytes,
              kBandTile / 2 * Steps<kType>::kBytes};
    }
  }
  const int g = threadIdx.x % 32 / 4, last = matrix.n_rows - 1;
  const int first = min(first_row + g, last), second = min(first + 8, last);
  return {step,
          matrix.weights + mat_offset + first * rows.row_bytes +
              static_cast<int64_t>(step) * Steps<kType>::kBytes,
          (second - first) * rows.row_bytes};
}

// The matrix and the first row of the warp's tile in a group.
DSV32_DEVICE const DecodeRows::Matrix& find_tile(const DecodeRows& rows, const Layout& layout, int group,
                                                 int* first_row) {
  const int warp = warp_of_team();
  int first_group;
  const DecodeRows::Matrix& matrix = matrix_of(rows, group, &first_group);
  const int tile = (group - first_group) * (kWarps >> layout.log_warps) + (warp >> layout.log_warps);
  *first_row = tile * kBandTile;
  return matrix;
}

// Copies sixteen bytes of weights. kOnce: no other block reads them.
template <bool kOnce>
DSV32_DEVICE void copy_weights(uint32_t to, const uint8_t* from, bool is_wanted = true) {
  if constexpr (kOnce)
    copy_passing_async_if(to, from, is_wanted);
  else
    copy_line_async_if(to, from, is_wanted);
}

// Copies a step of 16 rows of a band in two halves, in pieces of 16 bytes.
template <TensorType kType, bool kOnce>
DSV32_DEVICE void copy_band_step(const uint8_t* from, int64_t next, int lane, uint32_t to) {
  constexpr int kPieces = Steps<kType>::kBytes, kHalf = kPieces / 2;  // 16 rows times a 16th of a row
  const int64_t gap = next - kBandTile / 2 * Steps<kType>::kBytes;
  from += 16 * lane, to += 16 * lane;
  DSV32_UNROLL for (int p = 0; p < kPieces; p += 32) {
    const uint8_t* piece = from + 16 * p + (p >= kHalf || (p + 32 > kHalf && p + lane >= kHalf) ? gap : 0);
    copy_weights<kOnce>(to + 16 * p, piece, p + 32 <= kPieces || p + lane < kPieces);
  }
}

// Copies a step of kMats times 16 rows to the warp's ring. Four lanes copy a row in whole lines of 64 bytes,
// up to 31 bytes past the step, for which there is room. Past the end of a row are zeros, which every format
// reads as 0.
template <TensorType kType, int kMats, bool kOnce = false>
DSV32_DEVICE void copy_step(const DecodeRows& rows, const Layout& layout, const StepPlace& at, int lane,
                            uint32_t stage) {
  using Step = Steps<kType>;
  if constexpr (!kIsFloat<kType>) {
    if (rows.in_bands) {
      DSV32_UNROLL for (int m = 0; m < kMats; ++m) copy_band_step<kType, kOnce>(
          at.row + (m ? rows.gate_offset : 0), at.next, lane, stage + m * kBandTile * Step::kBytes);
      return;
    }
  }
  const int i = lane % 4, g = lane / 4;
  const auto copy_rows = [&](auto copy) {
    DSV32_UNROLL for (int k = 0; k < 2 * kMats; ++k) {
      const int m = k / 2, r = g + k % 2 * 8;
      const uint8_t* from = at.row + (k % 2 ? at.next : 0) + (m ? rows.gate_offset : 0);
      const int shift = static_cast<int>(reinterpret_cast<uintptr_t>(from) % Step::kLine);
      copy(stage + (m * kBandTile + r) * Step::kSlot + 16 * i, from + 16 * i - shift,
           shift + Step::kBytes - 16 * i);
    }
  };
  if (rows.n_cols % Step::kCols == 0 || at.step + 1 < layout.n_steps) {
    copy_rows([](uint32_t to, const uint8_t* from, int end) {
      DSV32_UNROLL for (int c = 0; c < Step::kSlot; c += 64)
          copy_weights<kOnce>(to + c, from + c, c + 48 < Step::kBytes || c < end);
    });
    return;
  }
  const int missing =
      Step::kBytes - static_cast<int>(rows.row_bytes - static_cast<int64_t>(at.step) * Step::kBytes);
  copy_rows([&](uint32_t to, const uint8_t* from, int end) {
    DSV32_NO_UNROLL for (int c = 0; c < end; c += 64)
        copy_async(to + c, from + c, max(0, min(16, end - missing - c)));
  });
}

// Where a lane finds its rows of a step after copy_step(). A row that lies whole keeps its offset in a line.
template <TensorType kType>
DSV32_DEVICE void find_step(const DecodeRows& rows, const StepPlace& at, int lane, const uint8_t* tile,
                            const uint8_t* (&step)[2]) {
  DSV32_UNROLL for (int k = 0; k < 2; ++k) {
    const int row = lane / 4 + 8 * k;
    step[k] = !kIsFloat<kType> && rows.in_bands
                  ? tile + row * Steps<kType>::kBytes
                  : tile + row * Steps<kType>::kSlot +
                        reinterpret_cast<uintptr_t>(at.row + k * at.next) % Steps<kType>::kLine;
  }
}

// Throws Error{internal} when weights with codes are not aligned: bands are copied 16 bytes at a time.
template <TensorType kType>
void check_alignment(const DecodeRows& rows) {
  const int n_bytes = rows.in_bands ? 16 : kWeightAlign<kType>;
  const auto check = [&](const uint8_t* weights) {
    if (reinterpret_cast<uintptr_t>(weights) % n_bytes != 0)
      fail(ErrorKind::internal, format("%s weights lie at %p, expected a multiple of %d", type_name(kType),
                                       static_cast<const void*>(weights), n_bytes));
  };
  for (int k = 0; k < rows.n_matrices; ++k)
    for (const int64_t offset : {int64_t{0}, rows.gate_offset, rows.mat_bytes})
      check(rows.matrices[k].weights + offset);
  if (rows.shared_weights) check(rows.shared_weights);
}

template <TensorType kType>
Layout layout_of(const DecodeRows& rows, int n_mats) {
  if constexpr (!kIsFloat<kType>) check_alignment<kType>(rows);
  Layout layout{};
  layout.is_x_aligned = is_aligned(rows.x, 16) && rows.x_problem_stride % 4 == 0 &&
                        rows.x_token_stride % 4 == 0 && rows.n_cols % 4 == 0 && is_aligned(rows.x_norm, 16);
  layout.n_steps = ceil_div(rows.n_cols, Steps<kType>::kCols);
  const int n_bands = ceil_div(rows.n_whole_rows, kBandTile);
  layout.log_warps = choose_log_warps(n_bands, rows.n_problems_token, layout.n_steps);
  const bool may_split = n_mats == 1 && !rows.is_undivided && rows.n_problems_token == 1;
  layout.n_split = may_split ? choose_split(n_bands, layout.n_steps, layout.log_warps, card().family) : 1;
  layout.n_steps_block = ceil_div(layout.n_steps, layout.n_split);
  return layout;
}

// Sets each matrix's end_group; returns the number of groups.
inline int number_groups(DecodeRows& rows, int n_tiles) {
  int n = 0;
  for (int k = 0; k < rows.n_matrices; ++k) {
    n += ceil_div(rows.matrices[k].n_rows, kBandTile * n_tiles);
    rows.matrices[k].end_group = n;
  }
  return n;
}

// Multiplies n_together tokens at a time (at most kMostTogether), or the uses of runs, or each problem by the
// matrix that mats has for it; is_gated: two matrices. Types with codes. decode_columns.cu.
void multiply_columns(const DecodeRows& rows, const UseRuns& runs, bool is_gated, int n_together,
                      TensorType type, const Launch& launch);
// The same for choice.n_together tokens at a time, with Hopper's products. decode_wide.cu.
void multiply_wide(const DecodeRows& rows, bool is_gated, const DecodeChoice& choice, TensorType type,
                   const Launch& launch);

}  // namespace decode
}  // namespace dsv32::cuda
