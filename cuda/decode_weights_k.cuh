// A lane's weights of a step as fp16 (decode_weights.cuh): Q4_K, Q5_K and Q6_K. Their codes are bit fields, their
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
