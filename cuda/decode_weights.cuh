// A lane's weights of a step as fp16: LaneRow<type> decodes the stored bytes of a row.
//
// Four lanes share a row of a step; each has a quarter of its columns, in whole scale groups. Any quarter and
// order will do if x comes in the same one (column_of), so each format takes what suits its bytes. A piece is
// eight values as pairs (0, 2), (1, 3), (4, 6), (5, 7), because a mask selects values of a word that lie two
// bytes apart.
//
// A code in the lower ten bits of fp16 1024 makes 1024 + code without conversion, and subtracting 1024 is
// exact. Blocks of 256 values leave d (and dmin) for the step's sums; a value is then a code times a small
// integer, exact in fp16 up to 2048 and rounded to eleven bits beyond. Values of other blocks are multiplied
// by their scale and rounded, as in prompts (weight_tile.cuh).
#pragma once

#include <bit>

#include "cuda/dequant.cuh"

namespace dsv32::cuda::decode {

// Mins are integers times dmin: the integers are multiplied by the sums of x over their groups.
template <TensorType kType>
inline constexpr bool kIsK45 = kType == TensorType::q4_k || kType == TensorType::q5_k;
// A code is a nibble, an index into a table of 16 values.
template <TensorType kType>
inline constexpr bool kHasNibbles =
    kType == TensorType::iq4_nl || kType == TensorType::iq4_xs || kType == TensorType::mxfp4;
// Types that are multiplied as integers (decode_integers.cuh, decode_nibbles.cuh).
template <TensorType kType>
inline constexpr bool kIsInteger =
    kType == TensorType::q2_k || kType == TensorType::q3_k || kHasNibbles<kType>;

// The alignment of a matrix: Q4_K and Q5_K are read 16 bytes at a time.
template <TensorType kType>
inline constexpr int kWeightAlign = kIsK45<kType> ? 16 : Codes<kType>::kAlign;

// How a type's rows are divided into steps, and the distance of whole rows of a step in shared memory. A step
// is copied from the start of the line (32 or 16 bytes) in which it begins. Four lanes each read eight rows
// at once; the distance spreads the rows over the banks. Rows of a band are kBytes apart.
template <TensorType kType>
struct Steps {
  static constexpr int kCols = kStepColumns<kType>, kBytes = kStepBytes<kType>;
  static constexpr int kLine = kWeightAlign<kType> == 16 ? 32 : 16;
  // The smallest odd multiple of 16 that holds the step wherever it begins in its line.
  static constexpr int kSlot = (kBytes + kLine - Codes<kType>::kAlign + 15) / 32 * 32 + 16;
};
template <>
struct Steps<TensorType::f16> {
  static constexpr int kCols = 128, kBytes = 256, kLine = 32, kSlot = 288;
};
template <>
struct Steps<TensorType::bf16> : Steps<TensorType::f16> {};

// The column, in a step, of lane i's first value of a piece.
template <TensorType kType>
DSV32_DEVICE int column_of(int piece, int i) {
  if constexpr (kHasNibbles<kType>)
    return piece * 32 + i * 4;
  else if constexpr (kIsInteger<kType>)
    return i / 2 * 128 + piece / 2 * 32 + i % 2 * 16 + piece % 2 * 8;
  else if constexpr (kType == TensorType::q6_k)
    return i / 2 * 128 + piece / 4 * 64 + i % 2 * 32 + piece % 4 * 8;
  else
    return i * (Steps<kType>::kCols / 4) + piece * 8;
}
// From the first four columns of a lane's piece to the other four.
template <TensorType kType>
inline constexpr int kHalvesApart = kHasNibbles<kType> ? 16 : 4;

// The k-th piece to decode: pieces that come from the same words follow one another.
template <TensorType kType>
struct PieceOrder {
  static constexpr int kSame = kIsK45<kType> || kType == TensorType::q6_k ? 2 : 1;
  static constexpr int kApart = Steps<kType>::kCols / 32 / kSame;
};
template <TensorType kType>
constexpr int piece_at(int k) {
  using Order = PieceOrder<kType>;
  return k % Order::kSame * Order::kApart + k / Order::kSame;
}
// The place of piece p in that order.
template <TensorType kType>
__host__ __device__ constexpr int place_of_piece(int p) {
  using Order = PieceOrder<kType>;
  return p % Order::kApart * Order::kSame + p / Order::kApart;
}

// ---- pairs of fp16 in a word ----

DSV32_DEVICE uint32_t subtract2(uint32_t a, uint32_t b) { return as_word(__hsub2(as_half2(a), as_half2(b))); }
DSV32_DEVICE uint32_t multiply2(uint32_t a, uint32_t b) { return as_word(__hmul2(as_half2(a), as_half2(b))); }
DSV32_DEVICE uint32_t fma2(uint32_t a, uint32_t b, uint32_t c) {
  return as_word(__hfma2(as_half2(a), as_half2(b), as_half2(c)));
}
// x twice as fp16; x must be exact in fp16.
DSV32_DEVICE uint32_t twice(float x) { return pack_f16(x, x); }
// The same as a constant: sign, exponent and the upper ten bits of the fraction.
constexpr uint32_t halves(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t half = (bits >> 16 & 0x8000u) | ((bits >> 23 & 0xffu) - 112) << 10 | (bits >> 13 & 0x3ffu);
  return half << 16 | half;
}
static_assert(halves(1) == 0x3c003c00u && halves(-1056) == 0xe420e420u);
// Masks put codes into the lower ten bits of this: 1024 + code, the code times a power of two if it lies
// higher.
constexpr uint32_t kThousand = halves(1024);
// (x & mask) | bits in one instruction; with two constants the compiler makes two.
DSV32_DEVICE uint32_t mask_onto(uint32_t x, uint32_t mask, uint32_t bits) {
  uint32_t out;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(out) : "r"(x), "r"(mask), "r"(bits));
  return out;
}

