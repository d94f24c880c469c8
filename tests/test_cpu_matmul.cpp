// backend/cpu_matmul.h: every format on every instruction set of this machine against sums in double of the
// reference dequantisation, and the bits that must not depend on tokens, threads or the division of rows.
#include <boost/test/unit_test.hpp>

#include <hwy/highway.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "backend/cpu_kernels.h"
#include "backend/cpu_matmul.h"
#include "base/numbers.h"
#include "gguf/random_weights.h"
#include "tests/support/cpu_targets.h"
#include "tests/support/supported_types.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(cpu_matmul_)

namespace {

const std::vector<TensorType> kTypes = supported_types();

std::vector<float> normal_floats(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& value : values) value = normal(random);
  return values;
}

// Where a block keeps its f16 scales; the floats have none, and some formats have others.
std::vector<size_t> scale_offsets(TensorType type) {
  switch (type) {
    case TensorType::f32:
    case TensorType::f16:
    case TensorType::bf16:
    case TensorType::iq1_m:
    case TensorType::mxfp4:
    case TensorType::nvfp4: return {};
    case TensorType::q2_k: return {offsetof(BlockQ2_K, d), offsetof(BlockQ2_K, dmin)};
    case TensorType::q3_k: return {offsetof(BlockQ3_K, d)};
    case TensorType::q6_k: return {offsetof(BlockQ6_K, d)};
    case TensorType::q4_k:
    case TensorType::q5_k:
    case TensorType::q4_1:
    case TensorType::q5_1: return {0, 2};
    default: return {0};
  }
}

// `second` where there are two. MXFP4's becomes a power of two; NVFP4's may be any byte and stay as they are.
void put_scales(TensorType type, uint8_t* block, float first, float second) {
  const uint16_t scales[2] = {f32_to_f16(first), f32_to_f16(second)};
  const auto offsets = scale_offsets(type);
  for (size_t i = 0; i < offsets.size(); ++i) std::memcpy(block + offsets[i], &scales[i], 2);
  if (type == TensorType::mxfp4) block[0] = static_cast<uint8_t>(std::clamp(128 + std::ilogb(first), 1, 254));
  if (type == TensorType::iq1_m)
    for (int i = 0; i < 4; ++i)
      block[49 + 2 * i] = static_cast<uint8_t>((block[49 + 2 * i] & 15) | (scales[0] >> (4 * i) & 15) << 4);
}

// Random codes under random scales of either sign, in rows that begin at 2 modulo 4.
class Matrix {
 public:
  Matrix(TensorType type, int64_t n_rows, int64_t n_cols, int64_t n_mats = 1, uint32_t seed = 1) {
    weight_.type = type;
    weight_.n_rows = n_rows;
    weight_.n_cols = n_cols;
    weight_.n_mats = n_mats;
    weight_.row_bytes = row_bytes(type, n_cols);
    weight_.mat_bytes = weight_.row_bytes * static_cast<size_t>(n_rows);
    const size_t n_bytes = weight_.mat_bytes * static_cast<size_t>(n_mats);
    storage_.resize(n_bytes / 2 + 2);
    uint8_t* data = reinterpret_cast<uint8_t*>(storage_.data());
    data += reinterpret_cast<uintptr_t>(data) % 4 == 0 ? 2 : 0;
    fill(data, n_bytes, seed);
    weight_.data = data;
  }
  Matrix(const Matrix&) = delete;
  Matrix& operator=(const Matrix&) = delete;

  const WeightMatrix& weight() const { return weight_; }

  std::vector<float> row(int64_t mat, int64_t r) const {
    std::vector<float> values(static_cast<size_t>(weight_.n_cols));
    dequantize_row(weight_.type, weight_.row(mat, r), values.data(), weight_.n_cols);
    return values;
  }

  // Every byte becomes `byte`, but for the outer scales: these are 0.05, the second of a block 0.03.
  void set_codes(uint8_t byte) {
    uint8_t* data = const_cast<uint8_t*>(weight_.data);
    std::memset(data, byte, weight_.mat_bytes);
    for (size_t at = 0; at < weight_.mat_bytes; at += traits(weight_.type).block_bytes)
      put_scales(weight_.type, data + at, 0.05f, 0.03f);
  }

