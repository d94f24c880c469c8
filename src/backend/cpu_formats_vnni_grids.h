// IQ1, IQ2 and IQ3: codes are places in a table of points, of eight or four values each.
//
// A 64-bit lane holds one group of 32 values, in register s its values 8 s on. Whatever describes a group is
// brought to its lane once; from there a byte is the bits from some place on, one instruction for eight.
// Points are looked up as they are stored, 16 bits of small codes: in registers or, in large tables, by
// gathers where the CPU is quicker at these; both give the same bits. A code and the sign above it then name
// a value. For functions marked DSV32_VNNI or DSV32_VNNI_INLINE only.
#pragma once

#include <array>

#include "backend/cpu_formats_vnni.h"
#include "gguf/quant_codes.h"

namespace dsv32::vnni {

// ---- Lanes ----

// Where the eight bytes of a lane come from: byte i from bit `first` + i * `step` on, around the lane's end.
constexpr int64_t every(int step, int first) {
  uint64_t places = 0;
  for (int i = 0; i < 8; ++i) places |= static_cast<uint64_t>((first + i * step) & 63) << (8 * i);
  return static_cast<int64_t>(places);
}

// Eight bits from each of the places.
DSV32_VNNI_INLINE __m512i pick(__m512i lanes, int64_t places) {
  return _mm512_multishift_epi64_epi8(_mm512_set1_epi64(places), lanes);
}

// Of 64 bytes: lane k is bytes of(k, 0) to of(k, 7).
struct alignas(64) Bytes64 {
  uint8_t bytes[64];
};
template <class Of>
constexpr Bytes64 bytes_by_lane(Of of) {
  Bytes64 order{};
  for (int k = 0; k < 8; ++k)
    for (int i = 0; i < 8; ++i) order.bytes[8 * k + i] = static_cast<uint8_t>(of(k, i));
  return order;
}

// The block's bytes in an order; a block is at most 64 bytes from there on.
template <const Bytes64& kOrder, class Block>
DSV32_VNNI_INLINE __m512i load_lanes(const Block* at) {
  constexpr uint64_t kInBlock = ~uint64_t{0} >> (64 - sizeof(Block));
  return _mm512_permutexvar_epi8(_mm512_load_si512(kOrder.bytes), _mm512_maskz_loadu_epi8(kInBlock, at));
}

// Lane k is byte k.
DSV32_VNNI_INLINE __m512i lanes_of_bytes(const uint8_t* eight) {
  return _mm512_cvtepu8_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(eight)));
}

// Eight signs a byte from codes of seven bits, from bit kShift of a byte on: the eighth is the parity of the
// others. A row of the matrix tells which bits' parity an output bit is, the lowest bit in the last byte.
template <int kShift>
DSV32_VNNI_INLINE __m512i signs_of(__m512i codes) {
  constexpr int64_t kMatrix = 0x010204081020407f << kShift;
  return _mm512_gf2p8affine_epi64_epi8(codes, _mm512_set1_epi64(kMatrix), 0);
}

// 2 n + 1 times d in both halves of a lane, for n from the bit after `places` on.
DSV32_VNNI_INLINE __m512 odd_scales(__m512i lanes, __m512i places, int n_bits, uint16_t d) {
  const __m512i twice = _mm512_multishift_epi64_epi8(places, lanes);
  const __m512i mask = _mm512_set1_epi32((2 << n_bits) - 2);
  const __m512i odd = _mm512_ternarylogic_epi32(twice, mask, _mm512_set1_epi32(1), 0xea);
  return _mm512_mul_ps(_mm512_cvtepi32_ps(odd), half_everywhere(d));
}
DSV32_VNNI_INLINE __m512 odd_scales(__m512i lanes, int bit, int n_bits, uint16_t d) {
  return odd_scales(lanes, _mm512_set1_epi32((bit - 1) & 63), n_bits, d);
}

// ---- Points ----

// Lookups in pairs of registers, chosen by the upper bits.
template <size_t kPoints>
DSV32_VNNI_INLINE __m512i look_up(const uint16_t* table, __m512i indices) {
  if constexpr (kPoints == 64) {
    return _mm512_permutex2var_epi16(_mm512_loadu_si512(table), indices, _mm512_loadu_si512(table + 32));
  } else {
    const __mmask32 is_upper = _mm512_test_epi16_mask(indices, _mm512_set1_epi16(kPoints / 2));
    return _mm512_mask_blend_epi16(is_upper, look_up<kPoints / 2>(table, indices),
                                   look_up<kPoints / 2>(table + kPoints / 2, indices));
  }
}

