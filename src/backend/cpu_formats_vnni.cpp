// Integer products on CPUs that add 64 products of bytes at once (AVX-512 VNNI), for the formats that models
// of this size use.
//
// A block of 256 weights is four registers of bytes, where floats need sixteen. Values are ordered so that
// registers have the same scales lane by lane: integers are summed over four registers, or two, before they
// are scaled as floats. Formats with small codes and scales (Q2_K, Q3_K) multiply these by a table lookup.
// See cpu_formats_vnni.h for the activations and the one rounding, cpu_formats_vnni_grids.h for IQ1, IQ2 and
// IQ3.
#include "backend/cpu_kernels.h"

// AVX3_DL is Highway's name for AVX-512 with VNNI and its companions (Ice Lake, Zen 4), compiled only on
// request. Highway's dispatch remembers the CPU's abilities; hwy::SupportedTargets() would ask each time, by
// instructions that trap in a virtual machine.
#define HWY_WANT_AVX3_DL
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu_formats_vnni.cpp"
#include <hwy/foreach_target.h>

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace dsv32 {
namespace HWY_NAMESPACE {

bool has_vnni() { return HWY_TARGET <= HWY_AVX3_DL; }

}  // namespace HWY_NAMESPACE
}  // namespace dsv32
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#if HWY_ARCH_X86
#include "backend/cpu_formats_vnni.h"
#include "backend/cpu_formats_vnni_grids.h"
#include "gguf/quant_codes.h"

namespace dsv32 {
namespace {

using namespace vnni;

// ---- Q2_K, Q3_K: register s holds bits 2 s of the 64 bytes of qs, multiplied by their scales ----

struct TwoBits {
  static constexpr int first_value(int s, int lane) { return 128 * (lane / 8) + 32 * s + 4 * (lane % 8); }

  // Spreads the scales of 16 groups of 16 values, one per byte, over 32-bit lanes: lane 4 j + s has the scale
  // of 128-bit lane j of register s.
  DSV32_VNNI_INLINE __m512i spread_groups(__m128i groups) {
    return _mm512_cvtepu8_epi32(
        _mm_shuffle_epi8(groups, _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15)));
  }
};

// scale * code is at most 45. Each 128-bit lane has four tables of four bytes, one for each register.
struct VnniQ2_K : OffsetFormat<1>, TwoBits {
  using Block = BlockQ2_K;

  // Lane 4 j + s: minus the sum of the group in 128-bit lane j of register s.
  DSV32_VNNI_INLINE void prepare_extra(const float* x, X& out) {
    for (int s = 0; s < 4; ++s)
      for (int j = 0; j < 4; ++j)
        out.sums[0][4 * j + s] = -_mm512_reduce_add_ps(_mm512_loadu_ps(x + first_value(s, 4 * j)));
  }

  DSV32_VNNI_INLINE void unpack(const Block* at, Unpacked& out) {
    const __m512i groups = spread_groups(load<__m128i>(at->scales));
    const __m512i scales = _mm512_and_si512(groups, _mm512_set1_epi32(15));
    const __m512i tables = _mm512_mullo_epi32(scales, _mm512_set1_epi32(0x03020100));
    const __m512i codes = _mm512_loadu_si512(at->qs);
    out.bytes[0] = _mm512_shuffle_epi8(tables, and_or(codes, 3, 0));
    out.bytes[1] = _mm512_shuffle_epi8(tables, and_or(_mm512_srli_epi32(codes, 2), 3, 4));
    out.bytes[2] = _mm512_shuffle_epi8(tables, and_or(_mm512_srli_epi32(codes, 4), 3, 8));
    out.bytes[3] = _mm512_shuffle_epi8(tables, and_or(_mm512_srli_epi32(codes, 6), 3, 12));
    out.scales[0] = half_everywhere(at->d);
    out.offsets = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_srli_epi32(groups, 4)), half_everywhere(at->dmin));
  }
};

// (scale - 32) * (code - 4) is -124 to 128: a byte once kBias is added. Each 128-bit lane has two tables of
// eight bytes, for two registers.
struct VnniQ3_K : RaisedFormat<1, 124>, TwoBits {
  using Block = BlockQ3_K;

