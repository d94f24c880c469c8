// IQ1, IQ2 and IQ3: codes are indices into a table of points, of eight or four values each.
//
// A 32-bit lane holds sixteen values over the four registers, values 4 s to 4 s + 3 in register s; two lanes
// are a group. All data of a group are first brought into its 64 bits; then one instruction extracts eight
// bytes from any bits of them. Points are looked up as stored, 16 bits of small codes: in registers or, for
// large tables, by gathers if the CPU gathers faster; both give the same bits. In IQ2 and IQ3 a code with its
// sign above is the index of a value. For functions marked DSV32_VNNI or DSV32_VNNI_INLINE only.
#pragma once

#include <array>

#include "backend/cpu_formats_vnni.h"
#include "gguf/quant_codes.h"

namespace dsv32::vnni {

// ---- Lanes ----

// From which bits of a group's 64 the eight bytes of its two lanes come: byte i of a lane begins at bit
// `first` + i * `step`, in the second lane `next` bits later, modulo 64.
constexpr int64_t places(int next, int first, int step) {
  uint64_t bits = 0;
  for (int i = 0; i < 8; ++i)
    bits |= static_cast<uint64_t>((i / 4 * next + first + i % 4 * step) & 63) << (8 * i);
  return static_cast<int64_t>(bits);
}

// Takes eight bits from each of the places.
DSV32_VNNI_INLINE __m512i pick(__m512i groups, int64_t places) {
  return _mm512_multishift_epi64_epi8(_mm512_set1_epi64(places), groups);
}

// 64 bytes: bytes 8 k to 8 k + 7 are of(k, 0) to of(k, 7).
struct alignas(64) Bytes64 {
  uint8_t bytes[64];
  DSV32_VNNI __m512i load() const { return _mm512_load_si512(bytes); }
};
template <class Of>
constexpr Bytes64 by_eights(Of of) {
  Bytes64 order{};
  for (int k = 0; k < 8; ++k)
    for (int i = 0; i < 8; ++i) order.bytes[8 * k + i] = static_cast<uint8_t>(of(k, i));
  return order;
}

// Makes byte k the 64 bits of group k.
DSV32_VNNI_INLINE __m512i groups_of_bytes(const uint8_t* eight) {
  return _mm512_cvtepu8_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(eight)));
}

// Eight signs per byte, from a code of seven bits that begins at bit kShift: the eighth is the parity of the
// others. Each byte of the matrix names the bits whose parity is an output bit; the last byte is for the
// lowest bit.
template <int kShift>
DSV32_VNNI_INLINE __m512i signs_of(__m512i codes) {
  constexpr int64_t kMatrix = 0x010204081020407f << kShift;
  return _mm512_gf2p8affine_epi64_epi8(codes, _mm512_set1_epi64(kMatrix), 0);
}

// 2 n + 1, for n the lowest kBits bits of a lane.
template <int kBits>
inline constexpr auto kOdd = [] {
  std::array<float, 16> odd{};
  for (size_t i = 0; i < 16; ++i) odd[i] = static_cast<float>(2 * (i % (1 << kBits)) + 1);
  return odd;
}();
template <int kBits>
DSV32_VNNI_INLINE __m512 odd_scales(__m512i lanes) {
  return _mm512_permutexvar_ps(lanes, _mm512_loadu_ps(kOdd<kBits>.data()));
}

// ---- Points ----

// Looks up in pairs of registers; the upper bits of an index choose the pair.
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

// Points with codes of kBits bits, two points per lane. indices: 16 bits each; bits above the table's size
// are ignored. codes(): four codes of a lane's point, from code `first` on; bits above a code are undefined.
template <auto& kCodes, int kBits>
struct LookedUp {
  using Points = __m512i;
  DSV32_VNNI_INLINE Points points(__m512i indices) { return look_up<kCodes.size()>(kCodes.data(), indices); }
  DSV32_VNNI_INLINE __m512i codes(const Points& points, int point, int first) {
    return pick(points, places(32, 16 * point + kBits * first, kBits));
  }
};

// The same by gathers, from a table where code i of a point is nibble i / 4 of byte i % 4.
template <auto& kNibbles>
struct GatheredNibbles {
  struct Points {
    __m512i of_lane[2];
  };
  // The zeros are for masked lanes, of which there are none; without them the gather waits for an unrelated
  // register.
  DSV32_VNNI_INLINE __m512i gather(__m512i indices) {
    const __m512i in_table = _mm512_and_si512(indices, _mm512_set1_epi32(kNibbles.size() - 1));
    return _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), 0xffff, in_table, kNibbles.data(), 4);
  }
  DSV32_VNNI_INLINE Points points(__m512i indices) {
    return {gather(indices), gather(_mm512_srli_epi32(indices, 16))};
  }
  DSV32_VNNI_INLINE __m512i codes(const Points& points, int point, int first) {
    return _mm512_ror_epi32(points.of_lane[point], first);
  }
};

