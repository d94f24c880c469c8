// IQ1: points of eight values of -1, 0 and 1, from a table of 2048, and a delta of 1/8 or -1/8 for eight of
// them or more. They are gathered on any CPU: even on an AMD one of 2024 the products take 0.6 to 1.0 of the
// time that they take with lookups in registers, of which a table of this size needs 32.
// For functions marked DSV32_VNNI or DSV32_VNNI_INLINE only.
#pragma once

#include "backend/cpu_formats_vnni_grids.h"

namespace dsv32::vnni {

// kWords of 32 bits, and not a byte behind them, in an order of bytes.
template <int kWords>
DSV32_VNNI_INLINE __m512i load_in_order(const void* from, const Bytes64& order) {
  return _mm512_permutexvar_epi8(order.load(), _mm512_maskz_loadu_epi32((1 << kWords) - 1, from));
}

// Eight bytes a point, eight times its values and raised by 8, are gathered a register at a time, between the
// products with those before. Register s holds points s; 64 bits k of it are group k % 2 * 4 + k / 2. Groups
// with a delta of -1/8 begin with nine too much in their bytes, those with 1/8 with seven.
struct VnniIQ1_S : GridFormat<BlockIQ1_S, 8> {
  using X = Activations<4>;
  struct Stage : Weights<1> {  // bytes: the indices of registers 2 i and 2 i + 1
    __mmask8 is_negative;
  };
  static constexpr auto kPoints = grid_values<uint64_t>(kIq1Codes, {0, 8, 16});
  static constexpr int first_value(int s, int lane) {
    return 128 * (lane / 2 % 2) + 32 * (lane / 4) + 8 * s + 4 * (lane % 2);
  }

  DSV32_VNNI_INLINE void prepare_extra(const float*, X& out) {
    store_bias(9, 0, out, out.start);
    store_bias(7, 0, out, out.start + 2);
    scale_unit(out);
  }
  DSV32_VNNI_INLINE __m512i weights(const Stage& w, int s) {
    const __m512i pair = w.bytes[s / 2];
    const __m256i indices = s % 2 ? _mm512_extracti64x4_epi64(pair, 1) : _mm512_castsi512_si256(pair);
    return _mm512_mask_i32gather_epi64(_mm512_setzero_si512(), 0xff, indices, kPoints.data(), 8);
  }
  DSV32_VNNI_INLINE Sums start(const Stage& w, const X& x, int) {
    const auto either = [&](int i) DSV32_VNNI {
      return _mm512_mask_mov_epi64(_mm512_load_si512(x.start[2 + i]), w.is_negative,
                                   _mm512_load_si512(x.start[i]));
    };
    return {either(0), _mm512_setzero_si512(), either(1)};
  }

  // Eight bytes l have what indices of points i and i + 2 of groups g and g + 4 are made of, for i = l / 4
  // and g = l % 4: their bytes of qs, then the words of qh.
  static constexpr Bytes64 kOrder = by_eights([](int l, int i) {
    const int group = l % 4 + i / 2 % 2 * 4;
    return i < 4 ? 4 * group + l / 4 + i % 2 * 2 : 32 + 2 * group + i % 2;
  });
  static constexpr Bytes64 kIndices = by_eights(
      [](int l, int i) { return i % 2 ? 32 + i / 4 * 16 + 3 * (l / 4 + i / 2 % 2 * 2) : i / 2 * 8; });
  // Of four words of qh: the scale first, delta's bit on top.
  static constexpr Bytes64 kTops = by_eights([](int k, int i) { return k / 2 * 16 + (i < 7 ? 12 : 8); });

  DSV32_VNNI_INLINE void unpack(const Block* at, Stage& out) {
    const __m512i words = load_in_order<12>(at->qs, kOrder), in_table = _mm512_set1_epi32(0x7ff);
    const __m512i indices = _mm512_multishift_epi64_epi8(kIndices.load(), words);
    out.bytes[0] = _mm512_and_si512(indices, in_table);
    out.bytes[1] = _mm512_and_si512(_mm512_srli_epi32(indices, 16), in_table);
    const __m512i tops = _mm512_multishift_epi64_epi8(kTops.load(), lanes_of(at->qh));
    out.is_negative = _mm512_movepi64_mask(tops);
    out.scales[0] = odd_scales<3>(tops);
  }
};

// Of indices with delta's bit on top. A nibble is four times a code and, where delta is 1/8, one more; its
// double is eight times a value and 9. Nibbles are rotated to where the doubles are.
inline constexpr auto kIq1Nibbles = [] {
  std::array<uint32_t, 4096> nibbles{};
  for (size_t n = 0; n < 4096; ++n)
    nibbles[n] = std::rotl(4 * kNibblesOf<kIq1Codes, 2>[n % 2048] + (n < 2048 ? 0x11111111u : 0u), 1);
  return nibbles;
}();

struct VnniIQ1_M : GridFormat<BlockIQ1_M, 9> {
  using Table = GatheredNibbles<kIq1Nibbles>;
  // A group's bytes of qs and of qh and the word of its scales.
  static constexpr Bytes64 kGroups = by_eights([](int k, int i) {
    return i < 4 ? 4 * k + i : i < 6 ? 32 + 2 * k + i % 2 : 48 + k / 2 * 2 + i % 2;
  });

  DSV32_VNNI_INLINE void unpack(const Block* at, Stage& out) {
    const __m512i groups = load_in_order<14>(at, kGroups);
    const auto points = Table::points(pick(groups, 0x2c18281024082000));
    HWY_UNROLL(4)
    for (int s = 0; s < 4; ++s)
      out.bytes[s] = _mm512_and_si512(Table::codes(points, s / 2, s % 2 * 4), bytes_of(0x1e));
    const __m512i places = _mm512_broadcast_i32x4(_mm_setr_epi32(48, 51, 54, 57));
    out.scales[0] = odd_scales<3>(_mm512_multishift_epi64_epi8(places, groups));
  }
};

}  // namespace dsv32::vnni
