// Which kernel makes a product of prompts, and the sums of columns that are divided into parts.
#include "cuda/gemm_tile.cuh"

namespace dsv32::cuda {
namespace {

constexpr int kThreads = 256;

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

// Without parts.
void multiply_whole(const Product& product, const Launch& launch) {
  if (product.tiles || !is_direct(product.weight))
    multiply_blocks(product, launch);
  else if (!multiply_by_library(product, launch))
    multiply_direct(product, launch);
}

}  // namespace

bool is_direct(const WeightMatrix& weight) {
  return weight.type == TensorType::f16 && weight.n_cols % 8 == 0 && weight.row_bytes % 16 == 0 &&
         (weight.n_mats == 1 || weight.mat_bytes % 16 == 0) &&
         reinterpret_cast<uintptr_t>(weight.data) % 16 == 0;
}

void multiply(const Product& product, const Launch& launch) {
  if (product.n_splits == 1) return multiply_whole(product, launch);
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
    multiply_whole(parts, launch);
    launch_plain(add_splits_kernel, {ceil_div(n_values, kThreads), kThreads}, launch, sums, n_splits,
                 n_values, n_rows, static_cast<float*>(part.y), part.y_stride);
  }
}

void multiply_direct(const Product& product, const Launch& launch) {
  const bool is_hopper = card().family == KernelFamily::hopper;
  (is_hopper ? multiply_direct_hopper : multiply_direct_generic)(product, launch);
}

}  // namespace dsv32::cuda
