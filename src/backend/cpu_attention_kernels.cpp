// The code between HWY_BEFORE_NAMESPACE and HWY_AFTER_NAMESPACE is compiled once per instruction set.
#include "backend/cpu_attention_kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "backend/cache_layout.h"
#include "backend/cpu_kernels.h"
#include "gguf/quant_codes.h"

#include "backend/cpu_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu_attention_kernels.cpp"
#include <hwy/foreach_target.h>

#include <hwy/highway.h>

#include <hwy/contrib/math/math-inl.h>

#include "backend/cpu_tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dsv32 {
namespace HWY_NAMESPACE {

// ---- Decoding ----

// Shifted to an f16's sign, exponent and mantissa, an e4m3 becomes an f16 2^8 times smaller. NaN has to be
// set.
HWY_INLINE Floats load_e4m3(const uint8_t* from) {
#if HWY_ARCH_X86 && HWY_TARGET >= HWY_SSE4  // no instruction for f16
  alignas(64) float values[16];
  for (int i = 0; i < 16; ++i) values[i] = e4m3_to_f32(from[i]);
  return load_floats(values);
#else
  const hn::Rebind<uint8_t, FloatTag> byte_tag;
  const hn::Rebind<uint16_t, FloatTag> bits_tag;
  const hn::Rebind<hwy::float16_t, FloatTag> half_tag;
  Floats out;
  DSV32_EACH_PART (p) {
    const auto bytes = hn::PromoteTo(bits_tag, hn::LoadU(byte_tag, from + p * kPartLanes));
    const auto magnitude = hn::And(bytes, hn::Set(bits_tag, 0x7f));
    const auto sign = hn::ShiftLeft<8>(hn::AndNot(hn::Set(bits_tag, 0x7f), bytes));
    const auto nan = hn::And(hn::VecFromMask(bits_tag, hn::Eq(magnitude, hn::Set(bits_tag, 0x7f))),
                             hn::Set(bits_tag, 0x7e00));
    const auto half = hn::Or(hn::Or(hn::ShiftLeft<7>(magnitude), sign), nan);
    out.part[p] =
        hn::Mul(hn::PromoteTo(FloatTag(), hn::BitCast(half_tag, half)), hn::Set(FloatTag(), 256.0f));
  }
  return out;
#endif
}

void decode_e4m3(const uint8_t* values, int64_t n, float scale, float* out) {
  const Floats factor = broadcast(scale);
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) store_floats(mul(load_e4m3(values + i), factor), out + i);
  if (i == n) return;
  uint8_t padded[16] = {};
  float decoded[16];
  std::copy_n(values + i, n - i, padded);
  store_floats(mul(load_e4m3(padded), factor), decoded);
  std::copy_n(decoded, n - i, out + i);
}

void decode_bf16(const uint8_t* in, int64_t n, float* out) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    store_floats(load_halves(reinterpret_cast<const hwy::bfloat16_t*>(in + 2 * i)), out + i);
  for (; i < n; ++i) out[i] = bf16_to_f32(load<uint16_t>(in + 2 * i));
}

// Four rounds of a perfect shuffle of sixteen vectors transpose them.
HWY_INLINE void transpose_bytes(const uint8_t* from, int64_t stride, Bytes16* out) {
  Bytes16 rows[16];
  for (int i = 0; i < 16; ++i) out[i] = load<Bytes16>(from + i * stride);
  for (int round = 0; round < 4; ++round) {
    std::copy_n(out, 16, rows);
    for (int i = 0; i < 8; ++i) {
      out[2 * i] = __builtin_shufflevector(rows[i], rows[i + 8], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6,
                                           22, 7, 23);
      out[2 * i + 1] = __builtin_shufflevector(rows[i], rows[i + 8], 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13,
                                               29, 14, 30, 15, 31);
    }
  }
}

void decode_keys(const uint8_t* keys, int64_t dim, const float* scales, float* out) {
  for (int64_t first = 0; first < kKeyTile; first += 16)
    for (int64_t begin = 0; begin < dim; begin += 16) {
      Bytes16 columns[16];
      transpose_bytes(keys + first * dim + begin, dim, columns);
      const Floats scale = load_floats(scales + begin / kTileValues * kKeyTile + first);
      for (int k = 0; k < 16; ++k)
        store_floats(mul(load_e4m3(reinterpret_cast<const uint8_t*>(columns + k)), scale),
                     out + (begin + k) * kKeyTile + first);
    }
}

