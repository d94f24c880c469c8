// Dense products and products by heads in prefill. Activations are rounded to fp16 once. Where it pays
// (expands_rows()) a slab of a matrix's rows is dequantised into scratch memory; else rows are dequantised on
// their way into the tiles. The sums have the same bits either way.
#include <array>
#include <bit>
#include <numeric>
#include <span>
#include <vector>

#include "cuda/weight_tile.cuh"

namespace dsv32::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kShortRow = 1024;  // columns, up to which a row gets one warp
constexpr int kMostRowThreads = 1024;

// Eight values of a row from `column` on, zeros past its end; `values` is aligned to 16 bytes.
DSV32_DEVICE void load_piece(const float* row, int64_t column, int64_t n_cols, float (&values)[8]) {
  const float* from = row + column;
  if (column + 8 <= n_cols && reinterpret_cast<uintptr_t>(from) % 16 == 0) {
    *reinterpret_cast<float4*>(values) = *reinterpret_cast<const float4*>(from);
    *reinterpret_cast<float4*>(values + 4) = *reinterpret_cast<const float4*>(from + 4);
  } else {
    DSV32_UNROLL for (int i = 0; i < 8; ++i) values[i] = column + i < n_cols ? from[i] : 0.0f;
  }
}

// Stores a row's values times `inverse` (1 / unit), eight from `column` on, in the given form.
DSV32_DEVICE void store_piece(const float (&values)[8], float inverse, __half* to, int64_t column,
                              int64_t n_padded, RowForm form) {
  alignas(16) __half2 high[4], low[4], small[4];
  DSV32_UNROLL for (int i = 0; i < 4; ++i) {
    const float2 pair = {values[2 * i] * inverse, values[2 * i + 1] * inverse};
    high[i] = __float22half2_rn(pair);  // keeps infinities
    const float2 rounded = __half22float2(high[i]);
    low[i] = __floats2half2_rn(pair.x - rounded.x, pair.y - rounded.y);
    small[i] = __floats2half2_rn(rounded.x * (1.0f / kLowScale), rounded.y * (1.0f / kLowScale));
  }
  if (form == RowForm::turned) {
    const auto* pairs = reinterpret_cast<const uint32_t*>(high);
    to += turned_column(column);
    *reinterpret_cast<uint2*>(to) = {pairs[0], pairs[2]};
    *reinterpret_cast<uint2*>(to + 8) = {pairs[1], pairs[3]};
    return;
  }
  to += column;
  *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(high);
  if (form != RowForm::split) return;
  *reinterpret_cast<uint4*>(to + n_padded) = *reinterpret_cast<const uint4*>(low);
  *reinterpret_cast<uint4*>(to + 2 * n_padded) = *reinterpret_cast<const uint4*>(small);
}

