// A step of the products with Q2_K and Q3_K (decode_rows.cuh, decode_columns.cu, decode_wide.cu) in integers:
// x as integers of 16 bits, codes times their scales as bytes, and what a warp adds to the sums of its 16
// rows.
//
// x of a step, 256 columns, has one unit, a power of two: x = unit * (256 * high + low), two signed bytes. A
// code times its scale fits a byte: in Q2_K it is at most 3 * 15, in Q3_K (4 - code) * (scale - 32) lies
// between -128 and 124. Four codes of a word are multiplied at once, since no product reaches the next byte.
// So the tensor cores add up a whole step in 32 bits, without rounding, and a step's sum does not depend on
// the order. Its floating-point part is one conversion and the factors of the row and of x: the same in all
// kernels.
//
// Lane 4 g + i has the 64 columns of rows g and g + 8 whose codes are the 16 bytes from 16 i on: four groups
// j of 16 columns, each with its scale. One product has 32 columns: of each lane eight of a group. Its
// columns of x are the high and the low bytes of tokens: of eight columns, lane 4 g + i gets those of token
// i.
#pragma once

#include "cuda/decode_steps.cuh"

namespace dsv32::cuda::decode {

// A lane's part of a token's step as integers.
struct IntegerPiece {
  uint32_t bytes[2][2];  // high, low: of its eight values, four a word
  int sums[2];           // of the high and the low bytes of the group, in Q3_K of the step
  float unit;
};

// The sum of the four signed bytes of each of two words.
DSV32_DEVICE int sum_of_bytes(const uint32_t (&words)[2]) {
  constexpr int kOnes = 0x01010101;
  return __dp4a(static_cast<int>(words[0]), kOnes, __dp4a(static_cast<int>(words[1]), kOnes, 0));
}

// Rounds a step of a token with the lanes of a warp. A lane has eight values, four from column_of(piece, i)
// on and four kHalvesApart further, where its number is 4 * piece + i.
template <TensorType kType>
requires kIsInteger<kType> DSV32_DEVICE IntegerPiece round_to_integers(const float4 (&v)[2]) {
  const float4 &a = v[0], &b = v[1];
  const float in_order[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w},
              in_turn[8] = {a.x, b.x, a.y, b.y, a.z, b.z, a.w, b.w};  // as nibbles lie
  const float(&x)[8] = kHasNibbles<kType> ? in_turn : in_order;
  uint32_t largest = 0;  // as bits: a NaN is larger than all numbers
  DSV32_UNROLL for (int k = 0; k < 8; ++k) largest = max(largest, __float_as_uint(x[k]) & 0x7fffffffu);
  largest = __reduce_max_sync(0xffffffffu, largest);
  // The largest is 16 320 to 32 639 units, so that with 128 added it fits 16 bits.
  const float unit = unit_of(__uint_as_float(largest) * (32768.0f / 32639)), inverse = inverse_of_power(unit);
  IntegerPiece out;
  DSV32_UNROLL for (int w = 0; w < 2; ++w) {
    uint32_t n[4];  // in the lower 16 bits the rounded value plus 128
    DSV32_UNROLL for (int k = 0; k < 4; ++k) n[k] =
        __float_as_uint(fmaf(x[4 * w + k], inverse, 12582912.0f + 128));
    const uint32_t first = __byte_perm(n[0], n[1], 0x5140), second = __byte_perm(n[2], n[3], 0x5140);
    out.bytes[0][w] = __byte_perm(first, second, 0x7632);
    out.bytes[1][w] = __byte_perm(first, second, 0x5410) ^ 0x80808080u;
  }
  if constexpr (!kHasNibbles<kType>) DSV32_UNROLL for (int part = 0; part < 2; ++part) {
      const int sum = sum_of_bytes(out.bytes[part]);
      out.sums[part] = kType == TensorType::q2_k ? sum + __shfl_xor_sync(0xffffffffu, sum, 4)
                                                 : __reduce_add_sync(0xffffffffu, sum);
    }
  out.unit = largest < 0x7f800000u ? unit : NAN;  // a NaN or an infinity reaches the result
  return out;
}

// Makes a record with the lanes of round_to_integers(); writes it if is_there. x of a token and step: [group
// j][lane i][high, low][16 bytes]; Q2_K: [lane i][high, low] the group sums of 4 groups, as upper bytes (sum
// / 16) and lower bytes (the rest); then the unit, f32, and in Q3_K two integers, what the sums of high and
// of low begin with.
template <TensorType kType>
requires kIsInteger<kType> DSV32_DEVICE void make_record(const float4 (&v)[2], uint8_t* record,
                                                         bool is_there) {
  using X = Record<kType>;
  const int lane = static_cast<int>(threadIdx.x) % 32, piece = lane / 4, i = lane % 4, group = piece / 2;
  const IntegerPiece x = round_to_integers<kType>(v);
  if (!is_there) return;
  DSV32_UNROLL for (int part = 0; part < 2; ++part) *
      reinterpret_cast<uint2*>(record + 128 * group + 32 * i + 16 * part + 8 * (piece % 2)) = {
      x.bytes[part][0], x.bytes[part][1]};
  if (lane == 0) *reinterpret_cast<float*>(record + X::kUnit) = x.unit;
  if constexpr (kType == TensorType::q2_k) {
    if (piece % 2) return;
    uint8_t* at = record + X::kSums + 16 * i + group;
    DSV32_UNROLL for (int part = 0; part < 2; ++part) {
      at[8 * part] = static_cast<uint8_t>(x.sums[part] >> 4);
      at[8 * part + 4] = static_cast<uint8_t>(x.sums[part] & 15);
    }
  } else if (kType == TensorType::q3_k && lane == 0) {
    auto* begin = reinterpret_cast<int*>(record + X::kUnit + 4);
    begin[0] = -128 * x.sums[0], begin[1] = -128 * x.sums[1];
  }
}

// Where a lane reads x of a step in shared memory: of four tokens, and of the next four. Eight tokens on all
// lies eight records further.
struct IntegerX {
  uint32_t values[2];  // of one byte of a token
  uint32_t sums[2];    // of the same
  uint32_t units[2];   // of the token whose products the lane adds up