  DSV32_VNNI_INLINE void unpack(const Block* at, Unpacked& out) {
    // One multiplication of a scale by four small factors makes four bytes of a table; the bias undoes what
    // one byte borrows from the next.
    constexpr uint32_t kBiases = 0x01010101u * kBias, kFactors0 = 0x01020304, kFactors4 = 0x03020100;
    const __m512i scales = spread_groups(reinterpret_cast<__m128i>(unpack_q3_k_scales(at->scales)));
    const __m512i codes_0_3 =
        _mm512_sub_epi32(_mm512_set1_epi32(static_cast<int>(kBiases + 32 * kFactors0)),
                         _mm512_mullo_epi32(scales, _mm512_set1_epi32(static_cast<int>(kFactors0))));
    const __m512i codes_4_7 =
        _mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(kBiases - 32 * kFactors4)),
                         _mm512_mullo_epi32(scales, _mm512_set1_epi32(static_cast<int>(kFactors4))));
    const __m512i tables_0_1 = _mm512_unpacklo_epi32(codes_0_3, codes_4_7);
    const __m512i tables_2_3 = _mm512_unpackhi_epi32(codes_0_3, codes_4_7);
    // Bit k of a byte of hmask belongs to value 32 k + i: align the upper half (k + 4) with the lower.
    const __m256i hmask = load<__m256i>(at->hmask);
    const __m512i third = join(hmask, _mm256_srli_epi32(hmask, 4));
    const __m512i codes = _mm512_loadu_si512(at->qs);
    out.bytes[0] = look_up(tables_0_1, codes, _mm512_slli_epi32(third, 2), 0);
    out.bytes[1] = look_up(tables_0_1, _mm512_srli_epi32(codes, 2), _mm512_slli_epi32(third, 1), 8);
    out.bytes[2] = look_up(tables_2_3, _mm512_srli_epi32(codes, 4), third, 0);
    out.bytes[3] = look_up(tables_2_3, _mm512_srli_epi32(codes, 6), _mm512_srli_epi32(third, 1), 8);
    out.scales[0] = half_everywhere(at->d);
  }

  // low: codes at bits 0 and 1 of a byte; third: at bit 2; other bits arbitrary. table: 0 or 8, the place of
  // one of the lane's two tables.
  DSV32_VNNI_INLINE __m512i look_up(__m512i tables, __m512i low, __m512i third, int table) {
    return _mm512_shuffle_epi8(tables, and_or(select(3, low, third), 7, table));
  }
};

// ---- Q4_K, Q5_K: registers 2 n and 2 n + 1 hold nibble n of the two halves of each 32 bytes of qs ----

struct NibbleFormat : OffsetFormat<2> {
  static constexpr int first_value(int s, int lane) {
    return 64 * (lane / 4) + 32 * (s / 2) + 16 * (s % 2) + 4 * (lane % 4);
  }

  // Lane 2 g + 1: minus the sum of group g, for the mins; even lanes are zero.
  DSV32_VNNI_INLINE void prepare_extra(const float* x, X& out) {
    for (int g = 0; g < 8; ++g) {
      const float* group = x + 32 * g;
      out.sums[0][2 * g] = 0.0f;
      out.sums[0][2 * g + 1] =
          -_mm512_reduce_add_ps(_mm512_add_ps(_mm512_loadu_ps(group), _mm512_loadu_ps(group + 16)));
    }
  }

  // Lanes 2 g and 2 g + 1 of offsets are d * scale and dmin * min of group g.
  template <class Block>
  DSV32_VNNI_INLINE void unpack_scales(const Block& b, Unpacked& out) {
    const Groups groups = unpack_k_scales(b.scales);
    const __m128i codes =
        _mm_unpacklo_epi8(reinterpret_cast<__m128i>(groups.scales), reinterpret_cast<__m128i>(groups.mins));
    const __m512 d_and_dmin = _mm512_cvtph_ps(_mm256_set1_epi32(load<int32_t>(&b.d)));
    out.offsets = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(codes)), d_and_dmin);
    const __m512i even = _mm512_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12);
    out.scales[0] = _mm512_permutexvar_ps(even, out.offsets);
    out.scales[1] = _mm512_permutexvar_ps(_mm512_add_epi32(even, _mm512_set1_epi32(2)), out.offsets);
  }

  // The first halves and the second halves of the 32-byte pieces at qs.
  struct Halves {
    __m512i of[2];
  };
  DSV32_VNNI_INLINE Halves load_halves(const uint8_t* qs) {
    const __m512i low = _mm512_loadu_si512(qs), high = _mm512_loadu_si512(qs + 64);
    return {_mm512_shuffle_i64x2(low, high, 0x88), _mm512_shuffle_i64x2(low, high, 0xdd)};
  }
};

