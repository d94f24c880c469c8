// One step of the products of decode_rows.cuh: the copies into shared memory, the tensor-core instructions,
// and what a warp adds to the sums of its 16 rows.
//
// The lanes of a warp are 8 rows g by 4 lanes i, as the instructions lay out their operands: lane 4 g + i
// reads the values 4 i.. and 16 + 4 i.. of a group of 32 of the rows g and g + 8.
#pragma once

#include "cuda/dequant.cuh"
#include "cuda/ptx.cuh"

namespace dsv32::cuda::decode {

// How a type's rows are cut into steps, and how far apart rows of a step lie in shared memory. A step is
// copied from the 32-byte line that it begins in. Eight rows are read at once, each by four lanes: the
// distance spreads them over the banks.
template <TensorType kType>
struct Steps {
  static constexpr int kCols = kType == TensorType::q8_0 ? 128 : 256;
  static constexpr int kBytes = kCols / Codes<kType>::kBlockValues * Codes<kType>::kBlockBytes;
  // The smallest odd multiple of 16 that has room for the step wherever in a line it begins.
  static constexpr int kSlot = (kBytes + 32 - Codes<kType>::kAlign + 15) / 32 * 32 + 16;
};
template <>
struct Steps<TensorType::f32> {
  static constexpr int kCols = 32, kBytes = 128, kSlot = 192;
};
template <>
struct Steps<TensorType::f16> {
  static constexpr int kCols = 128, kBytes = 256, kSlot = 288;
};
template <>
struct Steps<TensorType::bf16> : Steps<TensorType::f16> {};

// x as the integer products want it, per group of 32 values and per token, tokens `stride` apart.
struct IntegerX {
  uint4* words;   // [n_groups, stride, 4]: lane i of four: high bytes of values 4 i.. and 16 + 4 i.., low
                  // bytes of them
  float* scales;  // [n_groups, stride]
  float2* sums;   // [n_groups, stride] of the values 0..15 and 16..31, in f32
  int stride;     // 1, or n_tokens rounded up to even
};

// Until at most n of this thread's groups of copies are pending.
__device__ __forceinline__ void wait_until_pending(int n) {
  if (n == 1)
    wait_copies<1>();
  else if (n == 2)
    wait_copies<2>();
  else if (n == 0)
    wait_copies<0>();
  else if (n == 3)
    wait_copies<3>();
  else
    wait_copies<4>();
}

__device__ __forceinline__ float tf32_part(float x) {
  return __uint_as_float(__float_as_uint(x) & 0xffffe000u);
}

// The sums of a warp's 16 rows, times kMats matrices. kSets: scale groups are added in four separate sums
// (group mod 4), which is what the lanes of one row do when there is one token. Of floats kOne are eight
// tokens, else sixteen.
template <TensorType kType, int kMats, bool kOne>
struct Sums {
  static constexpr int kSets = kOne || kIsFloat<kType> ? 1 : 4;
  static constexpr int kTiles = kIsFloat<kType> && !kOne ? 2 : 1;  // of eight tokens
  static constexpr int kOutputs = kOne && !kIsFloat<kType> ? 2 : 4 * kTiles;
  float of[kMats][kSets][kOutputs] = {};
};

// What the steps of a quantised type are taken apart by: the lane's rows in shared memory, step [kMats][2].
template <TensorType kType>
struct StepCodes {
  using Format = Codes<kType>;
  static constexpr int kQuad = 4 * Format::kGroup;  // values of four scale groups

