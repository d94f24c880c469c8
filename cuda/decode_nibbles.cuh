// Rows of IQ4_NL, IQ4_XS and MXFP4 as integers (decode_integers.cuh): a code is an index into a table of 16
// signed bytes.
//
// One instruction selects among eight bytes (select_bytes), and for index 8 + k gives the sign of byte k, 0
// or -1. So one byte is selected for either half of the table, and values are chosen so that their sum is the
// code's: nothing chooses between the two, but both are multiplied. A product has one group of 32 columns,
// whose exact sums are multiplied by its scale, group after group.
//
// A group of 32 values has 16 bytes. Lane i has the word i of each: values 4 i to 4 i + 3 in lower nibbles,
// those 16 further in upper ones. Its eight bytes of x come in the same order (round_to_integers).
#pragma once

#include "cuda/decode_integers.cuh"

namespace dsv32::cuda::decode {

// The bytes for indices 0..7 and those for 8..15, in two words each.
struct NibbleTables {
  uint32_t words[4] = {};

  constexpr explicit NibbleTables(const int8_t (&values)[16]) {
    for (int k = 0; k < 8; ++k) {
      bool is_found = false;
      for (int below = -1; below <= 0; ++below)  // what the bytes give past their halves
        for (int from = -1; from <= 0; ++from) {
          const int first = values[k] - from, second = values[8 + k] - below;
          if (is_found || (first < 0) != (below < 0) || (second < 0) != (from < 0)) continue;
          words[k / 4] |= static_cast<uint32_t>(first & 255) << k % 4 * 8;
          words[2 + k / 4] |= static_cast<uint32_t>(second & 255) << k % 4 * 8;
          is_found = true;
        }
      if (!is_found) throw "no such bytes";  // at compile time
    }
  }
};

template <TensorType kType>
requires kHasNibbles<kType>
struct Lane<kType> {
  int i;
  uint32_t tables[4];

  Lane() = default;
  DSV32_DEVICE Lane(int lane) : i(lane) {
    constexpr NibbleTables kTables(kType == TensorType::mxfp4 ? kFp4Values : kIq4Values);
    constexpr uint32_t k0 = kTables.words[0], k1 = kTables.words[1], k2 = kTables.words[2],
                       k3 = kTables.words[3];
    tables[0] = hidden(k0), tables[1] = hidden(k1), tables[2] = hidden(k2), tables[3] = hidden(k3);
  }
};

// What a step adds up of a row and a token: the sums of its groups, with the high and with the low bytes of
// x, times their scales. Scales are integers, and so is the total.
struct IntegerTotal {
  int high = 0, low = 0;

  DSV32_DEVICE void add(int scale, int of_high, int of_low) {
    high += scale * of_high, low += scale * of_low;
  }
  DSV32_DEVICE float value() const { return fmaf(static_cast<float>(high), 256, static_cast<float>(low)); }
};

// The same of groups with scales in f32: their exact sums are added in ascending order.
struct FloatTotal {
  float sum = 0;

  DSV32_DEVICE void add(float scale, int of_high, int of_low) {
    sum = fmaf(scale, static_cast<float>(joined(of_high, of_low)), sum);
  }
  DSV32_DEVICE float value() const { return sum; }
};

// ---- of a type: words(p), a lane's nibbles of group p, four in the lower half of each word; scale(p) ----

template <TensorType kType>
struct NibbleRow;

template <>
struct NibbleRow<TensorType::iq4_xs> {
  using Total = IntegerTotal;
  using Scale = int;

  const uint8_t* own;
  uint32_t scales[2];  // of even and of odd groups, four times as large, as signed bytes
  float d;

  DSV32_DEVICE void load(const uint8_t* row, int i) {
    const auto* head = reinterpret_cast<const uint32_t*>(row);
    own = row + 8 + 4 * i;
    // Scales less 32: the upper bit of two changes, and is the sign.
    const uint32_t upper = __byte_perm(head[0], 0, 0x3322) ^ 0xaaaaaaaau;
    scales[0] = (head[1] << 2 & 0x3c3c3c3cu) | (upper << 6 & 0x00c000c0u) | (upper << 2 & 0xc000c000u);
    scales[1] = (head[1] >> 2 & 0x3c3c3c3cu) | (upper << 4 & 0x00c000c0u) | (upper & 0xc000c000u);
    d = load_f16(row) * 0.25f;
  }
  DSV32_DEVICE uint2 words(int p) const {
    const uint32_t word = *reinterpret_cast<const uint32_t*>(own + 16 * p);
    return {word, word >> 16};
  }
  DSV32_DEVICE int scale(int p) const { return static_cast<int8_t>(scales[p % 2] >> p / 2 * 8); }
};

template <>
struct NibbleRow<TensorType::iq4_nl> {
  using Total = FloatTotal;
  using Scale = float;
  static constexpr float d = 1;

  const uint8_t *row, *own;