 private:
  void fill(uint8_t* data, size_t n_bytes, uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    const size_t block_bytes = traits(weight_.type).block_bytes;
    for (size_t at = 0; at < n_bytes; at += block_bytes) {
      uint8_t* block = data + at;
      for (size_t i = 0; i < block_bytes; ++i) block[i] = static_cast<uint8_t>(random());
      const float value = 0.05f * normal(random);
      const uint16_t f16 = f32_to_f16(value), bf16 = f32_to_bf16(value);
      if (weight_.type == TensorType::f32) std::memcpy(block, &value, 4);
      if (weight_.type == TensorType::f16) std::memcpy(block, &f16, 2);
      if (weight_.type == TensorType::bf16) std::memcpy(block, &bf16, 2);
      const float first = 0.05f * normal(random), second = 0.05f * normal(random);
      put_scales(weight_.type, block, first, second);
    }
  }

  WeightMatrix weight_;
  std::vector<uint16_t> storage_;
};

// A copy of some bytes, with a page behind it that cannot be read.
class BytesAtAnEnd {
 public:
  explicit BytesAtAnEnd(std::span<const uint8_t> bytes) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t n_readable = (bytes.size() + page - 1) / page * page;
    n_mapped_ = n_readable + page;
    mapped_ = mmap(nullptr, n_mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    BOOST_REQUIRE(mapped_ != MAP_FAILED);
    uint8_t* end = static_cast<uint8_t*>(mapped_) + n_readable;
    BOOST_REQUIRE(mprotect(end, page, PROT_NONE) == 0);
    data_ = end - bytes.size();
    std::copy(bytes.begin(), bytes.end(), data_);
  }
  ~BytesAtAnEnd() { munmap(mapped_, n_mapped_); }
  BytesAtAnEnd(const BytesAtAnEnd&) = delete;
  BytesAtAnEnd& operator=(const BytesAtAnEnd&) = delete;

  const uint8_t* data() const { return data_; }

 private:
  void* mapped_;
  size_t n_mapped_;
  uint8_t* data_;
};

WorkerPool& all_workers() {
  static WorkerPool workers(0);
  return workers;
}

// y [n_tokens, n_rows] of x [n_tokens, n_cols], both dense.
std::vector<float> product(const Matrix& matrix, const std::vector<float>& x, int64_t n_tokens,
                           int64_t mat = 0, WorkerPool& workers = all_workers()) {
  std::vector<float> y(static_cast<size_t>(n_tokens * matrix.weight().n_rows), NAN);
  cpu_matmul({some_mats(matrix.weight(), mat, 1), x.data(), matrix.weight().n_cols, y.data(), n_tokens},
             workers);
  return y;
}

CpuActivations prepare(const WeightMatrix& weight, const float* x, int64_t x_stride, int64_t n_tokens) {
  CpuActivations prepared(weight, x, x_stride, n_tokens);
  for (int64_t i = 0; i < prepared.n_steps(); ++i) prepared.prepare(i);
  return prepared;
}

bool same_bits(const float* a, const float* b, size_t n) { return std::memcmp(a, b, n * sizeof(float)) == 0; }

// Values of y further from the sum in double than `tolerance` of the sum of magnitudes.
int count_wrong(const Matrix& matrix, const std::vector<float>& x, const std::vector<float>& y,
                int64_t n_tokens, int64_t mat, double tolerance = 1e-6) {
  const WeightMatrix& weight = matrix.weight();
  int n_wrong = 0;
  for (int64_t r = 0; r < weight.n_rows; ++r) {
    const std::vector<float> w = matrix.row(mat, r);
    for (int64_t t = 0; t < n_tokens; ++t) {
      double sum = 0, magnitude = 0;
      for (int64_t c = 0; c < weight.n_cols; ++c) {
        const double term =
            static_cast<double>(w[static_cast<size_t>(c)]) * x[static_cast<size_t>(t * weight.n_cols + c)];
        sum += term;
        magnitude += std::fabs(term);
      }
      n_wrong += !(std::fabs(y[static_cast<size_t>(t * weight.n_rows + r)] - sum) <= tolerance * magnitude);
    }
  }
  return n_wrong;
}

