// Shared by the formats of cpu_formats_vnni.cpp: activations as integers, exact sums of products of bytes,
// and the loop along rows.
//
// Activations are integers of 23 bits in three planes of signed bytes, x = unit * (65536 a + 256 b + c), with
// one power of two as the unit of 256 values. Only x is rounded, to a multiple of the unit: by at most 2^-22
// of the block's largest |x| (and 2^-123). An infinity or a NaN makes its block NaN. Weights are unsigned
// bytes, so that one instruction adds 64 products with bytes of a plane. Sums over a block of 256 values are
// exact in any order.
//
// For x86 only, and for functions marked DSV32_VNNI or DSV32_VNNI_INLINE only.
#pragma once

#include <cstddef>
#include <cstdint>

// GCC's header initialises registers that it never reads with themselves.
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

#include "backend/cpu_kernels.h"

// Allows exactly these sets' intrinsics, whatever the rest of the program is compiled for.
#define DSV32_VNNI       \
  __attribute__((target( \
      "avx2,bmi2,fma,f16c,gfni,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx512bitalg")))
#define DSV32_VNNI_INLINE DSV32_VNNI __attribute__((always_inline)) static inline
// Unrolls the loop that follows, of up to four rounds.
#define DSV32_UNROLL HWY_UNROLL(4)

namespace dsv32::vnni {

// The prepared activations of a step. A format unpacks its weights into four registers of four 128-bit lanes.
struct alignas(64) Planes {
  int8_t bytes[4][3][64];  // [register, plane a b c, byte]
  float unit[16];          // the unit, sixteen times
};

// The same with kExtra vectors for the format's offsets.
template <int kExtra>
struct Activations : Planes {
  union {
    float sums[kExtra][16];
    int32_t start[kExtra][16];
  };
};

// ---- Preparing ----

// A power of two: the largest |x| of 256 values divided by it fits in three digits. NaN if a value is not
// finite.
DSV32_VNNI_INLINE float unit_of(const float* x) {
  constexpr uint32_t kInfinity = 0x7f800000;
  constexpr uint32_t kLargestMantissa = 0x7efefe;  // of 0x7f7f7f, the largest number of three digits
  constexpr int kSmallestExponent = 5;             // 2^-122: its inverse must be finite
  __m512i largest = _mm512_setzero_si512();
  for (int i = 0; i < kStepValues; i += 16)
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

// x [kStepValues]; F::first_value(s, lane): the first of the four values in a lane of register s.
template <class F>
DSV32_VNNI_INLINE void prepare_planes(const float* x, Planes& out) {
  const float unit = unit_of(x);
  const bool finite = unit == unit;
  const __m512 inverse = _mm512_set1_ps(finite ? 1.0f / unit : 0.0f);
  DSV32_UNROLL for (int s = 0; s < 4; ++s) {
    DSV32_UNROLL for (int j = 0; j < 4; ++j) {
      const auto four = [&](int i) DSV32_VNNI { return _mm_loadu_ps(x + F::first_value(s, 4 * j + i)); };
      const __m512 sixteen = _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_set_m128(four(1), four(0))),
                                                _mm256_set_m128(four(3), four(2)), 1);
      const __m512 scaled = _mm512_mul_ps(sixteen, inverse);
      store_digits(_mm512_maskz_cvtps_epi32(finite ? 0xffff : 0, scaled), out.bytes[s][0] + 16 * j);
    }
  }
  _mm512_store_ps(out.unit, _mm512_set1_ps(unit));
}

// ---- Sums of products ----

// Sums with each plane, in 32-bit lanes, for one token.
struct Sums {
  __m512i a, b, c;
};

DSV32_VNNI_INLINE Sums no_sums() {
  return {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512()};
}

// Adds register s of the weights times register s of the activations.
DSV32_VNNI_INLINE void add_products(__m512i weights, const Planes& x, int s, Sums& sums) {
  sums.a = _mm512_dpbusd_epi32(sums.a, weights, _mm512_load_si512(x.bytes[s][0]));
  sums.b = _mm512_dpbusd_epi32(sums.b, weights, _mm512_load_si512(x.bytes[s][1]));
  sums.c = _mm512_dpbusd_epi32(sums.c, weights, _mm512_load_si512(x.bytes[s][2]));
}

// Planes b and c together.
DSV32_VNNI_INLINE __m512i low_total(const Sums& sums) {
  return _mm512_add_epi32(_mm512_slli_epi32(sums.b, 8), sums.c);
}

// A lane has at most sixteen products of bytes: the lower two planes stay below 2^28.
DSV32_VNNI_INLINE __m512 total(const Sums& sums) {
  return _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums.a), _mm512_set1_ps(65536.0f),
                         _mm512_cvtepi32_ps(low_total(sums)));
}

DSV32_VNNI_INLINE void store_negative(__m512i v, int32_t* to) {
  _mm512_store_si512(to, _mm512_sub_epi32(_mm512_setzero_si512(), v));
}

