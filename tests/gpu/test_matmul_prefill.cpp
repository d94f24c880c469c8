// Products of prefill (cuda/matmul_prefill.cu) against the CPU backend: every type, the borders of tiles
// and columns, heads, and values that fp16 has no room for. Tolerances: products.h.
#include <cstring>

#include "base/numbers.h"
#include "tests/gpu/products.h"

namespace dsv32 {

BOOST_AUTO_TEST_SUITE(gpu_matmul_prefill)

namespace {

// All elements of y = W x, on the device and on the CPU. Rows of x are x_stride apart.
void check_matmul(const WeightMatrix& host, const WeightMatrix& device, int64_t n_tokens, int64_t x_stride,
                  TestLaunch& test, float size = 1) {
  std::vector<float> x = random_floats(static_cast<size_t>(n_tokens * x_stride), 7);
  resize_rows(x, x_stride, size);
  std::vector<float> expected(static_cast<size_t>(n_tokens * host.n_rows));
  cpu().matmul({host, x.data(), x_stride, expected.data(), n_tokens});
  const DeviceArray<float> x_device(x);
  const DeviceArray<float> y(expected.size());
  cuda::matmul_prefill({device, x_device.data(), x_stride, y.data(), n_tokens}, test.launch());
  std::vector<float> ours = y.values();
  resize_rows(ours, host.n_rows, size, true);
  resize_rows(expected, host.n_rows, size, true);
  check_close(ours, expected, tolerance_of(host.type), describe(host, n_tokens));
}

void check_matmul(TensorType type, int64_t n_rows, int64_t n_cols, int64_t n_tokens, TestLaunch& test) {
  const TestWeights weights(type, 1, n_rows, n_cols, 11);
  check_matmul(weights.host, weights.on_device(), n_tokens, n_cols, test);
}

// 300 tokens, and few rows, take the way over a dequantised slab, others the one through the tile.
BOOST_AUTO_TEST_CASE(every_type_is_multiplied, *boost::unit_test::precondition(needs_gpu)) {
  TestLaunch test;
  int n_cases = 0;
  for (const TensorType type : kTypes)
    for (const int64_t n_tokens : {1, 9, 33, 70, 130, 300})
      if (!is_left_out(n_cases, 3)) check_matmul(type, n_tokens == 300 ? 200 : 2100, 768, n_tokens, test);
}

BOOST_AUTO_TEST_CASE(token_and_row_counts_at_the_borders_of_tiles,
                     *boost::unit_test::precondition(needs_gpu)) {
  TestLaunch test;
  int n_cases = 0;
  for (const TensorType type : {TensorType::q8_0, TensorType::bf16, TensorType::q6_k})
    for (const int64_t n_rows : {1, 127, 129, 256, 300, 2049, 2175, 2177})
      for (const int64_t n_tokens : {9, 16, 17, 32, 64, 65, 96, 97, 127, 128, 129, 255, 256, 257})
        if (!is_left_out(n_cases, 13)) check_matmul(type, n_rows, 256, n_tokens, test);
}

BOOST_AUTO_TEST_CASE(columns_that_fill_no_step, *boost::unit_test::precondition(needs_gpu)) {
  TestLaunch test;
  int n_cases = 0;
  for (const int64_t n_tokens : {9, 300}) {
    for (const TensorType type : {TensorType::f32, TensorType::f16, TensorType::bf16})
      for (const int64_t n_cols : {1, 7, 8, 40, 63, 65, 100, 136})
        if (!is_left_out(n_cases, 5)) check_matmul(type, 33, n_cols, n_tokens, test);
    for (const TensorType type : {TensorType::q4_0, TensorType::q4_1, TensorType::q5_0, TensorType::q5_1,
                                  TensorType::q8_0, TensorType::iq4_nl, TensorType::mxfp4})
      for (const int64_t n_cols : {32, 64, 96, 160, 224})
        if (!is_left_out(n_cases, 5)) check_matmul(type, 33, n_cols, n_tokens, test);
  }
}

// Few tiles and many columns: partial sums. 7168 columns are 28 blocks; 1056 end in the middle of a span.
BOOST_AUTO_TEST_CASE(split_columns, *boost::unit_test::precondition(needs_gpu)) {
  TestLaunch test;
  int n_cases = 0;
  for (const TensorType type : kTypes)
    if (!is_left_out(n_cases, 4)) check_matmul(type, 40, 7168, 20, test);
  for (const int64_t n_cols : {1024, 1056, 1088}) check_matmul(TensorType::q8_0, 200, n_cols, 140, test);
  check_matmul(TensorType::bf16, 200, 1064, 140, test);
  check_matmul(TensorType::f32, 256, 7168, 300, test);
}

BOOST_AUTO_TEST_CASE(rows_of_x_apart_and_weights_at_odd_places, *boost::unit_test::precondition(needs_gpu)) {
  TestLaunch test;
  for (const TensorType type :
       {TensorType::f16, TensorType::bf16, TensorType::q8_0, TensorType::q3_k, TensorType::q6_k})
    for (const int64_t n_tokens : {40, 300}) {
      const TestWeights weights(type, 1, 2100, 512, 3);
      check_matmul(weights.host, weights.on_device(), n_tokens, 513, test);
      std::vector<uint8_t> shifted(weights.bytes.size() + 6);
      std::memcpy(shifted.data() + 6, weights.bytes.data(), weights.bytes.size());
      const DeviceWeights device(shifted);
      WeightMatrix moved = weights.host;
      moved.data = device.data() + 6;
      check_matmul(weights.host, moved, n_tokens, 512, test);
    }
}

BOOST_AUTO_TEST_CASE(little_scratch_means_more_runs, *boost::unit_test::precondition(needs_gpu)) {
  TestLaunch test(size_t{1} << 20);
  int n_cases = 0;
  for (const TensorType type : {TensorType::q4_k, TensorType::f32})
    if (!is_left_out(n_cases, 2)) check_matmul(type, 700, 512, 1000, test);
}

// Fp16 ends at 65504 and has steps of 2^-24: rows far beyond either are as accurate as others.
BOOST_AUTO_TEST_CASE(activations_of_any_magnitude, *boost::unit_test::precondition(needs_gpu)) {
  TestLaunch test;
  int n_cases = 0;
  for (const TensorType type :
       {TensorType::f32, TensorType::f16, TensorType::bf16, TensorType::q4_k, TensorType::q8_0})
    for (const int64_t n_tokens : {20, 300})
      for (const float size : {1e6f, 1e-6f, 1e30f, 1e-25f}) {
        if (is_left_out(n_cases, 7)) continue;
        const TestWeights weights(type, 1, 100, 512, 12);
        check_matmul(weights.host, weights.on_device(), n_tokens, 512, test, size);
      }
}

// Values that no row's unit can save: the sums of infinite rows and of NaN show it.
BOOST_AUTO_TEST_CASE(activations_that_are_not_finite, *boost::unit_test::precondition(needs_gpu)) {
  TestLaunch test;
  const TestWeights weights(TensorType::f16, 1, 8, 64, 13);
  std::vector<float> x = random_floats(20 * 64, 1);
  x[3 * 64 + 5] = INFINITY, x[7 * 64 + 63] = NAN;
  const DeviceArray<float> x_device(x), y(20 * 8);
  cuda::matmul_prefill({weights.on_device(), x_device.data(), 64, y.data(), 20}, test.launch());
  const std::vector<float> ours = y.values();
  for (size_t i = 0; i < ours.size(); ++i)
    BOOST_TEST(std::isfinite(ours[i]) == (i / 8 != 3 && i / 8 != 7), "output " << i << " is " << ours[i]);
}

// Weights past 65504 are taken for 65504, which is what fp16 has: no model's weights come near. Of F32,
// whose low parts saturate too, for 65536; 1e-3 covers the difference.
BOOST_AUTO_TEST_CASE(weights_past_fp16, *boost::unit_test::precondition(needs_gpu)) {
  TestLaunch test;
  const int64_t n_rows = 40, n_cols = 64;
  std::vector<float> values = random_floats(static_cast<size_t>(n_rows * n_cols), 14), limited = values;
  std::vector<uint16_t> halves(values.size());
  for (size_t row = 0; row < static_cast<size_t>(n_rows); ++row) {
    const size_t at = row * static_cast<size_t>(n_cols) + row;
    values[at] = row % 2 ? 1e5f : -1e5f;
    limited[at] = row % 2 ? 65504.0f : -65504.0f;
  }
  for (size_t i = 0; i < values.size(); ++i) halves[i] = f32_to_bf16(values[i]);
  const DeviceArray<float> f32(values);
  const DeviceArray<uint16_t> bf16(halves);
  const size_t n_row_bytes = static_cast<size_t>(n_cols) * 4;
  const WeightMatrix host = {
      reinterpret_cast<const uint8_t*>(limited.data()), TensorType::f32, n_rows, n_cols, 1, n_row_bytes,
      n_row_bytes * static_cast<size_t>(n_rows)};
  for (const int64_t n_tokens : {20, 300}) {
    const std::vector<float> x = random_floats(static_cast<size_t>(n_tokens * n_cols), 15);
    const DeviceArray<float> x_device(x), y(static_cast<size_t>(n_tokens * n_rows));
    std::vector<float> expected(y.size());
    cpu().matmul({host, x.data(), n_cols, expected.data(), n_tokens});
    for (const TensorType type : {TensorType::f32, TensorType::bf16}) {
      const bool is_f32 = type == TensorType::f32;
      WeightMatrix weight = host;
      weight.type = type;
      weight.data =
          reinterpret_cast<const uint8_t*>(is_f32 ? static_cast<const void*>(f32.data()) : bf16.data());
      weight.row_bytes = n_row_bytes / (is_f32 ? 1 : 2);
      weight.mat_bytes = weight.row_bytes * static_cast<size_t>(n_rows);
      cuda::matmul_prefill({weight, x_device.data(), n_cols, y.data(), n_tokens}, test.launch());
      check_close(y.values(), expected, {1e-3, 1e-2}, describe(weight, n_tokens));
    }
  }
}

BOOST_AUTO_TEST_CASE(nothing_to_do, *boost::unit_test::precondition(needs_gpu)) {
  TestLaunch test;
  const TestWeights weights(TensorType::q8_0, 1, 64, 64, 3);
  const DeviceArray<float> x(64), y(64);
  cuda::matmul_prefill({weights.on_device(), x.data(), 64, y.data(), 0}, test.launch());
  const float untouched = y.values()[0];
  uint32_t bits;
  std::memcpy(&bits, &untouched, sizeof bits);
  BOOST_TEST(bits == 0xa5a5a5a5u);
}

// A token's sums must not depend on what else is in its tile, least of all on tokens that are not finite.
BOOST_AUTO_TEST_CASE(tokens_do_not_touch_each_other, *boost::unit_test::precondition(needs_gpu)) {
  TestLaunch test;
  const TestWeights weights(TensorType::q4_k, 1, 256, 512, 3);
  std::vector<float> x = random_floats(100 * 512, 1);
  const DeviceArray<float> clean(x), y(100 * 256);
  cuda::matmul_prefill({weights.on_device(), clean.data(), 512, y.data(), 100}, test.launch());
  const std::vector<float> before = y.values();
  for (size_t c = 0; c < 512; ++c) x[41 * 512 + c] = c % 2 ? NAN : INFINITY;
  const DeviceArray<float> dirty(x);
  cuda::matmul_prefill({weights.on_device(), dirty.data(), 512, y.data(), 100}, test.launch());
  const std::vector<float> after = y.values();
  size_t n_different = 0;
  for (size_t i = 0; i < before.size(); ++i)
    if (i / 256 != 41) n_different += std::memcmp(&before[i], &after[i], 4) != 0;
  BOOST_TEST(n_different == 0u);
  BOOST_TEST(std::isnan(after[41 * 256]));
}

// However a prompt is cut into steps, and whether there is scratch memory for much or for little at once: the
// same bits. The sizes are those of every path: tiles that are full or not, a matrix dequantised on its way
// or before (from 257 tokens on), sums in parts and whole.
BOOST_AUTO_TEST_CASE(a_tokens_bits_do_not_depend_on_the_cut, *boost::unit_test::precondition(needs_gpu)) {
  TestLaunch test, little(size_t{2} << 20);
  constexpr int64_t kTokens = 300;
  Rng rng(5);
  int n_cases = 0;
  for (const TensorType type : kTypes)
    for (const auto& [n_rows, n_cols] : {std::pair<int64_t, int64_t>{200, 2048}, {1100, 768}, {2100, 512}}) {
      if (is_left_out(n_cases, 5)) continue;
      const TestWeights weights(type, 1, n_rows, n_cols, 17);
      const DeviceArray<float> x(random_floats(static_cast<size_t>(kTokens * n_cols), 18)),
          y(static_cast<size_t>(kTokens * n_rows));
      const auto run = [&](int64_t first, int64_t n, const cuda::Launch& launch) {
        cuda::matmul_prefill(
            {weights.on_device(), x.data() + first * n_cols, n_cols, y.data() + first * n_rows, n}, launch);
      };
      run(0, kTokens, test.launch());
      const std::vector<float> whole = y.values();
      const auto check_same = [&](const std::string& what) {
        const std::vector<float> cut = y.values();
        BOOST_TEST(std::memcmp(whole.data(), cut.data(), whole.size() * sizeof(float)) == 0,
                   describe(weights.host, kTokens) << ", " << what);
        CUDA_CHECK(cudaMemset(y.data(), 0xff, y.size() * sizeof(float)));
      };
      run(0, kTokens, little.launch());
      check_same("little scratch memory");
      for (const int64_t chunk : {1, 8, 64, 130, 260}) {
        if (chunk == 1 && type != TensorType::q4_k && type != TensorType::f32) continue;
        for (int64_t first = 0; first < kTokens; first += chunk)
          run(first, std::min(chunk, kTokens - first), test.launch());
        check_same("chunks of " + std::to_string(chunk));
      }
      for (int64_t first = 0; first < kTokens;) {
        const int64_t n = std::min<int64_t>(1 + static_cast<int64_t>(rng.next() % 90), kTokens - first);
        run(first, n, test.launch());
        first += n;
      }
      check_same("chunks of random sizes");
    }
}

// Steps of many tokens are cuBLASLt's where it is installed, those of few are not: the same bits, of rows in
// units of 1 and of others.
BOOST_AUTO_TEST_CASE(the_librarys_bits_are_ours, *boost::unit_test::precondition(needs_gpu)) {
  TestLaunch test;
  constexpr int64_t kTokens = 700, kChunk = 100;
  for (const TensorType type : {TensorType::f16, TensorType::q4_k})
    for (const auto& [n_rows, n_cols] : {std::pair<int64_t, int64_t>{4100, 1536}, {2064, 256}, {640, 2048}}) {
      const TestWeights weights(type, 1, n_rows, n_cols, 19);
      std::vector<float> values = random_floats(static_cast<size_t>(kTokens * n_cols), 20);
      for (size_t i = 0; i < values.size(); ++i)
        if (i / static_cast<size_t>(n_cols) % 5 == 0) values[i] *= 1e6f;
      const DeviceArray<float> x(values), y(static_cast<size_t>(kTokens * n_rows));
      const auto run = [&](int64_t first, int64_t n) {
        cuda::matmul_prefill(
            {weights.on_device(), x.data() + first * n_cols, n_cols, y.data() + first * n_rows, n},
            test.launch());
      };
      run(0, kTokens);
      const std::vector<float> whole = y.values();
      for (int64_t first = 0; first < kTokens; first += kChunk) run(first, kChunk);
      BOOST_TEST((y.values() == whole), describe(weights.host, kTokens));
    }
}

BOOST_AUTO_TEST_CASE(a_heads_bits_do_not_depend_on_the_cut, *boost::unit_test::precondition(needs_gpu)) {
  TestLaunch test, little(size_t{1} << 20);
  for (const TensorType type : {TensorType::q8_0, TensorType::f16, TensorType::f32}) {
    const int64_t n_heads = 5, n_rows = 128, n_cols = 512, n_tokens = 150, width = n_heads * n_cols;
    const TestWeights weights(type, n_heads, n_rows, n_cols, 9);
    const DeviceArray<float> x(random_floats(static_cast<size_t>(n_tokens * width), 8)),
        y(static_cast<size_t>(n_tokens * n_heads * n_rows));
    const auto run = [&](int64_t first, int64_t n, const cuda::Launch& launch) {
      cuda::matmul_heads_prefill({weights.on_device(), x.data() + first * width, width, n_cols,
                                  y.data() + first * n_heads * n_rows, n},
                                 launch);
    };
    run(0, n_tokens, test.launch());
    const std::vector<float> whole = y.values();
    for (const int64_t chunk : {1, 7, 40, 129}) {
      for (int64_t first = 0; first < n_tokens; first += chunk)
        run(first, std::min(chunk, n_tokens - first), chunk == 40 ? little.launch() : test.launch());
      BOOST_TEST((y.values() == whole), type_name(type) << ", chunks of " << chunk);
    }
  }
}

BOOST_AUTO_TEST_CASE(heads, *boost::unit_test::precondition(needs_gpu)) {
  int n_cases = 0;
  for (const size_t n_scratch : {size_t{256} << 20, size_t{1} << 20}) {
    TestLaunch test(n_scratch);
    for (const TensorType type :
         {TensorType::q8_0, TensorType::bf16, TensorType::f16, TensorType::f32, TensorType::q4_0})
      for (const auto& [n_rows, n_cols] : {std::pair<int64_t, int64_t>{512, 128}, {128, 512}, {20, 96}})
        for (const int64_t n_tokens : {9, 150}) {
          if (is_left_out(n_cases, 7)) continue;
          const int64_t n_heads = 5, head_stride = n_cols + 64, token_stride = n_heads * head_stride;
          const TestWeights weights(type, n_heads, n_rows, n_cols, 9);
          std::vector<float> x = random_floats(static_cast<size_t>(n_tokens * token_stride), 8);
          resize_rows(x, head_stride, 1);
          std::vector<float> expected(static_cast<size_t>(n_tokens * n_heads * n_rows));
          cpu().matmul_heads({weights.host, x.data(), token_stride, head_stride, expected.data(), n_tokens});
          const DeviceArray<float> x_device(x), y(expected.size());
          cuda::matmul_heads_prefill(
              {weights.on_device(), x_device.data(), token_stride, head_stride, y.data(), n_tokens},
              test.launch());
          std::vector<float> ours = y.values();
          resize_rows(ours, n_rows, 1, true);
          resize_rows(expected, n_rows, 1, true);
          check_close(ours, expected, kRounded, describe(weights.host, n_tokens));
        }
  }
}

// The dimensions of the 671B model; of the outputs some windows of rows are compared, of all tokens.
BOOST_AUTO_TEST_CASE(large_matrices,
                     *boost::unit_test::label("large") * boost::unit_test::precondition(needs_gpu)) {
  TestLaunch test;
  const int64_t shapes[][3] = {
      {18432, 7168, 2048}, {576, 7168, 2048}, {7168, 18432, 130}, {24576, 1536, 513}};
  for (const auto& [n_rows, n_cols, n_tokens] : shapes) {
    const TestWeights weights(TensorType::q4_k, 1, n_rows, n_cols, 21);
    const std::vector<float> x = random_floats(static_cast<size_t>(n_tokens * n_cols), 22);
    const DeviceArray<float> x_device(x), y_device(static_cast<size_t>(n_tokens * n_rows));
    cuda::matmul_prefill({weights.on_device(), x_device.data(), n_cols, y_device.data(), n_tokens},
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

BOOST_AUTO_TEST_CASE(bands_give_the_bits_of_whole_rows, *boost::unit_test::precondition(needs_gpu)) {
  TestLaunch test;
  constexpr int64_t kRows = 2128, kColumns = 1024, kMost = 700;
  const DeviceArray<float> x(random_floats(kMost * kColumns, 1)), y(kMost * kRows), whole(kMost * kRows);
  for (const TensorType type : kTypes) {
    const TestWeights weights(type, 1, kRows, kColumns, 3);
    for (const int64_t n : {int64_t{1}, int64_t{100}, kMost}) {
      cuda::matmul_prefill({weights.on_device(), x.data(), kColumns, y.data(), n}, test.launch());
      cuda::matmul_prefill({weights.whole_rows_on_device(), x.data(), kColumns, whole.data(), n},
                           test.launch());
      const std::vector<float> ours = y.values(), expected = whole.values();
      BOOST_TEST(std::memcmp(ours.data(), expected.data(), static_cast<size_t>(n * kRows) * 4) == 0,
                 type_name(type) << ", " << n << " tokens");
    }
  }
}

BOOST_AUTO_TEST_CASE(timing_of_matrices,
                     *boost::unit_test::label("timing") * boost::unit_test::precondition(needs_gpu)) {
  TestLaunch test;
  const auto time = [&](TensorType type, int64_t n_rows, int64_t n_cols, int64_t n_tokens) {
    const TestWeights block(type, 1, 64, n_cols, 1);
    const size_t n_bytes = block.host.row_bytes * static_cast<size_t>(n_rows);
    const DeviceArray<uint8_t> data(n_bytes, false, DeviceWeights::kPaddingBytes);
    for (size_t at = 0; at < n_bytes; at += block.bytes.size())
      CUDA_CHECK(cudaMemcpy(data.data() + at, block.device.data(), std::min(block.bytes.size(), n_bytes - at),
                            cudaMemcpyDefault));
    WeightMatrix weight = block.on_device();
    weight.data = data.data(), weight.n_rows = n_rows, weight.mat_bytes = n_bytes;
    const DeviceArray<float> x(random_floats(static_cast<size_t>(n_tokens * n_cols), 1));
    const DeviceArray<float> y(static_cast<size_t>(n_tokens * n_rows));
    const double seconds = test.seconds(
        [&] {
          cuda::matmul_prefill({weight, x.data(), n_cols, y.data(), n_tokens}, test.launch());
        },
        5);
    const std::string name = "matmul_prefill " + std::to_string(n_rows) + " x " + std::to_string(n_cols);
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
    const TestWeights weights(TensorType::q8_0, n_heads, n_rows, n_cols, 1);
    const DeviceArray<float> x(random_floats(static_cast<size_t>(n_tokens * n_heads * n_cols), 1));
    const DeviceArray<float> y(static_cast<size_t>(n_tokens * n_heads * n_rows));
    const double seconds = test.seconds(
        [&] {
          cuda::matmul_heads_prefill(
              {weights.on_device(), x.data(), n_heads * n_cols, n_cols, y.data(), n_tokens}, test.launch());
        },
        5);
    const std::string name =
        "matmul_heads_prefill 128 x " + std::to_string(n_rows) + " x " + std::to_string(n_cols);
    print_product(name.c_str(), TensorType::q8_0, n_tokens, 128.0 * 512 * 128 * 2048,
                  static_cast<double>(weights.bytes.size()), seconds);
    std::printf("  %.0f GB/s of activations\n",
                1e-9 * 4 * static_cast<double>(n_tokens * n_heads * (n_rows + n_cols)) / seconds);
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace dsv32