struct Shape {
  int64_t n_rows, n_cols, n_tokens;
};

std::vector<Shape> shapes_of(TensorType type) {
  const int64_t block = traits(type).block_values;
  std::vector<Shape> shapes = {{3, block, 1}, {5, 3 * block, 3}, {9, 7 * block, 6}, {1, 8 * block, 2}};
  if (block == 1)
    shapes.insert(shapes.end(), {{4, 33, 5}, {6, 64, 1}, {2, 200, 4}, {3, 1000, 1}});
  else
    shapes.push_back({2, 2048, 1});
  return shapes;
}

}  // namespace

BOOST_AUTO_TEST_CASE(products_agree_with_sums_in_double_on_every_target) {
  for (const int64_t target : available_targets()) {
    const UseTarget use(target);
    for (const TensorType type : kTypes)
      for (const Shape& shape : shapes_of(type)) {
        const Matrix matrix(type, shape.n_rows, shape.n_cols);
        const auto x = normal_floats(static_cast<size_t>(shape.n_tokens * shape.n_cols), 7);
        const int n_wrong = count_wrong(matrix, x, product(matrix, x, shape.n_tokens), shape.n_tokens, 0);
        BOOST_TEST(n_wrong == 0, type_name(type) << " " << shape.n_rows << " x " << shape.n_cols << ", "
                                                 << shape.n_tokens << " tokens, " << hwy::TargetName(target)
                                                 << ": " << n_wrong << " wrong");
      }
  }
}

// The targets are not all one: sets that add in different orders give different last bits somewhere.
BOOST_AUTO_TEST_CASE(targets_can_be_chosen, *boost::unit_test::precondition(has_several_targets)) {
  const Matrix matrix(TensorType::q6_k, 64, 2048);
  const auto x = normal_floats(2048, 3);
  const auto best = product(matrix, x, 1);
  const UseTarget use(HWY_SCALAR);
  const auto scalar = product(matrix, x, 1);
  BOOST_TEST(!same_bits(best.data(), scalar.data(), best.size()));
}

// Points gathered from memory and those looked up in registers, for one token and for several; the rows end
// where nothing can be read any more.
BOOST_AUTO_TEST_CASE(both_ways_to_a_table_give_the_same_bits) {
  constexpr int64_t kCols = 2048;
  constexpr size_t kRows = CpuKernels::kRows, kTokens = CpuKernels::kTokens;
  int n_types = 0;
  for (const TensorType type : {TensorType::iq2_xs, TensorType::iq2_s, TensorType::iq3_s}) {
    const CpuKernels *gathering = vnni_kernels_of(type, true), *looking_up = vnni_kernels_of(type, false);
    if (!gathering || !looking_up) continue;
    ++n_types;
    BOOST_TEST(gathering != looking_up);
    Rng rng(1);
    const size_t n_bytes = row_bytes(type, kCols);
    // Whatever the bits, but finite scales.
    const BytesAtAnEnd rows(random_weights(type, kRows, kCols, rng, 0.1f));
    const int n_steps = static_cast<int>(kCols) / kStepValues;
    alignas(64) static float prepared[kTokens][kCols * 4];
    const uint8_t* at[kRows];
    const float* tokens[kTokens];
    for (size_t r = 0; r < kRows; ++r) at[r] = rows.data() + r * n_bytes;
    for (size_t t = 0; t < kTokens; ++t) {
      std::vector<float> x(kCols);
      for (float& value : x) value = rng.unit();
      for (int step = 0; step < n_steps; ++step)
        gathering->prepare_step(x.data() + step * kStepValues, kStepValues,
                                prepared[t] + step * gathering->step_floats);
      tokens[t] = prepared[t];
    }
    float sums[kRows * kTokens], others[kRows * kTokens];
    for (const auto way : {&CpuKernels::one_token, &CpuKernels::many_tokens}) {
      const size_t n = way == &CpuKernels::one_token ? kRows : kRows * kTokens;
      (gathering->*way)(at, n_bytes, tokens, sums);
      (looking_up->*way)(at, n_bytes, tokens, others);
      BOOST_TEST(same_bits(sums, others, n), type_name(type));
    }
  }
  BOOST_TEST((n_types == 3 || n_types == 0));
}

