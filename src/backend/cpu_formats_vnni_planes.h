// Activations as integers, for the products of cpu_formats_vnni.h: of 23 bits in three planes of signed
// bytes, x = unit * (65536 a + 256 b + c), with one power of two as the unit of 256 values. The only rounding
// is that of x to a multiple of the unit, at most 2^-22 of the block's largest |x| (and 2^-123). An infinity
// or a NaN makes its block NaN.
//
// For x86 only, and for functions marked DSV32_VNNI or DSV32_VNNI_INLINE only.
#pragma once

#include <cstddef>
#include <cstdint>

// GCC's own header fills registers that it never reads with themselves.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include <hwy/base.h>

// The intrinsics of exactly these sets, whatever the rest of the program is compiled for.
#define DSV32_VNNI       \
  __attribute__((target( \
      "avx2,bmi2,fma,f16c,gfni,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx512bitalg")))
#define DSV32_VNNI_INLINE DSV32_VNNI __attribute__((always_inline)) static inline

namespace dsv32::vnni {

constexpr int kValues = 256;  // of a step, in every format

// The prepared activations of a step. A format unpacks its weights into four registers of four 128-bit lanes.
struct alignas(64) Planes {
  int8_t bytes[4][3][64];  // [register, plane a b c, byte]
  float unit[16];          // sixteen times the same
};

// The same, and kExtra vectors of what meets the format's offsets.
template <int kExtra>
struct Activations : Planes {
  union {
    float sums[kExtra][16];
    int32_t start[kExtra][16];
  };
};

// ---- Preparing ----

// The power of two in which the largest of 256 values is a number of three digits; NaN when one of them is
// not finite.
DSV32_VNNI_INLINE float unit_of(const float* x) {
  constexpr uint32_t kInfinity = 0x7f800000;
  constexpr uint32_t kLargestMantissa = 0x7efefe;  // of 0x7f7f7f, the largest number of three digits
  constexpr int kSmallestExponent = 5;             // 2^-122: its inverse must be a number
  __m512i largest = _mm512_setzero_si512();
  for (int i = 0; i < kValues; i += 16)
    largest =
        _mm512_max_epu32(largest, _mm512_and_si512(_mm512_loadu_si512(x + i), _mm512_set1_epi32(0x7fffffff)));
  const uint32_t bits = _mm512_reduce_max_epu32(largest);
  if (bits >= kInfinity) return std::numeric_limits<float>::quiet_NaN();
  const int exponent = static_cast<int>(bits >> 23) + ((bits & 0x7fffff) > kLargestMantissa ? 1 : 0) - 22;
  return std::bit_cast<float>(static_cast<uint32_t>(std::max(exponent, kSmallestExponent)) << 23);
}

// Sixteen integers  ->  the bytes of their balanced digits, in the three planes from `to` on.
DSV32_VNNI_INLINE void store_digits(__m512i q, int8_t* to) {
  const __m512i c = _mm512_srai_epi32(_mm512_slli_epi32(q, 24), 24);
  const __m512i rest = _mm512_srai_epi32(_mm512_sub_epi32(q, c), 8);
  const __m512i b = _mm512_srai_epi32(_mm512_slli_epi32(rest, 24), 24);
  const __m512i a = _mm512_srai_epi32(_mm512_sub_epi32(rest, b), 8);
  _mm_store_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(a));
  _mm_store_si128(reinterpret_cast<__m128i*>(to + 64), _mm512_cvtepi32_epi8(b));
  _mm_store_si128(reinterpret_cast<__m128i*>(to + 128), _mm512_cvtepi32_epi8(c));
}

// x [kValues]; F::first_value(s, lane): which value the four bytes of a lane of register s begin with.
template <class F>
DSV32_VNNI_INLINE void prepare_planes(const float* x, Planes& out) {
  const float unit = unit_of(x);
  const bool finite = unit == unit;
  const __m512 inverse = _mm512_set1_ps(finite ? 1.0f / unit : 0.0f);
  HWY_UNROLL(4)
  for (int s = 0; s < 4; ++s) {
    HWY_UNROLL(4)
    for (int j = 0; j < 4; ++j) {
      const auto four = [&](int i) DSV32_VNNI { return _mm_loadu_ps(x + F::first_value(s, 4 * j + i)); };
      const __m512 sixteen = _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_set_m128(four(1), four(0))),
                                                _mm256_set_m128(four(3), four(2)), 1);
      const __m512 scaled = _mm512_mul_ps(sixteen, inverse);
      store_digits(_mm512_maskz_cvtps_epi32(finite ? 0xffff : 0, scaled), out.bytes[s][0] + 16 * j);
    }
  }
  _mm512_store_ps(out.unit, _mm512_set1_ps(unit));
}

}  // namespace dsv32::vnni