  static __device__ __forceinline__ const uint8_t* block(const uint8_t* row, int value) {
    return row + value / Format::kBlockValues * Format::kBlockBytes;
  }
  // Of scale group i = lane % 4 of the quad.
  static __device__ __forceinline__ ScaleMin scale(const uint8_t* row, int quad, int i) {
    const int first = quad * kQuad, value = first + i * Format::kGroup;
    if constexpr (kType == TensorType::q4_k || kType == TensorType::q5_k)
      return k_scale(k_head(block(row, first)), first % Format::kBlockValues >= 128, i);
    else if constexpr (kQuad <= Format::kBlockValues)  // all of one block
      return Format::scale(block(row, first), first % Format::kBlockValues + i * Format::kGroup);
    else
      return Format::scale(block(row, value), value % Format::kBlockValues);
  }
  // Of the group of 32 values j of the quad.
  static __device__ __forceinline__ void load(const uint8_t* const rows[2], int quad, int j, int i,
                                              uint32_t a[4], const uint32_t* grid) {
    const int value = quad * kQuad + 32 * j;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int at = value + k / 2 * 16;
      a[k] = Format::codes4(block(rows[k % 2], at), at % Format::kBlockValues, 4 * i, grid);
    }
  }
  // c += the products with the same codes; of Q4_K's odd groups 16 times as much, which saves the shifts of
  // their nibbles.
  static constexpr bool kHasNibbles = kType == TensorType::q4_k;
  static __device__ __forceinline__ void multiply(int c[4], const uint8_t* const rows[2], int quad, int j,
                                                  int i, uint32_t b0, uint32_t b1, const uint32_t* grid) {
    uint32_t a[4];
    if constexpr (kHasNibbles) {
#pragma unroll
      for (int k = 0; k < 4; ++k)
        a[k] = Format::word(rows[k % 2], quad * kQuad + 32 * j + k / 2 * 16, 4 * i) &
               (j % 2 ? 0xf0f0f0f0u : 0x0f0f0f0fu);
      multiply_u8_s8(c, a, b0, b1);
    } else {
      load(rows, quad, j, i, a, grid);
      multiply_s8(c, a, b0, b1);
    }
  }
};

// What a lane reads of one token's x in shared memory: addresses for the first group of 32 values, and which
// scale group of four its column is for. kApart: floats from a group's scale, which the sums follow that the
// format wants, to the next; 0: as IntegerX.
template <TensorType kType, int kApart = 0>
struct LaneX {
  static constexpr bool kHasWide = Codes<kType>::kGroup == 32;
  static constexpr uint32_t kScale = kApart == 0 ? 4 : 4 * kApart, kSum = kApart == 0 ? 8 : 4 * kApart;
  uint32_t words, scales, sums;
  uint32_t is_own[4];  // 0 or 1: a product by it goes to another unit than all else that a step does

  __device__ LaneX(const void* x_words, const void* x_scales, const void* x_sums, int lane) {
    const int g = lane / 4, i = lane % 4, own = kHasWide ? i : i / 2;
    words = opaque(shared_address(x_words) + (kHasWide ? (g / 2 * 4 + i) * 16 + g % 2 * 8
                                                       : (g / 4 * 4 + i) * 16 + g % 2 * 8 + g / 2 % 2 * 4));
    scales = opaque(shared_address(x_scales) + own * kScale);
    sums = opaque(shared_address(x_sums) + own * kSum + (kApart == 0 || kHasWide ? 0 : i % 2 * 4));
#pragma unroll
    for (int j = 0; j < 4; ++j) is_own[j] = opaque(g / 2 == j);
  }
  __device__ __forceinline__ LaneX after(uint32_t n_bytes) const {
    LaneX x = *this;
    x.words += n_bytes, x.scales += n_bytes, x.sums += n_bytes;
    return x;
  }
  __device__ __forceinline__ float sum(int group, int i) const {
    if constexpr (kApart != 0) return __uint_as_float(load_shared_u32(sums + group * kSum));
    const uint2 bits = load_shared_u32x2(sums + group * kSum);
    const float2 halves = {__uint_as_float(bits.x), __uint_as_float(bits.y)};
    return kHasWide ? halves.x + halves.y : i % 2 == 0 ? halves.x : halves.y;
  }
};

