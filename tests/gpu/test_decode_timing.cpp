// How fast products of decode are at real sizes, one after the other. Prints; checks nothing.
#include <cstdio>
#include <numeric>

#include "tests/gpu/products.h"

namespace dsv32 {

BOOST_AUTO_TEST_SUITE(gpu_matmul_decode)

namespace {

using enum TensorType;

TestLaunch& gpu() {
  static TestLaunch launch(size_t{64} << 20);
  return launch;
}

// A stack of n_mats matrices whose rows lie in bands.
WeightMatrix in_bands(const uint8_t* data, TensorType type, int64_t n_rows, int64_t n_cols,
                      int64_t n_mats = 1) {
  const size_t row = row_bytes(type, n_cols);
  return {data,
          type,
          n_rows,
          n_cols,
          n_mats,
          row,
          row * static_cast<size_t>(n_rows),
          band_step_bytes(type, n_rows, n_cols)};
}

}  // namespace

BOOST_AUTO_TEST_CASE(timing, *boost::unit_test::precondition(needs_gpu) * boost::unit_test::label("timing")) {
  constexpr size_t kPool = size_t{600}
                           << 20;  // copies of a matrix are taken in turn, so that L2 does not hold them
  const DeviceArray<uint8_t> pool(kPool, false, DeviceWeights::kPaddingBytes);
  CUDA_CHECK(cudaMemset(pool.data(), 0, kPool));
  constexpr int64_t kMostTokens = 161;
  const DeviceArray<float> x(std::vector<float>(kMostTokens * 18432, 1.0f)), y(size_t{kMostTokens} * 32768);
  const auto time = [&](TensorType type, int64_t n_rows, int64_t n_cols, int64_t n_tokens) {
    WeightMatrix weight = in_bands(nullptr, type, n_rows, n_cols);
    const size_t n_bytes = weight.mat_bytes, n_copies = std::min<size_t>(kPool / n_bytes, 32);
    const double seconds = gpu().seconds([&] {
      for (size_t i = 0; i < n_copies; ++i) {
        weight.data = pool.data() + i * (n_bytes / 256 * 256);
        cuda::matmul_decode({weight, x.data(), n_cols, y.data(), n_tokens}, gpu().launch());
      }
    }) / static_cast<double>(n_copies);
    std::printf("matmul_decode %-8s %5lld x %5lld, %lld tokens: %7.2f us, %5.0f GB/s\n", type_name(type),
                static_cast<long long>(n_rows), static_cast<long long>(n_cols),
                static_cast<long long>(n_tokens), seconds * 1e6,
                static_cast<double>(n_bytes) / seconds / 1e9);
  };
  for (const TensorType type : kTypes) time(type, 7168, 18432, 1);
  for (const TensorType type : {q4_k, q6_k, q8_0, bf16}) {
    time(type, 18432, 7168, 1);
    time(type, 24576, 1536, 1);
    time(type, 7168, 16384, 1);
    time(type, 2112, 7168, 1);
    time(type, 576, 7168, 1);
    for (const int64_t n_tokens : {2, 4, 8}) time(type, 18432, 7168, n_tokens);
    time(type, 7168, 16384, 8);
    for (const int64_t n_tokens : {9, 16, 17, 32, 33, 64, 65, 80, 96, 128, 161})
      time(type, 7168, 16384, n_tokens);
    time(type, 1536, 7168, 128);
  }
  time(f32, 256, 7168, 1);
}

BOOST_AUTO_TEST_CASE(timing_of_heads,
                     *boost::unit_test::precondition(needs_gpu) * boost::unit_test::label("timing")) {
  constexpr size_t kPool = size_t{300} << 20;
  const DeviceArray<uint8_t> pool(kPool, false, DeviceWeights::kPaddingBytes);
  CUDA_CHECK(cudaMemset(pool.data(), 0, kPool));
  const DeviceArray<float> x(std::vector<float>(8 * 128 * 512, 1.0f)), y(size_t{8} * 128 * 512);
  for (const int64_t n_rows : {512, 128})
    for (const int64_t n_tokens : {1, 8}) {
      const int64_t n_cols = 65536 / n_rows;
      WeightMatrix weight = in_bands(nullptr, q8_0, n_rows, n_cols, 128);
      const size_t n_bytes = weight.mat_bytes * 128, n_copies = kPool / n_bytes;
      const double seconds = gpu().seconds([&] {
        for (size_t i = 0; i < n_copies; ++i) {
          weight.data = pool.data() + i * n_bytes;
          cuda::matmul_heads_decode({weight, x.data(), 128 * n_cols, n_cols, y.data(), n_tokens},
                                    gpu().launch());
        }
      }) / static_cast<double>(n_copies);
      std::printf("matmul_heads_decode Q8_0 128 x %lld x %lld, %lld tokens: %.2f us, %.0f GB/s\n",
                  static_cast<long long>(n_rows), static_cast<long long>(n_cols),
                  static_cast<long long>(n_tokens), seconds * 1e6,
                  static_cast<double>(n_bytes) / seconds / 1e9);
    }
}

BOOST_AUTO_TEST_CASE(timing_of_experts,
                     *boost::unit_test::precondition(needs_gpu) * boost::unit_test::label("timing")) {
  constexpr int64_t kDim = 7168, kInter = 2048, kExperts = 64;
  for (const TensorType type : {q4_k, q6_k, q2_k, iq2_xxs, q8_0}) {
    const size_t mat_bytes = row_bytes(type, kDim) * kInter;
    const std::vector<uint8_t> zeros(mat_bytes * kExperts);
    const DeviceWeights w1(zeros), w3(zeros), w2(zeros);
    const DeviceArray<float> x(std::vector<float>(8 * kDim, 1.0f)), y(size_t{8} * kDim),
        weights(std::vector<float>(512, 0.1f));
    std::vector<int32_t> all(kExperts);
    std::iota(all.begin(), all.end(), 0);
    const DeviceArray<int32_t> experts(all);  // token t: experts 8 t .. 8 t + 7
    const WeightMatrix up = in_bands(w1.data(), type, kInter, kDim, kExperts),
                       other = in_bands(w3.data(), type, kInter, kDim, kExperts),
                       down = in_bands(w2.data(), type, kDim, kInter, kExperts);
    for (const int64_t n_tokens : {1, 2, 8}) {
      // One token: its experts move on from run to run, so that L2 does not hold them.
      const int64_t n_runs = 8 / n_tokens;
      const double seconds = gpu().seconds([&] {
        for (int64_t run = 0; run < n_runs; ++run)
          cuda::run_experts_decode({{up, other, down},
                                    x.data(),
                                    experts.data() + run * 8 * n_tokens,
                                    weights.data(),
                                    n_tokens,
                                    8,
                                    y.data()},
                                   gpu().launch());
      }) / static_cast<double>(n_runs);
      const double n_bytes = 24.0 * static_cast<double>(mat_bytes) * static_cast<double>(n_tokens);
      std::printf("run_experts_decode %-8s %lld tokens x 8 of [7168 x 2048]: %.2f us, %.0f GB/s\n",
                  type_name(type), static_cast<long long>(n_tokens), seconds * 1e6, n_bytes / seconds / 1e9);
    }
  }
}

// V3.2's experts, chosen at random by many tokens: most that are chosen are chosen a few times.
BOOST_AUTO_TEST_CASE(timing_of_chosen_experts,
                     *boost::unit_test::precondition(needs_gpu) * boost::unit_test::label("timing")) {
  constexpr int64_t kDim = 7168, kInter = 2048, kExperts = 256, kMost = 128;
  const size_t mat_bytes = row_bytes(q4_k, kDim) * kInter;
  const DeviceArray<uint8_t> pool(3 * kExperts * mat_bytes, false, DeviceWeights::kPaddingBytes);
  CUDA_CHECK(cudaMemset(pool.data(), 0, 3 * kExperts * mat_bytes));
  const DeviceArray<float> x(std::vector<float>(kMost * kDim, 1.0f)), y(size_t{kMost} * kDim),
      weights(std::vector<float>(kMost * 8, 0.1f));
  const DeviceArray<int32_t> experts(choose_experts(kMost, kExperts, 8));
  const WeightMatrix w1 = in_bands(pool.data(), q4_k, kInter, kDim, kExperts),
                     w3 = in_bands(pool.data() + kExperts * mat_bytes, q4_k, kInter, kDim, kExperts),
                     w2 = in_bands(pool.data() + 2 * kExperts * mat_bytes, q4_k, kDim, kInter, kExperts);
  for (const int64_t n_tokens : {2, 4, 8, 16, 32, 33, 64, 128}) {
    const double seconds = gpu().seconds([&] {
      cuda::run_experts_decode(
          {{w1, w3, w2}, x.data(), experts.data(), weights.data(), n_tokens, 8, y.data()}, gpu().launch());
    });
    std::printf("run_experts_decode Q4_K, %lld tokens x 8 of 256: %.0f us\n",
                static_cast<long long>(n_tokens), seconds * 1e6);
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace dsv32