template <auto& kCodes, int kBits>
inline constexpr auto kNibblesOf = [] {
  std::array<uint32_t, kCodes.size()> nibbles{};
  for (size_t n = 0; n < kCodes.size(); ++n)
    for (int i = 0; i < 16 / kBits; ++i)
      nibbles[n] |= (kCodes[n] >> (kBits * i) & ((1u << kBits) - 1)) << (8 * (i % 4) + 4 * (i / 4));
  return nibbles;
}();
template <auto& kCodes, int kBits>
using Gathered = GatheredNibbles<kNibblesOf<kCodes, kBits>>;

// ---- Values ----

// The values of codes: byte i is kRaise plus the value of code i, byte 8 + i is kRaise minus that value.
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

// The scale of a block, as the bits of an f16.
template <class Block>
DSV32_VNNI_INLINE uint64_t half_of(const Block& b) {
  return b.d;
}
DSV32_VNNI_INLINE uint64_t half_of(const BlockIQ1_M& b) {
  return _pext_u64(load<uint64_t>(b.scales), 0xf000f000f000f000);
}

template <class BlockOfFormat, int kBias>
struct GridFormat : RaisedFormat<1, kBias> {
  using Block = BlockOfFormat;
  using typename RaisedFormat<1, kBias>::X;
  static constexpr int first_value(int s, int lane) { return 16 * lane + 4 * s; }

  DSV32_VNNI_INLINE void prepare_extra(const float* x, X& out) {
    RaisedFormat<1, kBias>::prepare_extra(x, out);
    scale_unit(out);
  }
  DSV32_VNNI_INLINE void scale_unit(Planes& out) {
    for (float& unit : out.unit) unit *= Block::kScaleFactor;
  }

  // d of each row's block: a multiple of 2^-24, and units are at least 2^-125, so their products are exact.
  DSV32_VNNI_INLINE __m128 scales_of_rows(const uint8_t* const* at) {
    const uint64_t halves = half(at, 0) | half(at, 1) | half(at, 2) | half(at, 3);
    return _mm_cvtph_ps(_mm_cvtsi64_si128(static_cast<int64_t>(halves)));
  }
  DSV32_VNNI_INLINE uint64_t half(const uint8_t* const* at, int r) {
    return half_of(*reinterpret_cast<const Block*>(at[r])) << (16 * r);
  }
};

template <class Block, const std::array<uint8_t, 16>& kSignedValues>
struct SignedFormat : GridFormat<Block, kRaise> {
  // codes: three bits, or two if the third is ignored. Signs begin at bit `first` of a group, its second
  // lane's `next` bits later.
  DSV32_VNNI_INLINE __m512i values(__m512i codes, __m512i signs, int next, int first) {
    const __m512i names = select(7, codes, pick(signs, places(next, first - 3, 1)));
    return _mm512_permutexvar_epi8(names, lanes_of(kSignedValues.data()));
  }
  // The signs of a point's eight values begin at bit `first` of a group, the next point's `next` bits later.
  template <class Table>
  DSV32_VNNI_INLINE void unpack_iq2(__m512i indices, __m512i signs, int next, int first, __m512i* out) {
    const auto points = Table::points(indices);
    DSV32_UNROLL for (int s = 0; s < 4; ++s) out[s] =
        values(Table::codes(points, s / 2, s % 2 * 4), signs, 2 * next, first + s / 2 * next + s % 2 * 4);
  }
  // Indices of the first two and of the last two points, of four values each, of each lane.
  template <class Table>
  DSV32_VNNI_INLINE void unpack_iq3(__m512i first, __m512i second, __m512i signs, __m512i* out) {
    const typename Table::Points points[2] = {Table::points(first), Table::points(second)};
    DSV32_UNROLL for (int s = 0; s < 4; ++s) out[s] =
        values(Table::codes(points[s / 2], s % 2, 0), signs, 16, 4 * s);
  }
};

// Orders that widen bytes to 16 bits: the first four of a group; the first two, or the second two, of each
// lane.
inline constexpr Bytes64 kFirstFour =
    by_eights([](int k, int i) { return i % 2 ? 0x80 : k % 2 * 8 + i / 2; });
inline constexpr Bytes64 kFirstTwo =
    by_eights([](int k, int i) { return i % 2 ? 0x80 : k % 2 * 8 + i / 4 * 4 + i / 2 % 2; });
inline constexpr Bytes64 kSecondTwo =
    by_eights([](int k, int i) { return i % 2 ? 0x80 : k % 2 * 8 + i / 4 * 4 + i / 2 % 2 + 2; });
