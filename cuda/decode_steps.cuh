// One step of the products of decode_rows.cuh and decode_columns.cu: x as fp16, the tensor-core instructions,
// and what a warp adds to the sums of its 16 rows. A step is 128 or 256 columns of a row (Steps).
//
// A warp's lanes are 8 rows g by 4 quarters i, as the instructions need: lane 4 g + i has quarter i of rows g
// and g + 8, and of column g of x. Each column and step of x has its own unit, a power of two: scaling is
// exact, and a column's bits do not depend on other steps. A step's products are chained in f32 in the tensor
// cores; the unit and the row's d are applied when the step is added to the sums.
#pragma once

#include "cuda/decode_weights.cuh"

namespace dsv32::cuda::decode {

// Waits until at most n of this thread's groups of copies are pending, n from 0 to 4.
DSV32_DEVICE void wait_until_pending(int n) {
  wait_copies<4>();
  if (n >= 4) return;
  if (n == 2)
    wait_copies<2>();
  else if (n == 3)
    wait_copies<3>();
  else if (n == 1)
    wait_copies<1>();
  else
    wait_copies<0>();
}

DSV32_DEVICE float tf32_part(float x) { return __uint_as_float(__float_as_uint(x) & 0xffffe000u); }

// x of one column and step as bytes: [pieces][4 lanes][8 values]; with kIsK45 [4 lanes] the sums over the
// lane's two scale groups as fp16, then their rounding errors; then the unit, f32. Integers:
// decode_integers.cuh. Records of two columns lie in different banks.
template <TensorType kType>
struct Record {
  static constexpr int kPieces = Steps<kType>::kCols / 32, kLanes = 4 * kPieces;  // lanes that make a record
  static constexpr int kSumBytes = kIsK45<kType> ? 32 : kType == TensorType::q2_k ? 64 : 0;
  static constexpr int kSums = kPieces * 64, kUnit = kSums + kSumBytes, kUsed = kUnit + 16;
  static constexpr int kBytes = (kUsed + 63) / 128 * 128 + 64;
};

// The type that stands for all types whose x is made by the same kernel. x depends on the columns of a step,
// their order, and the groups whose sums are needed.
template <TensorType kType>
inline constexpr TensorType kLikeX =
    kIsK45<kType>                                                                 ? TensorType::q4_k
    : kHasNibbles<kType>                                                          ? TensorType::iq4_xs
    : kIsInteger<kType> || kType == TensorType::q6_k || kType == TensorType::q8_0 ? kType
                                                                                  : TensorType::q4_0;

// A lane's part of a column's step after rounding to fp16.
struct RoundedX {
  uint32_t words[4];  // its eight values
  float unit;         // of the step
  __half sum[2];      // of the scale group, and its rounding error; valid in the group's first lane
};

// With kIsK45 four pieces are a scale group, whose sum all its lanes have; the lanes of its first piece store
// it.
constexpr int kGroupPieces = 4;
DSV32_DEVICE bool stores_group_sum(int lane) { return lane / 4 % kGroupPieces == 0; }

// Rounds a step of a column, by kLanes neighbouring lanes of a warp. Each has eight values, from
// column_of(piece, i) on, where lane % kLanes = 4 * piece + i. All lanes of a warp call it.
template <TensorType kType>
DSV32_DEVICE RoundedX round_x(const float4 (&v)[2]) {
  using X = Record<kType>;
  const int lane = static_cast<int>(threadIdx.x) % X::kLanes,
            first = static_cast<int>(threadIdx.x) % 32 - lane;
  const float x[8] = {v[0].x, v[0].z, v[0].y, v[0].w, v[1].x, v[1].z, v[1].y, v[1].w};
  RoundedX out;
  uint32_t largest = 0;  // as bits: a NaN is larger than all numbers
  DSV32_UNROLL for (int k = 0; k < 8; ++k) largest = max(largest, __float_as_uint(x[k]) & 0x7fffffffu);
  largest = __reduce_max_sync(static_cast<uint32_t>((uint64_t{1} << X::kLanes) - 1) << first, largest);
  // The largest is 512 to 1024 units: sums of 32 values have room in fp16.
  const float unit = unit_of(__uint_as_float(largest)) * 32, inverse = inverse_of_power(unit);
  DSV32_UNROLL for (int k = 0; k < 4; ++k) out.words[k] =
      pack_f16(x[2 * k] * inverse, x[2 * k + 1] * inverse);
  out.unit = largest < 0x7f800000u ? unit : NAN;  // a NaN or an infinity reaches the result
  if constexpr (kIsK45<kType>) {
    float sum = 0;
    DSV32_UNROLL for (int k = 0; k < 4; ++k) {
      const float2 pair = unpack_f16(out.words[k]);
      sum += pair.x + pair.y;
    }
    DSV32_UNROLL for (int k = 1; k < kGroupPieces; k *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, 4 * k);
    out.sum[0] = to_f16(sum), out.sum[1] = to_f16(sum - __half2float(out.sum[0]));
  }
  return out;
}

// Makes a record with the lanes of round_x(); writes it if is_there.
template <TensorType kType>
DSV32_DEVICE void make_record(const float4 (&v)[2], uint8_t* record, bool is_there) {
  using X = Record<kType>;
  const RoundedX x = round_x<kType>(v);
  const int lane = static_cast<int>(threadIdx.x) % X::kLanes;
  if (!is_there) return;
  *reinterpret_cast<uint4*>(record + 16 * lane) = {x.words[0], x.words[1], x.words[2], x.words[3]};
  if (lane == 0) *reinterpret_cast<float*>(record + X::kUnit) = x.unit;
  if constexpr (kIsK45<kType>) {
    if (!stores_group_sum(lane)) return;
    auto* to = reinterpret_cast<__half*>(record + X::kSums) + lane % 4 * 4 + lane / 4 / kGroupPieces;
    to[0] = x.sum[0], to[2] = x.sum[1];
  }
}

// The sums of a warp's 16 rows of kMats matrices: [tile of 8 columns][in the tensor cores' order].
template <int kMats, int kTiles>
using Sums = float[kMats][kTiles][4];

// Where a lane reads x of a step for the first tile of columns in shared memory. The next tile is 8 records
// further.
struct LaneX {
  uint32_t values;    // of column g, from the lane's own values on
  uint32_t sums;      // of the same column
  uint32_t units[2];  // of the columns 2 i and 2 i + 1, whose products the lane adds up