// The last row ends where nothing can be read any more, as at the end of a mapped file.
BOOST_AUTO_TEST_CASE(nothing_behind_a_matrix_is_read) {
  for (const int64_t target : available_targets()) {
    const UseTarget use(target);
    for (const TensorType type : kTypes)
      for (const int64_t n_rows : {1, 6}) {
        const int64_t n_cols = 3 * std::max<int64_t>(traits(type).block_values, 16), n_tokens = 5;
        const Matrix matrix(type, n_rows, n_cols);
        WeightMatrix weight = matrix.weight();
        const BytesAtAnEnd bytes({weight.data, weight.mat_bytes});
        weight.data = bytes.data();
        const auto x = normal_floats(static_cast<size_t>(n_tokens * n_cols), 43);
        for (const int64_t n : {int64_t{1}, n_tokens}) {
          const auto expected = product(matrix, x, n);
          std::vector<float> y(expected.size(), NAN);
          cpu_matmul({weight, x.data(), n_cols, y.data(), n}, all_workers());
          BOOST_TEST(same_bits(y.data(), expected.data(), y.size()),
                     type_name(type) << " on " << hwy::TargetName(target));
        }
      }
  }
}

// x has one value that is not zero, a power of two: y is one weight, exactly, whichever column it is.
BOOST_AUTO_TEST_CASE(one_activation_picks_one_weight) {
  for (const int64_t target : available_targets()) {
    const UseTarget use(target);
    for (const TensorType type : {TensorType::q2_k, TensorType::q3_k, TensorType::q6_k, TensorType::q8_0,
                                  TensorType::iq1_s, TensorType::iq1_m, TensorType::iq2_xs, TensorType::iq2_s,
                                  TensorType::iq3_s, TensorType::mxfp4, TensorType::nvfp4}) {
      const int64_t n_cols = 512, n_rows = 2;
      const Matrix matrix(type, n_rows, n_cols);
      std::vector<float> x(static_cast<size_t>(n_cols * n_cols));
      for (int64_t c = 0; c < n_cols; ++c)
        x[static_cast<size_t>(c * n_cols + c)] =
            std::ldexp(c % 2 ? -1.0f : 1.0f, static_cast<int>(c % 61) - 30);
      const auto y = product(matrix, x, n_cols);
      for (int64_t r = 0; r < n_rows; ++r) {
        const auto w = matrix.row(0, r);
        int n_wrong = 0;
        for (int64_t c = 0; c < n_cols; ++c)
          n_wrong += y[static_cast<size_t>(c * n_rows + r)] !=
                     w[static_cast<size_t>(c)] * x[static_cast<size_t>(c * n_cols + c)];
        BOOST_TEST(n_wrong == 0, type_name(type) << " on " << hwy::TargetName(target) << ", row " << r << ": "
                                                 << n_wrong << " columns wrong");
      }
    }
  }
}

// The largest and smallest codes and scales there are, all against activations of one sign at the end of
// their range: whatever sums in integers could overflow does it here.
BOOST_AUTO_TEST_CASE(extreme_codes_and_activations) {
  for (const int64_t target : available_targets()) {
    const UseTarget use(target);
    for (const TensorType type : kTypes) {
      if (traits(type).block_values == 1) continue;
      for (const uint8_t byte : {0x00, 0xff, 0x80, 0x7f, 0x3f, 0xf0, 0x0f}) {
        Matrix matrix(type, 2, 512);
        matrix.set_codes(byte);
        for (const float value :
             {0x1.fffffep0f, -0x1.fffffep0f, 0x1.fdfdfcp20f, -0x1.fdfdfep20f, 1e-25f, 3e30f}) {
          const std::vector<float> x(512, value);
          BOOST_TEST(count_wrong(matrix, x, product(matrix, x, 1), 1, 0, 1e-5) == 0,
                     type_name(type) << " on " << hwy::TargetName(target) << ", bytes " << int{byte} << ", x "
                                     << value);
        }
      }
    }
  }
}