// Loads n words from an even address.
template <int n>
DSV32_DEVICE void load_words(const uint8_t* p, uint32_t (&out)[n]) {
  const uint32_t shift = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(p) % 4);
  const auto* words = reinterpret_cast<const uint32_t*>(p - shift);
  uint32_t word = words[0];
  DSV32_UNROLL for (int k = 0; k < n; ++k) {
    const uint32_t next = words[k + 1];
    out[k] = __funnelshift_r(word, next, shift * 8), word = next;
  }
}
template <int n>
DSV32_DEVICE void load_aligned(const uint8_t* p, uint32_t (&out)[n]) {
  DSV32_UNROLL for (int k = 0; k < n; k += 4) {
    const uint4 v = *reinterpret_cast<const uint4*>(p + 4 * k);
    out[k] = v.x, out[k + 1] = v.y, out[k + 2] = v.z, out[k + 3] = v.w;
  }
}

// A value's place in a block of 256 of which a lane has 64, for Codes to divide: the compiler then sees which
// results do not depend on the lane.
struct LanePlace {
  int lane, rest;  // 64 i, and a constant below 64

  DSV32_DEVICE int operator/(int n) const { return lane / n + rest / n; }  // n divides 64
  DSV32_DEVICE int operator%(int n) const { return rest % n; }
  DSV32_DEVICE LanePlace operator+(int n) const { return {lane, rest + n}; }
};

template <TensorType kType>
inline constexpr bool kHasSigns = requires {
  Codes<kType>::kMagnitudes;
};

// Values that a lane i needs in every step, made once and kept in registers. All lanes of a warp make one.
template <TensorType kType>
struct Lane {
  int i;
  uint32_t above;          // 0x64 above a byte makes 1024 + byte
  uint32_t magnitudes[2];  // kHasSigns

  DSV32_DEVICE Lane(int lane) : i(lane), above(hidden(0x64646464u)), magnitudes{} {
    if constexpr (kHasSigns<kType>)
      magnitudes[0] = hidden(Codes<kType>::kMagnitudes.of_0),
      magnitudes[1] = Codes<kType>::kMagnitudes.of_4 ? hidden(Codes<kType>::kMagnitudes.of_4) : 0;
  }
};

// Any type, four codes at a time. Every LaneRow has
// load(row, lane): row: the step's first byte; lane: the lane's constants
// piece(p): eight values over d, in the order described in the head of this file
// d: the factor of the step's sums. kIsK45: dmin, and mins, the operand of the products with the mins
template <TensorType kType>
struct LaneRow {
  using Format = Codes<kType>;
  static constexpr bool kHasD = Format::kBlockValues == 256, kHasWords = kType == TensorType::q8_0;
  static constexpr int kCols = Steps<kType>::kCols / 4, kGroups = kCols / Format::kGroup;

  const uint8_t* from;            // the block of 256, or the lane's first block
  int lane;                       // i
  uint32_t above, magnitudes[2];  // Lane's
  uint32_t factor[kGroups];
  uint32_t min[kGroups];  // kHasD: subtracts the bias times the factor, an integer of few bits
  uint32_t words[kHasWords ? kCols / 4 : 1];
  float d = 1;