  // x: record of the first column. Past the last column a lane reads the last one.
  template <TensorType kType>
  static DSV32_DEVICE LaneX of(const uint8_t* x, int lane, int last_column) {
    using X = Record<kType>;
    const int i = lane % 4;
    const uint32_t begin = shared_address(x), own = begin + min(lane / 4, last_column) * X::kBytes;
    return {opaque(own + 16 * i),
            opaque(own + X::kSums + 8 * i),
            {opaque(begin + min(2 * i, last_column) * X::kBytes + X::kUnit),
             opaque(begin + min(2 * i + 1, last_column) * X::kBytes + X::kUnit)}};
  }
  DSV32_DEVICE LaneX after(uint32_t n_bytes) const {
    return {values + n_bytes, sums + n_bytes, {units[0] + n_bytes, units[1] + n_bytes}};
  }
};

// Adds the products of a step of a type with codes and kN tiles of columns. step: the lane's rows g and g + 8
// in shared memory; lane: its quarter.
template <TensorType kType, int kN, int kMats, int kTiles>
DSV32_DEVICE void add_step(Sums<kMats, kTiles>& sums, const uint8_t* const (&step)[kMats][2], const LaneX& x,
                           const Lane<kType>& lane, const uint32_t* grid) {
  using X = Record<kType>;
  using Row = LaneRow<kType>;
  constexpr int kTile = 8 * X::kBytes;
  Row rows[kMats][2];
  DSV32_UNROLL for (int m = 0; m < kMats; ++m) {
    DSV32_UNROLL for (int r = 0; r < 2; ++r) rows[m][r].load(step[m][r], lane);
  }
  float c[2][kMats][kN][4] = {};  // two chains
  DSV32_UNROLL for (int k = 0; k < X::kPieces; ++k) {
    const int p = piece_at<kType>(k);
    uint4 b[kN], a[kMats][2];
    DSV32_UNROLL for (int n = 0; n < kN; ++n) b[n] = load_shared_u32x4(x.values + n * kTile + p * 64);
    DSV32_UNROLL for (int m = 0; m < kMats; ++m) {
      DSV32_UNROLL for (int r = 0; r < 2; ++r) a[m][r] = rows[m][r].piece(p, grid);
    }
    DSV32_UNROLL for (int m = 0; m < kMats; ++m) {
      DSV32_UNROLL for (int n = 0; n < kN; ++n)
          multiply_f16(c[0][m][n], {a[m][0].x, a[m][1].x, a[m][0].y, a[m][1].y}, b[n].x, b[n].y);
    }
    DSV32_UNROLL for (int m = 0; m < kMats; ++m) {
      DSV32_UNROLL for (int n = 0; n < kN; ++n)
          multiply_f16(c[1][m][n], {a[m][0].z, a[m][1].z, a[m][0].w, a[m][1].w}, b[n].z, b[n].w);
    }
  }
  DSV32_UNROLL for (int n = 0; n < kN; ++n) {
    float unit[2];
    DSV32_UNROLL for (int u = 0; u < 2; ++u) unit[u] =
        __uint_as_float(load_shared_u32(x.units[u] + n * kTile));
    DSV32_UNROLL for (int m = 0; m < kMats; ++m) {
      float least[4] = {};
      if constexpr (kIsK45<kType>) {
        const uint2 b = load_shared_u32x2(x.sums + n * kTile);
        const uint32_t first = rows[m][0].mins, second = rows[m][1].mins;
        multiply_f16(least, {first, second, first, second}, b.x, b.y);
      }
      DSV32_UNROLL for (int k = 0; k < 4; ++k) {
        const Row& row = rows[m][k / 2];
        float term = c[0][m][n][k] + c[1][m][n][k];
        if constexpr (Row::kHasD) term *= row.d;
        if constexpr (kIsK45<kType>) term = fmaf(-row.dmin, least[k], term);
        sums[m][n][k] = fmaf(term, unit[k % 2], sums[m][n][k]);
      }
    }
  }
}

// Loads four values of a row in shared memory, from a place aligned to their size.
template <TensorType kType>
DSV32_DEVICE void load_floats4(const uint8_t* p, float out[4]) {
  const uint2 v = *reinterpret_cast<const uint2*>(p);
  const uint32_t bits[4] = {v.x & 0xffffu, v.x >> 16, v.y & 0xffffu, v.y >> 16};
  DSV32_UNROLL for (int k = 0; k < 4; ++k) out[k] =
      kType == TensorType::bf16 ? __uint_as_float(bits[k] << 16)
                                : __half2float(__ushort_as_half(static_cast<uint16_t>(bits[k])));
}

// Adds the products of one step of F16 or BF16. x: of token g at the step's first column; x_apart: from there
// to token g + 8; n_cols: up to the row's end; n_tokens: from token g on, 0 or less if there is none.
template <TensorType kType, int kMats, int kTiles>
DSV32_DEVICE void add_step_float(Sums<kMats, kTiles>& sums, const uint8_t* const (&step)[kMats][2],
                                 const float* x, int64_t x_apart, int n_cols, int n_tokens) {
  constexpr int kBytes = 2;
  const int i = threadIdx.x % 4;
  float c[kMats][kTiles][4] = {};
  DSV32_UNROLL for (int col = 0; col < Steps<kType>::kCols; col += 16) {
    const int own = col + 4 * i;
    float4 xs4[kTiles];
    DSV32_UNROLL for (int n = 0; n < kTiles; ++n) {
      xs4[n] = {0, 0, 0, 0};
      if (own < n_cols && 8 * n < n_tokens) xs4[n] = *reinterpret_cast<const float4*>(x + n * x_apart + own);
    }
    DSV32_UNROLL for (int m = 0; m < kMats; ++m) {
      float w[2][4];
      load_floats4<kType>(step[m][0] + own * kBytes, w[0]);
      load_floats4<kType>(step[m][1] + own * kBytes, w[1]);
      DSV32_UNROLL for (int k = 0; k < 4; k += 2) {
        const float a[4] = {w[0][k], w[1][k], w[0][k + 1], w[1][k + 1]};
        DSV32_UNROLL for (int n = 0; n < kTiles; ++n) {
          const float x0 = k ? xs4[n].z : xs4[n].x, x1 = k ? xs4[n].w : xs4[n].y;
          const float high0 = tf32_part(x0), high1 = tf32_part(x1);
          multiply_tf32(c[m][n], a, x0 - high0, x1 - high1);
          multiply_tf32(c[m][n], a, high0, high1);
        }
      }
    }
  }
  // Tensor cores truncate where f32 rounds; a fresh sum per step keeps that error small.
  DSV32_UNROLL for (int m = 0; m < kMats; ++m) {
    DSV32_UNROLL for (int n = 0; n < kTiles; ++n) {
      DSV32_UNROLL for (int k = 0; k < 4; ++k) sums[m][n][k] += c[m][n][k];
    }
  }
}

}  // namespace dsv32::cuda::decode