DSV32_VNNI_INLINE __m512i widen(__m512i groups, const Bytes64& which) {
  return _mm512_shuffle_epi8(groups, which.load());
}

// Scales from one nibble for each lane.
DSV32_VNNI_INLINE __m512 scales_of_lanes(const uint8_t* nibbles) {
  const __m512i places = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60);
  return odd_scales<4>(_mm512_multishift_epi64_epi8(places, _mm512_set1_epi64(load<int64_t>(nibbles))));
}

// ---- IQ2, IQ3 ----

struct VnniIQ2_XXS : SignedFormat<BlockIQ2_XXS, kIq2Values> {
  DSV32_VNNI_INLINE void unpack(const Block* at, Unpacked& out) {
    const __m512i groups = _mm512_loadu_si512(at->qs);
    const __m512i signs = signs_of<0>(pick(groups, 0x352e2720352e2720));
    unpack_iq2<LookedUp<kIq2xxsCodes, 2>>(widen(groups, kFirstFour), signs, 8, 0, out.bytes);
    out.scales[0] = odd_scales<4>(pick(groups, places(0, 60, 0)));
  }
};

template <class Table>
struct VnniIQ2_XS : SignedFormat<BlockIQ2_XS, kIq2Values> {
  DSV32_VNNI_INLINE void unpack(const Block* at, Unpacked& out) {
    const __m512i groups = _mm512_loadu_si512(at->qs);
    unpack_iq2<Table>(groups, signs_of<1>(groups), 16, 8, out.bytes);
    out.scales[0] = scales_of_lanes(at->scales);
  }
};

template <class Table>
struct VnniIQ2_S : SignedFormat<BlockIQ2_S, kIq2Values> {
  DSV32_VNNI_INLINE void unpack(const Block* at, Unpacked& out) {
    const __m512i lower = _mm512_cvtepu8_epi16(load<__m256i>(at->qs));
    const __m512i upper = pick(groups_of_bytes(at->qh), 0x0600040002000000);
    const __m512i indices = _mm512_ternarylogic_epi32(lower, upper, _mm512_set1_epi16(0x300), 0xf8);
    unpack_iq2<Table>(indices, _mm512_cvtepu32_epi64(load<__m256i>(at->signs)), 8, 0, out.bytes);
    out.scales[0] = scales_of_lanes(at->scales);
  }
};

struct VnniIQ3_XXS : SignedFormat<BlockIQ3_XXS, kIq3xxsValues> {
  DSV32_VNNI_INLINE void unpack(const Block* at, Unpacked& out) {
    const __m512i indices = _mm512_loadu_si512(at->qs);
    const __m512i words = _mm512_cvtepu32_epi64(load<__m256i>(at->signs));
    unpack_iq3<LookedUp<kIq3xxsCodes, 4>>(widen(indices, kFirstTwo), widen(indices, kSecondTwo),
                                          signs_of<0>(pick(words, 0x150e0700150e0700)), out.bytes);
    out.scales[0] = odd_scales<4>(pick(words, places(0, 28, 0)));
  }
};

template <class Table>
struct VnniIQ3_S : SignedFormat<BlockIQ3_S, kIq3sValues> {
  DSV32_VNNI_INLINE void unpack(const Block* at, Unpacked& out) {
    const __m512i lower = _mm512_loadu_si512(at->qs), ninth = groups_of_bytes(at->qh);
    const auto indices = [=](const Bytes64& which, int64_t places) DSV32_VNNI {
      return _mm512_ternarylogic_epi32(widen(lower, which), pick(ninth, places), _mm512_set1_epi16(256),
                                       0xf8);
    };
    unpack_iq3<Table>(indices(kFirstTwo, 0x0500040001000000), indices(kSecondTwo, 0x0700060003000200),
                      _mm512_cvtepu32_epi64(load<__m256i>(at->signs)), out.bytes);
    const __m512i nibbles = _mm512_set1_epi64(load<uint32_t>(at->scales));
    const __m512i places = _mm512_setr_epi32(0, 0, 4, 4, 8, 8, 12, 12, 16, 16, 20, 20, 24, 24, 28, 28);
    out.scales[0] = odd_scales<4>(_mm512_multishift_epi64_epi8(places, nibbles));
  }
};

// ---- IQ1 ----

// Points have eight values of -1, 0 and 1, from a table of 2048; a delta of 1/8 or -1/8 is added to eight
// values or more. Points are gathered on any CPU: on an AMD CPU of 2024 the products take 0.6 to 1.0 of the
// time with lookups in registers, of which a table of this size needs 32.