// Activations of very different sizes: the error that cpu_matmul.h allows, and no more.
BOOST_AUTO_TEST_CASE(wide_spread_activations) {
  for (const int64_t target : available_targets()) {
    const UseTarget use(target);
    for (const TensorType type : kTypes) {
      const int64_t n_cols = 768, n_rows = 8;
      const Matrix matrix(type, n_rows, n_cols);
      std::vector<float> x = normal_floats(static_cast<size_t>(n_cols), 37);
      for (float& value : x) value *= std::exp(6 * value);
      const auto y = product(matrix, x, 1);
      for (int64_t r = 0; r < n_rows; ++r) {
        const auto w = matrix.row(0, r);
        double sum = 0, allowed = 0;
        for (size_t begin = 0; begin < x.size(); begin += 256) {
          double largest = 0, weights = 0;
          for (size_t c = begin; c < begin + 256; ++c) {
            largest = std::max(largest, std::fabs(static_cast<double>(x[c])));
            weights += std::fabs(w[c]);
            sum += static_cast<double>(w[c]) * x[c];
            allowed += 1e-6 * std::fabs(static_cast<double>(w[c]) * x[c]);
          }
          allowed += std::ldexp(largest * weights, -22);
        }
        BOOST_TEST(std::fabs(y[static_cast<size_t>(r)] - sum) <= allowed,
                   type_name(type) << " on " << hwy::TargetName(target) << ", row " << r);
      }
    }
  }
}

// An infinity or a NaN is not lost, and does not reach the other tokens.
BOOST_AUTO_TEST_CASE(what_is_not_finite_stays_so) {
  for (const int64_t target : available_targets()) {
    const UseTarget use(target);
    for (const TensorType type : kTypes)
      for (const float value : {INFINITY, -INFINITY, NAN}) {
        const Matrix matrix(type, 3, 512);
        auto x = normal_floats(4 * 512, 41);
        x[512 + 300] = value;
        const auto y = product(matrix, x, 4);
        for (size_t i = 0; i < y.size(); ++i)
          BOOST_TEST(std::isfinite(y[i]) == (i / 3 != 1), type_name(type)
                                                              << " on " << hwy::TargetName(target));
      }
  }
}

BOOST_AUTO_TEST_CASE(bits_do_not_depend_on_the_number_of_tokens) {
  for (const int64_t target : available_targets()) {
    const UseTarget use(target);
    for (const TensorType type : kTypes) {
      const int64_t n_cols = traits(type).block_values == 1 ? 333 : 3 * traits(type).block_values, n_rows = 7;
      const Matrix matrix(type, n_rows, n_cols);
      const auto x = normal_floats(static_cast<size_t>(17 * n_cols), 11);
      const auto all = product(matrix, x, 17);
      for (const int64_t n_tokens : {1, 2, 3, 5})
        for (int64_t begin = 0; begin + n_tokens <= 17; begin += n_tokens) {
          const std::vector<float> part(x.begin() + begin * n_cols, x.begin() + (begin + n_tokens) * n_cols);
          const auto y = product(matrix, part, n_tokens);
          BOOST_TEST(same_bits(y.data(), all.data() + begin * n_rows, y.size()),
                     type_name(type) << ", tokens " << begin << " .. " << begin + n_tokens);
        }
    }
  }
}

BOOST_AUTO_TEST_CASE(bits_do_not_depend_on_threads) {
  WorkerPool alone(1);
  for (const TensorType type : kTypes) {
    const Matrix matrix(type, 401, 1024);  // enough to be shared out
    const auto x = normal_floats(3 * 1024, 13);
    const auto one = product(matrix, x, 3, 0, alone);
    for (const int n_threads : {2, 3}) {
      WorkerPool workers(n_threads);
      const auto y = product(matrix, x, 3, 0, workers);
      BOOST_TEST(same_bits(one.data(), y.data(), y.size()), type_name(type)
                                                                << ", " << n_threads << " threads");
    }
  }
}