// ---- Scores of the indexer ----

static_assert(kKeyTile % kSumLanes == 0);

// scores += the scores of V heads
template <int V>
HWY_INLINE void add_heads(const float* keys, int64_t dim, const float* q, const float* weights,
                          hn::Vec<FloatTag> (&scores)[kSumParts]) {
  const FloatTag tag;
  hn::Vec<FloatTag> products[V][kSumParts];
  DSV32_UNROLL for (int v = 0; v < V; ++v) {
    DSV32_UNROLL for (auto& product : products[v]) product = hn::Zero(tag);
  }
  sum_tile(
      q, dim, dim, [&](int64_t k) { return keys + k * kKeyTile; }, products);
  DSV32_UNROLL for (int v = 0; v < V; ++v) {
    DSV32_UNROLL for (int p = 0; p < kSumParts; ++p) scores[p] =
        hn::MulAdd(hn::Set(tag, weights[v]), hn::Max(products[v][p], hn::Zero(tag)), scores[p]);
  }
}

void score_keys(const float* keys, int64_t dim, const float* q, const float* weights, int64_t n_heads,
                int64_t n_keys, float* out) {
  const FloatTag tag;
  for (int64_t s = 0; s < n_keys; s += kSumLanes) {
    hn::Vec<FloatTag> scores[kSumParts];
    for (auto& score : scores) score = hn::Zero(tag);
    int64_t h = 0;
    for (; h + kSums <= n_heads; h += kSums)
      add_heads<kSums>(keys + s, dim, q + h * dim, weights + h, scores);
    for (; h < n_heads; ++h) add_heads<1>(keys + s, dim, q + h * dim, weights + h, scores);
    DSV32_UNROLL for (int p = 0; p < kSumParts; ++p) hn::StoreU(scores[p], tag, out + s + p * kPartLanes);
  }
}

// ---- The largest scores ----

constexpr int64_t kMaskKeys = 64;  // bits of a mask

// Turns the bits of floats into integers of the same order, with -0 equal to 0 and NaN below everything.
void rank_keys(int32_t* keys, int64_t n) {
  const hn::RebindToSigned<FloatTag> tag;
  for (int64_t i = 0; i < n; i += kPartLanes) {
    const auto score = hn::Add(hn::BitCast(FloatTag(), hn::LoadU(tag, keys + i)), hn::Zero(FloatTag()));
    const auto bits = hn::BitCast(tag, score);
    const auto key = hn::Xor(bits, hn::And(hn::ShiftRight<31>(bits), hn::Set(tag, INT32_MAX)));
    const auto is_nan = hn::RebindMask(tag, hn::IsNaN(score));
    hn::StoreU(hn::IfThenElse(is_nan, hn::Set(tag, INT32_MIN), key), tag, keys + i);
  }
}

// The number of keys >= `least`. n is a multiple of kMaskKeys.
int64_t count_from(const int32_t* keys, int64_t n, int32_t least) {
  const hn::RebindToSigned<FloatTag> tag;
  auto below = hn::Zero(tag);  // minus the number of keys below
  for (int64_t i = 0; i < n; i += kPartLanes)
    below = hn::Add(below, hn::VecFromMask(tag, hn::Lt(hn::LoadU(tag, keys + i), hn::Set(tag, least))));
  return n + hn::GetLane(hn::SumOfLanes(tag, below));
}

// Bit i: whether keys[i] >= `least`.
uint64_t mask_from(const int32_t* keys, int32_t least) {
  const hn::RebindToSigned<FloatTag> tag;
  uint64_t below = 0;
  for (int64_t i = 0; i < kMaskKeys; i += kPartLanes) {
    uint8_t bits[8] = {};
    hn::StoreMaskBits(tag, hn::Lt(hn::LoadU(tag, keys + i), hn::Set(tag, least)), bits);
    below |= static_cast<uint64_t>(load<uint16_t>(bits)) << i;
  }
  return ~below;
}

// The largest value that at least k keys reach, found bit by bit from the top; or an earlier one that exactly
// k keys reach.
int32_t threshold_of(const int32_t* keys, int64_t n, int64_t k) {
  const auto signed_key = [](uint32_t key) { return static_cast<int32_t>(key ^ 0x80000000u); };
  uint32_t least = 0;
  for (uint32_t bit = 0x80000000u; bit; bit >>= 1) {
    const int64_t n_above = count_from(keys, n, signed_key(least | bit));
    if (n_above >= k) least |= bit;
    if (n_above == k) break;
  }
  return signed_key(least);
}

