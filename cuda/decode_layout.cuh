// How the sums of a decode product are cut: by the first matrix's shape alone.
#pragma once

#include "cuda/decode_problem.cuh"

namespace dsv32::cuda::decode {

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

inline bool is_aligned(const void* p, size_t n_bytes) {
  return reinterpret_cast<uintptr_t>(p) % n_bytes == 0;
}

// Throws Error{internal} where weights that have codes are not aligned.
template <TensorType kType>
Layout layout_of(const DecodeRows& rows, int n_mats) {
  if constexpr (!kIsFloat<kType>)
    for (int k = 0; k < rows.n_matrices; ++k)
      if (!is_aligned(rows.matrices[k].weights, kWeightAlign<kType>) ||
          rows.gate_offset % kWeightAlign<kType> != 0)
        fail(ErrorKind::internal,
             format("%s weights lie at %p, expected a multiple of %d", type_name(kType),
                    static_cast<const void*>(rows.matrices[k].weights), kWeightAlign<kType>));
  Layout layout{};
  layout.is_x_aligned = is_aligned(rows.x, 16) && rows.x_problem_stride % 4 == 0 &&
                        rows.x_token_stride % 4 == 0 && rows.n_cols % 4 == 0 && is_aligned(rows.x_norm, 16);
  layout.n_steps = static_cast<int>(ceil_div(rows.n_cols, Steps<kType>::kCols));
  layout.log_warps = choose_log_warps(rows, layout.n_steps);
  layout.n_split = n_mats == 1 ? choose_split(rows, layout.n_steps, layout.log_warps) : 1;
  layout.n_steps_block = static_cast<int>(ceil_div(layout.n_steps, layout.n_split));
  return layout;
}

}  // namespace dsv32::cuda::decode