  // The block of a value of this lane, and its place in the block.
  DSV32_DEVICE const uint8_t* block(int value) const {
    return kHasD ? from : from + value / Format::kBlockValues * Format::kBlockBytes;
  }
  DSV32_DEVICE auto place(int value) const {
    if constexpr (kHasD)
      return LanePlace{lane * kCols, value};
    else
      return value % Format::kBlockValues;
  }
  DSV32_DEVICE void load(const uint8_t* row, const Lane<kType>& its_lane) {
    const int i = its_lane.i;
    lane = i, above = its_lane.above, magnitudes[0] = its_lane.magnitudes[0],
    magnitudes[1] = its_lane.magnitudes[1];
    from = kHasD ? row : row + i * (kCols / Format::kBlockValues) * Format::kBlockBytes;
    if constexpr (kHasD) d = Format::d(from);
    if constexpr (kHasWords) load_words(from + 2, words);
    DSV32_UNROLL for (int group = 0; group < kGroups; ++group) {
      const int value = group * Format::kGroup;
      if constexpr (kHasD) {
        factor[group] = twice(Format::factor(from, place(value)));
        min[group] = multiply2(factor[group], halves(kHasSigns<kType> ? -1024 : -1152));
      } else {
        const ScaleMin s = Format::scale(block(value), place(value));
        factor[group] = twice(s.scale), min[group] = twice(s.min);
      }
    }
  }
  DSV32_DEVICE uint4 piece(int p, const uint32_t* grid) const {
    uint32_t out[4];
    if constexpr (kHasSigns<kType>) {
      const int value = 8 * p, group = value / Format::kGroup;
      const Signed8 of = Format::signed8(block(value), place(value / 16 * 16), value % 16, grid);
      const uint32_t signs = of.signs * 0x4001u;  // signs of a pair end up 16 bits apart
      const uint32_t both[2] = {select_bytes(magnitudes[0], magnitudes[1], of.codes[0]),
                                select_bytes(magnitudes[0], magnitudes[1], of.codes[1])};
      DSV32_UNROLL for (int k = 0; k < 4; ++k) {
        const uint32_t v = __byte_perm(both[k / 2], above, k % 2 ? 0x4341 : 0x4240);
        const int bit = k / 2 * 4 + k % 2;
        out[k] = fma2(v, factor[group], min[group]) ^ (signs << (15 - bit) & 0x80008000u);
      }
    } else {
      DSV32_UNROLL for (int k = 0; k < 2; ++k) {
        const int value = 8 * p + 4 * k, group = value / Format::kGroup;
        uint32_t codes;
        if constexpr (kHasWords)
          codes = words[value / 4];
        else
          codes = Format::codes4(block(value), place(value / 16 * 16), value % 16, grid);
        if constexpr (!Format::kHasMin) codes ^= 0x80808080u;
        constexpr uint32_t kBias = halves(Format::kHasMin ? 1024 : 1024 + 128);
        DSV32_UNROLL for (int odd = 0; odd < 2; ++odd) {
          const uint32_t biased = __byte_perm(codes, above, odd ? 0x4341 : 0x4240), f = factor[group];
          if constexpr (kHasD)
            out[2 * k + odd] = fma2(biased, f, min[group]);
          else if constexpr (Format::kHasMin)
            out[2 * k + odd] = fma2(subtract2(biased, kBias), f, min[group]);
          else
            out[2 * k + odd] = multiply2(subtract2(biased, kBias), f);
        }
      }
    }
    return {out[0], out[1], out[2], out[3]};
  }
};

// Q4_K, Q5_K: a lane has two of eight scales and mins of six bits. Those of lanes i >= 2 are stored in two
// places.
template <TensorType kType>
requires kIsK45<kType>
struct Lane<kType> {
  int i;
  uint32_t own;          // selects the lane's bytes of two words
  uint32_t factor;       // shifts the bits of the first words to the top of their bytes
  uint32_t first, last;  // masks of those bits and of the bits of the last word

  DSV32_DEVICE Lane(int lane)
      : i(lane),
        own(opaque(lane % 2 ? 0x7632 : 0x5410)),
        factor(opaque(lane < 2 ? 4 : 1)),
        first(opaque(lane < 2 ? 0xfcfcfcfcu : 0xc0c0c0c0u)),
        last(opaque(lane < 2 ? 0 : 0x3c3c3c3cu)) {}
};

// Lower nibbles are the codes of an even group of 32, upper nibbles those of the next. Q5_K's fifth bits: a
// byte has those of one value of all eight groups.
template <TensorType kType>
requires kIsK45<kType>
struct LaneRow<kType> {
  static constexpr bool kHasD = true, kIsFive = kType == TensorType::q5_k;

  uint32_t words[8], fifth[kIsFive ? 8 : 1];
  uint32_t scale[2], constant[2];  // for nibbles where they lie; the constant subtracts 1024
  uint32_t mins;
  float d, dmin;
  int i;

  DSV32_DEVICE void load(const uint8_t* row, const Lane<kType>& lane) {
    i = lane.i;
    if constexpr (kIsFive) load_aligned(row + 16, fifth);
    load_aligned(row + (kIsFive ? 48 : 16) + 32 * i, words);
    const uint4 head = *reinterpret_cast<const uint4*>(row);
    const float2 both = unpack_f16(head.x);
    d = both.x, dmin = both.y;
    // Bytes: two scales, two mins, all times four (k_scale).
    const uint32_t upper = __byte_perm(head.y, head.z, lane.own) * lane.factor,
                   lower = __byte_perm(head.w * 4, head.w >> 2, lane.own),
                   all = (upper & lane.first) | (lower & lane.last);
    const auto of = [&](uint32_t selector, uint32_t factor, uint32_t sum) {
      return fma2(__byte_perm(all, 0x64646464u, selector), factor, sum);  // of 1024 + 4 s
    };
    scale[0] = of(0x4040, halves(1.0f / 4), halves(-256));
    scale[1] = of(0x4141, halves(1.0f / 64), halves(-16));
    constant[0] = multiply2(scale[0], halves(-1024)), constant[1] = multiply2(scale[1], halves(-1024));
    mins = of(0x4342, halves(1.0f / 4), halves(-256));
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
