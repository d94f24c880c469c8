// Unpacks blocks. In every format value = scale * code - offset: a code is a signed byte, and each group of
// 16 or 32 values has one scale and one offset.
//
// unpack() knows a format's layout; the reference dequantisation and the products on the CPU call it. It is
// inlined, so that it is compiled for its caller's instruction set.
#pragma once

#include <array>
#include <bit>
#include <cstring>

#include "gguf/quant.h"
#include "gguf/quant_tables.h"

#define DSV32_INLINE [[gnu::always_inline]] inline

namespace dsv32 {

using Bytes8 [[gnu::vector_size(8)]] = uint8_t;
using Bytes16 [[gnu::vector_size(16)]] = uint8_t;
using Bytes32 [[gnu::vector_size(32)]] = uint8_t;

// One byte for each group of a block. The group's scale is shared_scale() * Block::kScaleFactor *
// scale_number(scales), its offset dmin * mins; a block of 32 values is one group, with -m in place of dmin.
struct Groups {
  Bytes16 scales{}, mins{};
};

template <class T>
DSV32_INLINE T load(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <class T>
DSV32_INLINE void put(const T& bytes, int8_t* to) {
  std::memcpy(to, &bytes, sizeof bytes);
}

// (bytes >> kShift) & kMask; a negative kShift shifts left. The shift is on u16, so kMask must clear the bits
// that cross from byte to byte.
template <int kShift, uint8_t kMask, class Bytes>
DSV32_INLINE Bytes bits(const Bytes& bytes) {
  using Halves [[gnu::vector_size(sizeof(Bytes))]] = uint16_t;
  if constexpr (kShift >= 0)
    return reinterpret_cast<Bytes>(reinterpret_cast<Halves>(bytes) >> kShift) & kMask;
  else
    return reinterpret_cast<Bytes>(reinterpret_cast<Halves>(bytes) << -kShift) & kMask;
}

DSV32_INLINE Bytes16 join(uint64_t low, uint64_t high) {
  using Words [[gnu::vector_size(16)]] = uint64_t;
  return reinterpret_cast<Bytes16>(Words{low, high});
}

// The block's d as f16 bits; 1 for formats that have none.
template <class Block>
DSV32_INLINE uint16_t shared_scale(const Block& b) {
  constexpr uint16_t kOne = 0x3c00;
  if constexpr (requires { b.d; })
    return b.d;
  else
    return kOne;
}
DSV32_INLINE uint16_t shared_scale(const BlockIQ1_M& b) {
  const auto bits = load<uint64_t>(b.scales);
  return static_cast<uint16_t>((bits >> 12 & 0xf) | (bits >> 24 & 0xf0) | (bits >> 36 & 0xf00) |
                               (bits >> 48 & 0xf000));
}

// A group's scale from its byte: a signed integer, or an eight-bit float in the FP4 formats.
template <class Block>
DSV32_INLINE float scale_number(uint8_t byte) {
  return static_cast<int8_t>(byte);
}
template <>
DSV32_INLINE float scale_number<BlockMXFP4>(uint8_t byte) {
  return std::bit_cast<float>(byte < 2 ? 0x00200000u << byte : (byte - 1u) << 23);
}
template <>
DSV32_INLINE float scale_number<BlockNVFP4>(uint8_t byte) {
  return kHalvedScales[byte];
}

// ---- 32 values ----

constexpr Groups kOneGroup = {Bytes16{1}};

DSV32_INLINE Groups unpack(const BlockQ8_0& b, int8_t* codes) {
  std::memcpy(codes, b.qs, sizeof b.qs);
  return kOneGroup;
}

DSV32_INLINE Groups unpack(const BlockQ4_0& b, int8_t* codes) {
  const auto qs = load<Bytes16>(b.qs);
  put(bits<0, 15>(qs) - 8, codes);
  put(bits<4, 15>(qs) - 8, codes + 16);
  return kOneGroup;
}

// Spreads the 16 bits of bytes I and I + 1 over 16 bytes, each to bit 4.
template <int I>
DSV32_INLINE Bytes16 spread_fifth_bits(const Bytes16& bits) {
  constexpr int J = I + 1;
  const auto bytes = __builtin_shufflevector(bits, bits, I, I, I, I, I, I, I, I, J, J, J, J, J, J, J, J);
  const auto one_of_each = join(0x8040201008040201, 0x8040201008040201);
  return reinterpret_cast<Bytes16>((bytes & one_of_each) == one_of_each) & 16;
}

template <class Block>
DSV32_INLINE void unpack_five_bits(const Block& b, uint8_t bias, int8_t* codes) {
  const auto qs = load<Bytes16>(b.qs), fifth = join(load<uint32_t>(b.qh), 0);
  put((bits<0, 15>(qs) | spread_fifth_bits<0>(fifth)) - bias, codes);
  put((bits<4, 15>(qs) | spread_fifth_bits<2>(fifth)) - bias, codes + 16);
}

DSV32_INLINE Groups unpack(const BlockQ5_0& b, int8_t* codes) {
  unpack_five_bits(b, 16, codes);
  return kOneGroup;
}

DSV32_INLINE Groups unpack(const BlockQ5_1& b, int8_t* codes) {
  unpack_five_bits(b, 0, codes);
  return {Bytes16{1}, Bytes16{1}};
}

DSV32_INLINE Groups unpack(const BlockQ4_1& b, int8_t* codes) {
  const auto qs = load<Bytes16>(b.qs);
  put(bits<0, 15>(qs), codes);
  put(bits<4, 15>(qs), codes + 16);
  return {Bytes16{1}, Bytes16{1}};
}

DSV32_INLINE Bytes16 look_up(const int8_t (&table)[16], const Bytes16& codes) {
#ifdef __clang__
  Bytes16 values;
  for (int i = 0; i < 16; ++i) values[i] = static_cast<uint8_t>(table[codes[i]]);
  return values;
#else
  return __builtin_shuffle(load<Bytes16>(table), codes);
#endif
}

DSV32_INLINE void unpack_nibbles(const int8_t (&table)[16], const uint8_t* nibbles, int8_t* codes) {
  const auto qs = load<Bytes16>(nibbles);
  put(look_up(table, bits<0, 15>(qs)), codes);
  put(look_up(table, bits<4, 15>(qs)), codes + 16);
}

DSV32_INLINE Groups unpack(const BlockIQ4_NL& b, int8_t* codes) {
  unpack_nibbles(kIq4Values, b.qs, codes);
  return kOneGroup;
}

DSV32_INLINE Groups unpack(const BlockMXFP4& b, int8_t* codes) {
  unpack_nibbles(kFp4Values, b.qs, codes);
  return {Bytes16{b.e}};
}

// ---- 64 values ----

DSV32_INLINE Groups unpack(const BlockNVFP4& b, int8_t* codes) {
  constexpr uint64_t kLow = 0x0f0f0f0f0f0f0f0f;
  for (int g = 0; g < 4; ++g) {
    const auto qs = load<uint64_t>(b.qs + 8 * g);
    put(look_up(kFp4Values, join(qs & kLow, qs >> 4 & kLow)), codes + 16 * g);
  }
  return {join(load<uint32_t>(b.scales), 0)};
}

// ---- 256 values ----

DSV32_INLINE Groups unpack(const BlockQ2_K& b, int8_t* codes) {
  for (int h = 0; h < 2; ++h) {
    const auto qs = load<Bytes32>(b.qs + 32 * h);
    put(bits<0, 3>(qs), codes + 128 * h);
    put(bits<2, 3>(qs), codes + 128 * h + 32);
    put(bits<4, 3>(qs), codes + 128 * h + 64);
    put(bits<6, 3>(qs), codes + 128 * h + 96);
  }
  const auto scales = load<Bytes16>(b.scales);
  return {bits<0, 15>(scales), bits<4, 15>(scales)};
}

// packed: scales of Q3_K  ->  bytes of 0 to 63 (the scale is 32 less). The lower four bits of code i are
// nibble i / 8 of byte i % 8, the upper two are in byte 8 + i % 4, from bit 2 (i / 4) on.
DSV32_INLINE Bytes16 unpack_q3_k_scales(const uint8_t* packed) {
  constexpr uint64_t kLow = 0x0f0f0f0f0f0f0f0f, kUpper = 0x3030303030303030;
  const uint64_t low = load<uint64_t>(packed), high = load<uint32_t>(packed + 8);
  return join((low & kLow) | ((high << 4 | high << 34) & kUpper),
              (low >> 4 & kLow) | ((high | high << 30) & kUpper));
}

DSV32_INLINE Groups unpack(const BlockQ3_K& b, int8_t* codes) {
  auto third = load<Bytes32>(b.hmask);
  for (int h = 0; h < 2; ++h, third >>= 4) {
    const auto qs = load<Bytes32>(b.qs + 32 * h);
    put((bits<0, 3>(qs) | bits<-2, 4>(third)) - 4, codes + 128 * h);
    put((bits<2, 3>(qs) | bits<-1, 4>(third)) - 4, codes + 128 * h + 32);
    put((bits<4, 3>(qs) | bits<0, 4>(third)) - 4, codes + 128 * h + 64);
    put((bits<6, 3>(qs) | bits<1, 4>(third)) - 4, codes + 128 * h + 96);
  }
  return {unpack_q3_k_scales(b.scales) - 32};
}

// packed: scales of Q4_K or Q5_K  ->  8 scales and 8 mins of 0 to 63. The lower six bits of bytes 0 to 3 are
// scales 0 to 3, those of bytes 4 to 7 mins 0 to 3; their top two bits are the upper bits of scales and mins
// 4 to 7. The lower four bits of these are nibbles of bytes 8 to 11: scales in the lower, mins in the upper.
DSV32_INLINE Groups unpack_k_scales(const uint8_t* packed) {
  constexpr uint32_t kSix = 0x3f3f3f3f, kUpper = 0x30303030, kLow = 0x0f0f0f0f;
  const auto a = load<uint32_t>(packed), b = load<uint32_t>(packed + 4), low = load<uint32_t>(packed + 8);
  return {join((a & kSix) | uint64_t{(low & kLow) | (a >> 2 & kUpper)} << 32, 0),
          join((b & kSix) | uint64_t{(low >> 4 & kLow) | (b >> 2 & kUpper)} << 32, 0)};
}

DSV32_INLINE Groups unpack(const BlockQ4_K& b, int8_t* codes) {
  for (int g = 0; g < 4; ++g) {
    const auto qs = load<Bytes32>(b.qs + 32 * g);
    put(bits<0, 15>(qs), codes + 64 * g);
    put(bits<4, 15>(qs), codes + 64 * g + 32);
  }
  return unpack_k_scales(b.scales);
}

DSV32_INLINE Groups unpack(const BlockQ5_K& b, int8_t* codes) {
  auto fifth = load<Bytes32>(b.qh);
  for (int g = 0; g < 4; ++g, fifth >>= 2) {
    const auto qs = load<Bytes32>(b.qs + 32 * g);
    put(bits<0, 15>(qs) | bits<-4, 16>(fifth), codes + 64 * g);
    put(bits<4, 15>(qs) | bits<-3, 16>(fifth), codes + 64 * g + 32);
  }
  return unpack_k_scales(b.scales);
}

DSV32_INLINE Groups unpack(const BlockQ6_K& b, int8_t* codes) {
  for (int h = 0; h < 2; ++h) {
    const auto first = load<Bytes32>(b.ql + 64 * h), second = load<Bytes32>(b.ql + 64 * h + 32);
    const auto upper = load<Bytes32>(b.qh + 32 * h);
    put((bits<0, 15>(first) | bits<-4, 48>(upper)) - 32, codes + 128 * h);
    put((bits<0, 15>(second) | bits<-2, 48>(upper)) - 32, codes + 128 * h + 32);
    put((bits<4, 15>(first) | bits<0, 48>(upper)) - 32, codes + 128 * h + 64);
    put((bits<4, 15>(second) | bits<2, 48>(upper)) - 32, codes + 128 * h + 96);
  }
  return {load<Bytes16>(b.scales)};
}

// Writes eight magnitudes, none of them 0, negated where the byte of `negative` is 255.
DSV32_INLINE void put_signed(uint64_t magnitudes, uint64_t negative, int8_t* codes) {
  put((magnitudes ^ negative) + (negative & 0x0101010101010101), codes);
}

DSV32_INLINE Groups unpack(const BlockIQ2_XXS& b, int8_t* codes) {
  uint64_t scales = 0;
  for (int g = 0; g < 8; ++g) {
    const auto word = load<uint64_t>(b.qs + 4 * g);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
      put_signed(kIq2xxsGrid[word >> (8 * i) & 255], kIqNegative[word >> (32 + 7 * i) & 127],
                 codes + 32 * g + 8 * i);
    scales = scales >> 8 | word >> 60 << 57;
  }
  return {join(scales | 0x0101010101010101, 0)};
}

DSV32_INLINE Groups unpack(const BlockIQ3_XXS& b, int8_t* codes) {
  uint64_t scales = 0;
  for (int g = 0; g < 8; ++g) {
    const uint64_t points = load<uint64_t>(b.qs + 8 * g), word = load<uint32_t>(b.signs + 4 * g);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const uint64_t low = kIq3xxsGrid[points >> (16 * i) & 255];
      const uint64_t high = kIq3xxsGrid[points >> (16 * i + 8) & 255];
      put_signed(low | high << 32, kIqNegative[word >> (7 * i) & 127], codes + 32 * g + 8 * i);
    }
    scales = scales >> 8 | word >> 28 << 57;
  }
  return {join(scales | 0x0101010101010101, 0)};
}

// 2 n + 1 for each nibble n, the lower nibble of a byte first.
DSV32_INLINE Bytes16 unpack_odd_scales(uint64_t nibbles) {
  const auto low = bits<-1, 30>(join(nibbles, 0)), high = bits<3, 30>(join(nibbles, 0));
  return __builtin_shufflevector(low, high, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23) | 1;
}

DSV32_INLINE Groups unpack(const BlockIQ2_XS& b, int8_t* codes) {
  for (int i = 0; i < 32; ++i)
    put_signed(kIq2xsGrid[b.qs[i] & 511], kIqNegative[b.qs[i] >> 9], codes + 8 * i);
  return {unpack_odd_scales(load<uint64_t>(b.scales))};
}

DSV32_INLINE Groups unpack(const BlockIQ2_S& b, int8_t* codes) {
  for (int i = 0; i < 32; ++i) {
    const uint32_t upper = b.qh[i / 4] >> (2 * (i % 4)) & 3u;
    put_signed(kIq2sGrid[b.qs[i] | upper << 8], kNegative[b.signs[i]], codes + 8 * i);
  }
  return {unpack_odd_scales(load<uint64_t>(b.scales))};
}

DSV32_INLINE Groups unpack(const BlockIQ3_S& b, int8_t* codes) {
  for (int i = 0; i < 32; ++i) {
    const uint32_t ninth = static_cast<uint32_t>(b.qh[i / 4]) << (8 - 2 * (i % 4));
    const uint64_t low = kIq3sGrid[b.qs[2 * i] | (ninth & 256)];
    const uint64_t high = kIq3sGrid[b.qs[2 * i + 1] | (ninth >> 1 & 256)];
    put_signed(low | high << 32, kNegative[b.signs[i]], codes + 8 * i);
  }
  return {unpack_odd_scales(load<uint32_t>(b.scales))};
}

// Writes 8 (grid + delta). upper: the upper three bits of the point and, above them, delta's bit.
DSV32_INLINE void put_iq1(uint32_t lower, uint32_t upper, int8_t* codes) {
  const auto delta = static_cast<uint8_t>(upper & 8 ? -1 : 1);
  put(load<Bytes8>(&kIq1Grid[lower | (upper & 7) << 8]) + delta, codes);
}

DSV32_INLINE Groups unpack(const BlockIQ1_S& b, int8_t* codes) {
  Groups groups;
  for (int g = 0; g < 8; ++g) {
    const uint32_t qh = b.qh[g];
    for (int i = 0; i < 4; ++i)
      put_iq1(b.qs[4 * g + i], (qh >> (3 * i) & 7) | (qh >> 12 & 8), codes + 32 * g + 8 * i);
    groups.scales[g] = static_cast<uint8_t>((qh >> 11 & 14) | 1);
  }
  return groups;
}

DSV32_INLINE Groups unpack(const BlockIQ1_M& b, int8_t* codes) {
  Groups groups;
  for (int g = 0; g < 16; ++g) {
    put_iq1(b.qs[2 * g], b.qh[g], codes + 16 * g);
    put_iq1(b.qs[2 * g + 1], b.qh[g] >> 4, codes + 16 * g + 8);
    const uint32_t scale = b.scales[g / 4] >> (3 * (g % 4)) & 7u;
    groups.scales[g] = static_cast<uint8_t>(2 * scale + 1);
  }
  return groups;
}

// A scale for each byte: a nibble of scales_l and, above it, two bits of scales_h, less 32.
DSV32_INLINE Bytes16 unpack_iq4_xs_scales(const BlockIQ4_XS& b) {
  uint64_t low = load<uint32_t>(b.scales_l), high = b.scales_h;
  low = (low | low << 16) & 0x0000ffff0000ffff;
  low = (low | low << 8) & 0x00ff00ff00ff00ff;
  low = (low | low << 4) & 0x0f0f0f0f0f0f0f0f;
  high = (high | high << 24) & 0x000000ff000000ff;
  high = (high | high << 12) & 0x000f000f000f000f;
  high = (high | high << 6) & 0x0303030303030303;
  return join(low | high << 4, 0) - 32;
}

DSV32_INLINE Groups unpack(const BlockIQ4_XS& b, int8_t* codes) {
  for (int g = 0; g < 8; ++g) unpack_nibbles(kIq4Values, b.qs + 16 * g, codes + 32 * g);
  return {unpack_iq4_xs_scales(b)};
}

}  // namespace dsv32
