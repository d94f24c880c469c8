// Dense products of a prompt by cuBLASLt beside our own: which tile is the fastest, how fast they are, and
// whether each has our own kernel's bits, however many tokens there are. cuda/cublas_products.cu goes by it.
#include <cstdio>

#include "base/numbers.h"
#include "cuda/cublas_library.h"
#include "cuda/kernels.h"
#include "tests/gpu/gpu_test.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(gpu_cublas)

namespace {

constexpr int64_t kMostTokens = 8192, kComparedTokens = 64;
constexpr double kSteadySeconds = 0.05;  // the clock follows the power within some milliseconds

// n values that repeat after 512 rows, where n_cols is a row.
std::vector<uint16_t> random_halves(int64_t n, int64_t n_cols, uint64_t seed, float size) {
  const std::vector<float> some = random_floats(static_cast<size_t>(std::min(n, 512 * n_cols)), seed, size);
  std::vector<uint16_t> halves(static_cast<size_t>(n));
  for (size_t i = 0; i < halves.size(); ++i)
    halves[i] = i < some.size() ? f32_to_f16(some[i]) : halves[i - some.size()];
  return halves;
}

// One matrix, by both.
class Contest {
 public:
  Contest(const cuda::CublasLibrary& library, cublasLtHandle_t handle, int64_t n_rows, int64_t n_cols)
      : library_(library),
        handle_(handle),
        n_rows_(n_rows),
        n_cols_(n_cols),
        w_(random_halves(n_rows * n_cols, n_cols, 1, 1.0f / std::sqrt(static_cast<float>(n_cols)))),
        x_(random_halves(kMostTokens * n_cols, n_cols, 2, 1)),
        rounded_(static_cast<size_t>(kMostTokens * n_cols + 2 * kMostTokens)),
        y_(static_cast<size_t>(kMostTokens * n_rows)) {}

  void run(int64_t n_tokens) {
    const double n_flops = 2.0 * static_cast<double>(n_rows_ * n_cols_ * n_tokens);
    round(n_tokens);
    std::printf("%lld x %lld, %lld tokens: as prompts do it %.0f;", static_cast<long long>(n_rows_),
                static_cast<long long>(n_cols_), static_cast<long long>(n_tokens),
                1e-12 * n_flops / steady_seconds([&] { multiply_ours(n_tokens); }));
    const std::vector<float> ours = own_bits();
    const cuda::CublasProduct planned(library_, {n_rows_, n_cols_, 2048, 1, n_cols_, n_cols_, n_rows_});
    for (const cuda::CublasAlgorithm& algorithm : algorithms_of(library_, handle_, planned)) {
      const double seconds = steady_seconds([&] { multiply(n_tokens, algorithm); });
      size_t n_same = 0;
      for (const int64_t n : {kMostTokens, int64_t{2048}, int64_t{1000}, kComparedTokens}) {
        CUDA_CHECK(cudaMemset(y_.data(), 0xff, y_.size() * 4));
        n_same += multiply(n, algorithm) && bits() == ours;
      }
      std::printf(" tile %d cluster %d: %.0f%s;",
                  cuda::setting_of<uint32_t>(library_, algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID),
                  cuda::setting_of<uint16_t>(library_, algorithm, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID),
                  1e-12 * n_flops / seconds, n_same == 4 ? "" : " OTHER BITS");
    }
    std::printf(" TFLOP/s\n");
    std::fflush(stdout);
  }

 private:
  // As rounded_rows_in() (common.cuh) has them, in units of 1.
  void round(int64_t n_tokens) {
    auto* x = reinterpret_cast<uint8_t*>(rounded_.data());
    const size_t n_bytes = static_cast<size_t>(n_tokens * n_cols_) * 2;
    const std::vector<float> units(static_cast<size_t>(n_tokens), 1.0f);
    CUDA_CHECK(cudaMemcpy(x, x_.data(), n_bytes, cudaMemcpyDefault));
    CUDA_CHECK(cudaMemcpy(x + n_bytes, units.data(), units.size() * 4, cudaMemcpyDefault));
  }

  void multiply_ours(int64_t n_tokens) {
    const auto row_bytes = static_cast<size_t>(n_cols_) * 2;
    const WeightMatrix weight = {
        reinterpret_cast<const uint8_t*>(w_.data()), TensorType::f16, n_rows_, n_cols_, 1, row_bytes,
        row_bytes * static_cast<size_t>(n_rows_)};
    cuda::matmul_heads_prefill({weight, rounded_.data(), n_cols_, n_cols_, y_.data(), n_tokens},
                               test_.launch(), true);
  }

  // Of so few tokens that prompts do not leave them to the library.
  std::vector<float> own_bits() {
    round(kComparedTokens);
    multiply_ours(kComparedTokens);
    return bits();
  }

  bool multiply(int64_t n_tokens, const cuda::CublasAlgorithm& algorithm) {
    const cuda::CublasProduct product(library_, {n_rows_, n_cols_, n_tokens, 1, n_cols_, n_cols_, n_rows_});
    return product.run(handle_, algorithm, w_.data(), x_.data(), y_.data(), test_.stream());
  }

  // Seconds of a call, of many without a pause: at the clock that the power allows.
  double steady_seconds(const std::function<void()>& work) {
    const double once = test_.seconds(work, 1);
    const int n = std::max(1, static_cast<int>(kSteadySeconds / once));
    return test_.seconds(
               [&] {
                 for (int i = 0; i < n; ++i) work();
               },
               1) /
           n;
  }

  std::vector<float> bits() const {
    std::vector<float> values(static_cast<size_t>(kComparedTokens * n_rows_));
    CUDA_CHECK(cudaDeviceSynchronize());
    CUDA_CHECK(cudaMemcpy(values.data(), y_.data(), values.size() * 4, cudaMemcpyDefault));
    return values;
  }

  const cuda::CublasLibrary& library_;
  cublasLtHandle_t handle_;
  int64_t n_rows_, n_cols_;
  DeviceArray<uint16_t> w_, x_;
  DeviceArray<float> rounded_, y_;
  TestLaunch test_;
};

// Asked for by name: what the library can do changes with the library, not with us.
BOOST_AUTO_TEST_CASE(dense_products,
                     *boost::unit_test::disabled() * boost::unit_test::precondition(needs_gpu)) {
  size_t n_before = 0, n_after = 0, n_all = 0;
  CUDA_CHECK(cudaMemGetInfo(&n_before, &n_all));
  const cuda::CublasLibrary library;
  cublasLtHandle_t handle;
  BOOST_REQUIRE(library.is_there() && library.Create(&handle) == CUBLAS_STATUS_SUCCESS);
  std::printf("cuBLASLt %zu\n", library.GetVersion());
  for (const auto& [n_rows, n_cols] : {std::pair<int64_t, int64_t>{18432, 7168},
                                       {7168, 18432},
                                       {7168, 16384},
                                       {24576, 1536},
                                       {8192, 1536},
                                       {1536, 7168},
                                       {576, 7168},
                                       {2048, 7168},
                                       {7168, 2048}}) {
    Contest contest(library, handle, n_rows, n_cols);
    for (const int64_t n_tokens : {2048, 8192}) contest.run(n_tokens);
  }
  CUDA_CHECK(cudaMemGetInfo(&n_after, &n_all));
  std::printf("device memory that it and our kernels keep: %.1f MB\n",
              1e-6 * static_cast<double>(n_before - n_after));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
