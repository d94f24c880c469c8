// Q2_K and Q3_K on CPUs that multiply bytes into 32-bit sums (AVX-512 VNNI): the products in integers.
//
// 64 codes fill a register as bytes, where floats need four, so a block of 256 values becomes four registers
// of weights below 256: a table lookup multiplies each code with its group's scale on the way. Activations
// are prepared as integers of 23 bits in three planes of signed bytes, x = unit * (65536 a + 256 b + c), with
// one power of two as the unit of a block. The sums over a block are exact whatever their order; the only
// rounding on the way in is that of x to a multiple of the unit, at most 2^-22 of the block's largest |x|. An
// infinity or a NaN makes its block NaN.
#include "backend/cpu_kernels.h"

#include <hwy/targets.h>

#if HWY_ARCH_X86
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

// The intrinsics of exactly these sets, whatever the rest of the program is compiled for.
#define DSV32_VNNI __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")))
#define DSV32_VNNI_INLINE DSV32_VNNI __attribute__((always_inline)) static inline

namespace dsv32 {
namespace {

constexpr int kRows = CpuKernels::kRows;

// The prepared activations of a block. The codes lie as both formats have them: register s holds bits 2 s of
// the 64 bytes of qs, so that its 128-bit lane j is the group of 16 values that begins at 128 (j / 2) + 32 s
// + 16 (j % 2).
struct alignas(64) Activations {
  int8_t planes[4][3][64];  // [register, plane a b c, byte]
  union {
    float negative_sums[16];  // Q2_K: [4 j + s], -(sum of the group's x)
    int32_t start[2][16];     // Q3_K: what the sums of plane a, and of planes b and c together, start from
  };
  float unit[16];  // unit[0] counts; the rest is padding
};
constexpr int kStepFloats = sizeof(Activations) / sizeof(float);

// One block of weights, unpacked.
struct Weights {
  __m512i bytes[4];  // u8, scale * code (Q2_K), kBias + (scale - 32) * (code - 4) (Q3_K)
  __m512 d;          // f32, in every lane
};

// ---- Preparing ----

// Sixteen groups of 16 bytes or 16 groups' scales, from their order in the file to [4 j + s].
DSV32_VNNI_INLINE __m128i to_lane_order(__m128i groups) {
  return _mm_shuffle_epi8(groups, _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15));
}

constexpr int first_value(int s, int j) { return 128 * (j / 2) + 32 * s + 16 * (j % 2); }

// The power of two in which the largest of 256 values has 23 bits with its sign; NaN when one of them is not
// finite. Below 2^-100 the unit stays at 2^-122.
DSV32_VNNI float unit_of(const float* x) {
  constexpr uint32_t kInfinity = 0x7f800000;
  constexpr uint32_t kLargestMantissa = 0x7efefe;  // of 0x7f7f7f, the largest number of three digits
  __m512i largest = _mm512_setzero_si512();
  for (int i = 0; i < 256; i += 16)
    largest =
        _mm512_max_epu32(largest, _mm512_and_si512(_mm512_loadu_si512(x + i), _mm512_set1_epi32(0x7fffffff)));
  const uint32_t bits = _mm512_reduce_max_epu32(largest);
  if (bits >= kInfinity) return std::numeric_limits<float>::quiet_NaN();
  const bool too_wide = (bits & 0x7fffff) > kLargestMantissa;
  const int exponent = static_cast<int>(bits >> 23) + (too_wide ? 1 : 0) - 22;
  return std::bit_cast<float>(static_cast<uint32_t>(std::max(exponent, 5)) << 23);
}

// Sixteen integers of 24 bits  ->  the bytes of their balanced digits.
DSV32_VNNI_INLINE void store_planes(__m512i q, int8_t* a, int8_t* b, int8_t* c) {
  const __m512i low = _mm512_srai_epi32(_mm512_slli_epi32(q, 24), 24);
  const __m512i rest = _mm512_srai_epi32(_mm512_sub_epi32(q, low), 8);
  const __m512i middle = _mm512_srai_epi32(_mm512_slli_epi32(rest, 24), 24);
  const __m512i high = _mm512_srai_epi32(_mm512_sub_epi32(rest, middle), 8);
  _mm_store_si128(reinterpret_cast<__m128i*>(a), _mm512_maskz_cvtepi32_epi8(0xffff, high));
  _mm_store_si128(reinterpret_cast<__m128i*>(b), _mm512_maskz_cvtepi32_epi8(0xffff, middle));
  _mm_store_si128(reinterpret_cast<__m128i*>(c), _mm512_maskz_cvtepi32_epi8(0xffff, low));
}

DSV32_VNNI void prepare_planes(const float* x, Activations& out) {
  const float unit = unit_of(x);
  const bool finite = unit == unit;
  const __m512 inverse = _mm512_set1_ps(finite ? 1.0f / unit : 0.0f);
  for (int s = 0; s < 4; ++s)
    for (int j = 0; j < 4; ++j) {
      const __m512 scaled = _mm512_mul_ps(_mm512_loadu_ps(x + first_value(s, j)), inverse);
      const __m512i q = _mm512_maskz_cvtps_epi32(finite ? 0xffff : 0, scaled);
      store_planes(q, out.planes[s][0] + 16 * j, out.planes[s][1] + 16 * j, out.planes[s][2] + 16 * j);
    }
  std::memset(out.unit, 0, sizeof out.unit);
  out.unit[0] = unit;
}

// ---- The product of a step ----

// The sums over a block of one token, per 32-bit lane.
struct Sums {
  __m512i a, b, c;
};

DSV32_VNNI_INLINE void add_register(__m512i weights, const int8_t (*planes)[64], Sums& sums) {
  sums.a = _mm512_dpbusd_epi32(sums.a, weights, _mm512_load_si512(planes[0]));
  sums.b = _mm512_dpbusd_epi32(sums.b, weights, _mm512_load_si512(planes[1]));
  sums.c = _mm512_dpbusd_epi32(sums.c, weights, _mm512_load_si512(planes[2]));
}

// sums * d * unit, onto the lanes of a row.
DSV32_VNNI_INLINE __m512 add_block(const Sums& sums, __m512 d, const Activations& x, __m512 lanes) {
  const __m512i low = _mm512_add_epi32(_mm512_slli_epi32(sums.b, 8), sums.c);
  const __m512 sum =
      _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums.a), _mm512_set1_ps(65536.0f), _mm512_cvtepi32_ps(low));
  return _mm512_fmadd_ps(sum, _mm512_mul_ps(d, _mm512_set1_ps(x.unit[0])), lanes);
}

