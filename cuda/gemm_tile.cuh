// Shared by the products of prefill: what is multiplied, the tile, loading activations into it, and storing a
// sum.
//
// A CTA makes y[t, r] for a tile of tokens and rows, 64 columns at a time. A step's activations lie in shared
// memory as fp16 rows of 64 values. Rows are operand A of the tensor cores, tokens operand B, in fewer
// products for fewer tokens. A token's sums depend on its own activations alone, so the places of missing
// tokens and rows may hold anything. Activations, and sums until they are written, are in units of their row
// (common.cuh).
#pragma once

#include "cuda/dequant.cuh"

namespace dsv32::cuda {

constexpr int kTileTokens = 128;
constexpr int kTileRows = kPromptTileRows;
constexpr int kStep = kPromptStep;  // columns
constexpr int kTileBytes = 128 * kStep * 2;
constexpr int kProductThreads = 256;            // of Hopper's kernels: the threads that multiply
constexpr int kSplitSteps = kPromptSplitSteps;  // a split begins at a multiple of this: the longest block

// A range of places, in the order of tokens, to which one matrix is applied.
struct TokenTile {
  int32_t mat, first, n;
};

// What is stored of the sums. An expert's hidden values are rounded to fp16 after the gate and after the
// product. Their unit follows from the token's: 2^e = the token's unit times kLargestInUnits.
enum class Output : int {
  f32,        // y = sum
  silu_f16,   // y = silu(sum), in units of 2^e / kHiddenScale
  times_f16,  // y = y * sum, in units of 4^e / kHiddenScale
};

// A sum is the token's largest activation times a sum of weights, usually 0.02 to 2. So stored hidden values
// are from 0.01 to 100. They keep eleven bits down to 2^-14, and saturate where gate times up is more than
// 4094 times the square of the largest activation.
constexpr float kHiddenScale = 16;

// y[place] = W[mat] @ x[place]. Places are tokens, or uses of experts.
struct Product {
  WeightMatrix weight;
  const __half* x = nullptr;  // [rows, x_mats, x_columns]: columns padded with zeros to a multiple of kStep
  const float* x_units = nullptr;  // [rows, x_mats]
  int64_t x_columns = 0;
  int64_t x_mats = 1;               // 1: all matrices share the activations
  const int32_t* x_rows = nullptr;  // [n_places] each place's row of x; null: the place
  void* y = nullptr;                // f32 or fp16
  int64_t y_stride = 0, y_mat_stride = 0;
  const int32_t* y_rows = nullptr;  // [n_places]
  float* y_units = nullptr;         // [n_places] units that Output::times_f16 stores
  Output output = Output::f32;
  const float* scales = nullptr;  // of matrix i's sums: scales[2 i]; null: 1
  int64_t n_places = 0;           // without tiles: every matrix is applied to each place
  int64_t n_splits = 1;           // of the columns; split i's sums lie i * y_split_stride values behind y
  int64_t y_split_stride = 0;
  const TokenTile* tiles = nullptr;  // [*n_tiles]
  const int32_t* n_tiles = nullptr;
  int64_t max_tiles = 0;
};

// Enqueues the product. Fp16 rows that cp.async can read (is_direct) go straight into the tile, those of
// other formats and of experts are dequantised on the way; both add the same columns in the same order. With
// n_splits > 1 the parts of a sum are added in scratch memory. gemm.cu.
void multiply(const Product& product, const Launch& launch);

bool is_direct(const WeightMatrix& weight);
// By our own kernel: f32 sums of weights that are direct, without tiles.
void multiply_direct(const Product& product, const Launch& launch);
void multiply_direct_hopper(const Product& product, const Launch& launch);   // gemm_f16_hopper.cu
void multiply_direct_generic(const Product& product, const Launch& launch);  // generic/gemm_f16.cu
// The same bits; false, and nothing done, where the library cannot. cublas_products.cu.
bool multiply_by_library(const Product& product, const Launch& launch);
// Weights of any format.
void multiply_blocks(const Product& product, const Launch& launch);  // gemm_blocks.cu

// Over tiles, with Hopper's products: `product`, or, gated, silu of it times the same of `up`, whose type and
// shape are product.weight's. f32, or gated fp16 in the units of Output::times_f16. Columns of x, and of a
// gated y, are in turned order. gemm_pairs.cu.
struct PairProduct {
  Product product;
  WeightMatrix up;
  bool is_gated = false;
  bool is_double = false;  // tiles have up to kDoubleTokens
};
constexpr int kDoubleTokens = 2 * kTileTokens;
// Widths of tiles that are not full; slightly fewer tokens do not save time.
constexpr int kMiddleTokens = 96, kMiddleDoubleTokens = 144;
bool has_pairs(const WeightMatrix& weight);  // on this device
void multiply_pairs(const PairProduct& op, const Launch& launch);

// The place of column c in turned order: of every kTurnedColumns columns, the even pairs come first.
constexpr int64_t kTurnedColumns = 16;
constexpr int64_t turned_column(int64_t c) { return c / 16 * 16 + (c / 2 % 2 * 4 + c / 4 % 4) * 2 + c % 2; }

constexpr int64_t padded_columns(int64_t n) { return ceil_div(n, kStep) * kStep; }

// f32 rows of tokens, one row per matrix.
struct Activations {
  const float* data = nullptr;  // [n_tokens, n_mats, n_cols], strides below
  int64_t token_stride = 0, mat_stride = 0;
  int64_t n_tokens = 0, n_mats = 1, n_cols = 0;
};

// Activations as RoundedRows of padded_columns(n_cols) columns. Split: three times as many columns, high |
// low | high / kLowScale with x = high + low, 22 bits together. The third part is for the weights' low parts,
// stored kLowScale times as large to stay in fp16's range. Plain rows are in units of 1 if their values fit
// fp16.
constexpr float kLowScale = 2048;
enum class RowForm : int { plain, scaled, turned, split };

// matmul_prefill.cu
void round_activations(const Activations& x, const RoundedRows& out, RowForm form, const Launch& launch);

// Throws Error{internal} unless the type is supported and the rows are long enough.
void check_weight(const WeightMatrix& weight);

// Where byte `byte` (of 128) of row `row` lies. 16-byte pieces are permuted by the row, so that reading one
// column of eight rows (ldmatrix, wgmma) touches every bank once.
DSV32_DEVICE uint32_t tile_offset(int row, int byte) {
  return static_cast<uint32_t>(row * 128 + (byte ^ (row % 8 * 16)));
}

// The steps of part `split` of a product's columns.
struct Columns {
  int first_step, n_steps;
};

DSV32_DEVICE Columns columns_of(const Product& product, int split) {
  const int n_steps = static_cast<int>((product.weight.n_cols + kStep - 1) / kStep);
  const int quads = (n_steps + kSplitSteps - 1) / kSplitSteps, n_splits = static_cast<int>(product.n_splits);
  const int first = quads * split / n_splits * kSplitSteps;
  return {first, min(quads * (split + 1) / n_splits * kSplitSteps, n_steps) - first};
}

// This CTA's work. Dense: grid (token tiles, row tiles, mats or splits), so that CTAs at work together share
// operands in L2. With tiles: row tiles times most tiles, all along x, which has room for any number; CTAs
// past the last tile do nothing.
struct Place {
  TokenTile tile;
  int64_t first_row;
  int first_step, n_steps;
  int64_t y_offset;
};

DSV32_DEVICE bool find_place(const Product& product, int rows_per_cta, Place& place) {
  place.first_step = 0, place.n_steps = static_cast<int>((product.weight.n_cols + kStep - 1) / kStep);
  place.y_offset = 0;
  if (product.tiles) {
    const auto n_row_tiles = static_cast<unsigned>((product.weight.n_rows + rows_per_cta - 1) / rows_per_cta);
    const auto tile = static_cast<int>(blockIdx.x / n_row_tiles);
    if (tile >= *product.n_tiles) return false;
    place.tile = product.tiles[tile];
    place.first_row = int64_t{blockIdx.x % n_row_tiles} * rows_per_cta;
    return true;
  }
  const int64_t first = int64_t{blockIdx.x} * kTileTokens, n_left = product.n_places - first;
  const bool is_split = product.n_splits > 1;
  place.tile = {is_split ? 0 : static_cast<int32_t>(blockIdx.z), static_cast<int32_t>(first),
                static_cast<int32_t>(n_left < kTileTokens ? n_left : kTileTokens)};
  place.first_row = int64_t{blockIdx.y} * rows_per_cta;
  const Columns columns = columns_of(product, is_split ? static_cast<int>(blockIdx.z) : 0);
  place.first_step = columns.first_step, place.n_steps = columns.n_steps;
  if (is_split) place.y_offset = static_cast<int>(blockIdx.z) * product.y_split_stride;
  return true;
}

inline Extent product_grid(const Product& product, int rows_per_cta) {
  const int64_t row_tiles = ceil_div(product.weight.n_rows, rows_per_cta);
  if (product.tiles) return row_tiles * product.max_tiles;
  return {ceil_div(product.n_places, kTileTokens), row_tiles,
          std::max(product.weight.n_mats, product.n_splits)};
}

// Where the tile's tokens are read and written, looked up once.
struct TokenRows {
  int64_t x[kTileTokens];  // first value
  int64_t y[kTileTokens];
  float units[kTileTokens];
};

DSV32_DEVICE void find_token_rows(const Product& product, const Place& place, TokenRows& rows) {
  const TokenTile tile = place.tile;
  for (int i = threadIdx.x; i < tile.n; i += blockDim.x) {
    const int64_t at = tile.first + i;
    const int64_t x_row =
        (product.x_rows ? product.x_rows[at] : at) * product.x_mats + (product.x_mats > 1 ? tile.mat : 0);
    rows.x[i] = x_row * product.x_columns + int64_t{place.first_step} * kStep;
    rows.units[i] = product.x_units[x_row];
    rows.y[i] = (product.y_rows ? product.y_rows[at] : at) * product.y_stride +
                tile.mat * product.y_mat_stride + place.y_offset;
    if (product.y_units && place.first_row == 0) {
      const float power = rows.units[i] * kLargestInUnits;
      product.y_units[at] = power * power / kHiddenScale;
    }
  }
}

// Calls work<n>() with the first of these ascending widths that holds n_tokens, else with the last.
template <int kWidth, int... kWider, class Work>
DSV32_DEVICE void with_tokens(int n_tokens, const Work& work) {
  if constexpr (sizeof...(kWider) == 0)
    work.template operator()<kWidth>();
  else if (n_tokens <= kWidth)
    work.template operator()<kWidth>();
  else
    with_tokens<kWider...>(n_tokens, work);
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// ---- eight warps that multiply, and other warps that fill a pipe of stages of 64 columns ----

template <int kStages>
DSV32_DEVICE void init_stages(Pipe<kStages>* pipe, int n_load_threads) {
  if (threadIdx.x >= kStages) return;
  pipe->init_stage(static_cast<int>(threadIdx.x), n_load_threads + n_load_threads / 32, kProductThreads / 32);
  publish_barriers();
}

// Signals a stage's barrier: this thread's stores are done, and its copies will signal when they arrive. All
// lanes of a loading warp call it. Readers of the stage need fence_async_proxy() before products.
DSV32_DEVICE void fill_stage(uint64_t* full) {
  arrive_when_copied(full);
  __syncwarp();
  if (threadIdx.x % 32 == 0) arrive(full);
}

#endif

DSV32_DEVICE float silu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }

// Stores a token's sum in `y`; unit: the token's.
DSV32_DEVICE void store_sum(const Product& product, int64_t at, float sum, float unit) {
  auto* halves = static_cast<__half*>(product.y);
  if (product.output == Output::f32)
    static_cast<float*>(product.y)[at] = sum * unit;
  else if (product.output == Output::silu_f16)
    halves[at] = to_f16(silu(sum * unit) * (inverse_of_power(unit) * (kHiddenScale / kLargestInUnits)));
  else
    halves[at] = to_f16(__half2float(halves[at]) * (sum * (1.0f / kLargestInUnits)));
}

// Writes a warp's sums of sixteen rows from first_row on. sums[4 j + e]: row lane / 4 + 8 (e / 2), token 8 j
// + 2 (lane % 4) + e % 2.
template <int kTokens>
DSV32_DEVICE void store_sums(const Product& product, const TokenRows& rows, const TokenTile& tile,
                             int64_t first_row, const float (&sums)[kTokens / 2]) {
  const int lane = threadIdx.x % 32;
  const float scale = product.scales ? product.scales[2 * int64_t{tile.mat}] : 1.0f;
  DSV32_UNROLL for (int j = 0; j < kTokens / 8; ++j) {
    DSV32_UNROLL for (int e = 0; e < 4; ++e) {
      const int token = 8 * j + lane % 4 * 2 + e % 2;
      const int64_t row = first_row + lane / 4 + e / 2 * 8;
      if (token < tile.n && row < product.weight.n_rows)
        store_sum(product, rows.y[token] + row, sums[4 * j + e] * scale, rows.units[token]);
    }
  }
}

}  // namespace dsv32::cuda