// Adds the products of one step of a quantised type and one token. first_group: the step's first group of 32
// values of x.
// The columns of B are not tokens but (scale group, high or low): one chain of products leaves in lane i both
// sums of scale group i, whose scale that lane has.
template <TensorType kType, int kMats, int kApart>
__device__ __forceinline__ void add_step_one(Sums<kType, kMats, true>& sums,
                                             const uint8_t* const step[kMats][2],
                                             const LaneX<kType, kApart>& x, int first_group, int i,
                                             const uint32_t* grid) {
  using Format = Codes<kType>;
  using Read = StepCodes<kType>;
  constexpr int kGroup = Format::kGroup, kGroups32 = Read::kQuad / 32;
#pragma unroll
  for (int quad = 0; quad < Steps<kType>::kCols / Read::kQuad; ++quad) {
    const int group = first_group + quad * kGroups32;
    ScaleMin scale[kMats][2];
#pragma unroll
    for (int m = 0; m < kMats; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) scale[m][r] = Read::scale(step[m][r], quad, i);
    int c[kMats][4] = {};
    if constexpr (kGroup == 32) {
      const uint2 word = load_shared_u32x2(x.words + group * 64);
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int m = 0; m < kMats; ++m)
          Read::multiply(c[m], step[m], quad, j, i, word.x * x.is_own[j], word.y * x.is_own[j], grid);
    } else {
      const uint32_t word = load_shared_u32(x.words + group * 64);
#pragma unroll
      for (int j = 0; j < 2; ++j)
#pragma unroll
        for (int m = 0; m < kMats; ++m)
          Read::multiply(c[m], step[m], quad, j, i, word * x.is_own[2 * j], word * x.is_own[2 * j + 1], grid);
    }
    float x_scale = __uint_as_float(load_shared_u32(x.scales + group * x.kScale));
    if constexpr (Read::kHasNibbles) x_scale *= i % 2 ? 0.0625f : 1.0f;
    float x_sum = 0;
    if constexpr (Format::kHasMin) x_sum = x.sum(group, i);
#pragma unroll
    for (int m = 0; m < kMats; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float& sum = sums.of[m][0][r];
        const float term = static_cast<float>(c[m][2 * r] * 256 + c[m][2 * r + 1]) * x_scale;
        sum = fmaf(term, scale[m][r].scale, sum);
        if constexpr (Format::kHasMin) sum = fmaf(scale[m][r].min, x_sum, sum);
      }
  }
}

// The same of up to 8 tokens: codes are taken apart once for all.
template <TensorType kType, int kMats>
__device__ __forceinline__ void add_step(Sums<kType, kMats, false>& sums, const uint8_t* const step[kMats][2],
                                         const IntegerX& x, int first_group, int n_tokens,
                                         const uint32_t* grid) {
  using Format = Codes<kType>;
  using Read = StepCodes<kType>;
  constexpr int kGroup = Format::kGroup, kGroups32 = Read::kQuad / 32;
  const int lane = threadIdx.x % 32, g = lane / 4, i = lane % 4;
  const int last_pair = (n_tokens - 1) / 2;  // of columns; of an odd number the last has a neighbour of zeros
#pragma unroll
  for (int quad = 0; quad < Steps<kType>::kCols / Read::kQuad; ++quad) {
    ScaleMin scale[kMats][2];
#pragma unroll
    for (int m = 0; m < kMats; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) scale[m][r] = Read::scale(step[m][r], quad, i);
#pragma unroll
    for (int j = 0; j < kGroups32; ++j) {
      uint32_t a[kMats][4];
#pragma unroll
      for (int m = 0; m < kMats; ++m) Read::load(step[m], quad, j, i, a[m], grid);
      ScaleMin own[kMats][32 / kGroup][2];  // of the rows g and g + 8
#pragma unroll
      for (int m = 0; m < kMats; ++m)
#pragma unroll
        for (int half = 0; half < 32 / kGroup; ++half)
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            const int set = kGroup == 32 ? j : 2 * j + half;
            own[m][half][r].scale = __shfl_sync(0xffffffffu, scale[m][r].scale, set, 4);
            if constexpr (Format::kHasMin)
              own[m][half][r].min = __shfl_sync(0xffffffffu, scale[m][r].min, set, 4);
          }
      const int group = (first_group + quad * kGroups32 + j) * x.stride;
      uint4 word = {0, 0, 0, 0};
      if (g < n_tokens) word = x.words[(group + g) * 4 + i];
      const int at = group + 2 * min(i, last_pair);  // of the lane's two tokens
      const float2 x_scale = *reinterpret_cast<const float2*>(x.scales + at);
      float4 x_sum = {0, 0, 0, 0};
      if constexpr (Format::kHasMin) x_sum = *reinterpret_cast<const float4*>(x.sums + at);
#pragma unroll
      for (int m = 0; m < kMats; ++m)
#pragma unroll
        for (int half = 0; half < 32 / kGroup; ++half) {
          const bool has_first = kGroup == 32 || half == 0, has_last = kGroup == 32 || half == 1;
          const int set = kGroup == 32 ? j : 2 * j + half;
          int c[4] = {};
          multiply_s8(c, a[m], has_first ? word.x : 0, has_last ? word.y : 0);
#pragma unroll
          for (int k = 0; k < 4; ++k) c[k] *= 256;
          multiply_s8(c, a[m], has_first ? word.z : 0, has_last ? word.w : 0);
#pragma unroll
          for (int r = 0; r < 2; ++r)
#pragma unroll
            for (int u = 0; u < 2; ++u) {
              float& sum = sums.of[m][set][2 * r + u];
              const float term = static_cast<float>(c[2 * r + u]) * (u ? x_scale.y : x_scale.x);
              sum = fmaf(term, own[m][half][r].scale, sum);
              if constexpr (Format::kHasMin) {
                const float first = u ? x_sum.z : x_sum.x, last = u ? x_sum.w : x_sum.y;
                sum = fmaf(own[m][half][r].min, kGroup == 32 ? first + last : half == 0 ? first : last, sum);
              }
            }
        }
    }
  }
}