// The maximum over the block, for every thread. Called once.
DSV32_DEVICE float block_max(float x) {
  __shared__ float partial[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n_warps = blockDim.x / 32;
  x = warp_max(x);
  if (lane == 0) partial[warp] = x;
  __syncthreads();
  return warp_max(lane < n_warps ? partial[lane] : 0.0f);
}

// out = f16(x / unit), columns padded with zeros; a row's unit follows from its largest magnitude. A row has
// row_threads threads: a warp of a block of kThreads, or a whole block. Rows are read twice, the second time
// from L1 or L2. Bound by bytes: 4 read and 2 (split: 6) written per value.
__global__ void __launch_bounds__(kMostRowThreads)
    round_activations_kernel(const Activations x, const RoundedRows out, int64_t n_padded, RowForm form,
                             int row_threads) {
  const int64_t row =
      int64_t{blockIdx.x} * (blockDim.x / row_threads) + static_cast<int>(threadIdx.x) / row_threads;
  const int thread = static_cast<int>(threadIdx.x) % row_threads;
  if (row >= x.n_tokens * x.n_mats) return;  // never in a block that has one row
  const float* from = x.data + row / x.n_mats * x.token_stride + row % x.n_mats * x.mat_stride;
  alignas(16) float values[8];
  float largest = 0;
  for (int64_t column = 8 * thread; column < n_padded; column += 8 * row_threads) {
    load_piece(from, column, x.n_cols, values);
    DSV32_UNROLL for (int i = 0; i < 8; ++i) largest = fmaxf(largest, fabsf(values[i]));
  }
  largest = row_threads == 32 ? warp_max(largest) : block_max(largest);
  const float unit = form == RowForm::plain ? plain_unit(largest) : unit_of(largest),
              inverse = inverse_of_power(unit);
  if (thread == 0) out.units[row] = unit;
  __half* to = out.values + row * n_padded * (form == RowForm::split ? 3 : 1);
  for (int64_t column = 8 * thread; column < n_padded; column += 8 * row_threads) {
    load_piece(from, column, x.n_cols, values);
    store_piece(values, inverse, to, column, n_padded, form);
  }
}

// Loads sixteen 16-bit values from an even address.
DSV32_DEVICE void load_pairs(const uint8_t* from, uint32_t* out) {
  if (reinterpret_cast<uintptr_t>(from) % 16 == 0) {
    const uint4 low = reinterpret_cast<const uint4*>(from)[0], high = reinterpret_cast<const uint4*>(from)[1];
    out[0] = low.x, out[1] = low.y, out[2] = low.z, out[3] = low.w;
    out[4] = high.x, out[5] = high.y, out[6] = high.z, out[7] = high.w;
  } else {
    DSV32_UNROLL for (int i = 0; i < 8; ++i) out[i] = load_word<2>(from + 4 * i);
  }
}

// out [8]: values column..column+15 of a row, two a word; column is a multiple of 16. grid: see fill_grid.
template <TensorType kType>
DSV32_DEVICE void widen16(const WeightMatrix& weight, const uint8_t* row, int64_t column, uint32_t* out,
                          const uint32_t* grid) {
  if constexpr (kIsFloat<kType>) {
    load_pairs(row + 2 * column, out);
    if constexpr (kType == TensorType::bf16) {
      DSV32_UNROLL for (int i = 0; i < 8; ++i) out[i] =
          pack_f16(__uint_as_float(out[i] << 16), __uint_as_float(out[i] & 0xffff0000u));
    }
  } else {
    using Format = Codes<kType>;
    const auto step = static_cast<uint32_t>(column / kStepColumns<kType>);
    const int64_t col = column % kStepColumns<kType>;
    const uint8_t* block = row + span_offset<kType, kStepColumns<kType>>(weight.step_bytes > 0, step) +
                           col / Format::kBlockValues * Format::kBlockBytes;
    const int i16 = static_cast<int>(col % Format::kBlockValues);
    const ScaleMin s = Format::scale(block, i16);
    const float constant = widen_constant<kType>(s);
    DSV32_UNROLL for (int j = 0; j < 16; j += 4)
        widen4<kType>(Format::codes4(block, i16, j, grid), s.scale, constant, out + j / 2);
  }
}

// out [n_rows, n_padded] = f16(W), columns padded with zeros. A thread makes 16 values; n_together threads
// make a row; grid (rows, pieces of a row). Neighbouring threads read neighbouring codes. Bound by bytes: a
// weight block's read, and 2 written per value.
template <TensorType kType>
__global__ void expand_kernel(const WeightMatrix weight, __half* out, int64_t n_padded, unsigned n_together) {
  __shared__ uint32_t grid[kGridWords<kType> + 1];
  fill_grid<kType>(grid);
  __syncthreads();
  const int64_t row = int64_t{blockIdx.x} * (kThreads / n_together) + threadIdx.x / n_together,
                column = (int64_t{blockIdx.y} * n_together + threadIdx.x % n_together) * 16;
  if (row >= weight.n_rows || column >= n_padded) return;
  const uint8_t* from = row_of(weight, 0, row);
  uint32_t values[8] = {};
  if (column + 16 <= weight.n_cols) {
    widen16<kType>(weight, from, column, values, grid);
  } else if constexpr (kIsFloat<kType>) {
    DSV32_UNROLL for (int i = 0; i < 16; ++i) if (column + i < weight.n_cols) values[i / 2] |=
        pack_f16(load_float<kType>(from, column + i), 0.0f) << (i % 2 * 16);
  }
  auto* to = reinterpret_cast<uint4*>(out + row * n_padded + column);
  to[0] = make_uint4(values[0], values[1], values[2], values[3]);
  to[1] = make_uint4(values[4], values[5], values[6], values[7]);
}

// out [n_rows, high | high | low * kLowScale] of an f32 matrix. With split activations this makes the product
// of two sums high + low, less low x low. A thread per value (these matrices are small). Three fp16 products
// reach the accuracy that f32 weights (above all the router's) are stored for, 2^-21 of each term. Bound by
// bytes: 4 read and 6 written per value.
__global__ void expand_split_kernel(const WeightMatrix weight, __half* out, int64_t n_padded) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= weight.n_rows * n_padded) return;
  const int64_t row = at / n_padded, column = at % n_padded;
  const float value =
      column < weight.n_cols ? load_float<TensorType::f32>(row_of(weight, 0, row), column) : 0.0f;
  const __half high = to_f16(value);
  __half* to = out + row * 3 * n_padded + column;
  to[0] = high;
  to[n_padded] = high;
  to[2 * n_padded] = to_f16((value - __half2float(high)) * kLowScale);
}