void select_largest(const float* scores, int64_t n, int64_t k, int32_t* selected) {
  const int64_t n_padded = (n + kMaskKeys - 1) / kMaskKeys * kMaskKeys;
  std::vector<int32_t> keys(static_cast<size_t>(n_padded), -1);  // a NaN
  std::memcpy(keys.data(), scores, static_cast<size_t>(n) * sizeof(float));
  rank_keys(keys.data(), n_padded);
  const int32_t least = threshold_of(keys.data(), n_padded, k);
  int64_t n_equal = k - count_from(keys.data(), n_padded, least + 1);  // no float is INT32_MAX
  for (int64_t begin = 0, n_selected = 0; n_selected < k; begin += kMaskKeys)
    for (uint64_t mask = mask_from(keys.data() + begin, least); mask && n_selected < k; mask &= mask - 1) {
      const int64_t i = begin + std::countr_zero(mask);
      selected[n_selected] = static_cast<int32_t>(i);
      n_selected += keys[static_cast<size_t>(i)] > least || n_equal-- > 0;
    }
}

// ---- Attention ----

constexpr int64_t kBlock = kAttentionBlock;

// Prefetches the next rows while the previous ones are multiplied.
HWY_INLINE void prefetch_rows(const CpuAttention& op, int64_t first) {
  for (int64_t j = first; j < std::min<int64_t>(first + kDotRows, op.n_rows); ++j)
    prefetch_weights(reinterpret_cast<const uint8_t*>(op.rows[j]),
                     static_cast<size_t>(op.width) * sizeof(float));
}

// weights[h][j] = rows[j] . q[h] for the rows of a block.
void score_rows(const CpuAttention& op, int64_t begin, int64_t end) {
  for (int64_t j = begin; j < end; j += kDotRows) {
    prefetch_rows(op, j + kDotRows);
    const float* rows[kDotRows];
    for (int64_t r = 0; r < kDotRows; ++r) rows[r] = op.rows[std::min(j + r, end - 1)];
    const auto at = [&](int r, int64_t i, int p) { return rows[r] + i + p * kPartLanes; };
    for (int64_t h = 0; h < op.n_heads; h += kDotVectors) {
      const int64_t n = std::min<int64_t>(kDotVectors, op.n_heads - h);
      const float* q[kDotVectors];
      for (int64_t v = 0; v < n; ++v) q[v] = op.q + (h + v) * op.width;
      dot_tile(n, at, q, op.width, {kZeros, 0, op.weights + h * kBlock + j - begin, kBlock});
    }
  }
}

// A head's state after some blocks of rows: the largest score, and the sum of exp(score - largest).
struct HeadSum {
  float largest = -INFINITY, sum = 0;
};

// weights [kBlock]: n unscaled scores  ->  exp(score - largest), then zeros. Returns the factor for all sums
// so far. NaN stays NaN.
float exponentials(float* weights, int64_t n, float scale, HeadSum& head) {
  const FloatTag tag;
  std::fill(weights + n, weights + kBlock, -INFINITY);
  Floats largest = broadcast(head.largest), sum = zeros();
  for (int64_t j = 0; j < kBlock; j += 16)
    DSV32_EACH_PART (p) {
      const auto score = hn::Mul(hn::LoadU(tag, weights + j + p * kPartLanes), hn::Set(tag, scale));
      hn::StoreU(score, tag, weights + j + p * kPartLanes);
      largest.part[p] = hn::Max(largest.part[p], score);
    }
  alignas(64) float lanes[16];
  store_floats(largest, lanes);
  const float most = *std::max_element(lanes, lanes + 16);
  const float factor = most == head.largest ? 1.0f : std::exp(head.largest - most);
  for (int64_t j = 0; j < kBlock; j += 16)
    DSV32_EACH_PART (p) {
      float* at = weights + j + p * kPartLanes;
      const auto x = hn::Sub(hn::LoadU(tag, at), hn::Set(tag, most));
      const auto weight = hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(tag, x));
      sum.part[p] = hn::Add(sum.part[p], weight);
      hn::StoreU(weight, tag, at);
    }
  head = {most, head.sum * factor + sum_of_lanes(sum)};
  return factor;
}

void multiply(float* values, int64_t n, float factor) {
  const Floats by = broadcast(factor);
  for (int64_t i = 0; i < n; i += 16) store_floats(mul(load_floats(values + i), by), values + i);
}