  DSV32_DEVICE void load(const uint8_t* its_row, int i) { row = its_row, own = row + 2 + 4 * i; }
  DSV32_DEVICE uint2 words(int p) const {
    const auto* halves = reinterpret_cast<const uint16_t*>(own + 18 * p);
    return {halves[0], halves[1]};
  }
  DSV32_DEVICE float scale(int p) const { return load_f16(row + 18 * p); }
};

// Blocks of 17 bytes: those of groups p and p + 4 lie alike in their words.
template <>
struct NibbleRow<TensorType::mxfp4> {
  using Total = FloatTotal;
  using Scale = float;
  static constexpr float d = 0.5f;  // values are doubled

  const uint8_t* row;
  const uint8_t* own[4];  // the words in which those of groups 0..3 begin
  uint32_t turn[4];

  DSV32_DEVICE void load(const uint8_t* its_row, int i) {
    row = its_row;
    DSV32_UNROLL for (int p = 0; p < 4; ++p) {
      const uint8_t* at = row + 17 * p + 1 + 4 * i;
      const auto place = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(at));
      own[p] = at - place % 4, turn[p] = place * 8;
    }
  }
  DSV32_DEVICE uint2 words(int p) const {
    const auto* both = reinterpret_cast<const uint32_t*>(own[p % 4] + p / 4 * 68);
    const uint32_t word = __funnelshift_r(both[0], both[1], turn[p % 4]);
    return {word, word >> 16};
  }
  // 2^(e - 127), but 0 for e = 0 and infinite for e = 255, which the standard calls NaN.
  DSV32_DEVICE float scale(int p) const { return __uint_as_float(uint32_t{row[17 * p]} << 23); }
};

// A lane's row of a step: eight columns of each piece p of 32.
// signed8(p, codes): their codes as bytes; the sum of the two is a code
// scale(p): of the piece's group; value_of(total): what the step adds in units of x
template <TensorType kType>
requires kHasNibbles<kType>
struct IntegerRow<kType> {
  using Of = NibbleRow<kType>;
  using Scale = typename Of::Scale;
  using Total = typename Of::Total;
  static constexpr int kTerms = 2;

  Of of;
  Lane<kType> lane;

  DSV32_DEVICE void load(const uint8_t* row, const Lane<kType>& its_lane) {
    lane = its_lane;
    of.load(row, lane.i);
  }
  DSV32_DEVICE Scale scale(int p) const { return of.scale(p); }
  DSV32_DEVICE void signed8(int p, uint2 (&codes)[kTerms]) const {
    const uint2 words = of.words(p);
    codes[0] = {select_bytes(lane.tables[0], lane.tables[1], words.x),
                select_bytes(lane.tables[0], lane.tables[1], words.y)};
    codes[1] = {select_bytes(lane.tables[2], lane.tables[3], words.x ^ 0x8888u),
                select_bytes(lane.tables[2], lane.tables[3], words.y ^ 0x8888u)};
  }
  DSV32_DEVICE float value_of(const Total& total) const { return of.d * total.value(); }
};

// As of the other types, but of eight columns of a piece at a time.
template <TensorType kType, int kQuads, int kMats, int kTiles>
requires kHasNibbles<kType> DSV32_DEVICE void add_integer_step(Sums<kMats, kTiles>& sums,
                                                               const uint8_t* const (&step)[kMats][2],
                                                               const IntegerX& x, const Lane<kType>& lane) {
  constexpr int kEight = 8 * Record<kType>::kBytes;
  using Row = IntegerRow<kType>;
  DSV32_UNROLL for (int m = 0; m < kMats; ++m) {
    Row rows[2];
    DSV32_UNROLL for (int r = 0; r < 2; ++r) rows[r].load(step[m][r], lane);
    typename Row::Total total[kQuads][2];
    DSV32_UNROLL for (int p = 0; p < Record<kType>::kPieces; ++p) {
      uint2 codes[2][Row::kTerms];
      DSV32_UNROLL for (int r = 0; r < 2; ++r) rows[r].signed8(p, codes[r]);
      DSV32_UNROLL for (int q = 0; q < kQuads; ++q) {
        const uint2 b = load_shared_u32x2(x.values[q % 2] + q / 2 * kEight + 128 * (p / 2) + 8 * (p % 2));
        int c[4] = {};
        DSV32_UNROLL for (int t = 0; t < Row::kTerms; ++t)
            multiply_signed_bytes(c, {codes[0][t].x, codes[1][t].x, codes[0][t].y, codes[1][t].y}, b.x, b.y);
        DSV32_UNROLL for (int r = 0; r < 2; ++r) total[q][r].add(rows[r].scale(p), c[2 * r], c[2 * r + 1]);
      }
    }
    DSV32_UNROLL for (int q = 0; q < kQuads; ++q) {
      const float unit = __uint_as_float(load_shared_u32(x.units[q % 2] + q / 2 * kEight));
      DSV32_UNROLL for (int r = 0; r < 2; ++r) {
        float& to = sums[m][q / 2][2 * r + q % 2];
        to = fmaf(rows[r].value_of(total[q][r]), unit, to);
      }
    }
  }
}

}  // namespace dsv32::cuda::decode
