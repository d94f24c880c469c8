// Products with many tokens (cuda/matmul_many.cu, cuda/experts_many.cu) against the CPU backend.
//
// Tolerances. Weights and activations are rounded to bf16: each factor is off by 2^-9 at most and 0.9e-3 in
// the root mean square, so a sum of many random terms is off by 1.3e-3 of its size; 3e-3 leaves room for
// formats with few distinct values. With random signs the error of one element is normal around that: 2e-2 of
// the outputs' root mean square is twelve deviations, and what a wrong column or row makes is of the order
// of 1. A few outputs of one row may have more than the average: twice the first bound below 1000 outputs.
// Experts round twice more in the middle (the gate and h), and products of two sums have long tails: 8e-3 and
// 8e-2. An f32 matrix is computed from three bf16 products and off by 2^-16 or less: 1e-4.
#include <boost/test/unit_test.hpp>
#include <cstdio>
#include <cstring>
#include <string>

#include "backend/cpu_backend.h"
#include "cuda/kernels.h"
#include "tests/gpu/gpu_test.h"

namespace dsv32 {
namespace {

constexpr TensorType kTypes[] = {
    TensorType::f32,     TensorType::f16,     TensorType::bf16,   TensorType::q4_0,
    TensorType::q5_0,    TensorType::q5_1,    TensorType::q8_0,   TensorType::q2_k,
    TensorType::q3_k,    TensorType::q4_k,    TensorType::q5_k,   TensorType::q6_k,
    TensorType::iq2_xxs, TensorType::iq3_xxs, TensorType::iq4_nl, TensorType::iq4_xs};

CpuBackend& cpu() {
  static CpuBackend backend(0);
  return backend;
}

// A stack of matrices in host and device memory.
struct Weights {
  Weights(TensorType type, int64_t n_mats, int64_t n_rows, int64_t n_cols, uint64_t seed)
      : bytes(make(type, n_mats * n_rows, n_cols, seed)), device(bytes) {
    host.type = type, host.n_rows = n_rows, host.n_cols = n_cols, host.n_mats = n_mats;
    host.row_bytes = row_bytes(type, n_cols);
    host.mat_bytes = host.row_bytes * static_cast<size_t>(n_rows);
    host.data = bytes.data();
  }
  static std::vector<uint8_t> make(TensorType type, int64_t n_rows, int64_t n_cols, uint64_t seed) {
    Rng rng(seed);
    return random_weights(type, static_cast<uint64_t>(n_rows), static_cast<uint64_t>(n_cols), rng,
                          1.0f / std::sqrt(static_cast<float>(n_cols)));
  }
  WeightMatrix on_device() const {
    WeightMatrix weight = host;
    weight.data = device.data();
    return weight;
  }