// P registers of out[h + v], from value i on, += the weighted rows of a block, for V heads.
template <int V, int P>
HWY_INLINE void add_values(const CpuAttention& op, int64_t begin, int64_t end, int64_t h, int64_t i) {
  const FloatTag tag;
  float* out = op.out + h * op.rank + i;
  hn::Vec<FloatTag> sums[V][P];
  DSV32_UNROLL for (int v = 0; v < V; ++v) {
    DSV32_UNROLL for (int p = 0; p < P; ++p) sums[v][p] = hn::LoadU(tag, out + v * op.rank + p * kPartLanes);
  }
  sum_tile(
      op.weights + h * kBlock, kBlock, end - begin, [&](int64_t j) { return op.rows[begin + j] + i; }, sums);
  DSV32_UNROLL for (int v = 0; v < V; ++v) {
    DSV32_UNROLL for (int p = 0; p < P; ++p) hn::StoreU(sums[v][p], tag, out + v * op.rank + p * kPartLanes);
  }
}

// The same for all heads, while these values of the rows are in the first-level cache.
template <int P>
void add_values(const CpuAttention& op, int64_t begin, int64_t end, int64_t i) {
  int64_t h = 0;
  for (; h + kSums <= op.n_heads; h += kSums) add_values<kSums, P>(op, begin, end, h, i);
  for (; h < op.n_heads; ++h) add_values<1, P>(op, begin, end, h, i);
}

// out[h] += the weighted rows of a block.
void add_rows(const CpuAttention& op, int64_t begin, int64_t end) {
  int64_t i = 0;
  for (; i + kSumLanes <= op.rank; i += kSumLanes) add_values<kSumParts>(op, begin, end, i);
  for (; i < op.rank; i += kPartLanes) add_values<1>(op, begin, end, i);
}

// Reads rows once, in blocks that stay in the second-level cache between scores and sums. When a larger score
// comes, the earlier sums are rescaled to it.
void attend(const CpuAttention& op) {
  std::vector<HeadSum> heads(static_cast<size_t>(op.n_heads));
  std::fill_n(op.out, op.n_heads * op.rank, 0.0f);
  for (int64_t begin = 0; begin < op.n_rows; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, op.n_rows);
    score_rows(op, begin, end);
    for (int64_t h = 0; h < op.n_heads; ++h) {
      const float factor =
          exponentials(op.weights + h * kBlock, end - begin, op.scale, heads[static_cast<size_t>(h)]);
      if (begin > 0 && factor != 1.0f) multiply(op.out + h * op.rank, op.rank, factor);
    }
    add_rows(op, begin, end);
  }
  for (int64_t h = 0; h < op.n_heads; ++h)
    multiply(op.out + h * op.rank, op.rank, 1.0f / heads[static_cast<size_t>(h)].sum);
}

}  // namespace HWY_NAMESPACE
}  // namespace dsv32
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace dsv32 {
namespace {

HWY_EXPORT(decode_e4m3);
HWY_EXPORT(decode_bf16);
HWY_EXPORT(decode_keys);
HWY_EXPORT(score_keys);
HWY_EXPORT(select_largest);
HWY_EXPORT(attend);

}  // namespace

void cpu_decode_e4m3(const uint8_t* values, int64_t n, float scale, float* out) {
  HWY_DYNAMIC_DISPATCH(decode_e4m3)(values, n, scale, out);
}

void cpu_decode_bf16(const uint8_t* in, int64_t n, float* out) {
  HWY_DYNAMIC_DISPATCH(decode_bf16)(in, n, out);
}

void cpu_decode_keys(const uint8_t* keys, int64_t dim, const float* scales, float* out) {
  HWY_DYNAMIC_DISPATCH(decode_keys)(keys, dim, scales, out);
}

void cpu_score_keys(const float* keys, int64_t dim, const float* q, const float* weights, int64_t n_heads,
                    int64_t n_keys, float* scores) {
  HWY_DYNAMIC_DISPATCH(score_keys)(keys, dim, q, weights, n_heads, n_keys, scores);
}

void cpu_select_largest(const float* scores, int64_t n, int64_t k, int32_t* selected) {
  HWY_DYNAMIC_DISPATCH(select_largest)(scores, n, k, selected);
}

void cpu_attend(const CpuAttention& op) { HWY_DYNAMIC_DISPATCH(attend)(op); }

}  // namespace dsv32

#endif  // HWY_ONCE
