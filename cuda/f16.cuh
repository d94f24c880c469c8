// Values as fp16 for tensor cores: eleven significant bits, from steps of 2^-24 to 65504.
//
// Weights are rounded and saturated. Activations may have any size: each row is in units of a power of two
// chosen by its largest value, and its sums are multiplied by the unit again, which is exact.
#pragma once

#include "cuda/common.cuh"

namespace dsv32::cuda {

// A row's largest magnitude lies between this and twice as much, in units of the row. Values down to 2^-28 of
// the largest keep all their bits, and every sum of products has room in f32.
constexpr float kLargestInUnits = 16384;

// Rows of activations as fp16, each in units of its own.
struct RoundedRows {
  __half* values = nullptr;
  float* units = nullptr;
};

// Where n_rows f32 rows of n_cols have room, 2 at least: values, then units. What an operation leaves to the
// one that reads it next.
inline RoundedRows rounded_rows_in(const float* room, int64_t n_rows, int64_t n_cols) {
  auto* values = reinterpret_cast<__half*>(const_cast<float*>(room));
  return {values, reinterpret_cast<float*>(values + n_rows * n_cols)};
}

// Rounded to nearest; what is beyond 65504, and infinity, becomes 65504. NaN stays.
__device__ __forceinline__ uint32_t pack_f16(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
__device__ __forceinline__ __half to_f16(float x) {
  return __ushort_as_half(static_cast<unsigned short>(pack_f16(x, 0.0f)));
}

__device__ __forceinline__ float2 unpack_f16(uint32_t pair) {
  return __half22float2(*reinterpret_cast<const __half2*>(&pair));
}

// The unit of a row whose largest magnitude is `largest`. Its exponent stays where its inverse has one too:
// rows below 2^-98 only become less accurate, infinity stays infinite.
__device__ __forceinline__ float unit_of(float largest) {
  const uint32_t exponent = max(__float_as_uint(largest) >> 23, 29u);
  return __uint_as_float((exponent - 14) << 23);
}

// The unit of a plain row: 1, unless its values are past fp16's or so small that they lose bits.
__device__ __forceinline__ float plain_unit(float largest) {
  constexpr float kSmallest = 1.0f / 256;
  return largest == 0 || (largest >= kSmallest && largest <= kLargestInUnits) ? 1.0f : unit_of(largest);
}

// 1 / x of a power of two whose inverse has an exponent.
__device__ __forceinline__ float inverse_of_power(float x) {
  return __uint_as_float((254u << 23) - __float_as_uint(x));
}

}  // namespace dsv32::cuda