// Expands the rows of a slab to fp16 (f32: split in three).
void expand(const WeightMatrix& weight, __half* out, const Launch& launch) {
  const int64_t n_padded = padded_columns(weight.n_cols), n_pieces = n_padded / 16;
  if (weight.type == TensorType::f32)
    return launch_plain(expand_split_kernel, {ceil_div(weight.n_rows * n_padded, kThreads), kThreads}, launch,
                        weight, out, n_padded);
  const int64_t n_together =  // threads of a row
      std::min<int64_t>(static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(n_pieces))), kThreads);
  const Extent blocks = {ceil_div(weight.n_rows, kThreads / n_together), ceil_div(n_pieces, n_together)};
  with_type(weight.type, [&]<TensorType kType>() {
    if constexpr (kType != TensorType::f32)
      launch_plain(expand_kernel<kType>, {blocks, kThreads}, launch, weight, out, n_padded, n_together);
  });
}

// Makes the product in slabs of fp16 rows, or of whole matrices where there are several. A slab is as large
// as the remaining scratch memory allows.
void multiply_expanded(Product product, const Launch& launch) {
  const WeightMatrix weight = product.weight;
  const int64_t n_cols = product.x_columns;  // padded; f32: three times as many
  const bool has_mats = weight.n_mats > 1;
  const int64_t unit = has_mats ? weight.n_rows : 256, n_all = weight.n_mats * weight.n_rows;
  // A quarter stays free for the partial sums of split columns.
  int64_t max_rows = launch.workspace->n_bytes_left() / 4 * 3 / (2 * n_cols);
  if (max_rows > unit)
    max_rows = max_rows / unit * unit;
  else if (max_rows > kBandRows)
    max_rows = max_rows / kBandRows * kBandRows;
  if (max_rows < (has_mats ? unit : weight.step_bytes ? kBandRows : 1))
    fail(ErrorKind::internal, "no scratch memory is left for dequantised rows");
  const int64_t n_slabs = ceil_div(n_all, max_rows);
  int64_t slab_rows = std::min(max_rows, ceil_div(ceil_div(n_all, n_slabs), unit) * unit);
  // With this many rows, the tiles fill the multiprocessors a whole number of times.
  const int64_t n_token_tiles = ceil_div(product.n_places, 2 * kTileTokens),
                round_rows = kTileRows * (launch.n_sms / std::gcd(int64_t{launch.n_sms}, n_token_tiles));
  if (!has_mats && n_slabs > 1 && max_rows >= round_rows) slab_rows = max_rows / round_rows * round_rows;
  auto* slab = launch.workspace->take<__half>(std::min(slab_rows, n_all) * n_cols);
  for (int64_t row = 0; row < n_all; row += slab_rows) {
    const int64_t n_rows = std::min(slab_rows, n_all - row), n_mats = has_mats ? n_rows / weight.n_rows : 1;
    Product part = product;
    WeightMatrix stored = weight;
    stored.data += static_cast<size_t>(row) * weight.row_bytes;
    stored.n_rows = n_rows, stored.n_mats = 1;
    expand(stored, slab, launch);
    const auto row_bytes = static_cast<size_t>(n_cols) * 2;
    const int64_t mat_rows = n_rows / n_mats, mat = row / weight.n_rows;
    part.weight = {
        reinterpret_cast<const uint8_t*>(slab),   TensorType::f16, mat_rows, n_cols, n_mats, row_bytes,
        row_bytes * static_cast<size_t>(mat_rows)};
    if (has_mats) part.x += mat * product.x_columns, part.x_units += mat;
    part.y = static_cast<float*>(product.y) + (has_mats ? mat * product.y_mat_stride : row);
    multiply(part, launch);
  }
}