DSV32_VNNI_INLINE __m512 half_in_every_lane(const uint8_t* at) {
  uint16_t half;
  std::memcpy(&half, at, sizeof half);
  return _mm512_cvtph_ps(_mm256_set1_epi16(static_cast<short>(half)));
}

// (bits & mask) | more
DSV32_VNNI_INLINE __m512i and_or(__m512i bits, int mask, int more) {
  return _mm512_ternarylogic_epi32(bits, _mm512_set1_epi8(static_cast<char>(mask)),
                                   _mm512_set1_epi8(static_cast<char>(more)), 0xea);
}

// ---- The formats ----

// Four codes of two bits and a scale of four: scale * code is at most 45. Each 128-bit lane has four tables
// of four bytes, one a register.
struct VnniQ2_K {
  using Block = BlockQ2_K;
  struct Stage : Weights {
    __m512 mins;  // dmin * min, as negative_sums lie
  };

  DSV32_VNNI static void prepare_step(const float* x, int /*n_values*/, float* out) {
    Activations& step = *reinterpret_cast<Activations*>(out);
    prepare_planes(x, step);
    for (int s = 0; s < 4; ++s)
      for (int j = 0; j < 4; ++j)
        step.negative_sums[4 * j + s] = -_mm512_reduce_add_ps(_mm512_loadu_ps(x + first_value(s, j)));
  }

  DSV32_VNNI_INLINE void unpack(const uint8_t* at, Stage& out) {
    const __m128i packed = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at + offsetof(Block, scales)));
    const __m512i groups = _mm512_cvtepu8_epi32(to_lane_order(packed));
    const __m512i scales = _mm512_and_si512(groups, _mm512_set1_epi32(15));
    const __m512i tables = _mm512_mullo_epi32(scales, _mm512_set1_epi32(0x03020100));
    const __m512i codes = _mm512_loadu_si512(at + offsetof(Block, qs));
    out.bytes[0] = _mm512_shuffle_epi8(tables, and_or(codes, 3, 0));
    out.bytes[1] = _mm512_shuffle_epi8(tables, and_or(_mm512_srli_epi32(codes, 2), 3, 4));
    out.bytes[2] = _mm512_shuffle_epi8(tables, and_or(_mm512_srli_epi32(codes, 4), 3, 8));
    out.bytes[3] = _mm512_shuffle_epi8(tables, and_or(_mm512_srli_epi32(codes, 6), 3, 12));
    out.d = half_in_every_lane(at + offsetof(Block, d));
    out.mins = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_srli_epi32(groups, 4)),
                             half_in_every_lane(at + offsetof(Block, dmin)));
  }

  DSV32_VNNI_INLINE Sums start(const Activations&) {
    return {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512()};
  }

  DSV32_VNNI_INLINE __m512 finish(const Sums& sums, const Stage& w, const Activations& x, __m512 lanes) {
    return add_block(sums, w.d, x, _mm512_fmadd_ps(w.mins, _mm512_load_ps(x.negative_sums), lanes));
  }
};