template <auto& kCodes>
struct LookedUp {
  // indices, points: of 16 bits.
  DSV32_VNNI_INLINE __m512i points(__m512i indices) { return look_up<kCodes.size()>(kCodes.data(), indices); }
};

// By gathers, which read 32 bits: one has the point below what follows it, the other above what precedes it.
// On an Intel CPU of 2023 the products take 0.4 to 0.9 of the time that they take with lookups; on an AMD one
// of 2024 1.1 to 2.7 of it.
template <auto& kCodes>
struct Gathered {
  static constexpr auto kPadded = [] {
    std::array<uint16_t, kCodes.size() + 2> padded{};
    for (size_t i = 0; i < kCodes.size(); ++i) padded[i + 1] = kCodes[i];
    return padded;
  }();

  DSV32_VNNI_INLINE __m512i points(__m512i indices) {
    const __m512i lower = _mm512_set1_epi32(0xffff);
    const __m512i even = _mm512_i32gather_epi32(_mm512_and_si512(indices, lower), kPadded.data() + 1, 2);
    const __m512i odd = _mm512_i32gather_epi32(_mm512_srli_epi32(indices, 16), kPadded.data(), 2);
    return _mm512_ternarylogic_epi32(lower, even, odd, 0xca);
  }
};

// ---- Values ----

// What codes mean: kRaise plus the value of code i as byte i, kRaise less it as byte 8 + i.
constexpr int kRaise = 64;
template <size_t kCodes>
constexpr std::array<uint8_t, 16> signed_values(const uint8_t (&values)[kCodes]) {
  std::array<uint8_t, 16> bytes{};
  for (size_t i = 0; i < 8; ++i) {
    bytes[i] = static_cast<uint8_t>(kRaise + values[i % kCodes]);
    bytes[8 + i] = static_cast<uint8_t>(kRaise - values[i % kCodes]);
  }
  return bytes;
}
inline constexpr auto kIq2Values = signed_values({8, 25, 43, 0});
inline constexpr auto kIq3xxsValues = signed_values({4, 12, 20, 28, 36, 44, 52, 62});
inline constexpr auto kIq3sValues = signed_values({1, 3, 5, 7, 9, 11, 13, 15});

template <class Block, int kSums, int kBias>
struct GridFormat : RaisedFormat<kSums, kBias> {
  using typename RaisedFormat<kSums, kBias>::X;
  static constexpr int first_value(int s, int k) { return 32 * k + 8 * s; }

  DSV32_VNNI_INLINE void prepare_extra(const float* x, X& out) {
    RaisedFormat<kSums, kBias>::prepare_extra(x, out);
    out.unit[0] *= kUnit<Block>;
  }
};

template <class Block, int kSums, const std::array<uint8_t, 16>& kSignedValues>
struct SignedFormat : GridFormat<Block, kSums, kRaise> {
  // Codes of three bits, or two and any third.
  DSV32_VNNI_INLINE __m512i values(__m512i points, int64_t codes, __m512i signs, int first_sign) {
    const __m512i names = select(7, pick(points, codes), pick(signs, every(1, first_sign - 3)));
    return _mm512_permutexvar_epi8(names, lanes_of(kSignedValues.data()));
  }
  // signs of register s from bit `first_sign` + s * `next` of a lane on.
  DSV32_VNNI_INLINE void unpack_iq2(__m512i points, __m512i signs, int first_sign, int next, __m512i* out) {
    HWY_UNROLL(4)
    for (int s = 0; s < 4; ++s) out[s] = values(points, every(2, 16 * s), signs, first_sign + next * s);
  }
  // first, second: the first and the second four points of each lane.
  DSV32_VNNI_INLINE void unpack_iq3(__m512i first, __m512i second, __m512i signs, __m512i* out) {
    HWY_UNROLL(4)
    for (int s = 0; s < 4; ++s) out[s] = values(s < 2 ? first : second, every(4, 32 * (s % 2)), signs, 8 * s);
  }
};

// Eight times codes of 0 to 2, which stand for -1 to 1.
DSV32_VNNI_INLINE __m512i eightfold(__m512i points, int s) {
  return _mm512_and_si512(pick(points, every(2, 16 * s - 3)), bytes_of(0x18));
}