// Only for weights that lie in one piece.
bool pays_to_expand(const WeightMatrix& weight, int64_t n_tokens) {
  return expands_rows(weight.n_rows, weight.whole_mats(), n_tokens) && !is_direct(weight) &&
         (weight.n_mats == 1 || weight.mat_bytes == static_cast<size_t>(weight.n_rows) * weight.row_bytes);
}

// Whether it is a matrix by itself, not one of a stack.
bool is_single(const WeightMatrix& weight) { return weight.whole_mats() == 1; }

bool is_split(const WeightMatrix& weight) { return weight.type == TensorType::f32 && is_single(weight); }

// y[t, mat] = W[mat] @ x[t, mat] for n_tokens; the activations are fp16 already, n_cols per row.
void multiply_rounded(const WeightMatrix& weight, const RoundedRows& x, int64_t n_cols, int64_t n_tokens,
                      float* y, const Launch& launch) {
  Product product;
  product.weight = weight;
  product.x = x.values, product.x_units = x.units;
  product.x_columns = n_cols, product.x_mats = weight.n_mats;
  product.y = y, product.y_stride = weight.n_mats * weight.n_rows, product.y_mat_stride = weight.n_rows;
  product.n_splits = is_single(weight) ? choose_splits(weight.whole_rows(), n_cols) : 1;
  product.n_places = n_tokens;
  Workspace rest = *launch.workspace;  // each product takes scratch memory anew
  const Launch with_rest = launch.with(rest);
  if (is_split(weight) || pays_to_expand(weight, n_tokens))
    multiply_expanded(product, with_rest);
  else
    multiply(product, with_rest);
}

// y = W x for all targets, which have the same f32 activations and need them rounded to the same form. Tokens
// go in runs whose fp16 activations fill up to half of the scratch memory.
void multiply_dense(std::span<const Matmul> targets, const Activations& x, const Launch& launch) {
  const bool splits = is_split(targets.front().weight);
  const RowForm form = splits ? RowForm::split : RowForm::plain;
  const int64_t n_cols = padded_columns(x.n_cols) * (splits ? 3 : 1);
  Workspace scratch = *launch.workspace;
  int64_t run = scratch.n_bytes_left() / 2 / ((2 * n_cols + 4) * x.n_mats);
  if (run > kTileTokens) run = run / kTileTokens * kTileTokens;
  if (run < x.n_tokens && run > kTileTokens)  // runs of equal length
    run = ceil_div(ceil_div(x.n_tokens, ceil_div(x.n_tokens, run)), kTileTokens) * kTileTokens;
  run = std::min(run, x.n_tokens);
  if (run < 1) fail(ErrorKind::internal, "no scratch memory is left for the activations of a token");
  const RoundedRows rounded = {scratch.take<__half>(run * x.n_mats * n_cols),
                               scratch.take<float>(run * x.n_mats)};
  const Launch with_rest = launch.with(scratch);
  for (int64_t token = 0; token < x.n_tokens; token += run) {
    Activations part = x;
    part.data += token * x.token_stride;
    part.n_tokens = std::min(run, x.n_tokens - token);
    round_activations(part, rounded, form, launch);
    for (const Matmul& to : targets)
      multiply_rounded(to.weight, rounded, n_cols, part.n_tokens, to.y + token * x.n_mats * to.weight.n_rows,
                       with_rest);
  }
}