BOOST_AUTO_TEST_CASE(bits_do_not_depend_on_the_division_of_rows) {
  for (const TensorType type : kTypes) {
    const Matrix matrix(type, 13, 768);
    const auto x = normal_floats(2 * 768, 17);
    const auto whole = product(matrix, x, 2);
    const CpuActivations prepared = prepare(matrix.weight(), x.data(), 768, 2);
    for (const int64_t piece : {1, 2, 3, 5, 13}) {
      std::vector<float> y(whole.size(), NAN);
      for (int64_t r = 0; r < 13; r += piece)
        cpu_multiply_rows(matrix.weight(), 0, r, std::min<int64_t>(r + piece, 13), prepared.tokens(),
                          y.data() + r, 13);
      BOOST_TEST(same_bits(whole.data(), y.data(), y.size()), type_name(type)
                                                                  << ", " << piece << " rows at a time");
    }
  }
}

// Rows of x and y apart, the second matrix of a stack; nothing is written between the rows of y.
BOOST_AUTO_TEST_CASE(strides_and_stacks) {
  for (const TensorType type : {TensorType::q4_k, TensorType::bf16, TensorType::iq2_xxs}) {
    const int64_t n_rows = 6, n_cols = 512, n_tokens = 5, x_stride = 600, y_stride = 9;
    const Matrix matrix(type, n_rows, n_cols, 3);
    const auto dense = normal_floats(static_cast<size_t>(n_tokens * n_cols), 19);
    std::vector<float> x(static_cast<size_t>(n_tokens * x_stride), NAN),
        y(static_cast<size_t>(n_tokens * y_stride), -7.0f);
    for (int64_t t = 0; t < n_tokens; ++t)
      std::copy_n(dense.begin() + t * n_cols, n_cols, x.begin() + t * x_stride);
    cpu_multiply_rows(matrix.weight(), 1, 0, n_rows,
                      prepare(matrix.weight(), x.data(), x_stride, n_tokens).tokens(), y.data(), y_stride);
    const auto expected = product(matrix, dense, n_tokens, 1);
    BOOST_TEST(count_wrong(matrix, dense, expected, n_tokens, 1) == 0);
    for (int64_t t = 0; t < n_tokens; ++t) {
      BOOST_TEST(same_bits(y.data() + t * y_stride, expected.data() + t * n_rows, n_rows));
      for (int64_t r = n_rows; r < y_stride; ++r)
        BOOST_TEST(y[static_cast<size_t>(t * y_stride + r)] == -7.0f);
    }
  }
}

BOOST_AUTO_TEST_CASE(no_rows_and_no_tokens_are_nothing_to_do) {
  const Matrix matrix(TensorType::q8_0, 4, 64);
  float y = -7.0f;
  const auto x = normal_floats(64, 23);
  cpu_matmul({matrix.weight(), x.data(), 64, &y, 0}, all_workers());
  cpu_multiply_rows(matrix.weight(), 0, 2, 2, prepare(matrix.weight(), x.data(), 64, 1).tokens(), &y, 4);
  BOOST_TEST(y == -7.0f);
}

BOOST_AUTO_TEST_CASE(dot_and_axpy_agree_with_sums_in_double_on_every_target) {
  for (const int64_t target : available_targets()) {
    const UseTarget use(target);
    for (const int64_t n : {0, 1, 7, 15, 16, 17, 63, 64, 65, 576, 1000}) {
      const auto a = normal_floats(static_cast<size_t>(n) + 1, 29),
                 b = normal_floats(static_cast<size_t>(n) + 1, 31);
      double sum = 0, magnitude = 0;
      for (int64_t i = 0; i < n; ++i) {
        const double term = static_cast<double>(a[static_cast<size_t>(i)]) * b[static_cast<size_t>(i)];
        sum += term;
        magnitude += std::fabs(term);
      }
      BOOST_TEST(std::fabs(cpu_dot(a.data(), b.data(), n) - sum) <= 1e-6 * magnitude);

      std::vector<float> y = b;
      cpu_axpy(0.7f, a.data(), y.data(), n);
      for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
        const double expected = static_cast<double>(0.7f) * a[i] + b[i];
        BOOST_TEST(std::fabs(y[i] - expected) <= 2e-7 * (std::fabs(0.7 * a[i]) + std::fabs(b[i])));
      }
      BOOST_TEST(y[static_cast<size_t>(n)] == b[static_cast<size_t>(n)]);
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