struct VnniQ4_K : NibbleFormat {
  using Block = BlockQ4_K;

  DSV32_VNNI_INLINE void unpack(const Block* at, Unpacked& out) {
    unpack_scales(*at, out);
    const Halves codes = load_halves(at->qs);
    DSV32_UNROLL for (int i = 0; i < 2; ++i) {
      out.bytes[i] = _mm512_and_si512(codes.of[i], bytes_of(15));
      out.bytes[2 + i] = _mm512_and_si512(_mm512_srli_epi32(codes.of[i], 4), bytes_of(15));
    }
  }
};

struct VnniQ5_K : NibbleFormat {
  using Block = BlockQ5_K;

  DSV32_VNNI_INLINE void unpack(const Block* at, Unpacked& out) {
    unpack_scales(*at, out);
    const Halves codes = load_halves(at->qs);
    DSV32_UNROLL for (int i = 0; i < 2; ++i) {
      // Bit g of a byte of qh belongs to group g, and 128-bit lane j holds groups 2 j and 2 j + 1: shift
      // their bits to 0 and 1.
      const __m512i lane = _mm512_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2, 4, 4, 4, 4, 6, 6, 6, 6);
      const __m512i fifth = _mm512_srlv_epi32(lanes_of(at->qh + 16 * i), lane);
      const __m512i high = _mm512_srli_epi32(codes.of[i], 4);
      out.bytes[i] = _mm512_and_si512(select(15, codes.of[i], _mm512_slli_epi32(fifth, 4)), bytes_of(31));
      out.bytes[2 + i] = _mm512_and_si512(select(15, high, _mm512_slli_epi32(fifth, 3)), bytes_of(31));
    }
  }
};

// ---- Q6_K: registers 2 h and 2 h + 1 hold the first and the second half of the groups of half h ----

struct VnniQ6_K : RaisedFormat<2, 32> {
  using Block = BlockQ6_K;
  static constexpr int first_value(int s, int lane) {
    return 128 * (s / 2) + 64 * (lane / 2 % 2) + 16 * (lane / 4) + 8 * (s % 2) + 4 * (lane % 2);
  }

  DSV32_VNNI_INLINE void unpack(const Block* at, Unpacked& out) {
    const __m512i groups = _mm512_cvtepi8_epi32(load<__m128i>(at->scales));
    const __m512 scales = _mm512_mul_ps(_mm512_cvtepi32_ps(groups), half_everywhere(at->d));
    const __m512i order = _mm512_setr_epi32(0, 0, 4, 4, 1, 1, 5, 5, 2, 2, 6, 6, 3, 3, 7, 7);
    DSV32_UNROLL for (int h = 0; h < 2; ++h) {
      // The upper bits of the low nibbles' values are at bit 0 for the lower half and at 2 for the upper;
      // those of the high nibbles' values are at 4 and 6.
      const __m256i qh = load<__m256i>(at->qh + 32 * h);
      const __m512i upper = join(qh, _mm256_srli_epi32(qh, 2));
      const __m512i codes = _mm512_loadu_si512(at->ql + 64 * h);
      const __m512i low = _mm512_and_si512(select(15, codes, _mm512_slli_epi32(upper, 4)), bytes_of(63));
      const __m512i high = _mm512_and_si512(select(15, _mm512_srli_epi32(codes, 4), upper), bytes_of(63));
      out.bytes[2 * h] = _mm512_unpacklo_epi64(low, high);
      out.bytes[2 * h + 1] = _mm512_unpackhi_epi64(low, high);
      out.scales[h] = _mm512_permutexvar_ps(_mm512_add_epi32(order, _mm512_set1_epi32(8 * h)), scales);
    }
  }
};

// ---- Q8_0, IQ4_XS: registers 2 h and 2 h + 1 hold the first and the second 16 values of groups 4 h on ----

struct GroupOf32Format : RaisedFormat<2, 128> {
  static constexpr int first_value(int s, int lane) {
    return 128 * (s / 2) + 32 * (lane / 4) + 16 * (s % 2) + 4 * (lane % 4);
  }

  // of_groups: the scales of 8 groups, lowest first.
  DSV32_VNNI_INLINE void spread_scales(__m256 of_groups, Unpacked& out) {
    const __m512i order = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    const __m512 scales = _mm512_castps256_ps512(of_groups);
    out.scales[0] = _mm512_permutexvar_ps(order, scales);
    out.scales[1] = _mm512_permutexvar_ps(_mm512_add_epi32(order, _mm512_set1_epi32(4)), scales);
  }
};

