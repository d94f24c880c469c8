// backend/cpu_attention_kernels.h on every instruction set of this machine: what is decoded, exactly; scores
// and attention against sums in double.
#include <boost/test/unit_test.hpp>

#include <hwy/aligned_allocator.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "backend/cache_layout.h"
#include "backend/cpu_attention_kernels.h"
#include "base/numbers.h"
#include "gguf/random_weights.h"
#include "tests/support/cpu_targets.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(cpu_attention_kernels)

namespace {

std::vector<float> random_floats(size_t n, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> values(n);
  for (float& value : values) value = rng.unit();
  return values;
}

bool is_same(float a, float b) {
  return std::memcmp(&a, &b, sizeof a) == 0 || (std::isnan(a) && std::isnan(b));
}

// What cpu_attend computes, of head h.
std::vector<double> attend_in_double(const CpuAttention& op, int64_t h) {
  std::vector<double> scores, out(static_cast<size_t>(op.rank));
  for (int64_t j = 0; j < op.n_rows; ++j) {
    double dot = 0;
    for (int64_t i = 0; i < op.width; ++i) dot += static_cast<double>(op.q[h * op.width + i]) * op.rows[j][i];
    scores.push_back(dot * op.scale);
  }
  const double largest = *std::ranges::max_element(scores);
  double sum = 0;
  for (double& score : scores) sum += score = std::exp(score - largest);
  for (int64_t j = 0; j < op.n_rows; ++j)
    for (size_t i = 0; i < out.size(); ++i) out[i] += scores[static_cast<size_t>(j)] / sum * op.rows[j][i];
  return out;
}

struct Attention {
  Attention(int64_t n_rows, int64_t n_heads, float scale)
      : values(random_floats(static_cast<size_t>(n_rows * kWidth), 3)),
        q(random_floats(static_cast<size_t>(n_heads * kWidth), 4)),
        weights(static_cast<size_t>(n_heads * kAttentionBlock)),
        out(static_cast<size_t>(n_heads * kRank)) {
    for (int64_t j = 0; j < n_rows; ++j) rows.push_back(values.data() + j * kWidth);
    op = {rows.data(), n_rows, kWidth, kRank, q.data(), n_heads, scale, weights.data(), out.data()};
  }

  static constexpr int64_t kWidth = 96, kRank = 80;
  std::vector<float> values, q, weights, out;
  std::vector<const float*> rows;
  CpuAttention op;
};

}  // namespace

BOOST_AUTO_TEST_CASE(every_e4m3_is_decoded_exactly) {
  std::vector<uint8_t> codes(256 + 7);  // and a tail
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i);
  for (const int64_t target : available_targets()) {
    const UseTarget use(target);
    for (const float scale : {1.0f, 0x1p-22f, 0x1p30f}) {
      std::vector<float> out(codes.size());
      cpu_decode_e4m3(codes.data(), std::ssize(codes), scale, out.data());
      for (size_t i = 0; i < codes.size(); ++i)
        BOOST_TEST(is_same(out[i], e4m3_to_f32(codes[i]) * scale), "code " << int{codes[i]});
    }
  }
}

BOOST_AUTO_TEST_CASE(bf16_is_decoded_exactly_at_any_address) {
  std::vector<uint8_t> bytes(2 * 37 + 1);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(31 * i);
  for (const int64_t target : available_targets()) {
    const UseTarget use(target);
    float out[37];
    cpu_decode_bf16(bytes.data() + 1, 37, out);
    for (size_t i = 0; i < 37; ++i) {
      const auto bits = static_cast<uint16_t>(bytes[2 * i + 1] | bytes[2 * i + 2] << 8);
      BOOST_TEST(is_same(out[i], bf16_to_f32(bits)));
    }
  }
}

BOOST_AUTO_TEST_CASE(keys_lie_side_by_side_under_their_own_scales) {
  constexpr int64_t kDim = 256;  // two tiles of scales
  std::vector<uint8_t> keys(kKeyTile * kDim);
  Rng rng(5);
  for (uint8_t& code : keys) code = static_cast<uint8_t>(rng.next());
  std::vector<float> scales(2 * kKeyTile);
  for (size_t i = 0; i < scales.size(); ++i) scales[i] = std::ldexp(1.0f, static_cast<int>(i) - 10);
  for (const int64_t target : available_targets()) {
    const UseTarget use(target);
    const auto out = hwy::AllocateAligned<float>(kDim * kKeyTile);
    cpu_decode_keys(keys.data(), kDim, scales.data(), out.get());
    int n_wrong = 0;
    for (int64_t s = 0; s < kKeyTile; ++s)
      for (int64_t i = 0; i < kDim; ++i)
        n_wrong += !is_same(out[static_cast<size_t>(i * kKeyTile + s)],
                            e4m3_to_f32(keys[static_cast<size_t>(s * kDim + i)]) *
                                scales[static_cast<size_t>(i / kTileValues * kKeyTile + s)]);
    BOOST_TEST(n_wrong == 0, hwy::TargetName(target));
  }
}