bool has_work(const WeightMatrix& weight, int64_t n_tokens) {
  check_weight(weight);
  return n_tokens > 0 && weight.n_rows > 0 && weight.n_mats > 0;
}

}  // namespace

void check_weight(const WeightMatrix& weight) {
  const TypeTraits* type = find_traits(weight.type);
  if (!type || !type->is_supported || weight.n_cols % type->block_values != 0 ||
      weight.row_bytes < static_cast<size_t>(weight.n_cols) / type->block_values * type->block_bytes)
    fail(ErrorKind::internal, format("a product wants rows of %ld values of %s in %zu bytes", weight.n_cols,
                                     type_name(weight.type), weight.row_bytes));
}

void round_activations(const Activations& x, const RoundedRows& out, RowForm form, const Launch& launch) {
  const int64_t n_padded = padded_columns(x.n_cols), n_rows = x.n_tokens * x.n_mats;
  if (n_rows == 0) return;
  const bool is_short = n_padded <= kShortRow;
  // A thread of a longer row has two pieces of eight, so that a multiprocessor works on several rows.
  const int row_threads =
      is_short ? 32 : static_cast<int>(std::min<int64_t>(ceil_div(n_padded, 512) * 32, kMostRowThreads));
  const int n_threads = is_short ? kThreads : row_threads;
  launch_plain(round_activations_kernel, {ceil_div(n_rows, n_threads / row_threads), n_threads}, launch, x,
               out, n_padded, form, row_threads);
}

void matmuls_prefill(std::span<const Matmul> ops, const Launch& launch) {
  std::vector<Matmul> left;
  for (const Matmul& op : ops) {
    if (op.weight.n_mats != 1) fail(ErrorKind::internal, "matmul wants one matrix");
    if (has_work(op.weight, op.n_tokens)) left.push_back(op);
  }
  while (!left.empty()) {  // those with the activations of the first
    const Matmul op = left.front();
    const auto others = std::ranges::stable_partition(left, [&](const Matmul& other) {
      return is_split(other.weight) == is_split(op.weight) && other.x == op.x &&
             other.n_tokens == op.n_tokens;
    });
    multiply_dense({left.begin(), others.begin()}, {op.x, op.x_stride, 0, op.n_tokens, 1, op.weight.n_cols},
                   launch);
    left.erase(left.begin(), others.begin());
  }
}

void matmul_prefill(const Matmul& op, const Launch& launch) { matmuls_prefill({&op, 1}, launch); }

void matmul_heads_prefill(const MatmulHeads& op, const Launch& launch, bool is_rounded) {
  const WeightMatrix& weight = op.weight;
  if (!has_work(weight, op.n_tokens)) return;
  if (is_rounded)
    multiply_rounded(weight, rounded_rows_in(op.x, op.n_tokens * weight.n_mats, weight.n_cols), weight.n_cols,
                     op.n_tokens, op.y, launch);
  else
    multiply_dense(std::array{Matmul{.weight = weight, .y = op.y}},
                   {op.x, op.x_token_stride, op.x_head_stride, op.n_tokens, weight.n_mats, weight.n_cols},
                   launch);
}

}  // namespace dsv32::cuda