// (scale - 32) * (code - 4) is -124 to 128: a byte once kBias is added, which the sums' start takes away
// again. Each 128-bit lane has two tables of eight bytes for two registers.
struct VnniQ3_K {
  using Block = BlockQ3_K;
  using Stage = Weights;
  static constexpr int kBias = 124;

  DSV32_VNNI static void prepare_step(const float* x, int /*n_values*/, float* out) {
    Activations& step = *reinterpret_cast<Activations*>(out);
    prepare_planes(x, step);
    Sums bias = {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512()};
    for (int s = 0; s < 4; ++s) add_register(_mm512_set1_epi8(kBias), step.planes[s], bias);
    const __m512i low = _mm512_add_epi32(_mm512_slli_epi32(bias.b, 8), bias.c);
    _mm512_store_si512(step.start[0], _mm512_sub_epi32(_mm512_setzero_si512(), bias.a));
    _mm512_store_si512(step.start[1], _mm512_sub_epi32(_mm512_setzero_si512(), low));
  }

  // 16 codes of six bits; see unpack_q3_k_scales().
  DSV32_VNNI_INLINE __m512i unpack_scales(const uint8_t* packed) {
    constexpr uint64_t kLow = 0x0f0f0f0f0f0f0f0f, kUpper = 0x3030303030303030;
    uint64_t low;
    uint32_t upper;
    std::memcpy(&low, packed, sizeof low);
    std::memcpy(&upper, packed + 8, sizeof upper);
    const uint64_t high = upper;
    const uint64_t first = (low & kLow) | ((high << 4 | high << 34) & kUpper);
    const uint64_t second = (low >> 4 & kLow) | ((high | high << 30) & kUpper);
    return _mm512_cvtepu8_epi32(
        to_lane_order(_mm_set_epi64x(static_cast<long long>(second), static_cast<long long>(first))));
  }

  DSV32_VNNI_INLINE void unpack(const uint8_t* at, Stage& out) {
    // Four bytes of a table in one multiplication: the product of a scale with four small factors, where a
    // byte that borrows from the next gives back with the bias.
    constexpr uint32_t kBiases = 0x01010101u * kBias, kFactors0 = 0x01020304, kFactors4 = 0x03020100;
    const __m512i scales = unpack_scales(at + offsetof(Block, scales));
    const __m512i codes_0_3 =
        _mm512_sub_epi32(_mm512_set1_epi32(static_cast<int>(kBiases + 32 * kFactors0)),
                         _mm512_mullo_epi32(scales, _mm512_set1_epi32(static_cast<int>(kFactors0))));
    const __m512i codes_4_7 =
        _mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(kBiases - 32 * kFactors4)),
                         _mm512_mullo_epi32(scales, _mm512_set1_epi32(static_cast<int>(kFactors4))));
    const __m512i tables_0_1 = _mm512_unpacklo_epi32(codes_0_3, codes_4_7);
    const __m512i tables_2_3 = _mm512_unpackhi_epi32(codes_0_3, codes_4_7);
    // Bit k of a byte of hmask belongs to value 32 k + i: bring lanes 2 and 3 (k + 4) level with the others.
    const __m256i hmask = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at + offsetof(Block, hmask)));
    const __m512i third = _mm512_inserti64x4(_mm512_castsi256_si512(hmask), _mm256_srli_epi32(hmask, 4), 1);
    const __m512i codes = _mm512_loadu_si512(at + offsetof(Block, qs));
    out.bytes[0] = look_up(tables_0_1, codes, _mm512_slli_epi32(third, 2), 0);
    out.bytes[1] = look_up(tables_0_1, _mm512_srli_epi32(codes, 2), _mm512_slli_epi32(third, 1), 8);
    out.bytes[2] = look_up(tables_2_3, _mm512_srli_epi32(codes, 4), third, 0);
    out.bytes[3] = look_up(tables_2_3, _mm512_srli_epi32(codes, 6), _mm512_srli_epi32(third, 1), 8);
    out.d = half_in_every_lane(at + offsetof(Block, d));
  }

  // low: codes at bits 0 and 1 of a byte; third: at bit 2; other bits arbitrary. table: 0 or 8, of the lane's
  // two.
  DSV32_VNNI_INLINE __m512i look_up(__m512i tables, __m512i low, __m512i third, int table) {
    const __m512i codes = _mm512_ternarylogic_epi32(_mm512_set1_epi8(3), low, third, 0xca);
    return _mm512_shuffle_epi8(tables, and_or(codes, 7, table));
  }

  DSV32_VNNI_INLINE Sums start(const Activations& x) {
    return {_mm512_load_si512(x.start[0]), _mm512_setzero_si512(), _mm512_load_si512(x.start[1])};
  }

  DSV32_VNNI_INLINE __m512 finish(const Sums& sums, const Stage& w, const Activations& x, __m512 lanes) {
    return add_block(sums, w.d, x, lanes);
  }
};