// ---- Loading ----

DSV32_VNNI_INLINE __m512i join(__m256i low, __m256i high) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

// Sixteen bytes in every lane of 128 bits.
DSV32_VNNI_INLINE __m512i lanes_of(const void* from) {
  return _mm512_broadcast_i32x4(_mm_loadu_si128(static_cast<const __m128i*>(from)));
}

// An f16 in every lane.
DSV32_VNNI_INLINE __m512 half_everywhere(uint16_t half) {
  return _mm512_cvtph_ps(_mm256_set1_epi16(static_cast<int16_t>(half)));
}

// ---- Bits of bytes ----

DSV32_VNNI_INLINE __m512i bytes_of(int byte) { return _mm512_set1_epi8(static_cast<char>(byte)); }

// (v & mask) | more
DSV32_VNNI_INLINE __m512i and_or(__m512i v, int mask, int more) {
  return _mm512_ternarylogic_epi32(v, bytes_of(mask), bytes_of(more), 0xea);
}

// The bits of `a` where those of mask are set, the bits of `b` elsewhere.
DSV32_VNNI_INLINE __m512i select(int mask, __m512i a, __m512i b) {
  return _mm512_ternarylogic_epi32(bytes_of(mask), a, b, 0xca);
}

// ---- Rows ----

constexpr int kRows = CpuKernels::kRows;

// A block of weights: the registers of sum 0, then of sum 1; and the scales of each sum's lanes.
template <int kSums>
struct Weights {
  __m512i bytes[4];
  __m512 scales[kSums];
};