  // x: record of the first token. Past the last token a lane reads the last one.
  template <TensorType kType>
  static DSV32_DEVICE IntegerX of(const uint8_t* x, int lane, int last_token) {
    using X = Record<kType>;
    const int i = lane % 4, token = lane / 8, part = lane / 4 % 2;
    const uint32_t begin = shared_address(x);
    IntegerX out;
    DSV32_UNROLL for (int h = 0; h < 2; ++h) {
      const uint32_t record = begin + min(4 * h + token, last_token) * X::kBytes;
      out.values[h] = opaque(record + 32 * i + 16 * part);
      out.sums[h] = opaque(record + X::kSums + 16 * i + 8 * part);
      out.units[h] = opaque(begin + min(4 * h + i, last_token) * X::kBytes + X::kUnit);
    }
    return out;
  }
  DSV32_DEVICE IntegerX after(uint32_t n_bytes) const {
    return {{values[0] + n_bytes, values[1] + n_bytes},
            {sums[0] + n_bytes, sums[1] + n_bytes},
            {units[0] + n_bytes, units[1] + n_bytes}};
  }
};

template <TensorType kType>
requires(kIsInteger<kType> && !kHasNibbles<kType>) struct Lane<kType> {
  int i;
  uint32_t own;  // selects the scales of the lane's groups in Q2_K

  DSV32_DEVICE Lane(int lane) : i(lane), own(opaque(lane % 2 ? 0x7531 : 0x6420)) {}
};

// A lane's part of a row of a step.
// products(j, w): four codes times their scale, as bytes, of word w of group j; unshifted(j, w): the same, or
// for odd groups 2^kOddShift times as much, if that saves an instruction
// value_of(sum, min_sum): what the step adds in units of x, from the sums of the products and of the mins
template <TensorType kType>
struct IntegerRow;

template <>
struct IntegerRow<TensorType::q2_k> {
  static constexpr int kOddShift = 2;

  uint32_t words[4], scale[4];
  uint32_t packed;  // a byte for each group: its scale, and its min in the upper four bits
  float d, dmin;

  DSV32_DEVICE void load(const uint8_t* row, const Lane<TensorType::q2_k>& lane) {
    const auto* from = reinterpret_cast<const uint32_t*>(row);
    DSV32_UNROLL for (int w = 0; w < 4; ++w) words[w] = from[4 + 4 * lane.i + w];
    packed = __byte_perm(from[lane.i / 2 * 2], from[lane.i / 2 * 2 + 1], lane.own);
    DSV32_UNROLL for (int j = 0; j < 4; ++j) scale[j] = packed >> 8 * j & 15;
    const float2 both = unpack_f16(from[20]);
    d = both.x, dmin = both.y;
  }
  DSV32_DEVICE uint32_t products(int j, int w) const { return (words[w] >> 2 * j & 0x03030303u) * scale[j]; }
  DSV32_DEVICE uint32_t unshifted(int j, int w) const {
    const uint32_t word = j < 2 ? words[w] : words[w] >> 4;
    return (word & (j % 2 ? 0x0c0c0c0cu : 0x03030303u)) * scale[j];
  }
  // The operand of the product with the group sums of x: 16 times the mins, and the mins.
  DSV32_DEVICE static void mins(const IntegerRow (&rows)[2], uint32_t (&a)[4]) {
    DSV32_UNROLL for (int r = 0; r < 2; ++r) a[r] = rows[r].packed & 0xf0f0f0f0u,
                                             a[2 + r] = rows[r].packed >> 4 & 0x0f0f0f0fu;
  }
  DSV32_DEVICE float value_of(float sum, float min_sum) const { return fmaf(-dmin, min_sum, d * sum); }
};

// The products are 128 too large, so that no byte borrows from the next; the sums begin with -128 times the
// sum of x.
template <>
struct IntegerRow<TensorType::q3_k> {
  static constexpr int kOddShift = 0;