struct VnniQ8_0 : GroupOf32Format {
  using Block = BlockQ8_0;
  static constexpr int kBlocks = 8;

  DSV32_VNNI_INLINE void unpack(const Block* at, Unpacked& out) {
    using Halves [[gnu::vector_size(16)]] = uint16_t;
    const Halves d = {at[0].d, at[1].d, at[2].d, at[3].d, at[4].d, at[5].d, at[6].d, at[7].d};
    spread_scales(_mm256_cvtph_ps(reinterpret_cast<__m128i>(d)), out);
    DSV32_UNROLL for (int s = 0; s < 4; ++s) {
      const auto pair = [first = at + s / 2 * 4, piece = s % 2 * 16](int i) DSV32_VNNI {
        return _mm256_set_m128i(load<__m128i>(first[i + 1].qs + piece), load<__m128i>(first[i].qs + piece));
      };
      out.bytes[s] = _mm512_xor_si512(join(pair(0), pair(2)), bytes_of(kBias));
    }
  }
};

struct VnniIQ4_XS : GroupOf32Format {
  using Block = BlockIQ4_XS;

  DSV32_VNNI_INLINE void unpack(const Block* at, Unpacked& out) {
    const __m256i groups = _mm256_cvtepi8_epi32(reinterpret_cast<__m128i>(unpack_iq4_xs_scales(*at)));
    spread_scales(_mm256_mul_ps(_mm256_cvtepi32_ps(groups), _mm512_castps512_ps256(half_everywhere(at->d))),
                  out);
    const __m512i table = _mm512_xor_si512(lanes_of(kIq4Values), bytes_of(kBias));
    DSV32_UNROLL for (int h = 0; h < 2; ++h) {
      const __m512i codes = _mm512_loadu_si512(at->qs + 64 * h), high = _mm512_srli_epi32(codes, 4);
      out.bytes[2 * h] = _mm512_shuffle_epi8(table, _mm512_and_si512(codes, bytes_of(15)));
      out.bytes[2 * h + 1] = _mm512_shuffle_epi8(table, _mm512_and_si512(high, bytes_of(15)));
    }
  }
};

}  // namespace

HWY_EXPORT(has_vnni);

bool gathers_fast() {
  static const bool is_intel = __builtin_cpu_is("intel");
  return is_intel;
}

const CpuKernels* vnni_kernels_of(TensorType type, bool gathers) {
  // Highway does not check for GFNI, which all these CPUs have unless a virtual machine hides it.
  if (!HWY_DYNAMIC_DISPATCH(has_vnni)() || !__builtin_cpu_supports("gfni")) return nullptr;
  switch (type) {
    case TensorType::q2_k: return &VnniFormat<VnniQ2_K>::kKernels;
    case TensorType::q3_k: return &VnniFormat<VnniQ3_K>::kKernels;
    case TensorType::q4_k: return &VnniFormat<VnniQ4_K>::kKernels;
    case TensorType::q5_k: return &VnniFormat<VnniQ5_K>::kKernels;
    case TensorType::q6_k: return &VnniFormat<VnniQ6_K>::kKernels;
    case TensorType::q8_0: return &VnniFormat<VnniQ8_0>::kKernels;
    case TensorType::iq4_xs: return &VnniFormat<VnniIQ4_XS>::kKernels;
    case TensorType::iq1_s: return &VnniFormat<VnniIQ1_S>::kKernels;
    case TensorType::iq1_m: return &VnniFormat<VnniIQ1_M>::kKernels;
    case TensorType::iq2_xxs: return &VnniFormat<VnniIQ2_XXS>::kKernels;
    case TensorType::iq2_xs: return points_kernels<VnniIQ2_XS, kIq2xsCodes, 2>(gathers);
    case TensorType::iq2_s: return points_kernels<VnniIQ2_S, kIq2sCodes, 2>(gathers);
    case TensorType::iq3_xxs: return &VnniFormat<VnniIQ3_XXS>::kKernels;
    case TensorType::iq3_s: return points_kernels<VnniIQ3_S, kIq3sCodes, 4>(gathers);
    default: return nullptr;
  }
}

}  // namespace dsv32

#else

namespace dsv32 {

bool gathers_fast() { return false; }

const CpuKernels* vnni_kernels_of(TensorType, bool) { return nullptr; }

}  // namespace dsv32

#endif  // HWY_ARCH_X86
#endif  // HWY_ONCE
