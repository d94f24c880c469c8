// Products with fp16 weights in the generic family: a tensor of that type, or a dequantised slab.
// gemm_f16_hopper.cu makes the same sums on Hopper.
//
// A tile is 256 rows by 128 tokens, of which each of eight warps has 64 by 64, so that shared memory is read
// half as often as the tensor cores need it; with up to 64 tokens, 32 by 64.
#include "cuda/gemm_tile.cuh"

namespace dsv32::cuda {
namespace {

constexpr int kThreads = 256, kRows = 2 * kTileRows;
constexpr int kStages = 2;
constexpr int kRowBytes = kRows * kStep * 2, kStageBytes = kRowBytes + kTileBytes;
constexpr int kSharedBytes = kStages * kStageBytes;
static_assert(kSharedBytes <= kGenericSharedBytes);

#if !defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr int kAtOnce = kThreads / 8;  // eight threads copy 128 bytes of a row or token
constexpr int kHalfTokens = kTileTokens / 2;

// What a thread copies of each step: its piece of 16 bytes of every kAtOnce-th row and token.
class Copies {
 public:
  DSV32_DEVICE Copies(const Product& product, const Place& place) {
    const WeightMatrix& weight = product.weight;
    const int piece = static_cast<int>(threadIdx.x) % 8, row = static_cast<int>(threadIdx.x) / 8;
    const int64_t first_column = int64_t{place.first_step} * kStep + piece * 8,
                  x_row =
                      (place.tile.first + row) * product.x_mats + (product.x_mats > 1 ? place.tile.mat : 0);
    rows_ = row_of(weight, place.tile.mat, place.first_row) + row * weight.row_bytes + first_column * 2;
    row_stride_ = kAtOnce * weight.row_bytes;
    n_rows_ = static_cast<int>(min(weight.n_rows - place.first_row, int64_t{kRows})) - row;
    tokens_ = product.x + x_row * product.x_columns + first_column;
    token_stride_ = kAtOnce * product.x_mats * product.x_columns;
    n_tokens_ = place.tile.n - row;
    n_columns_ = static_cast<int>(weight.n_cols - first_column);
    place_ = tile_offset(row, piece * 16);
  }

  // Starts the copy of quarter `quarter` of a step's rows and tokens into a stage. Columns past the matrix
  // are zeros; x is padded.
  DSV32_DEVICE void start(int step, int quarter, uint32_t stage) const {
    const uint32_t to = stage + place_;
    const int n_bytes = step * kStep < n_columns_ ? 16 : 0;
    DSV32_UNROLL for (int i = 2 * quarter; i < 2 * quarter + 2; ++i) if (i * kAtOnce < n_rows_)
        copy_async(to + i * kAtOnce * 128, rows_ + i * row_stride_ + step * (kStep * 2), n_bytes);
    if (quarter * kAtOnce < n_tokens_)
      copy_async(to + kRowBytes + quarter * kAtOnce * 128, tokens_ + quarter * token_stride_ + step * kStep,
                 16);
  }

 private:
  const uint8_t* rows_;
  const __half* tokens_;
  size_t row_stride_;     // bytes
  int64_t token_stride_;  // values
  int n_rows_, n_tokens_, n_columns_;
  uint32_t place_;
};
static_assert(kRows == 8 * kAtOnce && kTileTokens == 4 * kAtOnce && kStep == 4 * 16);

// A warp's operands of sixteen columns.
template <int kWarpRows>
struct Operands {
  uint32_t rows[kWarpRows / 16][4], tokens[kHalfTokens / 16][4];