// Bytes of a lane to 16 bits each: its first four, its second four.
inline constexpr Bytes64 kFirstFour =
    bytes_by_lane([](int k, int i) { return i % 2 ? 0x80 : k % 2 * 8 + i / 2; });
inline constexpr Bytes64 kSecondFour =
    bytes_by_lane([](int k, int i) { return i % 2 ? 0x80 : k % 2 * 8 + 4 + i / 2; });
DSV32_VNNI_INLINE __m512i widen(__m512i lanes, const Bytes64& which) {
  return _mm512_shuffle_epi8(lanes, _mm512_load_si512(which.bytes));
}

// ---- The formats ----

struct VnniIQ2_XXS : SignedFormat<BlockIQ2_XXS, 1, kIq2Values> {
  using Block = BlockIQ2_XXS;

  DSV32_VNNI_INLINE void unpack(const Block* at, Stage& out) {
    const __m512i lanes = _mm512_loadu_si512(at->qs);
    const __m512i signs = signs_of<0>(pick(lanes, 0x352e2720352e2720));
    unpack_iq2(LookedUp<kIq2xxsCodes>::points(widen(lanes, kFirstFour)), signs, 0, 8, out.bytes);
    out.scales[0] = odd_scales(lanes, 60, 4, at->d);
  }
};

template <class Table>
struct VnniIQ2_XS : SignedFormat<BlockIQ2_XS, 2, kIq2Values> {
  using Block = BlockIQ2_XS;

  DSV32_VNNI_INLINE void unpack(const Block* at, Stage& out) {
    const __m512i lanes = _mm512_loadu_si512(at->qs);
    const __m512i points = Table::points(_mm512_and_si512(lanes, _mm512_set1_epi16(511)));
    unpack_iq2(points, signs_of<1>(lanes), 8, 16, out.bytes);
    const __m512i scales = lanes_of_bytes(at->scales);
    for (int i = 0; i < 2; ++i) out.scales[i] = odd_scales(scales, 4 * i, 4, at->d);
  }
};

template <class Table>
struct VnniIQ2_S : SignedFormat<BlockIQ2_S, 2, kIq2Values> {
  using Block = BlockIQ2_S;

  DSV32_VNNI_INLINE void unpack(const Block* at, Stage& out) {
    const __m512i lower = _mm512_cvtepu8_epi16(load<__m256i>(at->qs));
    const __m512i upper = pick(lanes_of_bytes(at->qh), 0x0600040002000000);
    const __m512i indices = _mm512_ternarylogic_epi32(lower, upper, _mm512_set1_epi16(0x300), 0xf8);
    const __m512i signs = _mm512_cvtepu32_epi64(load<__m256i>(at->signs));
    unpack_iq2(Table::points(indices), signs, 0, 8, out.bytes);
    const __m512i scales = lanes_of_bytes(at->scales);
    for (int i = 0; i < 2; ++i) out.scales[i] = odd_scales(scales, 4 * i, 4, at->d);
  }
};

// A group's delta: -1/8 begins with nine too much in its bytes, 1/8 with seven.
template <class Table>
struct VnniIQ1_S : GridFormat<BlockIQ1_S, 1, 9> {
  using Block = BlockIQ1_S;
  using X = Activations<4>;
  struct Stage : Weights<1> {
    __mmask8 is_negative;
  };
  static constexpr Bytes64 kLanes =
      bytes_by_lane([](int k, int i) { return i < 4 ? 2 + 4 * k + i : 34 + 2 * k + i % 2; });

  DSV32_VNNI_INLINE void prepare_extra(const float*, X& out) {
    GridFormat<BlockIQ1_S, 1, 9>::store_bias(9, 0, out, out.start);
    GridFormat<BlockIQ1_S, 1, 9>::store_bias(7, 0, out, out.start + 2);
    out.unit[0] *= kUnit<Block>;
  }
  DSV32_VNNI_INLINE Sums start(const Stage& w, const X& x, int) {
    const auto either = [&](int i) DSV32_VNNI {
      return _mm512_mask_mov_epi64(_mm512_load_si512(x.start[2 + i]), w.is_negative,
                                   _mm512_load_si512(x.start[i]));
    };
    return {either(0), _mm512_setzero_si512(), either(1)};
  }