// ---- Rows ----

// The sixteen lanes as a tree: halves, quarters, ...
DSV32_VNNI_INLINE float sum_of_lanes(__m512 v) {
  alignas(64) float lanes[16];
  _mm512_store_ps(lanes, v);
  for (int half = 8; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  return lanes[0];
}

template <class F>
struct VnniFormat {
  static constexpr size_t kBlockBytes = sizeof(typename F::Block);

  // One block of R rows times T tokens; lanes [R, T].
  template <int R, int T>
  DSV32_VNNI_INLINE void step(const uint8_t* const* at, const Activations* const* x, __m512 (*lanes)[T]) {
    typename F::Stage weights[R];
    Sums sums[R][T];
    HWY_UNROLL(4) for (int r = 0; r < R; ++r) F::unpack(at[r], weights[r]);
    HWY_UNROLL(4)
    for (int r = 0; r < R; ++r) HWY_UNROLL(4) for (int t = 0; t < T; ++t) sums[r][t] = F::start(*x[t]);
    HWY_UNROLL(4)
    for (int s = 0; s < 4; ++s) HWY_UNROLL(4) for (int r = 0; r < R; ++r)
        HWY_UNROLL(4) for (int t = 0; t < T; ++t)
            add_register(weights[r].bytes[s], x[t]->planes[s], sums[r][t]);
    HWY_UNROLL(4)
    for (int r = 0; r < R; ++r) HWY_UNROLL(4) for (int t = 0; t < T; ++t) lanes[r][t] =
        F::finish(sums[r][t], weights[r], *x[t], lanes[r][t]);
  }

  // Rows at a time: they share the activations in registers, tokens share the weights, and both need sums.
  template <int T>
  DSV32_VNNI static void rows_times_tokens(const uint8_t* const* rows, size_t row_bytes,
                                           const float* const* x, float* sums) {
    constexpr int R = T == 1 ? 2 : 1;
    __m512 lanes[kRows][T];
    const uint8_t* at[kRows];
    const Activations* x_at[T];
    HWY_UNROLL(4)
    for (int r = 0; r < kRows; ++r) HWY_UNROLL(4) for (int t = 0; t < T; ++t) lanes[r][t] =
        _mm512_setzero_ps();
    HWY_UNROLL(4) for (int r = 0; r < kRows; ++r) at[r] = rows[r];
    HWY_UNROLL(4) for (int t = 0; t < T; ++t) x_at[t] = reinterpret_cast<const Activations*>(x[t]);
    for (size_t left = row_bytes; left >= kBlockBytes; left -= kBlockBytes) {
      HWY_UNROLL(4) for (int r = 0; r < kRows; ++r) prefetch(at[r]);
      HWY_UNROLL(4) for (int r = 0; r < kRows; r += R) step<R, T>(at + r, x_at, lanes + r);
      HWY_UNROLL(4) for (int r = 0; r < kRows; ++r) at[r] += kBlockBytes;
      HWY_UNROLL(4) for (int t = 0; t < T; ++t)++ x_at[t];
    }
    HWY_UNROLL(4)
    for (int r = 0; r < kRows; ++r) HWY_UNROLL(4) for (int t = 0; t < T; ++t) sums[r * T + t] =
        sum_of_lanes(lanes[r][t]);
  }

  // The hardware's prefetcher stops at pages, and rows are shorter than its run-up.
  DSV32_VNNI_INLINE void prefetch(const uint8_t* at) {
    constexpr size_t kAhead = 1024;
    for (size_t line = 0; line < kBlockBytes; line += 64) __builtin_prefetch(at + kAhead + line);
  }

  static constexpr CpuKernels kKernels = {256, kStepFloats, F::prepare_step, rows_times_tokens<1>,
                                          rows_times_tokens<CpuKernels::kTokens>};
};

}  // namespace

// AVX3_DL is Highway's name for AVX-512 with VNNI and what came with it (Ice Lake, Zen 4).
const CpuKernels* vnni_kernels_of(TensorType type) {
  if ((hwy::SupportedTargets() & HWY_AVX3_DL) == 0) return nullptr;
  if (type == TensorType::q2_k) return &VnniFormat<VnniQ2_K>::kKernels;
  if (type == TensorType::q3_k) return &VnniFormat<VnniQ3_K>::kKernels;
  return nullptr;
}

}  // namespace dsv32

#else

namespace dsv32 {

const CpuKernels* vnni_kernels_of(TensorType) { return nullptr; }

}  // namespace dsv32

#endif  // HWY_ARCH_X86