  // rows_at, tokens_at: the lane's row and token in the tiles, in bytes; `column` in bytes.
  DSV32_DEVICE void load(uint32_t stage, uint32_t rows_at, uint32_t tokens_at, int column) {
    const uint32_t lane = threadIdx.x % 32, turn = lane % 8 * 16;
    const uint32_t row_piece = (column + lane / 16 * 16) ^ turn,  // matrices: rows 0-7, 8-15; next piece
        token_piece = (column + lane / 8 % 2 * 16) ^ turn;        // matrices: pieces of tokens 0-7; of 8-15
    DSV32_UNROLL for (int i = 0; i < kWarpRows / 16; ++i)
        load_matrices(rows[i], stage + rows_at + i * 16 * 128 + row_piece);
    DSV32_UNROLL for (int i = 0; i < kHalfTokens / 16; ++i)
        load_matrices(tokens[i], stage + kRowBytes + tokens_at + i * 16 * 128 + token_piece);
  }
};

// sums[i][4 j + e]: row 16 i + lane / 4 + 8 (e / 2), token 8 j + 2 (lane % 4) + e % 2 of the warp's.
template <int kWarpRows>
using WarpSums = float[kWarpRows / 16][kHalfTokens / 2];

template <int kWarpRows>
DSV32_DEVICE void add_products(const Operands<kWarpRows>& of, WarpSums<kWarpRows>& sums) {
  DSV32_UNROLL for (int i = 0; i < kWarpRows / 16; ++i) {
    DSV32_UNROLL for (int j = 0; j < kHalfTokens / 16; ++j) {
      multiply_f16(sums[i] + 8 * j, of.rows[i], of.tokens[j][0], of.tokens[j][1]);
      multiply_f16(sums[i] + 8 * j + 4, of.rows[i], of.tokens[j][2], of.tokens[j][3]);
    }
  }
}

// Writes the warp's sums. Units are loaded before sums are written, because the compiler must assume that a
// write changes them.
template <int kWarpRows>
DSV32_DEVICE void store_tile(const Product& product, const Place& place, int first_row, int first_token,
                             const WarpSums<kWarpRows>& sums) {
  constexpr int kOwnTokens = kHalfTokens / 4;
  const int lane = static_cast<int>(threadIdx.x) % 32, token = first_token + lane % 4 * 2;
  const int64_t first = place.tile.first + token, row = place.first_row + first_row + lane / 4;
  const float* units = product.x_units + first * product.x_mats + (product.x_mats > 1 ? place.tile.mat : 0);
  float* y = static_cast<float*>(product.y) + first * product.y_stride +
             place.tile.mat * product.y_mat_stride + place.y_offset + row;
  float own[kOwnTokens];
  DSV32_UNROLL for (int i = 0; i < kOwnTokens; ++i) {
    const int at = i / 2 * 8 + i % 2;
    own[i] = token + at < place.tile.n ? units[at * product.x_mats] : 0;
  }
  DSV32_UNROLL for (int i = 0; i < kOwnTokens; ++i) {
    const int at = i / 2 * 8 + i % 2;
    if (token + at >= place.tile.n) continue;
    DSV32_UNROLL for (int j = 0; j < kWarpRows / 8; ++j) if (row + 8 * j < product.weight.n_rows)
        y[at * product.y_stride + 8 * j] = sums[j / 2][i / 2 * 4 + j % 2 * 2 + i % 2] * own[i];
  }
}

// A warp's part of the tile: kWarpRows of its rows and 64 of its tokens.
template <int kWarpRows>
DSV32_DEVICE void multiply_tile(const Product& product, const Place& place, const Copies& copies,
                                uint32_t stages) {
  constexpr int kRowWarps = kRows / kWarpRows;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int first_row = warp % kRowWarps * kWarpRows, first_token = warp / kRowWarps * kHalfTokens;
  const uint32_t rows_at = (first_row + lane % 16) * 128,
                 tokens_at = (first_token + lane % 8 + lane / 16 * 8) * 128;
  Operands<kWarpRows> of[2];
  WarpSums<kWarpRows> sums = {};
  for (int step = 0; step < place.n_steps; ++step) {
    const uint32_t stage = stages + step % 2 * kStageBytes, next = stages + (step + 1) % 2 * kStageBytes;
    wait_all_copies();
    __syncthreads();
    of[0].load(stage, rows_at, tokens_at, 0);
    DSV32_UNROLL for (int k = 0; k < 4; ++k) {
      if (k < 3) of[(k + 1) % 2].load(stage, rows_at, tokens_at, (k + 1) * 32);
      if (step + 1 < place.n_steps) copies.start(step + 1, k, next);
      add_products(of[k % 2], sums);
    }
  }
  store_tile<kWarpRows>(product, place, first_row, first_token, sums);
}

#endif

// y[t, r] = sum over c of W[r, c] * x[t, c], fp16 products, f32 sums in ascending c, sixteen at a time.
// A CTA of eight warps makes 128 tokens x 256 rows; grid: product_grid(). Two stages of 64 columns: while one
// is multiplied the next is copied, a quarter at each sixteen columns, into what every warp has left at the
// step's barrier. A warp loads the operands of the next sixteen columns before it multiplies sixteen.
// Bound by the tensor cores: on an A100 2048 cycles a step, where reading shared memory takes 1024 and
// writing it 384.
__global__ void __launch_bounds__(kThreads, 1) multiply_f16_kernel(const Product product) {
#if !defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) uint8_t shared[];
  Place place;
  if (!find_place(product, kRows, place)) return;
  const Copies copies(product, place);
  const uint32_t stages = shared_address(shared);
  DSV32_UNROLL for (int quarter = 0; quarter < 4; ++quarter) copies.start(0, quarter, stages);
  if (place.tile.n > kHalfTokens)
    multiply_tile<64>(product, place, copies, stages);
  else
    multiply_tile<32>(product, place, copies, stages);
#else
  __trap();
#endif
}

}  // namespace

void multiply_direct_generic(const Product& product, const Launch& launch) {
  launch_plain(multiply_f16_kernel, {product_grid(product, kRows), kThreads, kSharedBytes}, launch, product);
}

}  // namespace dsv32::cuda