  std::vector<uint8_t> bytes;
  DeviceArray<uint8_t> device;
  WeightMatrix host;
};

struct Tolerance {
  double relative,
      largest;  // of all elements in the Euclidean norm; of one element, by the root mean square of all
};
constexpr Tolerance kRounded = {3e-3, 2e-2}, kSplit = {1e-4, 1e-3}, kTwice = {8e-3, 8e-2};

void check_close(const std::vector<float>& ours, const std::vector<float>& expected, Tolerance tolerance,
                 const std::string& what) {
  BOOST_REQUIRE(ours.size() == expected.size() && !ours.empty());
  double norm = 0, largest = 0;
  size_t at = 0;
  for (size_t i = 0; i < ours.size(); ++i) {
    norm += static_cast<double>(expected[i]) * static_cast<double>(expected[i]);
    const double difference = std::abs(static_cast<double>(ours[i]) - static_cast<double>(expected[i]));
    if (!(difference <= largest)) largest = difference, at = i;
  }
  const double rms = std::sqrt(norm / static_cast<double>(ours.size()));
  const double relative = relative_error(ours, expected);
  if (ours.size() < 1000) tolerance.relative *= 2;
  BOOST_CHECK_MESSAGE(relative <= tolerance.relative && largest <= tolerance.largest * rms,
                      what << ": relative error " << relative << ", largest " << largest / rms << " rms at "
                           << at << " (" << ours[at] << " instead of " << expected[at] << ")");
}

Tolerance tolerance_of(TensorType type) { return type == TensorType::f32 ? kSplit : kRounded; }

std::string describe(const WeightMatrix& w, int64_t n_tokens) {
  return std::string(type_name(w.type)) + " " + std::to_string(w.n_mats) + " x " + std::to_string(w.n_rows) +
         " x " + std::to_string(w.n_cols) + ", " + std::to_string(n_tokens) + " tokens";
}

// All elements of y = W x, on the device and on the CPU. Rows of x are x_stride apart.
void check_matmul(const WeightMatrix& host, const WeightMatrix& device, int64_t n_tokens, int64_t x_stride,
                  TestLaunch& test) {
  const std::vector<float> x = random_floats(static_cast<size_t>(n_tokens * x_stride), 7);
  std::vector<float> expected(static_cast<size_t>(n_tokens * host.n_rows));
  cpu().matmul({host, x.data(), x_stride, expected.data(), n_tokens});
  const DeviceArray<float> x_device(x);
  const DeviceArray<float> y(expected.size());
  cuda::matmul_many({device, x_device.data(), x_stride, y.data(), n_tokens}, test.launch());
  check_close(y.values(), expected, tolerance_of(host.type), describe(host, n_tokens));
}

void check_matmul(TensorType type, int64_t n_rows, int64_t n_cols, int64_t n_tokens, TestLaunch& test) {
  const Weights weights(type, 1, n_rows, n_cols, 11);
  check_matmul(weights.host, weights.on_device(), n_tokens, n_cols, test);
}

struct Experts {
  Weights w1, w3, w2;
  int64_t dim, inter_dim, n_experts;
  Experts(TensorType type1, TensorType type3, TensorType type2, int64_t n_experts_, int64_t dim_,
          int64_t inter_dim_)
      : w1(type1, n_experts_, inter_dim_, dim_, 1),
        w3(type3, n_experts_, inter_dim_, dim_, 2),
        w2(type2, n_experts_, dim_, inter_dim_, 3),
        dim(dim_),
        inter_dim(inter_dim_),
        n_experts(n_experts_) {}
};

// n_activated different experts of each token, ascending, of `n_used` from `first` on.
std::vector<int32_t> choose_experts(int64_t n_tokens, int64_t n_activated, int64_t first, int64_t n_used,
                                    uint64_t seed) {
  Rng rng(seed);
  std::vector<int32_t> chosen;
  for (int64_t t = 0; t < n_tokens; ++t) {
    std::vector<int32_t> all(static_cast<size_t>(n_used));
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int32_t>(first) + static_cast<int32_t>(i);
    for (size_t i = 0; i < static_cast<size_t>(n_activated); ++i)
      std::swap(all[i], all[i + rng.next() % (all.size() - i)]);
    std::sort(all.begin(), all.begin() + n_activated);
    chosen.insert(chosen.end(), all.begin(), all.begin() + n_activated);
  }
  return chosen;
}

// All tokens on the device; on the CPU every `every`th.
void check_experts(WeightMatrix w1, WeightMatrix w3, WeightMatrix w2, const uint8_t* const (&device)[3],
                   const std::vector<int32_t>& chosen, int64_t n_activated, int64_t every, TestLaunch& test) {
  const int64_t n_tokens = static_cast<int64_t>(chosen.size()) / n_activated, dim = w2.n_rows;
  const std::vector<float> x = random_floats(static_cast<size_t>(n_tokens * dim), 5);
  std::vector<float> weights = random_floats(chosen.size(), 6, 0.5f);
  for (float& weight : weights) weight = std::abs(weight);
  std::vector<float> expected;
  for (int64_t t = 0; t < n_tokens; t += every) {
    const int64_t n = every == 1 ? n_tokens : 1;
    std::vector<float> y(static_cast<size_t>(n * dim));
    cpu().run_experts({w1, w3, w2, x.data() + t * dim, chosen.data() + t * n_activated,
                       weights.data() + t * n_activated, n, n_activated, y.data()});
    expected.insert(expected.end(), y.begin(), y.end());
    if (every == 1) break;
  }
  const std::string what =
      describe(w1, n_tokens) + " (" + type_name(w3.type) + ", " + type_name(w2.type) + ")";
  w1.data = device[0], w3.data = device[1], w2.data = device[2];
  const DeviceArray<float> x_device(x), weights_device(weights), y(static_cast<size_t>(n_tokens * dim));
  const DeviceArray<int32_t> chosen_device(chosen);
  cuda::run_experts_many({w1, w3, w2, x_device.data(), chosen_device.data(), weights_device.data(), n_tokens,
                          n_activated, y.data()},
                         test.launch());
  const std::vector<float> all = y.values();
  std::vector<float> ours;
  for (int64_t t = 0; t < n_tokens; t += every)
    ours.insert(ours.end(), all.begin() + t * dim, all.begin() + (t + 1) * dim);
  check_close(ours, expected, kTwice, what);
}

void check_experts(const Experts& e, const std::vector<int32_t>& chosen, int64_t n_activated,
                   TestLaunch& test) {
  check_experts(e.w1.host, e.w3.host, e.w2.host, {e.w1.device.data(), e.w3.device.data(), e.w2.device.data()},
                chosen, n_activated, 1, test);
}

BOOST_AUTO_TEST_SUITE(gpu_matmul_many)

// 300 tokens take the way over a dequantised slab, fewer the one through the tile.
BOOST_AUTO_TEST_CASE(every_type_is_multiplied, *boost::unit_test::precondition(needs_gpu)) {
  TestLaunch test;
  for (const TensorType type : kTypes)
    for (const int64_t n_tokens : {9, 33, 130, 300}) check_matmul(type, 200, 768, n_tokens, test);
}

BOOST_AUTO_TEST_CASE(token_and_row_counts_at_the_borders_of_tiles,
                     *boost::unit_test::precondition(needs_gpu)) {
  TestLaunch test;
  for (const TensorType type : {TensorType::q8_0, TensorType::bf16, TensorType::q6_k})
    for (const int64_t n_rows : {1, 127, 129, 256, 300})
      for (const int64_t n_tokens : {9, 16, 17, 32, 64, 65, 96, 97, 127, 128, 129, 255, 256, 257})
        check_matmul(type, n_rows, 256, n_tokens, test);
}

BOOST_AUTO_TEST_CASE(columns_that_fill_no_step, *boost::unit_test::precondition(needs_gpu)) {
  TestLaunch test;
  for (const int64_t n_tokens : {9, 300}) {
    for (const TensorType type : {TensorType::f32, TensorType::f16, TensorType::bf16})
      for (const int64_t n_cols : {1, 7, 8, 40, 63, 65, 100, 136})
        check_matmul(type, 33, n_cols, n_tokens, test);
    for (const TensorType type :
         {TensorType::q4_0, TensorType::q5_0, TensorType::q5_1, TensorType::q8_0, TensorType::iq4_nl})
      for (const int64_t n_cols : {32, 64, 96, 160, 224}) check_matmul(type, 33, n_cols, n_tokens, test);
  }
}

// Few tiles and many columns: partial sums. 7168 columns are 28 blocks; 1056 end in the middle of a span.
BOOST_AUTO_TEST_CASE(split_columns, *boost::unit_test::precondition(needs_gpu)) {
  TestLaunch test;
  for (const TensorType type : kTypes) check_matmul(type, 40, 7168, 20, test);
  for (const int64_t n_cols : {1024, 1056, 1088}) check_matmul(TensorType::q8_0, 200, n_cols, 140, test);
  check_matmul(TensorType::bf16, 200, 1064, 140, test);
  check_matmul(TensorType::f32, 256, 7168, 300, test);
}

BOOST_AUTO_TEST_CASE(rows_of_x_apart_and_weights_at_odd_places, *boost::unit_test::precondition(needs_gpu)) {
  TestLaunch test;
  for (const TensorType type :
       {TensorType::f16, TensorType::bf16, TensorType::q8_0, TensorType::q3_k, TensorType::q6_k})
    for (const int64_t n_tokens : {40, 300}) {
      const Weights weights(type, 1, 150, 512, 3);
      check_matmul(weights.host, weights.on_device(), n_tokens, 513, test);
      std::vector<uint8_t> shifted(weights.bytes.size() + 6);
      std::memcpy(shifted.data() + 6, weights.bytes.data(), weights.bytes.size());
      const DeviceArray<uint8_t> device(shifted);
      WeightMatrix moved = weights.host;
      moved.data = device.data() + 6;
      check_matmul(weights.host, moved, n_tokens, 512, test);
    }
}

BOOST_AUTO_TEST_CASE(little_scratch_means_more_runs, *boost::unit_test::precondition(needs_gpu)) {
  TestLaunch test(size_t{1} << 20);
  check_matmul(TensorType::q4_k, 700, 512, 1000, test);
  check_matmul(TensorType::f32, 700, 512, 1000, test);
  const Experts e(TensorType::q4_k, TensorType::q4_k, TensorType::q6_k, 8, 512, 256);
  check_experts(e, choose_experts(500, 3, 0, 8, 4), 3, test);
}

BOOST_AUTO_TEST_CASE(nothing_to_do, *boost::unit_test::precondition(needs_gpu)) {
  TestLaunch test;
  const Weights weights(TensorType::q8_0, 1, 64, 64, 3);
  const DeviceArray<float> x(64), y(64);
  cuda::matmul_many({weights.on_device(), x.data(), 64, y.data(), 0}, test.launch());
  const float untouched = y.values()[0];
  uint32_t bits;
  std::memcpy(&bits, &untouched, sizeof bits);
  BOOST_TEST(bits == 0xa5a5a5a5u);
}

// A token's sums must not depend on what else is in its tile, least of all on tokens that are not finite.
BOOST_AUTO_TEST_CASE(tokens_do_not_touch_each_other, *boost::unit_test::precondition(needs_gpu)) {
  TestLaunch test;
  const Weights weights(TensorType::q4_k, 1, 256, 512, 3);
  std::vector<float> x = random_floats(100 * 512, 1);
  const DeviceArray<float> clean(x), y(100 * 256);
  cuda::matmul_many({weights.on_device(), clean.data(), 512, y.data(), 100}, test.launch());
  const std::vector<float> before = y.values();
  for (size_t c = 0; c < 512; ++c) x[41 * 512 + c] = c % 2 ? NAN : INFINITY;
  const DeviceArray<float> dirty(x);
  cuda::matmul_many({weights.on_device(), dirty.data(), 512, y.data(), 100}, test.launch());
  const std::vector<float> after = y.values();
  size_t n_different = 0;
  for (size_t i = 0; i < before.size(); ++i)
    if (i / 256 != 41) n_different += std::memcmp(&before[i], &after[i], 4) != 0;
  BOOST_TEST(n_different == 0u);
  BOOST_TEST(std::isnan(after[41 * 256]));
}

BOOST_AUTO_TEST_CASE(heads, *boost::unit_test::precondition(needs_gpu)) {
  for (const size_t n_scratch : {size_t{256} << 20, size_t{1} << 20}) {
    TestLaunch test(n_scratch);
    for (const TensorType type :
         {TensorType::q8_0, TensorType::bf16, TensorType::f16, TensorType::f32, TensorType::q4_0})
      for (const auto& [n_rows, n_cols] : {std::pair<int64_t, int64_t>{512, 128}, {128, 512}, {20, 96}})
        for (const int64_t n_tokens : {9, 150}) {
          const int64_t n_heads = 5, head_stride = n_cols + 64, token_stride = n_heads * head_stride;
          const Weights weights(type, n_heads, n_rows, n_cols, 9);
          const std::vector<float> x = random_floats(static_cast<size_t>(n_tokens * token_stride), 8);
          std::vector<float> expected(static_cast<size_t>(n_tokens * n_heads * n_rows));
          cpu().matmul_heads({weights.host, x.data(), token_stride, head_stride, expected.data(), n_tokens});
          const DeviceArray<float> x_device(x), y(expected.size());
          cuda::matmul_heads_many(
              {weights.on_device(), x_device.data(), token_stride, head_stride, y.data(), n_tokens},
              test.launch());
          check_close(y.values(), expected, kRounded, describe(weights.host, n_tokens));
        }
  }
}

BOOST_AUTO_TEST_CASE(experts_of_every_type, *boost::unit_test::precondition(needs_gpu)) {
  TestLaunch test;
  for (const TensorType type : kTypes) {
    const Experts e(type, type, type, 12, 512, 256);
    check_experts(e, choose_experts(100, 4, 0, 12, 1), 4, test);
  }
  const Experts mixed(TensorType::q4_k, TensorType::q5_k, TensorType::bf16, 12, 512, 256);
  check_experts(mixed, choose_experts(100, 4, 0, 12, 1), 4, test);
}

// inter_dim 96 fills no step; dim 160 no tile.
BOOST_AUTO_TEST_CASE(experts_of_odd_sizes, *boost::unit_test::precondition(needs_gpu)) {
  TestLaunch test;
  const Experts e(TensorType::q8_0, TensorType::q5_1, TensorType::q4_0, 5, 160, 96);
  for (const int64_t n_tokens : {9, 70, 300}) check_experts(e, choose_experts(n_tokens, 2, 0, 5, 2), 2, test);
}

BOOST_AUTO_TEST_CASE(experts_with_skew, *boost::unit_test::precondition(needs_gpu)) {
  TestLaunch test;
  const Experts e(TensorType::q4_k, TensorType::q4_k, TensorType::q6_k, 300, 256, 256);
  check_experts(e, choose_experts(300, 4, 290, 4, 2), 4,
                test);  // all tokens to the same four: three tiles each
  check_experts(e, choose_experts(1100, 2, 0, 300, 2), 2,
                test);                                           // more uses than the lists take in one round
  check_experts(e, choose_experts(9, 1, 299, 1, 2), 1, test);    // the last expert alone
  check_experts(e, choose_experts(128, 8, 100, 9, 2), 8, test);  // about as many as a tile holds
}

// Gate and up in one tensor: two views with the same distance between matrices.
BOOST_AUTO_TEST_CASE(experts_with_fused_gate_and_up, *boost::unit_test::precondition(needs_gpu)) {
  TestLaunch test;
  const Weights fused(TensorType::q4_k, 6, 2 * 256, 512, 1), w2(TensorType::q6_k, 6, 512, 256, 2);
  WeightMatrix w1 = fused.host, w3 = fused.host;
  w1.n_rows = w3.n_rows = 256;
  const size_t up = 256 * fused.host.row_bytes;
  w3.data += up;
  check_experts(w1, w3, w2.host, {fused.device.data(), fused.device.data() + up, w2.device.data()},
                choose_experts(64, 3, 0, 6, 3), 3, 1, test);
}

// The dimensions of the 671B model; of the outputs some windows of rows are compared, of all tokens.
BOOST_AUTO_TEST_CASE(large_matrices, *boost::unit_test::precondition(needs_gpu)) {
  TestLaunch test;
  const int64_t shapes[][3] = {
      {18432, 7168, 2048}, {576, 7168, 2048}, {7168, 18432, 130}, {24576, 1536, 513}};
  for (const auto& [n_rows, n_cols, n_tokens] : shapes) {
    const Weights weights(TensorType::q4_k, 1, n_rows, n_cols, 21);
    const std::vector<float> x = random_floats(static_cast<size_t>(n_tokens * n_cols), 22);
    const DeviceArray<float> x_device(x), y_device(static_cast<size_t>(n_tokens * n_rows));
    cuda::matmul_many({weights.on_device(), x_device.data(), n_cols, y_device.data(), n_tokens},
                      test.launch());
    const std::vector<float> y = y_device.values();
    for (const int64_t first : {int64_t{0}, n_rows / 2 - 3, n_rows - 8}) {
      WeightMatrix window = weights.host;
      window.data += static_cast<size_t>(first) * window.row_bytes;
      window.n_rows = 8;
      std::vector<float> expected(static_cast<size_t>(n_tokens * 8)), ours;
      cpu().matmul({window, x.data(), n_cols, expected.data(), n_tokens});
      for (int64_t t = 0; t < n_tokens; ++t)
        ours.insert(ours.end(), y.begin() + t * n_rows + first, y.begin() + t * n_rows + first + 8);
      check_close(ours, expected, kRounded,
                  describe(weights.host, n_tokens) + " from row " + std::to_string(first));
    }
  }
}

// 256 experts that begin a row after one another, so that they fit a test; the CPU computes four tokens of
// 1000.
BOOST_AUTO_TEST_CASE(large_experts, *boost::unit_test::precondition(needs_gpu)) {
  TestLaunch test;
  const int64_t n_experts = 256, dim = 7168, inter_dim = 2048;
  const Weights up(TensorType::q4_k, 1, inter_dim + n_experts, dim, 31),
      down(TensorType::q6_k, 1, dim + n_experts, inter_dim, 32);
  WeightMatrix w1 = up.host, w3 = up.host, w2 = down.host;
  w1.n_rows = w3.n_rows = inter_dim, w2.n_rows = dim;
  w1.n_mats = w3.n_mats = w2.n_mats = n_experts;
  w1.mat_bytes = w1.row_bytes, w3.mat_bytes = w3.row_bytes, w2.mat_bytes = w2.row_bytes;
  w3.data += w3.row_bytes;
  check_experts(w1, w3, w2, {up.device.data(), up.device.data() + w3.row_bytes, down.device.data()},
                choose_experts(1000, 8, 0, n_experts - 1, 33), 8, 250, test);
}

BOOST_AUTO_TEST_CASE(a_graph_replays_the_experts, *boost::unit_test::precondition(needs_gpu)) {
  TestLaunch test;
  const int64_t n_tokens = 50, n_activated = 3, dim = 512;
  const Experts e(TensorType::q4_k, TensorType::q4_k, TensorType::q6_k, 8, dim, 256);
  const DeviceArray<float> x(random_floats(n_tokens * dim, 1)),
      weights(random_floats(n_tokens * n_activated, 2));
  const DeviceArray<float> y(n_tokens * dim), again(n_tokens * dim);
  const DeviceArray<int32_t> chosen(choose_experts(n_tokens, n_activated, 0, 8, 3));
  RunExperts op = {e.w1.on_device(), e.w3.on_device(), e.w2.on_device(), x.data(), chosen.data(),
                   weights.data(),   n_tokens,         n_activated,      y.data()};
  cuda::run_experts_many(op, test.launch());
  op.y = again.data();
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  CUDA_CHECK(cudaStreamBeginCapture(test.stream(), cudaStreamCaptureModeThreadLocal));
  cuda::run_experts_many(op, test.launch());
  CUDA_CHECK(cudaStreamEndCapture(test.stream(), &graph));
  CUDA_CHECK(cudaGraphInstantiate(&executable, graph, 0));
  CUDA_CHECK(cudaGraphLaunch(executable, test.stream()));
  const std::vector<float> first = y.values(), second = again.values();
  BOOST_TEST(std::memcmp(first.data(), second.data(), first.size() * sizeof(float)) == 0);
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
}

void print_product(const char* name, TensorType type, int64_t n_tokens, double n_products, double n_bytes,
                   double seconds) {
  std::printf("%s %s, %lld tokens: %.3f ms, %.0f TFLOP/s, %.0f GB/s of weights\n", name, type_name(type),
              static_cast<long long>(n_tokens), seconds * 1e3, 2e-12 * n_products / seconds,
              1e-9 * n_bytes / seconds);
}

BOOST_AUTO_TEST_CASE(timing_of_matrices,
                     *boost::unit_test::label("timing") * boost::unit_test::precondition(needs_gpu)) {
  TestLaunch test;
  const auto time = [&](TensorType type, int64_t n_rows, int64_t n_cols, int64_t n_tokens) {
    const Weights block(type, 1, 64, n_cols, 1);
    const size_t n_bytes = block.host.row_bytes * static_cast<size_t>(n_rows);
    const DeviceArray<uint8_t> data(n_bytes);
    for (size_t at = 0; at < n_bytes; at += block.bytes.size())
      CUDA_CHECK(cudaMemcpy(data.data() + at, block.device.data(), std::min(block.bytes.size(), n_bytes - at),
                            cudaMemcpyDefault));
    WeightMatrix weight = block.host;
    weight.data = data.data(), weight.n_rows = n_rows, weight.mat_bytes = n_bytes;
    const DeviceArray<float> x(random_floats(static_cast<size_t>(n_tokens * n_cols), 1));
    const DeviceArray<float> y(static_cast<size_t>(n_tokens * n_rows));
    const double seconds = test.seconds(
        [&] {
          cuda::matmul_many({weight, x.data(), n_cols, y.data(), n_tokens}, test.launch());
        },
        5);
    const std::string name = "matmul_many " + std::to_string(n_rows) + " x " + std::to_string(n_cols);
    print_product(name.c_str(), type, n_tokens,
                  static_cast<double>(n_rows) * static_cast<double>(n_cols) * static_cast<double>(n_tokens),
                  static_cast<double>(n_bytes), seconds);
  };
  for (const TensorType type : kTypes)
    for (const int64_t n_tokens : {64, 128, 2048}) time(type, 18432, 7168, n_tokens);
  for (const TensorType type : {TensorType::q4_k, TensorType::q8_0, TensorType::bf16})
    for (const auto& [n_rows, n_cols] :
         {std::pair<int64_t, int64_t>{7168, 18432}, {1536, 7168}, {576, 7168}, {24576, 1536}, {7168, 16384}})
      for (const int64_t n_tokens : {16, 256, 2048}) time(type, n_rows, n_cols, n_tokens);
  time(TensorType::f32, 256, 7168, 2048);
  time(TensorType::q4_k, 18432, 7168, 4096);
}

BOOST_AUTO_TEST_CASE(timing_of_heads,
                     *boost::unit_test::label("timing") * boost::unit_test::precondition(needs_gpu)) {
  TestLaunch test;
  const int64_t n_heads = 128, n_tokens = 2048;
  for (const auto& [n_rows, n_cols] : {std::pair<int64_t, int64_t>{512, 128}, {128, 512}}) {
    const Weights weights(TensorType::q8_0, n_heads, n_rows, n_cols, 1);
    const DeviceArray<float> x(random_floats(static_cast<size_t>(n_tokens * n_heads * n_cols), 1));
    const DeviceArray<float> y(static_cast<size_t>(n_tokens * n_heads * n_rows));
    const double seconds = test.seconds(
        [&] {
          cuda::matmul_heads_many(
              {weights.on_device(), x.data(), n_heads * n_cols, n_cols, y.data(), n_tokens}, test.launch());
        },
        5);
    const std::string name =
        "matmul_heads_many 128 x " + std::to_string(n_rows) + " x " + std::to_string(n_cols);
    print_product(name.c_str(), TensorType::q8_0, n_tokens, 128.0 * 512 * 128 * 2048,
                  static_cast<double>(weights.bytes.size()), seconds);
    std::printf("  %.0f GB/s of activations\n",
                1e-9 * 4 * static_cast<double>(n_tokens * n_heads * (n_rows + n_cols)) / seconds);
  }
}

BOOST_AUTO_TEST_CASE(timing_of_experts,
                     *boost::unit_test::label("timing") * boost::unit_test::precondition(needs_gpu)) {
  TestLaunch test;
  const int64_t n_experts = 256, dim = 7168, inter_dim = 2048, n_activated = 8;
  for (const TensorType type :
       {TensorType::q4_k, TensorType::q8_0, TensorType::q6_k, TensorType::q2_k, TensorType::iq2_xxs}) {
    const Weights up(type, 1, inter_dim, dim, 1), down(type, 1, dim, inter_dim, 2);
    const size_t n_bytes = up.bytes.size();  // of one matrix; as many in down
    const DeviceArray<uint8_t> data(3 * n_bytes * n_experts);
    for (int64_t i = 0; i < 3 * n_experts; ++i)
      CUDA_CHECK(cudaMemcpyAsync(data.data() + static_cast<size_t>(i) * n_bytes,
                                 i < 2 * n_experts ? up.device.data() : down.device.data(), n_bytes,
                                 cudaMemcpyDefault));
    CUDA_CHECK(cudaDeviceSynchronize());
    WeightMatrix w1 = up.host, w3 = up.host, w2 = down.host;
    w1.n_mats = w3.n_mats = w2.n_mats = n_experts;
    w1.data = data.data(), w3.data = w1.data + n_bytes * n_experts, w2.data = w3.data + n_bytes * n_experts;
    for (const int64_t n_tokens : {32, 2048}) {
      const DeviceArray<float> x(random_floats(static_cast<size_t>(n_tokens * dim), 1));
      const DeviceArray<float> weights(random_floats(static_cast<size_t>(n_tokens * n_activated), 2));
      const DeviceArray<float> y(static_cast<size_t>(n_tokens * dim));
      const DeviceArray<int32_t> chosen(choose_experts(n_tokens, n_activated, 0, n_experts, 3));
      const double seconds = test.seconds(
          [&] {
            cuda::run_experts_many(
                {w1, w3, w2, x.data(), chosen.data(), weights.data(), n_tokens, n_activated, y.data()},
                test.launch());
          },
          5);
      print_product("run_experts_many 256 x 7168 x 2048", type, n_tokens,
                    static_cast<double>(n_tokens * n_activated * 3 * dim * inter_dim),
                    static_cast<double>(n_bytes) * 3.0 * static_cast<double>(n_experts), seconds);
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace dsv32
