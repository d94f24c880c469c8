// Routed experts of prefill (cuda/experts_prefill.cu) against the CPU backend.
//
// To the roundings of a product (products.h) come two in the middle, of the gate and of the hidden values,
// and products of two sums have long tails: 6e-4 of a token's outputs is expected, and single ones up to five
// times as much.
#include <cstring>

#include "tests/gpu/products.h"

namespace dsv32 {

BOOST_AUTO_TEST_SUITE(gpu_experts_prefill)

namespace {

constexpr Tolerance kTwice = {1.2e-3, 1.2e-2};

struct Experts {
  TestWeights w1, w3, w2;
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

// Divides rows of n values by the root mean squares of rows of `by`.
void normalize_rows(std::vector<float>& values, const std::vector<float>& by, int64_t n) {
  for (size_t row = 0; row < by.size(); row += static_cast<size_t>(n)) {
    double norm = 0;
    for (size_t i = row; i < row + static_cast<size_t>(n); ++i) norm += std::pow(by[i], 2.0);
    const double rms = std::sqrt(norm / static_cast<double>(n));
    for (size_t i = row; i < row + static_cast<size_t>(n); ++i)
      values[i] = static_cast<float>(values[i] / rms);
  }
}

// All tokens on the device; on the CPU every `every`th.
void check_experts(WeightMatrix w1, WeightMatrix w3, WeightMatrix w2, const uint8_t* const (&device)[3],
                   const std::vector<int32_t>& chosen, int64_t n_activated, int64_t every, TestLaunch& test,
                   float size = 1) {
  const int64_t n_tokens = static_cast<int64_t>(chosen.size()) / n_activated, dim = w2.n_rows;
  std::vector<float> x = random_floats(static_cast<size_t>(n_tokens * dim), 5);
  resize_rows(x, dim, size);
  std::vector<float> weights = random_floats(chosen.size(), 6, 0.5f);
  for (float& weight : weights) weight = std::abs(weight);
  std::vector<float> expected;
  for (int64_t t = 0; t < n_tokens; t += every) {
    const int64_t n = every == 1 ? n_tokens : 1;
    std::vector<float> y(static_cast<size_t>(n * dim));
    cpu().run_experts({{w1, w3, w2},
                       x.data() + t * dim,
                       chosen.data() + t * n_activated,
                       weights.data() + t * n_activated,
                       n,
                       n_activated,
                       y.data()});
    expected.insert(expected.end(), y.begin(), y.end());
    if (every == 1) break;
  }
  const std::string what =
      describe(w1, n_tokens) + " (" + type_name(w3.type) + ", " + type_name(w2.type) + ")";
  w1.data = device[0], w3.data = device[1], w2.data = device[2];
  const DeviceArray<float> x_device(x), weights_device(weights), y(static_cast<size_t>(n_tokens * dim));
  const DeviceArray<int32_t> chosen_device(chosen);
  cuda::run_experts_prefill({{w1, w3, w2},
                             x_device.data(),
                             chosen_device.data(),
                             weights_device.data(),
                             n_tokens,
                             n_activated,
                             y.data()},
                            test.launch());
  const std::vector<float> all = y.values();
  std::vector<float> ours;
  for (int64_t t = 0; t < n_tokens; t += every)
    ours.insert(ours.end(), all.begin() + t * dim, all.begin() + (t + 1) * dim);
  normalize_rows(ours, expected, dim);
  normalize_rows(expected, std::vector<float>(expected), dim);
  check_close(ours, expected, kTwice, what + ", activations of " + std::to_string(size));
}

void check_experts(const Experts& e, const std::vector<int32_t>& chosen, int64_t n_activated,
                   TestLaunch& test, float size = 1) {
  check_experts(e.w1.host, e.w3.host, e.w2.host, {e.w1.device.data(), e.w3.device.data(), e.w2.device.data()},
                chosen, n_activated, 1, test, size);
}

BOOST_AUTO_TEST_CASE(experts_of_every_type, *boost::unit_test::precondition(needs_gpu)) {
  TestLaunch test;
  for (const TensorType type : kTypes) {
    const Experts e(type, type, type, 12, 512, 256);
    check_experts(e, choose_experts(100, 4, 0, 12, 1), 4, test);
    check_experts(e, choose_experts(520, 4, 0, 8, 1), 4, test);  // wide tiles
  }
  const Experts mixed(TensorType::q4_k, TensorType::q5_k, TensorType::bf16, 12, 512, 256);
  check_experts(mixed, choose_experts(100, 4, 0, 12, 1), 4, test);
}

// Hidden values far past fp16, and far below it: 2000 makes them up to 3e10.
BOOST_AUTO_TEST_CASE(experts_with_hidden_values_of_any_magnitude,
                     *boost::unit_test::precondition(needs_gpu)) {
  TestLaunch test;
  const Experts e(TensorType::q4_k, TensorType::q4_k, TensorType::q6_k, 8, 512, 256);
  for (const float size : {2000.0f, 1e-6f, 1e10f, 1e-12f})
    check_experts(e, choose_experts(100, 4, 0, 8, 1), 4, test, size);
}

// inter_dim 96 fills no step; dim 160 no tile.
BOOST_AUTO_TEST_CASE(experts_of_odd_sizes, *boost::unit_test::precondition(needs_gpu)) {
  TestLaunch test;
  const Experts e(TensorType::q8_0, TensorType::q5_1, TensorType::q4_0, 5, 160, 96);
  for (const int64_t n_tokens : {1, 9, 70, 300, 1000})
    check_experts(e, choose_experts(n_tokens, 2, 0, 5, 2), 2, test);
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

// However a prompt is cut into steps, and whatever company a token has at its experts: the same bits. All
// tokens together have wide tiles, the others have not.
BOOST_AUTO_TEST_CASE(a_tokens_bits_do_not_depend_on_the_cut, *boost::unit_test::precondition(needs_gpu)) {
  TestLaunch test, little(size_t{1} << 20);
  constexpr int64_t kTokens = 700, kActivated = 3, kDim = 512;
  int n_cases = 0;
  for (const auto& [up, down] : {std::pair{TensorType::q4_k, TensorType::q6_k},
                                 {TensorType::q8_0, TensorType::q8_0},
                                 {TensorType::f16, TensorType::f16},
                                 {TensorType::f32, TensorType::bf16},
                                 {TensorType::iq2_xxs, TensorType::q2_k}}) {
    if (is_left_out(n_cases, 3)) continue;
    const Experts e(up, up, down, 8, kDim, 256);
    const DeviceArray<float> x(random_floats(kTokens * kDim, 1)),
        weights(random_floats(kTokens * kActivated, 2)), y(kTokens * kDim);
    const DeviceArray<int32_t> chosen(choose_experts(kTokens, kActivated, 0, 8, 3));
    const auto run = [&](int64_t first, int64_t n, const cuda::Launch& launch) {
      cuda::run_experts_prefill({{e.w1.on_device(), e.w3.on_device(), e.w2.on_device()},
                                 x.data() + first * kDim,
                                 chosen.data() + first * kActivated,
                                 weights.data() + first * kActivated,
                                 n,
                                 kActivated,
                                 y.data() + first * kDim},
                                launch);
    };
    run(0, kTokens, test.launch());
    const std::vector<float> whole = y.values();
    for (const int64_t chunk : {int64_t{1}, int64_t{9}, int64_t{64}, int64_t{200}, kTokens}) {
      for (int64_t first = 0; first < kTokens; first += chunk)
        run(first, std::min(chunk, kTokens - first), chunk == kTokens ? little.launch() : test.launch());
      BOOST_TEST((y.values() == whole), type_name(up) << ", chunks of " << chunk);
      CUDA_CHECK(cudaMemset(y.data(), 0xff, y.size() * sizeof(float)));
    }
  }
}

BOOST_AUTO_TEST_CASE(bands_of_experts_give_the_bits_of_whole_rows,
                     *boost::unit_test::precondition(needs_gpu)) {
  TestLaunch test;
  constexpr int64_t kDim = 512, kMost = 900;
  const DeviceArray<float> x(random_floats(kMost * kDim, 1)), weights(random_floats(kMost * 3, 2)),
      y(kMost * kDim);
  const DeviceArray<int32_t> chosen(choose_experts(kMost, 3, 0, 8, 3));
  for (const TensorType type : kTypes) {
    const Experts e(type, type, type, 8, kDim, 256);
    for (const int64_t n : {int64_t{40}, kMost}) {
      RunExperts op = {{e.w1.on_device(), e.w3.on_device(), e.w2.on_device()},
                       x.data(),
                       chosen.data(),
                       weights.data(),
                       n,
                       3,
                       y.data()};
      cuda::run_experts_prefill(op, test.launch());
      const std::vector<float> ours = y.values();
      op.w1 = e.w1.whole_rows_on_device(), op.w3 = e.w3.whole_rows_on_device();
      op.w2 = e.w2.whole_rows_on_device();
      CUDA_CHECK(cudaMemset(y.data(), 0xff, static_cast<size_t>(n * kDim) * sizeof(float)));
      cuda::run_experts_prefill(op, test.launch());
      const std::vector<float> whole = y.values();
      BOOST_TEST(std::memcmp(ours.data(), whole.data(), static_cast<size_t>(n * kDim) * sizeof(float)) == 0,
                 type_name(type) << ", " << n << " tokens");
    }
  }
}

// Gate and up in one tensor: two views with the same distance between matrices.
BOOST_AUTO_TEST_CASE(experts_with_fused_gate_and_up, *boost::unit_test::precondition(needs_gpu)) {
  TestLaunch test;
  const TestWeights fused(TensorType::q4_k, 6, 2 * 256, 512, 1), w2(TensorType::q6_k, 6, 512, 256, 2);
  WeightMatrix w1 = fused.host, w3 = fused.host;
  w1.n_rows = w3.n_rows = 256;
  const size_t up = 256 * fused.host.row_bytes;
  w3.data += up;
  check_experts(w1, w3, w2.host, {fused.device.data(), fused.device.data() + up, w2.device.data()},
                choose_experts(64, 3, 0, 6, 3), 3, 1, test);
}

BOOST_AUTO_TEST_CASE(little_scratch_means_more_runs_of_experts, *boost::unit_test::precondition(needs_gpu)) {
  TestLaunch test(size_t{1} << 20);
  const Experts e(TensorType::q4_k, TensorType::q4_k, TensorType::q6_k, 8, 512, 256);
  check_experts(e, choose_experts(500, 3, 0, 8, 4), 3, test);
}

// 256 experts that begin a row after one another, so that they fit a test; the CPU computes four tokens of
// 1000.
BOOST_AUTO_TEST_CASE(large_experts,
                     *boost::unit_test::label("large") * boost::unit_test::precondition(needs_gpu)) {
  TestLaunch test;
  const int64_t n_experts = 256, dim = 7168, inter_dim = 2048;
  const TestWeights up(TensorType::q4_k, 1, inter_dim + n_experts, dim, 31),
      down(TensorType::q6_k, 1, dim + n_experts, inter_dim, 32);
  WeightMatrix w1 = up.host, w3 = up.host, w2 = down.host;
  w1.n_rows = w3.n_rows = inter_dim, w2.n_rows = dim;
  w1.n_mats = w3.n_mats = w2.n_mats = n_experts;
  w1.mat_bytes = w1.row_bytes, w3.mat_bytes = w3.row_bytes, w2.mat_bytes = w2.row_bytes;
  w3.data += w3.row_bytes;
  check_experts(w1, w3, w2, {up.device.data(), up.device.data() + w3.row_bytes, down.device.data()},
                choose_experts(1000, 8, 0, n_experts - 1, 33), 8, 250, test);
}

// More tiles than a grid has room for along y. Experts begin a row after one another; gate and up have
// different types, so that they are two products on every card.
BOOST_AUTO_TEST_CASE(more_tiles_than_65535, *boost::unit_test::precondition(needs_gpu)) {
  TestLaunch test;
  const int64_t n_experts = 66000, n_activated = 2, dim = 64;
  const TestWeights up(TensorType::f16, 1, dim + n_experts, dim, 34),
      gate(TensorType::bf16, 1, dim + n_experts, dim, 35);
  WeightMatrix w1 = gate.host, w3 = up.host, w2 = up.host;
  for (WeightMatrix* w : {&w1, &w3, &w2}) w->n_rows = dim, w->n_mats = n_experts, w->mat_bytes = w->row_bytes;
  std::vector<int32_t> chosen(static_cast<size_t>(n_experts));
  std::iota(chosen.begin(), chosen.end(), 0);
  check_experts(w1, w3, w2, {gate.device.data(), up.device.data(), up.device.data()}, chosen, n_activated,
                1000, test);
}

BOOST_AUTO_TEST_CASE(a_graph_replays_the_experts, *boost::unit_test::precondition(needs_gpu)) {
  TestLaunch test;
  const int64_t n_tokens = 50, n_activated = 3, dim = 512;
  const Experts e(TensorType::q4_k, TensorType::q4_k, TensorType::q6_k, 8, dim, 256);
  const DeviceArray<float> x(random_floats(n_tokens * dim, 1)),
      weights(random_floats(n_tokens * n_activated, 2));
  const DeviceArray<float> y(n_tokens * dim), again(n_tokens * dim);
  const DeviceArray<int32_t> chosen(choose_experts(n_tokens, n_activated, 0, 8, 3));
  RunExperts op = {{e.w1.on_device(), e.w3.on_device(), e.w2.on_device()},
                   x.data(),
                   chosen.data(),
                   weights.data(),
                   n_tokens,
                   n_activated,
                   y.data()};
  cuda::run_experts_prefill(op, test.launch());
  op.y = again.data();
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  CUDA_CHECK(cudaStreamBeginCapture(test.stream(), cudaStreamCaptureModeThreadLocal));
  cuda::run_experts_prefill(op, test.launch());
  CUDA_CHECK(cudaStreamEndCapture(test.stream(), &graph));
  CUDA_CHECK(cudaGraphInstantiate(&executable, graph, 0));
  CUDA_CHECK(cudaGraphLaunch(executable, test.stream()));
  const std::vector<float> first = y.values(), second = again.values();
  BOOST_TEST(std::memcmp(first.data(), second.data(), first.size() * sizeof(float)) == 0);
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
}

BOOST_AUTO_TEST_CASE(timing_of_experts,
                     *boost::unit_test::label("timing") * boost::unit_test::precondition(needs_gpu)) {
  TestLaunch test(size_t{1} << 30);
  const int64_t n_experts = 256, dim = 7168, inter_dim = 2048, n_activated = 8;
  for (const TensorType type :
       {TensorType::q4_k, TensorType::q8_0, TensorType::q6_k, TensorType::q2_k, TensorType::iq2_xxs}) {
    const TestWeights up(type, 1, inter_dim, dim, 1), down(type, 1, dim, inter_dim, 2);
    const size_t n_bytes = up.bytes.size();  // of one matrix; as many in down
    const DeviceArray<uint8_t> data(3 * n_bytes * n_experts, false, DeviceWeights::kPaddingBytes);
    for (int64_t i = 0; i < 3 * n_experts; ++i)
      CUDA_CHECK(cudaMemcpyAsync(data.data() + static_cast<size_t>(i) * n_bytes,
                                 i < 2 * n_experts ? up.device.data() : down.device.data(), n_bytes,
                                 cudaMemcpyDefault));
    CUDA_CHECK(cudaDeviceSynchronize());
    WeightMatrix w1 = up.on_device(), w3 = w1, w2 = down.on_device();
    w1.n_mats = w3.n_mats = w2.n_mats = n_experts;
    w1.data = data.data(), w3.data = w1.data + n_bytes * n_experts, w2.data = w3.data + n_bytes * n_experts;
    for (const int64_t n_tokens : {32, 2048, 8192}) {
      const DeviceArray<float> x(random_floats(static_cast<size_t>(n_tokens * dim), 1));
      const DeviceArray<float> weights(random_floats(static_cast<size_t>(n_tokens * n_activated), 2));
      const DeviceArray<float> y(static_cast<size_t>(n_tokens * dim));
      const DeviceArray<int32_t> chosen(choose_experts(n_tokens, n_activated, 0, n_experts, 3));
      const double seconds = test.seconds(
          [&] {
            cuda::run_experts_prefill(
                {{w1, w3, w2}, x.data(), chosen.data(), weights.data(), n_tokens, n_activated, y.data()},
                test.launch());
          },
          5);
      print_product("run_experts_prefill 256 x 7168 x 2048", type, n_tokens,
                    static_cast<double>(n_tokens * n_activated * 3 * dim * inter_dim),
                    static_cast<double>(n_bytes) * 3.0 * static_cast<double>(n_experts), seconds);
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace dsv32
