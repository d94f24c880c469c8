// A lane's weights of a step as fp16 (decode_weights.cuh): Q2_K to Q6_K. Their codes are bit fields, their
// scales integers of few bits.
#pragma once

#include "cuda/decode_weights.cuh"

namespace dsv32::cuda::decode {

// Lower nibbles are the codes of an even group of 32, upper nibbles those of the next. Q5_K's fifth bits: a
// byte has those of one value of all eight groups.
template <TensorType kType>
requires kIsK45<kType>
struct LaneRow<kType> {
  static constexpr bool kHasD = true, kIsFive = kType == TensorType::q5_k;

  uint32_t words[8], fifth[kIsFive ? 8 : 1];
  uint32_t scale[2], constant[2];  // for nibbles where they lie; the constant subtracts 1024
  uint32_t mins[1];
  float d, dmin;
  int i;

  DSV32_DEVICE void load(const uint8_t* row, const Lane<kType>& lane) {
    i = lane.i;
    if constexpr (kIsFive) load_aligned(row + 16, fifth);
    load_aligned(row + (kIsFive ? 48 : 16) + 32 * i, words);
    const uint4 head = *reinterpret_cast<const uint4*>(row);
    const float2 both = unpack_f16(head.x);
    d = both.x, dmin = both.y;
    // Bytes: two scales, two mins, all times four (k_scales).
    const uint32_t upper = __byte_perm(head.y, head.z, lane.own) * lane.factor,
                   lower = __byte_perm(head.w * 4, head.w >> 2, lane.own),
                   all = (upper & lane.first) | (lower & lane.last);
    const auto of = [&](uint32_t selector, uint32_t factor, uint32_t sum) {
      return fma2(__byte_perm(all, 0x64646464u, selector), factor, sum);  // of 1024 + 4 s
    };
    scale[0] = of(0x4040, halves(1.0f / 4), halves(-256));
    scale[1] = of(0x4141, halves(1.0f / 64), halves(-16));
    constant[0] = multiply2(scale[0], halves(-1024)), constant[1] = multiply2(scale[1], halves(-1024));
    mins[0] = of(0x4342, halves(1.0f / 4), halves(-256));
  }
  DSV32_DEVICE uint4 piece(int p, const uint32_t*) const {
    const int upper = p / 4;
    uint32_t out[4];
    DSV32_UNROLL for (int k = 0; k < 4; ++k) {
      const int at = p % 4 * 2 + k / 2, odd = k % 2;
      uint32_t high = kThousand;
      if constexpr (kIsFive) {
        const uint32_t turn = odd ? 4 + 2 * i : (2 * i - 4) & 31,
                       bits = __funnelshift_r(fifth[at], fifth[at], turn);
        high = upper ? mask_onto(bits << 3, 0x01000100u, high) : mask_onto(bits, 0x00100010u, high);
      }
      const uint32_t v = mask_onto(words[at] >> (8 * odd), upper ? 0x00f000f0u : 0x000f000fu, high);
      out[k] = fma2(v, scale[upper], constant[upper]);
    }
    return {out[0], out[1], out[2], out[3]};
  }
};

// Each two bits of a byte are a code of another group of 16. Q3_K's third bits: a byte has those of one value
// of eight groups. Lane i has half i / 2 of a block, from byte 16 (i % 2) on.
template <TensorType kType>
requires kIsK23<kType>
struct LaneRow<kType> {
  static constexpr bool kHasD = true, kIsThree = kType == TensorType::q3_k;

  uint32_t words[4], third[kIsThree ? 4 : 1];
  uint32_t scale[4], constant[4];  // for codes where they lie, 4^k times too large
  uint32_t mins[2];
  float d, dmin;

