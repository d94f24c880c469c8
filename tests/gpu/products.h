// What the tests of products share: random matrices, prefill's tolerances, tokens of different size.
//
// Tolerances. Weights and activations are rounded to fp16: each factor is off by 2^-11 = 4.9e-4 at most
// and 2e-4 in the root mean square, so a sum of many random terms is off by 2.8e-4 of its size; 5e-4 leaves
// room for formats with few distinct values. With random signs the error of one element is normal around
// that: 3.5e-3 of the outputs' root mean square is twelve deviations, and what a wrong column or row makes is
// of the order of 1. A few outputs of one row may have more than the average: twice the first bound below
// 1000 outputs. An f32 matrix is computed from three fp16 products, each term off by 2^-21 or so; what shows
// is that tensor cores cut off what they add to a sum instead of rounding it, up to 2^-24 of the sum each 16
// columns: 4e-5 with three times 7168 columns, 5e-5 allowed.
//
// Tokens differ in size by powers of two, because each is rounded in units of its own; results are compared
// as if they did not.
#pragma once

#include <cstdio>
#include <numeric>
#include <string>
#include <vector>

#include "backend/cpu_backend.h"
#include "cuda/kernels.h"
#include "tests/gpu/gpu_test.h"
#include "tests/support/supported_types.h"

namespace dsv32 {

inline const std::vector<TensorType> kTypes = supported_types();

inline CpuBackend& cpu() {
  static CpuBackend backend(0);
  return backend;
}

// A stack of matrices in host and device memory, there in bands where its shape allows it, as the backend
// keeps it, and as whole rows.
struct TestWeights {
  TestWeights(TensorType type, int64_t n_mats, int64_t n_rows, int64_t n_cols, uint64_t seed)
      : bytes(make(type, n_mats * n_rows, n_cols, seed)), device(bytes), banded(bytes) {
    host.type = type, host.n_rows = n_rows, host.n_cols = n_cols, host.n_mats = n_mats;
    host.row_bytes = row_bytes(type, n_cols);
    host.mat_bytes = host.row_bytes * static_cast<size_t>(n_rows);
    host.data = bytes.data();
    WeightMatrix weight = host;
    weight.data = banded.data(), weight.step_bytes = band_step_bytes(type, n_rows, n_cols);
    if (weight.step_bytes == 0) return;
    static TestLaunch launch(size_t{16} << 20);
    cuda::put_in_bands(weight, launch.launch());
    CUDA_CHECK(cudaStreamSynchronize(launch.stream()));
  }
  static std::vector<uint8_t> make(TensorType type, int64_t n_rows, int64_t n_cols, uint64_t seed) {
    Rng rng(seed);
    return random_weights(type, static_cast<uint64_t>(n_rows), static_cast<uint64_t>(n_cols), rng,
                          1.0f / std::sqrt(static_cast<float>(n_cols)));
  }
  WeightMatrix on_device() const {
    WeightMatrix weight = host;
    weight.data = banded.data(), weight.step_bytes = band_step_bytes(host.type, host.n_rows, host.n_cols);
    return weight;
  }
  WeightMatrix whole_rows_on_device() const {
    WeightMatrix weight = host;
    weight.data = device.data();
    return weight;
  }

  std::vector<uint8_t> bytes;
  DeviceWeights device, banded;
  WeightMatrix host;
};

struct Tolerance {
  double relative,
      largest;  // of all elements in the Euclidean norm; of one element, by the root mean square of all
  size_t n_few = 1000;  // below so many elements twice the first
};
constexpr Tolerance kRounded = {5e-4, 3.5e-3}, kSplit = {5e-5, 5e-4};

inline void check_close(const std::vector<float>& ours, const std::vector<float>& expected,
                        Tolerance tolerance, const std::string& what) {
  BOOST_REQUIRE(ours.size() == expected.size() && !ours.empty());
  double norm = 0, largest = 0;
  size_t at = 0;
  for (size_t i = 0; i < ours.size(); ++i) {
    norm += static_cast<double>(expected[i]) * static_cast<double>(expected[i]);
    const double difference = std::abs(static_cast<double>(ours[i]) - static_cast<double>(expected[i]));
    if (!(difference <= largest)) largest = difference, at = i;
  }
  const double rms = norm > 0 ? std::sqrt(norm / static_cast<double>(ours.size())) : 1;
  const double relative = relative_error(ours, expected);
  if (ours.size() < tolerance.n_few) tolerance.relative *= 2;
  BOOST_CHECK_MESSAGE(relative <= tolerance.relative && largest <= tolerance.largest * rms,
                      what << ": relative error " << relative << ", largest " << largest / rms << " rms at "
                           << at << " (" << ours[at] << " instead of " << expected[at] << ")");
}

inline Tolerance tolerance_of(TensorType type) { return type == TensorType::f32 ? kSplit : kRounded; }

inline std::string describe(const WeightMatrix& w, int64_t n_tokens) {
  return std::string(type_name(w.type)) + " " + std::to_string(w.n_mats) + " x " + std::to_string(w.n_rows) +
         " x " + std::to_string(w.n_cols) + ", " + std::to_string(n_tokens) + " tokens";
}

// How much larger the activations of a row are than those of others.
inline float size_of(size_t row) { return std::exp2(static_cast<float>(row % 3) * 7 - 7); }

// Rows of n values times their size and `size`, or the other way round.
inline void resize_rows(std::vector<float>& values, int64_t n, float size, bool is_back = false) {
  for (size_t i = 0; i < values.size(); ++i) {
    const float factor = size * size_of(i / static_cast<size_t>(n));
    values[i] = is_back ? values[i] / factor : values[i] * factor;
  }
}

// n_activated different experts of each token, ascending.
inline std::vector<int32_t> choose_experts(int64_t n_tokens, int64_t n_experts, int64_t n_activated) {
  Rng rng(17);
  std::vector<int32_t> experts;
  for (int64_t t = 0; t < n_tokens; ++t) {
    std::vector<int32_t> all(static_cast<size_t>(n_experts));
    std::iota(all.begin(), all.end(), 0);
    for (size_t i = 0; i + 1 < all.size(); ++i) std::swap(all[i], all[i + rng.next() % (all.size() - i)]);
    std::sort(all.begin(), all.begin() + n_activated);
    experts.insert(experts.end(), all.begin(), all.begin() + n_activated);
  }
  return experts;
}

inline void print_product(const char* name, TensorType type, int64_t n_tokens, double n_products,
                          double n_bytes, double seconds) {
  std::printf("%s %s, %lld tokens: %.3f ms, %.0f TFLOP/s, %.0f GB/s of weights\n", name, type_name(type),
              static_cast<long long>(n_tokens), seconds * 1e3, 2e-12 * n_products / seconds,
              1e-9 * n_bytes / seconds);
}

}  // namespace dsv32
