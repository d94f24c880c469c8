// Products of decode (cuda/matmul_decode.cu, cuda/experts_decode.cu) against the CPU backend.
//
// Tolerances. Activations are rounded to fp16 in units of their step, so each is off by 2^-11 at most and by
// 2e-4 in the root mean square; so is a sum of random terms. Weights of the K and I formats are exact there
// (or rounded at 2^-11 beyond 2048 of their block's units), those with a scale for 16 or 32 values are
// rounded too: 2.8e-4, for which 5e-4 leaves room (products.h). In experts, gate, up and h are off by that
// much each, and silu makes their errors at most 1.1 times larger: 5e-4 as expected, 1e-3 allowed. F32, F16
// and BF16 keep 22 bits of x, but tensor cores cut where f32 rounds, up to 32 times a step by 2^-24: 1e-5.
// With types multiplied as integers x is one, whose unit is the step's largest / 2^13 at most: 7e-5 of random
// x. One element may be off by six times that, measured by the root mean square of all (errors are normal
// sums). The equalities (tokens together or alone) are exact.
#include <array>
#include <cstring>
#include <deque>

#include "tests/gpu/products.h"

namespace dsv32 {

BOOST_AUTO_TEST_SUITE(gpu_matmul_decode)

namespace {

using enum TensorType;

bool is_float(TensorType type) { return type == f32 || type == f16 || type == bf16; }
Tolerance within(double relative) { return {relative, 6 * relative, 300}; }
bool is_integer(TensorType type) { return type == q2_k || type == q3_k; }
Tolerance tolerance(TensorType type) {
  return within(is_float(type) ? 1e-5 : is_integer(type) ? 1.5e-4 : 5e-4);
}

TestLaunch& gpu() {
  static TestLaunch launch(size_t{64} << 20);
  return launch;
}

// y of the device for rows of x x_stride apart.
std::vector<float> matmul_on_gpu(const WeightMatrix& weight, const std::vector<float>& x, int64_t x_stride,
                                 int64_t n_tokens) {
  const DeviceArray<float> device_x(x), y(static_cast<size_t>(n_tokens * weight.n_rows));
  cuda::matmul_decode({weight, device_x.data(), x_stride, y.data(), n_tokens}, gpu().launch());
  return y.values();
}

// n_tokens rows of x that lie x_stride apart, times a random matrix. CPU rows are sampled when the matrix is
// large.
void check_matmul(TensorType type, int64_t n_rows, int64_t n_cols, int64_t n_tokens, int64_t x_gap = 0) {
  BOOST_TEST_CONTEXT(type_name(type) << " " << n_rows << " x " << n_cols << ", " << n_tokens
                                     << " tokens, gap " << x_gap) {
    const TestWeights weights(type, 1, n_rows, n_cols, 11);
    const int64_t stride = n_cols + x_gap;
    const std::vector<float> x = random_floats(static_cast<size_t>(n_tokens * stride), 7);
    const std::vector<float> y = matmul_on_gpu(weights.on_device(), x, stride, n_tokens);
    std::vector<float> ours, expected;
    const int64_t n_block = std::min<int64_t>(n_rows, 40);
    for (const int64_t first :
         {int64_t{0}, (n_rows - n_block) / 2, n_rows - n_block}) {  // first, some, last rows
      WeightMatrix block = weights.host;
      block.data = weights.host.row(0, first), block.n_rows = n_block;
      std::vector<float> part(static_cast<size_t>(n_tokens * n_block));
      cpu().matmul({block, x.data(), stride, part.data(), n_tokens});
      expected.insert(expected.end(), part.begin(), part.end());
      for (int64_t t = 0; t < n_tokens; ++t)
        ours.insert(ours.end(), y.begin() + t * n_rows + first, y.begin() + t * n_rows + first + n_block);
    }
    check_close(ours, expected, tolerance(type), "blocks of rows");
    for (const float value : y) BOOST_REQUIRE(std::isfinite(value));
  }
}

}  // namespace

BOOST_AUTO_TEST_CASE(every_type, *boost::unit_test::precondition(needs_gpu)) {
  for (const TensorType type : kTypes) {
    check_matmul(type, 40, 512, 1);
    check_matmul(type, 37, 768, 3);  // the last tile is not full, rows are an odd number of blocks
    check_matmul(type, 150, 2304, 8);
    check_matmul(type, 2112, 7168, 1);  // 671B: wq_a and wkv_a
    check_matmul(type, 600, 256, 2);    // one block a row
  }
  check_matmul(q4_k, 40, 16384, 8);  // x does not fit in shared memory
}

BOOST_AUTO_TEST_CASE(columns_that_are_no_whole_step, *boost::unit_test::precondition(needs_gpu)) {
  for (const TensorType type : {q4_0, q4_1, q5_0, q5_1, q8_0, iq4_nl, mxfp4})
    for (const int64_t n_cols : {32, 96, 160, 416}) check_matmul(type, 33, n_cols, n_cols / 32 % 8 + 1);
  for (const TensorType type : {f32, f16, bf16})
    for (const int64_t n_cols : {1, 7, 8, 40, 200}) check_matmul(type, 33, n_cols, n_cols % 8 + 1);
}

BOOST_AUTO_TEST_CASE(rows_of_x_apart, *boost::unit_test::precondition(needs_gpu)) {
  for (const TensorType type : {q4_k, q8_0, bf16, f32}) {
    check_matmul(type, 20, 512, 4, 64);  // aligned
    check_matmul(type, 20, 512, 4, 3);   // not
  }
}

BOOST_AUTO_TEST_CASE(shapes_of_671b,
                     *boost::unit_test::precondition(needs_gpu) * boost::unit_test::label("large")) {
  check_matmul(q4_k, 24576, 1536, 1);
  check_matmul(q6_k, 7168, 18432, 1);
  check_matmul(q8_0, 7168, 16384, 2);
  check_matmul(q4_k, 7168, 16384, 8);
  check_matmul(q8_0, 7168, 18432, 5);
  check_matmul(bf16, 129, 7168, 8);
  check_matmul(f32, 256, 7168, 8);  // the router
}

// Values outside the usual range stay what they are: zeros, one large value among small ones, tiny ones; a
// NaN is not lost.
BOOST_AUTO_TEST_CASE(unusual_activations, *boost::unit_test::precondition(needs_gpu)) {
  for (const TensorType type : {q2_k, q3_k, iq4_xs, mxfp4, q4_k, q6_k, q8_0, f16}) {
    const TestWeights weights(type, 1, 64, 1024, 12);
    std::vector<float> x = random_floats(3 * 1024, 5), expected(3 * 64);
    for (size_t i = 0; i < 1024; ++i) x[i] = 0, x[1024 + i] *= 1e-12f;
    x[2048 + 77] = 3e4f;
    cpu().matmul({weights.host, x.data(), 1024, expected.data(), 3});
    const std::vector<float> y = matmul_on_gpu(weights.on_device(), x, 1024, 3);
    for (size_t t = 0; t < 3; ++t)
      check_close({y.begin() + 64 * t, y.begin() + 64 * (t + 1)},
                  {expected.begin() + 64 * t, expected.begin() + 64 * (t + 1)}, tolerance(type),
                  describe(weights.host, 1));
    x[2048 + 500] = NAN;
    const std::vector<float> broken = matmul_on_gpu(weights.on_device(), x, 1024, 3);
    for (size_t i = 0; i < broken.size(); ++i) BOOST_TEST(std::isnan(broken[i]) == (i >= 128));
  }
}

// Alone, in steps of any size and at any place in them. The shapes: 16 rows a warp and fewer, sums divided
// among the blocks of a cluster, x that does not fit in shared memory.
BOOST_AUTO_TEST_CASE(a_tokens_bits_do_not_depend_on_the_others, *boost::unit_test::precondition(needs_gpu)) {
  constexpr int64_t kMost = 70;
  int n_cases = 0;
  for (const TensorType type : kTypes)
    for (const auto& [n_rows, n_cols] : {std::pair<int64_t, int64_t>{300, 2048}, {37, 7168}, {1536, 16384}}) {
      if ((n_cols == 16384 && type != q4_k && type != bf16) || is_left_out(n_cases, 5)) continue;
      const TestWeights weights(type, 1, n_rows, n_cols, 11);
      const std::vector<float> x = random_floats(static_cast<size_t>(kMost * n_cols), 9);
      const auto width = static_cast<size_t>(n_rows);
      std::vector<float> alone;
      for (int64_t t = 0; t < kMost; ++t) {
        const std::vector<float> y = matmul_on_gpu(
            weights.on_device(), {x.begin() + t * n_cols, x.begin() + (t + 1) * n_cols}, n_cols, 1);
        alone.insert(alone.end(), y.begin(), y.end());
      }
      for (const auto& [first, n_tokens] : {std::pair<int64_t, int64_t>{0, 2},
                                            {3, 5},
                                            {0, 8},
                                            {1, 9},
                                            {5, 17},
                                            {2, 33},
                                            {4, 60},
                                            {0, kMost}}) {
        const std::vector<float> together = matmul_on_gpu(
            weights.on_device(), {x.begin() + first * n_cols, x.begin() + (first + n_tokens) * n_cols},
            n_cols, n_tokens);
        int n_others = 0;
        size_t last = 0;
        for (size_t i = 0; i < together.size(); ++i)
          if (std::memcmp(&alone[static_cast<size_t>(first) * width + i], &together[i], sizeof(float)) != 0)
            ++n_others, last = i;
        BOOST_TEST(n_others == 0, type_name(type)
                                      << " " << n_rows << " x " << n_cols << ", " << n_tokens
                                      << " tokens from " << first << ": " << n_others
                                      << " values differ, the last is " << together[last] << " of token "
                                      << last / width << ", row " << last % width);
      }
    }
}

BOOST_AUTO_TEST_CASE(bands_give_the_bits_of_whole_rows, *boost::unit_test::precondition(needs_gpu)) {
  for (const TensorType type : kTypes)
    for (const auto& [n_rows, n_cols] : {std::pair<int64_t, int64_t>{48, 512}, {336, 7168}}) {
      const TestWeights weights(type, 1, n_rows, n_cols, 11);
      BOOST_TEST((weights.on_device().step_bytes > 0) == !is_float(type));
      const std::vector<float> x = random_floats(static_cast<size_t>(70 * n_cols), 9);
      for (const int64_t n : {1, 7, 12, 30, 70})
        BOOST_TEST((matmul_on_gpu(weights.on_device(), x, n_cols, n) ==
                    matmul_on_gpu(weights.whole_rows_on_device(), x, n_cols, n)),
                   type_name(type) << " " << n_rows << " x " << n_cols << ", " << n << " tokens");
    }
}

// A device with fewer or more multiprocessors adds in the same order.
BOOST_AUTO_TEST_CASE(bits_do_not_depend_on_the_number_of_multiprocessors,
                     *boost::unit_test::precondition(needs_gpu)) {
  for (const TensorType type : {q4_k, q6_k, bf16})
    for (const auto& [n_rows, n_cols, n_tokens] :
         {std::array<int64_t, 3>{576, 7168, 3}, {2112, 2048, 3}, {2112, 7168, 12}, {3000, 2048, 40}}) {
      const TestWeights weights(type, 1, n_rows, n_cols, 11);
      const DeviceArray<float> x(random_floats(static_cast<size_t>(n_tokens * n_cols), 9)),
          y(static_cast<size_t>(n_tokens * n_rows));
      std::vector<float> first;
      for (const int n_sms : {16, 78, 114, 132, 160}) {
        cuda::Launch launch = gpu().launch();
        launch.n_sms = n_sms;
        cuda::matmul_decode({weights.on_device(), x.data(), n_cols, y.data(), n_tokens}, launch);
        const std::vector<float> values = y.values();
        if (first.empty()) first = values;
        BOOST_TEST(std::memcmp(first.data(), values.data(), first.size() * sizeof(float)) == 0,
                   type_name(type) << ", " << n_tokens << " tokens, " << n_sms << " multiprocessors");
      }
    }
}

BOOST_AUTO_TEST_CASE(heads, *boost::unit_test::precondition(needs_gpu)) {
  struct Shape {
    TensorType type;
    int64_t n_heads, n_rows, n_cols, n_tokens;
  };
  for (const Shape& s : {Shape{q8_0, 128, 512, 128, 1},
                         {q8_0, 128, 128, 512, 1},
                         {q8_0, 128, 512, 128, 8},
                         {q8_0, 128, 128, 512, 3},
                         {f16, 5, 40, 192, 4},
                         {q8_0, 16, 128, 512, 29},
                         {q4_k, 3, 200, 256, 5},
                         {bf16, 16, 512, 128, 2}})
    BOOST_TEST_CONTEXT(type_name(s.type) << " " << s.n_heads << " x " << s.n_rows << " x " << s.n_cols) {
      const TestWeights weights(s.type, s.n_heads, s.n_rows, s.n_cols, 13);
      const int64_t head_stride = s.n_cols + 64, token_stride = s.n_heads * head_stride;
      const std::vector<float> x = random_floats(static_cast<size_t>(s.n_tokens * token_stride), 3);
      std::vector<float> expected(static_cast<size_t>(s.n_tokens * s.n_heads * s.n_rows));
      cpu().matmul_heads({weights.host, x.data(), token_stride, head_stride, expected.data(), s.n_tokens});
      const DeviceArray<float> device_x(x), y(expected.size());
      cuda::matmul_heads_decode(
          {weights.on_device(), device_x.data(), token_stride, head_stride, y.data(), s.n_tokens},
          gpu().launch());
      const std::vector<float> ours = y.values();
      check_close(ours, expected, tolerance(s.type), "heads");
      cuda::matmul_heads_decode(
          {weights.whole_rows_on_device(), device_x.data(), token_stride, head_stride, y.data(), s.n_tokens},
          gpu().launch());
      BOOST_TEST((y.values() == ours), "whole rows");
    }
}

// Matrices of the same x as one product, of another type beside them; then what is added and where.
BOOST_AUTO_TEST_CASE(several_products_give_the_bits_of_each_shape,
                     *boost::unit_test::precondition(needs_gpu)) {
  const TestWeights a(q4_k, 1, 1536, 2048, 11), b(q4_k, 1, 200, 2048, 12), c(f32, 1, 64, 2048, 13),
      d(q4_k, 1, 37, 2048, 14);
  std::vector<std::vector<float>> alone;
  for (const int64_t n : {1, 5, 21, 40}) {
    const std::vector<float> x = random_floats(static_cast<size_t>(n * 2048), 7);
    const DeviceArray<float> device_x(x);
    std::deque<DeviceArray<float>> y;
    std::vector<Matmul> ops;
    for (const TestWeights* weights : {&a, &b, &c, &d}) {
      y.emplace_back(static_cast<size_t>(n * weights->host.n_rows));
      ops.push_back({weights->on_device(), device_x.data(), 2048, y.back().data(), n});
    }
    cuda::matmuls_decode(ops, gpu().launch());
    // What is beside the first changes nothing of it.
    const std::vector<float> beside = y[0].values();
    cuda::matmuls_decode({ops.data(), 1}, gpu().launch());
    BOOST_TEST(std::memcmp(beside.data(), y[0].values().data(), beside.size() * sizeof(float)) == 0);
    size_t k = 0;
    for (const TestWeights* weights : {&a, &b, &c, &d}) {
      std::vector<float> expected(static_cast<size_t>(n * weights->host.n_rows));
      cpu().matmul({weights->host, x.data(), 2048, expected.data(), n});
      const std::vector<float> ours = y[k].values();
      check_close(ours, expected, tolerance(weights->host.type), "one of several");
      if (n == 1) alone.push_back(ours);
      BOOST_TEST(std::memcmp(alone[k].data(), ours.data(), alone[k].size() * sizeof(float)) == 0, n);
      ++k;
    }
  }
}

BOOST_AUTO_TEST_CASE(sums_of_products, *boost::unit_test::precondition(needs_gpu)) {
  for (const TensorType type : {q4_k, q8_0, bf16})
    for (const int64_t n : {1, 4, 19, 300}) {
      const TestWeights weights(type, 1, 130, 512, 11);
      const std::vector<float> x = random_floats(static_cast<size_t>(n * 512), 7),
                               plus = random_floats(static_cast<size_t>(n * 130), 8),
                               sum = random_floats(plus.size(), 9);
      const DeviceArray<float> device_x(x), device_plus(plus), device_sum(sum), y(plus.size());
      const std::vector<float> product = matmul_on_gpu(weights.on_device(), x, 512, n);
      cuda::matmul_decode({weights.on_device(), device_x.data(), 512, y.data(), n, Role::decode,
                           device_plus.data(), device_sum.data()},
                          gpu().launch());
      std::vector<float> expected(plus), expected_sum(sum);
      for (size_t i = 0; i < plus.size(); ++i)
        expected[i] = product[i] + plus[i], expected_sum[i] += expected[i];
      BOOST_TEST(y.values() == expected, type_name(type) << ", " << n << " tokens");
      BOOST_TEST(device_sum.values() == expected_sum, type_name(type) << ", " << n << " tokens");
    }
}

BOOST_AUTO_TEST_CASE(gated_products, *boost::unit_test::precondition(needs_gpu)) {
  for (const auto& [type1, type3] : {std::pair{q4_k, q4_k}, {q8_0, q8_0}, {q6_k, q4_k}, {f16, f16}}) {
    const TestWeights w1(type1, 1, 300, 1024, 11), w3(type3, 1, 300, 1024, 12);
    std::vector<float> alone;
    for (const int64_t n : {1, 3, 16, 37}) {
      const std::vector<float> x = random_floats(static_cast<size_t>(n * 1024), 7);
      const DeviceArray<float> device_x(x), up(static_cast<size_t>(n * 300)), y(up.values().size());
      std::vector<float> expected(static_cast<size_t>(n * 300)), other(expected.size());
      cpu().matmul_gated({w1.host, w3.host, x.data(), other.data(), expected.data(), n});
      cuda::matmul_gated_decode({w1.on_device(), w3.on_device(), device_x.data(), up.data(), y.data(), n},
                                gpu().launch());
      const std::vector<float> ours = y.values();
      check_close(ours, expected, within(1e-3), "gated");
      if (n == 1) alone = ours;
      BOOST_TEST(std::memcmp(alone.data(), ours.data(), alone.size() * sizeof(float)) == 0);
    }
  }
}

namespace {

struct ExpertShape {
  TensorType w1, w3, w2;
  int64_t n_experts, dim, inter, n_tokens, n_activated;
  bool is_fused = false;
};

void check_experts(const ExpertShape& s) {
  BOOST_TEST_CONTEXT(type_name(s.w1) << "/" << type_name(s.w3) << "/" << type_name(s.w2) << " dim " << s.dim
                                     << " inter " << s.inter << ", " << s.n_tokens << " tokens, fused "
                                     << s.is_fused) {
    // Gate and up in one tensor: a matrix is the rows of w1, then those of w3.
    const TestWeights w1(s.w1, s.n_experts, s.inter * (s.is_fused ? 2 : 1), s.dim, 15),
        w3(s.w3, s.n_experts, s.inter, s.dim, 16), w2(s.w2, s.n_experts, s.dim, s.inter, 17);
    const std::vector<float> x = random_floats(static_cast<size_t>(s.n_tokens * s.dim), 3);
    const std::vector<int32_t> experts = choose_experts(s.n_tokens, s.n_experts, s.n_activated);
    std::vector<float> weights = random_floats(experts.size(), 4), expected(x.size());
    const auto views = [&](bool is_device, const float* x_data, const int32_t* experts_data,
                           const float* weights_data, float* y) {
      RunExperts op{{is_device ? w1.on_device() : w1.host, is_device ? w3.on_device() : w3.host,
                     is_device ? w2.on_device() : w2.host},
                    x_data,
                    experts_data,
                    weights_data,
                    s.n_tokens,
                    s.n_activated,
                    y};
      op.w1.n_rows = s.inter;
      if (s.is_fused) op.w3 = op.w1, op.w3.data += op.w1.mat_bytes / 2;
      return op;
    };
    cpu().run_experts(views(false, x.data(), experts.data(), weights.data(), expected.data()));
    const DeviceArray<float> device_x(x), device_weights(weights), y(x.size()),
        last(static_cast<size_t>(s.dim));
    const DeviceArray<int32_t> device_experts(experts);
    RunExperts op = views(true, device_x.data(), device_experts.data(), device_weights.data(), y.data());
    cuda::run_experts_decode(op, gpu().launch());
    const std::vector<float> ours = y.values();
    const bool is_all_float = is_float(s.w1) && is_float(s.w2) && is_float(s.w3);
    check_close(ours, expected, within(is_all_float ? 5e-5 : 1e-3), "experts");

    if (!s.is_fused) {
      RunExperts whole = op;
      whole.w1 = w1.whole_rows_on_device(), whole.w3 = w3.whole_rows_on_device();
      whole.w2 = w2.whole_rows_on_device();
      cuda::run_experts_decode(whole, gpu().launch());
      BOOST_TEST((y.values() == ours), "whole rows");
    }

    // Each token alone: the same bits.
    op.y = last.data(), op.n_tokens = 1;
    for (int64_t t = 0; t < s.n_tokens; ++t) {
      cuda::run_experts_decode(op, gpu().launch());
      const std::vector<float> alone = last.values();
      BOOST_TEST(std::memcmp(alone.data(), ours.data() + t * s.dim, alone.size() * sizeof(float)) == 0);
      op.x += s.dim, op.experts += s.n_activated, op.weights += s.n_activated;
    }
  }
}

}  // namespace

BOOST_AUTO_TEST_CASE(experts, *boost::unit_test::precondition(needs_gpu)) {
  int n = 0;
  for (const TensorType type : kTypes) {
    if (is_left_out(n, 3)) continue;
    check_experts({type, type, type, 6, 512, 256, 1, 3});
    check_experts({type, type, type, 6, 256, 512, 3, 2, true});
  }
  check_experts({q4_k, q4_k, q4_k, 16, 768, 256, 8, 8});
  check_experts({q4_k, q4_k, q6_k, 16, 512, 256, 70, 8});
  check_experts({q2_k, q2_k, q3_k, 300, 256, 256, 40, 8});    // many experts have no token
  check_experts({q8_0, q8_0, q8_0, 4, 128, 96, 300, 2});      // more than are computed together
  check_experts({q4_k, q4_k, q4_k, 200, 256, 1024, 250, 8});  // several runs a block, of w1 and w3
  check_experts({q4_k, q4_k, q6_k, 200, 1024, 256, 250, 8});  // of w2
  check_experts({q4_k, q6_k, q8_0, 6, 512, 256, 2, 3});       // w1 and w3 of different types
  check_experts({f16, f16, f16, 4, 36, 20, 2, 2});            // rows that are no multiple of 16 bytes
  check_experts({f16, f16, f16, 16, 32, 32, 8200, 8});        // more uses than a grid has rows of blocks
  check_experts({q2_k, q2_k, q2_k, 3, 69632, 256, 2, 2});     // x of w1 and w3 has no room in a block
  check_experts({q2_k, q2_k, q2_k, 3, 256, 77824, 2, 2});     // x of w2
}

BOOST_AUTO_TEST_CASE(experts_of_671b,
                     *boost::unit_test::precondition(needs_gpu) * boost::unit_test::label("large")) {
  check_experts({q4_k, q4_k, q6_k, 10, 7168, 2048, 2, 8});
}

BOOST_AUTO_TEST_CASE(wrong_shapes_are_refused, *boost::unit_test::precondition(needs_gpu)) {
  const TestWeights weights(q8_0, 1, 8, 64, 14);
  const DeviceArray<float> x(std::vector<float>(9 * 64)), y(std::vector<float>(9 * 8, 5.0f));
  WeightMatrix odd = weights.on_device();
  odd.n_cols = 48;
  BOOST_CHECK_THROW(cuda::matmul_decode({odd, x.data(), 64, y.data(), 1}, gpu().launch()), Error);
  // Bands are copied 16 bytes at a time.
  const TestWeights bands(q8_0, 1, 32, 256, 15);
  for (const int n_bytes : {2, 4, 8}) {
    WeightMatrix shifted = bands.on_device();
    BOOST_REQUIRE(shifted.step_bytes > 0u);
    shifted.data += n_bytes, shifted.n_rows = 16;
    BOOST_CHECK_THROW(cuda::matmul_decode({shifted, x.data(), 256, y.data(), 1}, gpu().launch()), Error);
  }
  cuda::matmul_decode({weights.on_device(), x.data(), 64, y.data(), 0}, gpu().launch());
  BOOST_TEST(y.values() == std::vector<float>(9 * 8, 5.0f), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace dsv32