BOOST_AUTO_TEST_CASE(keys_are_scored_by_all_heads) {
  constexpr int64_t kDim = 32;
  for (const int64_t target : available_targets()) {
    const UseTarget use(target);
    for (const int64_t n_heads : {1, 3, 4, 8, 13}) {
      const auto random = random_floats(static_cast<size_t>(n_heads * (kDim + 1)), 6);
      const float *q = random.data(), *weights = q + n_heads * kDim;
      const auto keys = hwy::AllocateAligned<float>(kDim * kKeyTile);
      std::ranges::copy(random_floats(kDim * kKeyTile, 7), keys.get());
      float scores[kKeyTile], first[kKeyTile];
      cpu_score_keys(keys.get(), kDim, q, weights, n_heads, kKeyTile, scores);
      for (const int64_t n_keys : {1, 24, 25, 47}) {
        cpu_score_keys(keys.get(), kDim, q, weights, n_heads, n_keys, first);
        BOOST_TEST(std::memcmp(first, scores, static_cast<size_t>(n_keys) * sizeof(float)) == 0, n_keys);
      }
      for (int64_t s = 0; s < kKeyTile; ++s) {
        double expected = 0, magnitude = 0;
        for (int64_t h = 0; h < n_heads; ++h) {
          double dot = 0;
          for (int64_t i = 0; i < kDim; ++i)
            dot += static_cast<double>(q[h * kDim + i]) * keys[static_cast<size_t>(i * kKeyTile + s)];
          expected += weights[h] * std::max(0.0, dot), magnitude += std::fabs(weights[h]) * kDim * 3;
        }
        BOOST_TEST(std::fabs(scores[s] - expected) <= 1e-6 * magnitude, n_heads << " heads, key " << s);
      }
    }
  }
}

// Whole blocks of rows and cut ones, groups of heads and single ones; scores close together and far apart.
BOOST_AUTO_TEST_CASE(attention_is_softmax_over_the_rows) {
  for (const int64_t target : available_targets()) {
    const UseTarget use(target);
    for (const int64_t n_rows : {1, 3, 64, 65, 200})
      for (const int64_t n_heads : {1, 3, 8, 10})
        for (const float scale : {0.05f, 20.0f}) {
          Attention at(n_rows, n_heads, scale);
          cpu_attend(at.op);
          double most = 0;
          for (int64_t h = 0; h < n_heads; ++h) {
            const auto expected = attend_in_double(at.op, h);
            for (int64_t i = 0; i < at.kRank; ++i)
              most = std::max(most, std::fabs(at.out[static_cast<size_t>(h * at.kRank + i)] -
                                              expected[static_cast<size_t>(i)]));
          }
          BOOST_TEST(most <= 2e-6 * std::max(1.0f, scale * 8),
                     n_rows << " rows, " << n_heads << " heads, scale " << scale);
        }
  }
}

// A head's bits are its own: not those of the heads that are computed with it.
BOOST_AUTO_TEST_CASE(heads_do_not_depend_on_each_other) {
  for (const int64_t target : available_targets()) {
    const UseTarget use(target);
    Attention together(130, 8, 1.0f), alone(130, 8, 1.0f);
    cpu_attend(together.op);
    for (int64_t h = 0; h < 8; ++h) {
      CpuAttention one = alone.op;
      one.q += h * alone.kWidth, one.out += h * alone.kRank, one.n_heads = 1;
      cpu_attend(one);
    }
    BOOST_TEST(together.out == alone.out);
  }
}

BOOST_AUTO_TEST_CASE(what_is_not_a_number_is_not_lost) {
  for (const int64_t target : available_targets()) {
    const UseTarget use(target);
    for (const size_t place : {size_t{5}, static_cast<size_t>(Attention::kRank) + 5}) {  // in c, in k_pe
      Attention at(100, 3, 1.0f);
      at.values[70 * at.kWidth + place] = NAN;
      cpu_attend(at.op);
      BOOST_TEST(std::isnan(at.out[5]));
      BOOST_TEST(std::isnan(at.out[2 * at.kRank + 5]));
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