  DSV32_DEVICE void load(const uint8_t* row, const Lane<kType>& lane) {
    const int half = lane.i / 2, odd = lane.i % 2;
    if constexpr (kIsThree) {
      load_words(row + 32 + 32 * half + 16 * odd, words);
      load_words(row + 16 * odd, third);
      uint32_t packed[3];  // scales: two words of lower four bits, one of upper two bits
      load_words(row + 96, packed);
      DSV32_UNROLL for (int k = 0; k < 3; ++k) packed[k] >>= 4 * half + 8 * odd;
      DSV32_UNROLL for (int k = 0; k < 4; ++k) {
        third[k] >>= 4 * half;
        const uint32_t upper = packed[2] << (k / 2 ? 2 : 4),
                       both = (packed[k / 2] & 0x0f0f0f0fu) | (upper & 0x30303030u),
                       s = __byte_perm(both, 0x64646464u, k % 2 ? 0x4242 : 0x4040);
        scale[k] =
            fma2(s, halves(1) - k * kTwoBitsLess, halves(-1056) - k * kTwoBitsLess);  // minus 32, times 4^-k
        // Minus 1024 and the code's bias. Except in the first group their product with a scale is exact in
        // fp16.
        constant[k] = multiply2(scale[k], halves(-1024) + (0x00040004u << 2 * k));
      }
      d = Codes<kType>::d(row);
    } else {
      const auto* from = reinterpret_cast<const uint32_t*>(row + 16 + 32 * half + 16 * odd);
      DSV32_UNROLL for (int k = 0; k < 4; ++k) words[k] = from[k];
      DSV32_UNROLL for (int k = 0; k < 2; ++k) {
        const uint32_t packed = reinterpret_cast<const uint32_t*>(row)[2 * half + k] >> (8 * odd);
        mins[k] = bytes_to_halves(packed >> 4 & 0x0f0f0f0fu, 0x4240);
        DSV32_UNROLL for (int u = 0; u < 2; ++u) {
          const int at = 2 * k + u;
          const uint32_t s = __byte_perm(packed & 0x0f0f0f0fu, 0x64646464u, u ? 0x4242 : 0x4040);
          scale[at] =
              fma2(s, halves(1) - at * kTwoBitsLess, halves(-1024) - at * kTwoBitsLess);  // times 4^-at
          constant[at] = multiply2(scale[at], halves(-1024));
        }
      }
      d = load_f16(row + 80), dmin = load_f16(row + 82);
    }
  }
  DSV32_DEVICE uint4 piece(int p, const uint32_t*) const {
    const int group = p / 2;
    uint32_t out[4];
    DSV32_UNROLL for (int k = 0; k < 4; ++k) {
      const int at = p % 2 * 2 + k / 2, odd = k % 2;
      const uint32_t low = words[at] >> (8 * odd), mask = 0x00030003u << 2 * group;
      if constexpr (kIsThree) {
        const uint32_t bits = odd ? third[at] >> (6 - group) : third[at] << (group + 2);
        const uint32_t v = mask_onto(low, mask, mask_onto(bits, 0x00040004u << 2 * group, kThousand));
        out[k] = group == 0 ? multiply2(subtract2(v, halves(1024 + 4)), scale[0])
                            : fma2(v, scale[group], constant[group]);
      } else {
        out[k] = fma2(mask_onto(low, mask, kThousand), scale[group], constant[group]);
      }
    }
    return {out[0], out[1], out[2], out[3]};
  }
};

// Lane i has half i / 2 of a block: the 32 values from 32 (i % 2) on, and those 64 further. They are 32 bytes
// of four lower bits, and two of the four bit pairs of 32 bytes more.
template <>
struct LaneRow<TensorType::q6_k> {
  using Format = Codes<TensorType::q6_k>;
  static constexpr bool kHasD = true;

  uint32_t words[8], upper[8], scale[4], constant[2];
  float d;
  int i;

  DSV32_DEVICE void load(const uint8_t* row, const Lane<TensorType::q6_k>& lane) {
    i = lane.i;
    load_words(row + 32 * i, words);
    load_words(row + 128 + 32 * (i / 2), upper);
    d = Format::d(row);
    // Four signed scales: two neighbours, and two neighbours four bytes on.
    const auto* pairs = reinterpret_cast<const uint16_t*>(row + 192 + i / 2 * 8 + i % 2 * 2);
    const uint32_t all = (pairs[0] | static_cast<uint32_t>(pairs[2]) << 16) ^ 0x80808080u;
    DSV32_UNROLL for (int k = 0; k < 4; ++k) scale[k] =
        subtract2(__byte_perm(all, 0x64646464u, 0x4040 | k << 8 | k), halves(1024 + 128));
    DSV32_UNROLL for (int k = 0; k < 2; ++k) constant[k] = multiply2(scale[2 + k], halves(-96));
  }
  // Lower nibbles become 1024 + code. Upper nibbles lie 16 times as high: with the exponent of 64 they make
  // 64 + code. Subtracting 64 and the bias 32, 96 in all, times a scale is exact in fp16.
  DSV32_DEVICE uint4 piece(int p, const uint32_t*) const {
    const int high = p / 4;
    uint32_t out[4];
    DSV32_UNROLL for (int k = 0; k < 4; ++k) {
      const int at = p % 4 * 2 + k / 2, odd = k % 2;
      const uint32_t bits = odd ? upper[at] >> (4 + i % 2 * 2) : upper[at] * (i % 2 ? 4u : 16u);
      const uint32_t v =
          mask_onto(words[at] >> (8 * odd), high ? 0x00f000f0u : 0x000f000fu,
                    mask_onto(bits, high ? 0x03000300u : 0x00300030u, high ? halves(64) : kThousand));
      out[k] = high ? fma2(v, scale[p / 2], constant[p / 2 - 2])
                    : multiply2(subtract2(v, halves(1024 + 32)), scale[p / 2]);
    }
    return {out[0], out[1], out[2], out[3]};
  }
};

}  // namespace dsv32::cuda::decode