// Four values of a row in shared memory, from a place aligned to their size.
template <TensorType kType>
__device__ __forceinline__ void load_floats4(const uint8_t* p, float out[4]) {
  if constexpr (kType == TensorType::f32) {
    const float4 v = *reinterpret_cast<const float4*>(p);
    out[0] = v.x, out[1] = v.y, out[2] = v.z, out[3] = v.w;
  } else {
    const uint2 v = *reinterpret_cast<const uint2*>(p);
    const uint32_t bits[4] = {v.x & 0xffffu, v.x >> 16, v.y & 0xffffu, v.y >> 16};
#pragma unroll
    for (int k = 0; k < 4; ++k)
      out[k] = kType == TensorType::bf16 ? __uint_as_float(bits[k] << 16)
                                         : __half2float(__ushort_as_half(static_cast<uint16_t>(bits[k])));
  }
}

// Adds the products of one step of F32, F16 or BF16. x: of token g, at the step's first column, x_apart from
// there to that of token g + 8; n_cols: to the row's end; n_tokens: from token g on, none or less for a lane
// whose token does not exist.
template <TensorType kType, int kMats, bool kOne>
__device__ __forceinline__ void add_step_float(Sums<kType, kMats, kOne>& sums,
                                               const uint8_t* const step[kMats][2], const float* x,
                                               int64_t x_apart, int n_cols, int n_tokens) {
  constexpr int kBytes = kType == TensorType::f32 ? 4 : 2, kTiles = Sums<kType, kMats, kOne>::kTiles;
  const int i = threadIdx.x % 4;
  float c[kMats][kTiles][4] = {};
#pragma unroll
  for (int col = 0; col < Steps<kType>::kCols; col += 16) {
    const int own = col + 4 * i;
    float4 xs4[kTiles];
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      xs4[n] = {0, 0, 0, 0};
      if (own < n_cols && 8 * n < n_tokens) xs4[n] = *reinterpret_cast<const float4*>(x + n * x_apart + own);
    }
#pragma unroll
    for (int m = 0; m < kMats; ++m) {
      float w[2][4];
      load_floats4<kType>(step[m][0] + own * kBytes, w[0]);
      load_floats4<kType>(step[m][1] + own * kBytes, w[1]);
#pragma unroll
      for (int k = 0; k < 4; k += 2) {
        const float a[4] = {w[0][k], w[1][k], w[0][k + 1], w[1][k + 1]};
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          const float x0 = k ? xs4[n].z : xs4[n].x, x1 = k ? xs4[n].w : xs4[n].y;
          const float high0 = tf32_part(x0), high1 = tf32_part(x1);
          multiply_tf32(c[m][n], a, x0 - high0, x1 - high1);
          if constexpr (kType == TensorType::f32) {
            float rest[4];
#pragma unroll
            for (int e = 0; e < 4; ++e) rest[e] = a[e] - tf32_part(a[e]);
            multiply_tf32(c[m][n], rest, high0, high1);
          }
          multiply_tf32(c[m][n], a, high0, high1);
        }
      }
    }
  }
  // Tensor cores cut what they add where f32 rounds; a fresh sum per step keeps that small.
#pragma unroll
  for (int m = 0; m < kMats; ++m)
#pragma unroll
    for (int k = 0; k < 4 * kTiles; ++k) sums.of[m][0][k] += c[m][k / 4][k % 4];
}

}  // namespace dsv32::cuda::decode