  DSV32_VNNI_INLINE void unpack(const Block* at, Stage& out) {
    const __m512i lanes = load_lanes<kLanes>(at);
    const __m512i points =
        Table::points(_mm512_and_si512(pick(lanes, 0x3918361033083000), _mm512_set1_epi16(0x7ff)));
    HWY_UNROLL(4)
    for (int s = 0; s < 4; ++s) out.bytes[s] = eightfold(points, s);
    out.is_negative = _mm512_movepi64_mask(lanes);
    out.scales[0] = odd_scales(lanes, 60, 3, at->d);
  }
};

// Eight values' delta: nine too much in their bytes with -1/8, and two more with 1/8.
template <class Table>
struct VnniIQ1_M : GridFormat<BlockIQ1_M, 2, 9> {
  using Block = BlockIQ1_M;
  static constexpr Bytes64 kLanes = bytes_by_lane([](int k, int i) {
    return i < 4 ? 4 * k + i : i < 6 ? 32 + 2 * k + i % 2 : 48 + k / 2 * 2 + i % 2;
  });

  DSV32_VNNI_INLINE void unpack(const Block* at, Stage& out) {
    const auto d = static_cast<uint16_t>(_pext_u64(load<uint64_t>(at->scales), 0xf000f000f000f000));
    const __m512i lanes = load_lanes<kLanes>(at);
    const __m512i points =
        Table::points(_mm512_and_si512(pick(lanes, 0x2c18281024082000), _mm512_set1_epi16(0x7ff)));
    HWY_UNROLL(4)
    for (int s = 0; s < 4; ++s) {
      const __mmask8 is_positive =
          _mm512_testn_epi64_mask(lanes, _mm512_set1_epi64(int64_t{8} << (32 + 4 * s)));
      const __m512i bytes = eightfold(points, s);
      out.bytes[s] = _mm512_mask_or_epi64(bytes, is_positive, bytes, bytes_of(2));
    }
    HWY_UNROLL(2)
    for (int i = 0; i < 2; ++i) {
      const int even = 47 + 3 * i, odd = even + 6;
      const __m512i places = _mm512_broadcast_i32x4(_mm_setr_epi32(even, even, odd, odd));
      out.scales[i] = odd_scales(lanes, places, 3, d);
    }
  }
};

struct VnniIQ3_XXS : SignedFormat<BlockIQ3_XXS, 1, kIq3xxsValues> {
  using Block = BlockIQ3_XXS;

  DSV32_VNNI_INLINE void unpack(const Block* at, Stage& out) {
    const __m512i indices = _mm512_loadu_si512(at->qs);
    const __m512i words = _mm512_cvtepu32_epi64(load<__m256i>(at->signs));
    unpack_iq3(LookedUp<kIq3xxsCodes>::points(widen(indices, kFirstFour)),
               LookedUp<kIq3xxsCodes>::points(widen(indices, kSecondFour)),
               signs_of<0>(pick(words, 0x150e0700150e0700)), out.bytes);
    out.scales[0] = odd_scales(words, 28, 4, at->d);
  }
};

template <class Table>
struct VnniIQ3_S : SignedFormat<BlockIQ3_S, 1, kIq3sValues> {
  using Block = BlockIQ3_S;

  DSV32_VNNI_INLINE void unpack(const Block* at, Stage& out) {
    const __m512i lower = _mm512_loadu_si512(at->qs), ninth = lanes_of_bytes(at->qh);
    const auto points = [=](const Bytes64& which, int64_t places) DSV32_VNNI {
      return Table::points(
          _mm512_ternarylogic_epi32(widen(lower, which), pick(ninth, places), _mm512_set1_epi16(256), 0xf8));
    };
    unpack_iq3(points(kFirstFour, 0x0300020001000000), points(kSecondFour, 0x0700060005000400),
               _mm512_cvtepu32_epi64(load<__m256i>(at->signs)), out.bytes);
    const __m512i nibbles = _mm512_set1_epi64(load<uint32_t>(at->scales));
    const __m512i places = _mm512_setr_epi32(63, 63, 3, 3, 7, 7, 11, 11, 15, 15, 19, 19, 23, 23, 27, 27);
    out.scales[0] = odd_scales(nibbles, places, 4, at->d);
  }
};

template <template <class> class Format, auto& kCodes>
const CpuKernels* points_kernels(bool gathers) {
  return gathers ? &VnniFormat<Format<Gathered<kCodes>>>::kKernels
                 : &VnniFormat<Format<LookedUp<kCodes>>>::kKernels;
}

}  // namespace dsv32::vnni
