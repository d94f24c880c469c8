// Dense products of many tokens by cuBLASLt, which is loaded at the first one.
//
// If sums are in one piece, the library adds sixteen products at a time in ascending order of columns,
// whichever tiles it chooses, as our kernel does: the same bits (tests/gpu/test_cublas.cpp). It does not
// promise that, so the first product of each shape is compared with our kernel's. Shapes that differ, or that
// the library refuses, go to our kernel.
#include <array>
#include <map>
#include <mutex>
#include <optional>

#include "cuda/cublas_library.h"
#include "cuda/gemm_tile.cuh"

namespace dsv32::cuda {
namespace {

constexpr int kThreads = 256;

const CublasLibrary& library() {
  static const CublasLibrary loaded;
  return loaded;
}

// The library's state for one device. Never destroyed, because the driver may be gone at exit.
struct LibraryDevice {
  cublasLtHandle_t handle = nullptr;
  std::map<std::array<int64_t, 3>, std::optional<CublasAlgorithm>> algorithms;  // [rows, columns, matrices]
};

// The state of the current device. Callers hold `mutex`.
LibraryDevice& library_device() {
  static std::map<int, LibraryDevice> devices;
  int device = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  const auto [at, is_new] = devices.try_emplace(device);
  LibraryDevice& found = at->second;
  if (is_new && library().is_there() && library().Create(&found.handle) != CUBLAS_STATUS_SUCCESS)
    found.handle = nullptr;
  return found;
}

// Chooses the algorithm by the matrix alone, as if there were always kPlannedTokens. On a Hopper the
// library's first choice is within 5 % of the fastest, except where rows are short
// (tests/gpu/test_cublas.cpp; H200, 2026-11-23).
constexpr int64_t kPlannedTokens = 2048, kShortColumns = 4096;
// CUBLASLT_MATMUL_TILE_176x128 by its number: the header may be older than the library that is loaded.
constexpr int kShortTile = 201;

std::optional<CublasAlgorithm> choose(cublasLtHandle_t handle, CublasShape shape) {
  shape.n_tokens = kPlannedTokens;
  const std::vector<CublasAlgorithm> all = algorithms_of(library(), handle, CublasProduct(library(), shape));
  if (all.empty()) return {};
  if (shape.n_cols < kShortColumns && shape.n_mats == 1)
    for (const CublasAlgorithm& each : all)
      if (setting_of<uint32_t>(library(), each, CUBLASLT_ALGO_CONFIG_TILE_ID) == kShortTile) return each;
  return all.front();
}

// y[t, mat] *= units[t, mat or 0]
// A block per token. Most units are 1 (plain_unit); the block then ends at once. Bound by latency, else by
// bytes.
__global__ void scale_rows_kernel(const Product product) {
  const float* units = product.x_units + blockIdx.x * product.x_mats;
  bool has_others = false;
  for (int64_t mat = threadIdx.x; mat < product.x_mats; mat += kThreads) has_others |= units[mat] != 1;
  if (!__syncthreads_or(has_others)) return;
  for (int64_t mat = 0; mat < product.weight.n_mats; ++mat) {
    const float unit = units[product.x_mats > 1 ? mat : 0];
    float* y = static_cast<float*>(product.y) + blockIdx.x * product.y_stride + mat * product.y_mat_stride;
    for (int64_t r = threadIdx.x; unit != 1 && r < product.weight.n_rows; r += kThreads) y[r] *= unit;
  }
}

// *n_others += number of values of y that differ from `ours`, the same product of fewer tokens.
// A block per token. Bound by latency.
__global__ void count_others_kernel(const Product product, const Product ours, int* n_others) {
  for (int64_t i = threadIdx.x; i < ours.y_stride; i += kThreads) {
    const int64_t mat = i / ours.weight.n_rows, row = i % ours.weight.n_rows;
    const float y = static_cast<const float*>(
                    product.y)[blockIdx.x * product.y_stride + mat * product.y_mat_stride + row],
                expected = static_cast<const float*>(ours.y)[blockIdx.x * ours.y_stride + i];
    if (__float_as_uint(y) != __float_as_uint(expected) && !(isnan(y) && isnan(expected)))
      atomicAdd(n_others, 1);
  }
}

// Whether y equals our kernel's bits for the first tokens. Waits for the device.
bool has_our_bits(const Product& product, const Launch& launch) {
  constexpr int64_t kTokens = 64;
  Workspace scratch = *launch.workspace;
  Product ours = product;
  ours.n_places = kTokens;
  ours.y_mat_stride = product.weight.n_rows, ours.y_stride = product.weight.n_mats * product.weight.n_rows;
  const int64_t n_values = kTokens * ours.y_stride;
  if (scratch.n_bytes_left() < n_values * 4 + 512) return false;
  ours.y = scratch.take<float>(n_values);
  auto* counted = scratch.take<int>(1);
  CUDA_CHECK(cudaMemsetAsync(counted, 0, sizeof(int), launch.stream));
  multiply_direct(ours, launch);
  launch_plain(count_others_kernel, {kTokens, kThreads}, launch, product, ours, counted);
  int n_others = 1;
  CUDA_CHECK(cudaMemcpyAsync(&n_others, counted, sizeof(int), cudaMemcpyDefault, launch.stream));
  CUDA_CHECK(cudaStreamSynchronize(launch.stream));
  return n_others == 0;
}

bool can_take(const Product& product) {
  return uses_library(product.n_places) && product.n_splits == 1 && !product.tiles &&
         reinterpret_cast<uintptr_t>(product.y) % 16 == 0 && product.y_stride % 4 == 0 &&
         product.y_mat_stride % 4 == 0;
}

}  // namespace

bool multiply_by_library(const Product& product, const Launch& launch) {
  if (!can_take(product)) return false;
  const WeightMatrix& w = product.weight;
  CublasShape shape = {w.n_rows,
                       w.n_cols,
                       product.n_places,
                       w.n_mats,
                       static_cast<int64_t>(w.row_bytes / 2),
                       product.x_mats * product.x_columns,
                       product.y_stride};
  shape.w_mat_stride = static_cast<int64_t>(w.mat_bytes / 2), shape.y_mat_stride = product.y_mat_stride;
  shape.x_mat_stride = product.x_mats > 1 ? product.x_columns : 0;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  LibraryDevice& device = library_device();
  if (!device.handle) return false;
  const auto [at, is_new] = device.algorithms.try_emplace({w.n_rows, w.n_cols, w.n_mats});
  if (is_new) at->second = choose(device.handle, shape);
  if (!at->second || !CublasProduct(library(), shape)
                          .run(device.handle, *at->second, w.data, product.x, product.y, launch.stream))
    return false;
  launch_plain(scale_rows_kernel, {product.n_places, kThreads}, launch, product);
  if (is_new && !has_our_bits(product, launch)) at->second.reset();
  return at->second.has_value();
}

}  // namespace dsv32::cuda