// Loads kWords words of 32 bits, reading no byte behind them, and reorders their bytes.
template <int kWords>
DSV32_VNNI_INLINE __m512i load_in_order(const void* from, const Bytes64& order) {
  return _mm512_permutexvar_epi8(order.load(), _mm512_maskz_loadu_epi32((1 << kWords) - 1, from));
}

// A point is eight bytes: eight times its values, raised by 8. Points are gathered one register at a time,
// between the products with the register before. Register s holds point s of each group; its 64 bits k are
// group k % 2 * 4 + k / 2. The surplus of a byte, taken off at the start, is nine in groups with a delta of
// -1/8, seven with 1/8.
struct VnniIQ1_S : GridFormat<BlockIQ1_S, 8> {
  using X = Activations<4>;
  struct Unpacked : Weights<1> {  // bytes[i]: the indices of registers 2 i and 2 i + 1
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
  DSV32_VNNI_INLINE __m512i weights(const Unpacked& w, int s) {
    const __m512i pair = w.bytes[s / 2];
    const __m256i indices = s % 2 ? _mm512_extracti64x4_epi64(pair, 1) : _mm512_castsi512_si256(pair);
    return _mm512_mask_i32gather_epi64(_mm512_setzero_si512(), 0xff, indices, kPoints.data(), 8);
  }
  DSV32_VNNI_INLINE Sums start(const Unpacked& w, const X& x, int) {
    const auto either = [&](int i) DSV32_VNNI {
      return _mm512_mask_mov_epi64(_mm512_load_si512(x.start[2 + i]), w.is_negative,
                                   _mm512_load_si512(x.start[i]));
    };
    return {either(0), _mm512_setzero_si512(), either(1)};
  }

  // Bytes 8 l to 8 l + 7 have the parts of the indices of points i and i + 2 of groups g and g + 4, for i = l
  // / 4 and g = l % 4: bytes of qs, then words of qh.
  static constexpr Bytes64 kOrder = by_eights([](int l, int i) {
    const int group = l % 4 + i / 2 % 2 * 4;
    return i < 4 ? 4 * group + l / 4 + i % 2 * 2 : 32 + 2 * group + i % 2;
  });
  static constexpr Bytes64 kIndices = by_eights(
      [](int l, int i) { return i % 2 ? 32 + i / 4 * 16 + 3 * (l / 4 + i / 2 % 2 * 2) : i / 2 * 8; });
  // From each group's word of qh: the scale in the lowest bits, delta's bit on top.
  static constexpr Bytes64 kTops = by_eights([](int k, int i) { return k / 2 * 16 + (i < 7 ? 12 : 8); });

  DSV32_VNNI_INLINE void unpack(const Block* at, Unpacked& out) {
    const __m512i words = load_in_order<12>(at->qs, kOrder), in_table = _mm512_set1_epi32(0x7ff);
    const __m512i indices = _mm512_multishift_epi64_epi8(kIndices.load(), words);
    out.bytes[0] = _mm512_and_si512(indices, in_table);
    out.bytes[1] = _mm512_and_si512(_mm512_srli_epi32(indices, 16), in_table);
    const __m512i tops = _mm512_multishift_epi64_epi8(kTops.load(), lanes_of(at->qh));
    out.is_negative = _mm512_movepi64_mask(tops);
    out.scales[0] = odd_scales<3>(tops);
  }
};

// A table for indices with delta's bit on top. A nibble is four times a code, plus 1 if delta is 1/8; twice
// the nibble is 8 * (value + delta) + 9. Nibbles are rotated by one bit, so that they are doubled in place.
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

  DSV32_VNNI_INLINE void unpack(const Block* at, Unpacked& out) {
    const __m512i groups = load_in_order<14>(at, kGroups);
    const auto points = Table::points(pick(groups, 0x2c18281024082000));
    DSV32_UNROLL for (int s = 0; s < 4; ++s) out.bytes[s] =
        _mm512_and_si512(Table::codes(points, s / 2, s % 2 * 4), bytes_of(0x1e));
    const __m512i places = _mm512_broadcast_i32x4(_mm_setr_epi32(48, 51, 54, 57));
    out.scales[0] = odd_scales<3>(_mm512_multishift_epi64_epi8(places, groups));
  }
};

// On an Intel CPU of 2023 gathers take 0.7 of the time of lookups for IQ2_XS; on an AMD CPU of 2024 they take
// 1.4 to 2.4 of it for these formats.
template <template <class> class Format, auto& kCodes, int kBits>
const CpuKernels* points_kernels(bool gathers) {
  return gathers ? &VnniFormat<Format<Gathered<kCodes, kBits>>>::kKernels
                 : &VnniFormat<Format<LookedUp<kCodes, kBits>>>::kKernels;
}

}  // namespace dsv32::vnni
