// Launches a product of decode, of any type and number of tokens. backend/choose.h chooses between the
// kernels of decode_rows.cuh, decode_columns.cu and decode_wide.cu.
#pragma once

#include "cuda/decode_rows.cuh"
#include "cuda/gather.h"

namespace dsv32::cuda::decode {

// Returns false, and launches nothing, if x and two steps do not fit a block's shared memory.
template <TensorType kType, int kMats, int kTiles, bool kInBands>
bool launch_rows(DecodeRows rows, Layout layout, const Beside& beside, const Launch& launch) {
  using Sizes = SharedSizes<kType, kMats, kInBands>;
  const auto kernel = decode_rows_kernel<kType, kMats, kTiles, kInBands>;
  constexpr int kBlockTokens = kTiles * kGroupTokens;
  const int n_together = std::min(std::max(rows.n_tokens, rows.n_shared_tokens), kBlockTokens);
  layout.n_groups = number_groups(rows, kWarps >> layout.log_warps);
  layout.stride = n_together == 1 ? 1 : (n_together + 1) / 2 * 2;
  const RowsBytes bytes{Sizes::x(layout.n_steps_block, n_together), Sizes::partial(layout.stride),
                        Sizes::ring(1)};
  const int n_token_groups = ceil_div(rows.n_tokens, kBlockTokens);
  const int n_problems = rows.n_problems * n_token_groups;
  const bool may_have_two_teams = layout.n_split == 1 && beside.n_jobs == 0;
  const auto [n_stages, n_blocks_sm, n_teams] = choose_rows_blocks(
      bytes, most_shared_bytes(kernel), most_shared_bytes(kernel, 2),
      layout.n_groups * n_problems * layout.n_split + beside.n_jobs <= launch.n_sms, may_have_two_teams);
  if (n_stages < 2) return false;
  layout.n_front_blocks = n_problems == 1 ? beside.n_jobs : 0;
  const int n_places = n_blocks_sm * launch.n_sms - std::min(layout.n_front_blocks, launch.n_sms / 8);
  const int n_x_blocks = layout.n_split > 1
                             ? layout.n_groups
                             : std::clamp(n_places / n_problems, 1, ceil_div(layout.n_groups, n_teams));
  const int64_t n_steps_warp = ceil_div(layout.n_groups, n_teams * n_x_blocks) *
                               ceil_div(layout.n_steps_block, int64_t{1} << layout.log_warps);
  layout.n_stages = static_cast<int>(std::min<int64_t>({n_stages, kMaxStages, n_steps_warp + 1}));
  layout.n_slots = static_cast<int>(std::min<int64_t>(layout.n_stages, n_steps_warp));
  const int n_shared = std::max(bytes.of_block(layout.n_slots, n_teams),
                                beside.n_jobs > 0 ? static_cast<int>(kMostBesideBytes) : 0);
  const int n_grid_x = layout.n_front_blocks + n_x_blocks * layout.n_split;
  const int64_t n_rest_problems = ceil_div(beside.n_jobs - layout.n_front_blocks, n_grid_x);
  if (const auto& first = rows.matrices[0]; rows.may_send)
    rows.mail = launch.exchange->inbox().send_from(first.y, rows.y_problem_stride, first.y_token_stride);
  launch_kernel(kernel,
                {{n_grid_x, rows.n_problems + n_rest_problems, n_token_groups},
                 n_teams * kThreads,
                 n_shared,
                 layout.n_split},
                launch, rows, layout, beside);
  return true;
}

// Whether x and the weights (F32, F16 or BF16) may be read 16 bytes at a time.
inline bool is_float_aligned(const DecodeRows& rows) {
  return is_aligned(rows.x, 16) && rows.x_problem_stride % 4 == 0 && rows.x_token_stride % 4 == 0 &&
         rows.n_cols % 4 == 0 && rows.row_bytes % 16 == 0 && rows.mat_bytes % 16 == 0 &&
         is_aligned(rows.matrices[0].weights, 16) && rows.gate_offset % 16 == 0;
}

inline int float_jobs(const DecodeRows& rows, int n_mats) {
  return ceil_div(rows.matrices[0].n_rows, kFloatRows / n_mats);
}

template <int kMats>
void launch_float_rows(const DecodeRows& rows, const Launch& launch) {
  launch_kernel(float_rows_kernel<kMats>,
                {{float_jobs(rows, kMats), rows.n_problems}, kThreads, kFloatSumBytes}, launch, rows,
                is_float_aligned(rows));
}

// F16 and BF16.
template <TensorType kType, int kMats>
void launch_halves(const DecodeRows& rows, int width, const Launch& launch) {
  const Layout layout = layout_of<kType>(rows, kMats);
  if (is_float_aligned(rows) &&
      (width > kGroupTokens ? launch_rows<kType, kMats, 2, false>(rows, layout, Beside{}, launch)
                            : launch_rows<kType, kMats, 1, false>(rows, layout, Beside{}, launch)))
    return;
  launch_kernel(
      rows_plain_kernel<kType, kMats>,
      {{ceil_div(rows.matrices[0].n_rows, kWarps), rows.n_problems, ceil_div(rows.n_tokens, kGroupTokens)},
       kThreads},
      launch, rows);
}

// The product when all of its x has arrived, so that any kernel may read it.
inline DecodeRows arrived(DecodeRows rows, const Launch& launch) {
  if (std::exchange(rows.is_x_arriving, false)) launch.exchange->inbox().await(launch);
  return rows;
}

// Weights with codes times up to kGroupTokens tokens. Returns whether the work in `beside` was launched too.
// Where x does not fit a block, decode_columns.cu makes the product; with x_norm nothing is done.
template <TensorType kType, int kMats>
bool launch_codes(const DecodeRows& given, const Beside& beside, const Launch& launch) {
  const Layout layout = layout_of<kType>(given, kMats);
  const bool can_wait = kMats == 1 && given.in_bands && layout.is_x_aligned;
  const DecodeRows rows = can_wait ? given : arrived(given, launch);
  const bool has_room = layout.n_split == 1 && rows.in_bands;  // blocks of other work are in no cluster
  const Beside& added = has_room ? beside : Beside{};
  if (rows.in_bands ? launch_rows<kType, kMats, 1, true>(rows, layout, added, launch)
                    : launch_rows<kType, kMats, 1, false>(rows, layout, added, launch))
    return has_room;
  if (!rows.x_norm) multiply_columns(arrived(rows, launch), {}, kMats == 2, rows.n_tokens, kType, launch);
  return false;
}

// Fills in the fields of the weights. Throws Error{internal} when row sizes do not match the type.
inline DecodeRows rows_of(const WeightMatrix& w) {
  if (w.n_cols <= 0 || w.n_cols % traits(w.type).block_values != 0 ||
      w.row_bytes != row_bytes(w.type, w.n_cols) || w.whole_rows() > INT_MAX / 2 || w.n_cols > INT_MAX / 64)
    fail(ErrorKind::internal, format("a matrix of %ld rows of %ld %s values has %zu bytes a row", w.n_rows,
                                     w.n_cols, type_name(w.type), w.row_bytes));
  DecodeRows rows;
  rows.matrices[0].weights = w.data;
  rows.matrices[0].n_rows = static_cast<int>(w.n_rows);
  rows.matrices[0].y_token_stride = w.n_rows;
  rows.n_whole_rows = static_cast<int>(w.whole_rows());
  rows.row_bytes = static_cast<int64_t>(w.row_bytes);
  rows.mat_bytes = static_cast<int64_t>(w.mat_bytes);
  rows.in_bands = w.step_bytes > 0;
  rows.n_cols = static_cast<int>(w.n_cols);
  return rows;
}

inline DecodeRows rows_of(const Matmul& op) {
  DecodeRows rows = rows_of(op.weight);
  rows.x = op.x;
  rows.x_token_stride = op.x_stride;
  rows.n_tokens = static_cast<int>(op.n_tokens);
  rows.matrices[0].y = op.y;
  rows.plus = op.plus, rows.sum = op.sum;
  return rows;
}

// The tokens [first, first + n) of a product.
inline DecodeRows tokens_of(DecodeRows rows, int first, int n) {
  rows.x += first * rows.x_token_stride;
  for (int k = 0; k < rows.n_matrices; ++k) rows.matrices[k].y += first * rows.matrices[k].y_token_stride;
  if (rows.plus) rows.plus += first * rows.matrices[0].y_token_stride;
  if (rows.sum) rows.sum += first * rows.matrices[0].y_token_stride;
  rows.n_tokens = n;
  return rows;
}

// The product may send its results, and reads x where it arrives, where these gathers were announced
// (inbox.h).
inline DecodeRows by_inbox(DecodeRows rows, const Launch& launch) {
  if (!launch.exchange) return rows;
  const Inbox& inbox = launch.exchange->inbox();
  rows.may_send = true;
  for (const float** x : {&rows.x, &rows.shared_x})
    if (const float* arrival = inbox.arrival_of(*x)) *x = arrival, rows.is_x_arriving = true;
  rows.alarm = inbox.alarm();
  return rows;
}

// As launch_any(), for tokens that fit the scratch memory.
template <int kMats>
bool launch_part(const DecodeRows& given, const UseRuns& runs, TensorType type, const Beside& beside,
                 const Launch& launch) {
  const DecodeChoice choice = choose_decode(type, given.n_tokens, runs.runs ? runs.most : 0, card().family);
  const bool may_wait = choice.kernel == DecodeKernel::rows && has_codes(type);
  const DecodeRows rows = may_wait ? given : arrived(given, launch);
  bool is_beside_done = false;
  switch (choice.kernel) {
    case DecodeKernel::float_rows: launch_float_rows<kMats>(rows, launch); break;
    case DecodeKernel::float_tiles: launch_float_tiles<kMats>(rows, is_float_aligned(rows), launch); break;
    case DecodeKernel::rows:
      with_type(type, [&]<TensorType kType>() {
        if constexpr (kType == TensorType::f16 || kType == TensorType::bf16)
          launch_halves<kType, kMats>(rows, choice.width, launch);
        else if constexpr (kType != TensorType::f32)
          is_beside_done = launch_codes<kType, kMats>(rows, beside, launch);
      });
      break;
    case DecodeKernel::columns:
      multiply_columns(rows, runs, kMats == 2, choice.n_together, type, launch);
      break;
    case DecodeKernel::wide: multiply_wide(rows, kMats == 2, choice, type, launch); break;
  }
  return is_beside_done;
}

// The product for all types; kMats = 2: the gated one. runs: none, or all of the uses. Returns whether the
// work in `beside` was launched too: with few tokens and blocks that are in no clusters.
template <int kMats>
bool launch_any(const DecodeRows& rows, const UseRuns& runs, TensorType type, const Launch& launch,
                const Beside& beside = Beside{}) {
  if (rows.n_problems == 0 || rows.matrices[0].n_rows == 0) return false;
  constexpr int kMostTokens = 32 * kGroupTokens;  // their x as fp16 fits the scratch memory
  const bool is_whole = rows.n_tokens <= kMostTokens;
  const Beside none;
  const Beside& added = is_whole ? beside : none;  // it is for all tokens
  bool is_beside_done = false;
  for (int first = 0; first < rows.n_tokens; first += kMostTokens) {
    Workspace scratch = *launch.workspace;  // each part reuses the scratch memory
    is_beside_done |= launch_part<kMats>(tokens_of(rows, first, std::min(kMostTokens, rows.n_tokens - first)),
                                         runs, type, added, launch.with(scratch));
  }
  return is_whole && is_beside_done;
}

// A product of F32 rows, of one problem, as work beside another product of few tokens.
inline Beside beside_of(const DecodeRows& rows) {
  Beside beside;
  beside.rows = rows, beside.n_jobs = float_jobs(rows, 1), beside.is_aligned = is_float_aligned(rows);
  return beside;
}

}  // namespace dsv32::cuda::decode