// Adds the sixteen lanes as a tree: halves, quarters, ...
DSV32_VNNI_INLINE float sum_of_lanes(__m512 v) {
  alignas(64) float lanes[16];
  _mm512_store_ps(lanes, v);
  for (int half = 8; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  return lanes[0];
}

// F: a format's layout, with functions that unpack its weights and prepare its activations' extra vectors.
template <class F>
struct VnniFormat {
  using X = typename F::X;
  using Unpacked = typename F::Unpacked;
  using Block = typename F::Block;
  static constexpr size_t kStepBytes = F::kBlocks * sizeof(Block);
  static constexpr int kRegisters = 4 / F::kSums;  // of a sum

  DSV32_VNNI static void prepare_step(const float* x, int n_values, float* out) {
    alignas(64) float padded[kStepValues] = {};
    std::memcpy(padded, x, static_cast<size_t>(n_values) * sizeof(float));
    X& prepared = *reinterpret_cast<X*>(out);
    prepare_planes<F>(padded, prepared);
    F::prepare_extra(padded, prepared);
  }

  // One step of R rows from `row` on times T tokens. Pair p is row p / T and token p % T; lanes [kRows * T],
  // factors [T][kRows].
  template <int R, int T>
  DSV32_VNNI_INLINE void step(int row, const uint8_t* const* at, const X* const* x,
                              const float* const* factors, __m512* lanes) {
    Unpacked weights[R];
    __m512 block[R * T];
    lanes += row * T;
    DSV32_UNROLL for (int r = 0; r < R; ++r)
        F::unpack(reinterpret_cast<const Block*>(at[row + r]), weights[r]);
    DSV32_UNROLL for (int sum = 0; sum < F::kSums; ++sum) {
      Sums sums[R * T];
      DSV32_UNROLL for (int p = 0; p < R * T; ++p) sums[p] = F::start(weights[p / T], *x[p % T], sum);
      DSV32_UNROLL for (int i = 0; i < kRegisters; ++i) {
        const int s = kRegisters * sum + i;
        __m512i of_row[R];
        DSV32_UNROLL for (int r = 0; r < R; ++r) of_row[r] = F::weights(weights[r], s);
        DSV32_UNROLL for (int p = 0; p < R * T; ++p) add_products(of_row[p / T], *x[p % T], s, sums[p]);
      }
      DSV32_UNROLL for (int p = 0; p < R * T; ++p) {
        const __m512 scaled = sum == 0 ? _mm512_setzero_ps() : block[p];
        block[p] = _mm512_fmadd_ps(total(sums[p]), weights[p / T].scales[sum], scaled);
      }
    }
    DSV32_UNROLL for (int p = 0; p < R * T; ++p) {
      lanes[p] = F::add_offsets(weights[p / T], *x[p % T], lanes[p]);
      lanes[p] = _mm512_fmadd_ps(block[p], _mm512_set1_ps(factors[p % T][row + p / T]), lanes[p]);
    }
  }

  // One step of kRows rows. With one token, two rows at a time share the activations in registers; with four
  // tokens, one row at a time, since there are no registers for more. If a format has one scale for each row,
  // scale times unit of x is applied at the end, from memory, where a broadcast costs no instruction.
  template <int T>
  DSV32_VNNI_INLINE void step_of_tile(const uint8_t* const* at, const X* const* x, __m512* lanes) {
    constexpr int R = T == 1 ? 2 : 1;
    const float* factors[T];
    alignas(16) float products[T][kRows];
    DSV32_UNROLL for (int t = 0; t < T; ++t) factors[t] = x[t]->unit;
    if constexpr (requires { F::scales_of_rows(at); }) {
      const __m128 scales = F::scales_of_rows(at);
      DSV32_UNROLL for (int t = 0; t < T; ++t) {
        _mm_store_ps(products[t], _mm_mul_ps(scales, _mm_load_ps(x[t]->unit)));
        factors[t] = products[t];
      }
      asm volatile("" : "+m"(products));
    }
    DSV32_UNROLL for (int r = 0; r < kRows; r += R) step<R, T>(r, at, x, factors, lanes);
  }

  template <int T>
  DSV32_VNNI static void rows_times_tokens(const uint8_t* const* rows, size_t row_bytes,
                                           const float* const* x, float* sums) {
    __m512 lanes[kRows * T];
    const uint8_t* at[kRows];
    const X* x_at[T];
    for (__m512& sum : lanes) sum = _mm512_setzero_ps();
    for (int r = 0; r < kRows; ++r) at[r] = rows[r];
    for (int t = 0; t < T; ++t) x_at[t] = reinterpret_cast<const X*>(x[t]);
    const size_t ahead = prefetch_distance(rows);
    size_t left = row_bytes;
    for (; left >= kStepBytes; left -= kStepBytes) {
      DSV32_UNROLL for (int r = 0; r < kRows; ++r) prefetch_weights(at[r] + ahead, kStepBytes);
      step_of_tile<T>(at, x_at, lanes);
      DSV32_UNROLL for (int r = 0; r < kRows; ++r) at[r] += kStepBytes;
      DSV32_UNROLL for (int t = 0; t < T; ++t)++ x_at[t];
    }
    if (F::kBlocks > 1 && left > 0) {
      alignas(64) uint8_t padded[kRows][kStepBytes] = {};
      for (int r = 0; r < kRows; ++r) std::memcpy(padded[r], at[r], left);
      for (int r = 0; r < kRows; ++r) at[r] = padded[r];
      step_of_tile<T>(at, x_at, lanes);
    }
    for (int p = 0; p < kRows * T; ++p) sums[p] = sum_of_lanes(lanes[p]);
  }

  static constexpr CpuKernels kKernels = {sizeof(X) / sizeof(float), prepare_step, rows_times_tokens<1>,
                                          rows_times_tokens<CpuKernels::kTokens>};
};

// ---- Offsets ----

// Formats with an offset for each group: `offsets` times the negative sums of x, lane by lane.
template <int kNumber>
struct OffsetFormat {
  static constexpr int kBlocks = 1, kSums = kNumber;
  using X = Activations<1>;
  struct Unpacked : Weights<kSums> {
    __m512 offsets;
  };

  DSV32_VNNI_INLINE __m512i weights(const Unpacked& w, int s) { return w.bytes[s]; }
  DSV32_VNNI_INLINE Sums start(const Unpacked&, const X&, int) { return no_sums(); }
  DSV32_VNNI_INLINE __m512 add_offsets(const Unpacked& w, const X& x, __m512 lanes) {
    return _mm512_fmadd_ps(w.offsets, _mm512_load_ps(x.sums[0]), lanes);
  }
};

// Formats of signed weights, raised by kBias to be unsigned bytes. The sums start at minus the surplus.
template <int kNumber, int kRaise>
struct RaisedFormat {
  static constexpr int kBlocks = 1, kSums = kNumber, kBias = kRaise;
  using X = Activations<2 * kSums>;  // for each sum: of plane a, and of b and c together
  using Unpacked = Weights<kSums>;

  DSV32_VNNI_INLINE void prepare_extra(const float*, X& out) {
    for (int sum = 0; sum < kSums; ++sum) store_bias(kBias, sum, out, out.start + 2 * sum);
  }
  // Stores minus the surplus of a sum whose weights are raised by `raise`.
  DSV32_VNNI_INLINE void store_bias(int raise, int sum, const Planes& x, int32_t (*to)[16]) {
    Sums bias = no_sums();
    for (int i = 0; i < 4 / kSums; ++i) add_products(bytes_of(raise), x, 4 / kSums * sum + i, bias);
    store_negative(bias.a, to[0]);
    store_negative(low_total(bias), to[1]);
  }

  DSV32_VNNI_INLINE __m512i weights(const Unpacked& w, int s) { return w.bytes[s]; }
  DSV32_VNNI_INLINE Sums start(const Unpacked&, const X& x, int sum) {
    return {_mm512_load_si512(x.start[2 * sum]), _mm512_setzero_si512(),
            _mm512_load_si512(x.start[2 * sum + 1])};
  }
  DSV32_VNNI_INLINE __m512 add_offsets(const Unpacked&, const Planes&, __m512 lanes) { return lanes; }
};

}  // namespace dsv32::vnni
