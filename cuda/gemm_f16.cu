// Products with weights that are fp16 rows of whole 16-byte pieces: a tensor of that type, or a dequantised
// slab. cp.async copies both operands, three steps deep. gemm_f16_hopper.cu makes the same sums on Hopper.
#include "cuda/gemm_tile.cuh"

namespace dsv32::cuda {
namespace {

constexpr int kWarpgroups = 2;
constexpr int kThreads = 128 * kWarpgroups;
constexpr int kRows = kTileRows * kWarpgroups;
constexpr int kStages = 3;
constexpr int kStageBytes = (kWarpgroups + 1) * kTileBytes;
constexpr int kSharedBytes = kStages * kStageBytes + static_cast<int>(sizeof(TokenRows));

// Starts the copy of columns [column, column + 64) of the tile's rows; columns past the matrix are zeros.
DSV32_DEVICE void load_rows(const WeightMatrix& weight, const uint8_t* first, int64_t n_rows, int64_t column,
                            uint32_t to) {
  const int piece = threadIdx.x % 8;
  const bool is_inside = column + piece * 8 < weight.n_cols;  // n_cols is a multiple of 8
  const uint8_t* from = first + static_cast<size_t>(is_inside ? column + piece * 8 : 0) * 2;
  DSV32_UNROLL for (int i = 0; i < kRows; i += kThreads / 8) {
    const int row = i + threadIdx.x / 8;
    if (row < n_rows)
      copy_async(to + tile_offset(row, piece * 16), from + static_cast<size_t>(row) * weight.row_bytes,
                 is_inside ? 16 : 0);
  }
}

// y[t, r] = sum over c of W[r, c] * x[t, c], fp16 products, f32 sums in ascending c.
// A CTA of two warpgroups makes 128 tokens x 256 rows; grid: product_grid().
// Three stages of 64 columns: step s is multiplied while step s + 2 is copied into the place of step s - 1,
// which every warp has left at the barrier of step s.
// Bound by the tensor cores; L2 gives each SM 48 KiB a step of 4.2 MFLOP. Measured (H200, 2026-11-21): 2048
// tokens, 18432 x 7168: F16 336 TFLOP/s.
__global__ void __launch_bounds__(kThreads, 1) multiply_direct_kernel(const Product product) {
  extern __shared__ __align__(1024) uint8_t shared[];
  auto& token_rows = *reinterpret_cast<TokenRows*>(shared + kStages * kStageBytes);
  Place place;
  if (!find_place(product, kRows, place)) return;
  const TokenTile tile = place.tile;
  find_token_rows(product, place, token_rows);
  __syncthreads();

  const WeightMatrix& weight = product.weight;
  const uint8_t* first = row_of(weight, tile.mat, place.first_row);
  const int64_t n_rows = weight.n_rows - place.first_row;
  const int n_steps = place.n_steps;
  const uint32_t stages = shared_address(shared);
  const auto load = [&](int step) {
    const uint32_t to = stages + step % kStages * kStageBytes;
    load_rows(weight, first, n_rows, int64_t{place.first_step + step} * kStep, to);
    load_activations<kThreads>(product, token_rows, tile.n, step, to + kWarpgroups * kTileBytes);
  };

  for (int step = 0; step < kStages - 1; ++step) {
    if (step < n_steps) load(step);
    commit_copies();
  }
  const int warpgroup = threadIdx.x / 128;
  Sums sums = {};
  for (int step = 0; step < n_steps; ++step) {
    wait_copies<kStages - 2>();
    publish_tile();
    __syncthreads();
    const uint32_t at = stages + step % kStages * kStageBytes;
    start_products(sums, at + warpgroup * kTileBytes, at + kWarpgroups * kTileBytes, tile.n);
    if (step + kStages - 1 < n_steps) load(step + kStages - 1);
    commit_copies();
    finish_products(sums);
  }
  store_sums(product, token_rows, tile, place.first_row + warpgroup * kTileRows, sums);
}

// y[t, r] = sum over i ascending of sums[i, t, r]. A thread per value. Bound by bytes, from L2: 4 n_splits
// read and 4 written per value.
__global__ void add_splits_kernel(const float* sums, int64_t n_splits, int64_t n_values, int64_t n_rows,
                                  float* y, int64_t y_stride) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= n_values) return;
  float sum = 0;
  for (int64_t i = 0; i < n_splits; ++i) sum += sums[i * n_values + at];
  y[at / n_rows * y_stride + at % n_rows] = sum;
}

// The same product of places [first, first + n).
Product of_places(const Product& product, int64_t first, int64_t n) {
  Product part = product;
  part.x += first * product.x_mats * product.x_columns, part.x_units += first * product.x_mats;
  part.y = static_cast<float*>(product.y) + first * product.y_stride;
  part.n_places = n;
  return part;
}

}  // namespace

bool is_direct(const WeightMatrix& weight) {
  return weight.type == TensorType::f16 && weight.n_cols % 8 == 0 && weight.row_bytes % 16 == 0 &&
         (weight.n_mats == 1 || weight.mat_bytes % 16 == 0) &&
         reinterpret_cast<uintptr_t>(weight.data) % 16 == 0;
}

int64_t splits_of(int64_t n_rows, int64_t n_cols) {
  constexpr int64_t kPlannedTiles = 16;  // tiles of 128 tokens: 2048 tokens fill the device
  constexpr int64_t kMostSplits = 8, kLeastSteps = 2 * kSplitSteps;
  const int64_t n_tiles = kPlannedTiles * ceil_div(n_rows, kRows), n_steps = ceil_div(n_cols, kStep);
  return std::max<int64_t>(1, std::min({kPlannedSms / n_tiles, n_steps / kLeastSteps, kMostSplits}));
}

void multiply(const Product& product, const Launch& launch) {
  const auto multiply_all = is_direct(product.weight) ? multiply_direct : multiply_blocks;
  if (product.n_splits == 1) return multiply_all(product, launch);
  const int64_t n_rows = product.weight.n_rows, n_splits = product.n_splits;
  const int64_t n_bytes_place = 4 * n_splits * n_rows;
  int64_t n_together = launch.workspace->n_bytes_left() / n_bytes_place;
  if (n_together > kTileTokens) n_together = n_together / kTileTokens * kTileTokens;
  n_together = std::min(n_together, product.n_places);
  if (n_together < 1) fail(ErrorKind::internal, "no scratch memory is left for the partial sums of a token");
  Workspace scratch = *launch.workspace;
  auto* sums = scratch.take<float>(n_splits * n_together * n_rows);
  for (int64_t first = 0; first < product.n_places; first += n_together) {
    const Product part = of_places(product, first, std::min(n_together, product.n_places - first));
    const int64_t n_values = part.n_places * n_rows;
    Product parts = part;
    parts.y = sums, parts.y_split_stride = n_values, parts.y_stride = n_rows;
    multiply_all(parts, launch);
    launch_plain(add_splits_kernel, {ceil_div(n_values, kThreads), kThreads}, launch, sums, n_splits,
                 n_values, n_rows, static_cast<float*>(part.y), part.y_stride);
  }
}

void multiply_direct(const Product& product, const Launch& launch) {
  if (multiply_by_library(product, launch)) return;
  if (!product.tiles && card().family == KernelFamily::hopper) return multiply_direct_hopper(product, launch);
  launch_plain(multiply_direct_kernel, {product_grid(product, kRows), kThreads, kSharedBytes}, launch,
               product);
}

}  // namespace dsv32::cuda