  uint32_t words[4], third[4];
  uint32_t factor[4], constant[4];  // 32 - scale; 128 less four times that, in every byte
  float d;

  DSV32_DEVICE void load(const uint8_t* row, const Lane<TensorType::q3_k>& lane) {
    const int half = lane.i / 2, odd = lane.i % 2;
    load_words(row + 32 + 16 * lane.i, words);
    load_words(row + 16 * odd, third);
    uint32_t packed[3];  // scales: two words of lower four bits, one of upper two bits
    load_words(row + 96, packed);
    DSV32_UNROLL for (int k = 0; k < 3; ++k) packed[k] >>= 4 * half + 8 * odd;
    DSV32_UNROLL for (int j = 0; j < 4; ++j) {
      third[j] >>= 4 * half;
      const uint32_t both = (packed[j / 2] & 0x0f0f0f0fu) | (packed[2] << (j / 2 ? 2 : 4) & 0x30303030u);
      factor[j] = 32 - (both >> j % 2 * 16 & 63);
      constant[j] = 0x80808080u - factor[j] * 0x04040404u;
    }
    d = Codes<TensorType::q3_k>::d(row);
  }
  DSV32_DEVICE uint32_t products(int j, int w) const {
    const uint32_t bits = j < 2 ? third[w] << (2 - j) : third[w] >> (j - 2),
                   codes = (words[w] >> 2 * j & 0x03030303u) | (bits & 0x04040404u);
    return codes * factor[j] + constant[j];
  }
  DSV32_DEVICE uint32_t unshifted(int j, int w) const { return products(j, w); }
  DSV32_DEVICE float value_of(float sum, float) const { return -d * sum; }
};

// The sum with x, from those with its high and its low bytes.
DSV32_DEVICE int joined(int high, int low) { return high * 256 + low; }

// Adds the products of a step and 4 kQuads tokens. step: the lane's rows g and g + 8 in shared memory. Of the
// sums of eight tokens (Sums) a lane has those of tokens i and i + 4.
template <TensorType kType, int kQuads, int kMats, int kTiles>
DSV32_DEVICE void add_integer_step(Sums<kMats, kTiles>& sums, const uint8_t* const (&step)[kMats][2],
                                   const IntegerX& x, const Lane<kType>& lane) {
  constexpr bool kHasMins = kType == TensorType::q2_k;
  constexpr int kEight = 8 * Record<kType>::kBytes;
  DSV32_UNROLL for (int m = 0; m < kMats; ++m) {
    IntegerRow<kType> rows[2];
    DSV32_UNROLL for (int r = 0; r < 2; ++r) rows[r].load(step[m][r], lane);
    int c[2][kQuads][4] = {};  // even and odd groups
    float unit[kQuads];
    DSV32_UNROLL for (int q = 0; q < kQuads; ++q) {
      const uint32_t at = x.units[q % 2] + q / 2 * kEight;
      if constexpr (kHasMins) {
        unit[q] = __uint_as_float(load_shared_u32(at));
      } else {
        const uint4 all = load_shared_u32x4(at);
        unit[q] = __uint_as_float(all.x);
        c[0][q][0] = c[0][q][2] = static_cast<int>(all.y), c[0][q][1] = c[0][q][3] = static_cast<int>(all.z);
      }
    }
    DSV32_UNROLL for (int j = 0; j < 4; ++j) {
      uint32_t a[2][4];
      DSV32_UNROLL for (int k = 0; k < 2; ++k) {
        DSV32_UNROLL for (int e = 0; e < 4; ++e) a[k][e] = rows[e % 2].unshifted(j, 2 * k + e / 2);
      }
      DSV32_UNROLL for (int q = 0; q < kQuads; ++q) {
        const uint4 b = load_shared_u32x4(x.values[q % 2] + q / 2 * kEight + 128 * j);
        multiply_bytes(c[j % 2][q], a[0], b.x, b.y);
        multiply_bytes(c[j % 2][q], a[1], b.z, b.w);
      }
    }
    DSV32_UNROLL for (int q = 0; q < kQuads; ++q) {
      int least[4] = {};
      if constexpr (kHasMins) {
        const uint2 b = load_shared_u32x2(x.sums[q % 2] + q / 2 * kEight);
        uint32_t a[4];
        IntegerRow<kType>::mins(rows, a);
        multiply_bytes(least, a, b.x, b.y);
      }
      DSV32_UNROLL for (int r = 0; r < 2; ++r) {
        constexpr int kShift = IntegerRow<kType>::kOddShift;
        const int *even = c[0][q] + 2 * r, *odd = c[1][q] + 2 * r;
        const int high = (even[0] << kShift) + odd[0], low = even[1] + (odd[1] >> kShift);
        const int sum = high * (256 >> kShift) + low;
        float& to = sums[m][q / 2][2 * r + q % 2];
        const float value = rows[r].value_of(static_cast<float>(sum),
                                             static_cast<float>(joined(least[2 * r], least[2 * r + 1])));
        to = fmaf(value, unit[q], to);
      }
    }
  }
}

}  // namespace dsv32::cuda::decode
