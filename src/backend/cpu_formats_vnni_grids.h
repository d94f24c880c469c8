// IQ1, IQ2 and IQ3: codes are places in a table of points, of eight or four values each.
//
// Register s holds values 8 s on of each 32, and a 64-bit lane those of one 32. A table of up to 256 points
// is kept in registers as codes; larger ones are looked up there in halves, or gathered from memory,
// whichever the CPU does quicker: both give the same bytes. For functions marked DSV32_VNNI or
// DSV32_VNNI_INLINE only.
#pragma once

#include "backend/cpu_formats_vnni.h"
#include "gguf/quant_codes.h"

namespace dsv32::vnni {

struct Grid {
  static constexpr int kRaise = 64;
  static constexpr int first_value(int s, int k) { return 32 * k + 8 * s; }

  // Points as they are in the table, of 32 u16: lookups in pairs of registers, chosen by the upper bits.
  template <size_t kPoints>
  DSV32_VNNI_INLINE __m512i look_up(const uint16_t* table, __m512i indices) {
    if constexpr (kPoints == 64) {
      return _mm512_permutex2var_epi16(_mm512_loadu_si512(table), indices, _mm512_loadu_si512(table + 32));
    } else {
      const __mmask32 is_upper = _mm512_test_epi16_mask(indices, _mm512_set1_epi16(kPoints / 2));
      return _mm512_mask_blend_epi16(is_upper, look_up<kPoints / 2>(table, indices),
                                     look_up<kPoints / 2>(table + kPoints / 2, indices));
    }
  }
  template <size_t kPoints>
  DSV32_VNNI_INLINE __m512i look_up(const std::array<uint16_t, kPoints>& table, __m512i indices) {
    return look_up<kPoints>(table.data(), indices);
  }

  DSV32_VNNI_INLINE __m512i indices_of(const uint8_t* bytes) {
    return _mm512_cvtepu8_epi16(load<__m256i>(bytes));
  }
  // The bits of `mask` above these, from where byte 2 i + 1 of `fields` says, in a lane of four points.
  DSV32_VNNI_INLINE __m512i indices_of(const uint8_t* bytes, __m512i lanes, int64_t fields, int mask) {
    const __m512i upper = _mm512_multishift_epi64_epi8(_mm512_set1_epi64(fields), lanes);
    const __m512i wanted = _mm512_set1_epi16(static_cast<int16_t>(mask << 8));
    return _mm512_or_si512(indices_of(bytes), _mm512_and_si512(upper, wanted));
  }

  // Eight signs a byte from codes of seven bits: the eighth is the parity of the others.
  DSV32_VNNI_INLINE __m256i signs_of(__m256i codes) {
    const __m256i parity = _mm256_slli_epi16(_mm256_popcnt_epi8(codes), 7);
    return _mm256_or_si256(codes, _mm256_and_si256(parity, _mm256_set1_epi8(-128)));
  }

  // words: four codes of seven bits each.
  DSV32_VNNI_INLINE __m256i unpack_signs(__m256i words) {
    const __m256i fields = _mm256_set1_epi64x(0x352e2720150e0700);
    return signs_of(_mm256_and_si256(_mm256_multishift_epi64_epi8(fields, words), _mm256_set1_epi8(127)));
  }

  // of_lanes: twice the scales and 1, of the 64-bit lanes.
  DSV32_VNNI_INLINE __m512 spread_scales(__m256i of_lanes, uint16_t d, float unit) {
    const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    const __m512i lanes = _mm512_permutexvar_epi32(twice, _mm512_castsi256_si512(of_lanes));
    return _mm512_mul_ps(_mm512_cvtepi32_ps(lanes), _mm512_mul_ps(half_everywhere(d), _mm512_set1_ps(unit)));
  }
  // Twice and 1 of scales of three or four bits (mask) with others above.
  DSV32_VNNI_INLINE __m256i odd(__m256i scales, int mask) {
    return _mm256_or_si256(_mm256_and_si256(_mm256_slli_epi32(scales, 1), _mm256_set1_epi32(2 * mask)),
                           _mm256_set1_epi32(1));
  }

  // Scales of 16 values, two a byte.
  DSV32_VNNI_INLINE void spread_nibbles(const uint8_t* bytes, uint16_t d, float unit, __m512* out) {
    const __m256i scales = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes)));
    HWY_UNROLL(2)
    for (int i = 0; i < 2; ++i) out[i] = spread_scales(odd(_mm256_srli_epi32(scales, 4 * i), 15), d, unit);
  }

  // Which of 32 are at the feet of the 64-bit lanes of register s.
  DSV32_VNNI_INLINE __m512i order(int s) {
    return _mm512_add_epi64(_mm512_setr_epi64(0, 4, 8, 12, 16, 20, 24, 28), _mm512_set1_epi64(s));
  }

  // Eight magnitudes of each lane: byte i of `table` is the value of code i, byte i of `fields` the bit where
  // code i of a lane begins.
  DSV32_VNNI_INLINE __m512i values(__m512i lanes, int64_t fields, int64_t table) {
    const __m512i codes = _mm512_multishift_epi64_epi8(_mm512_set1_epi64(fields), lanes);
    return _mm512_permutexvar_epi8(codes, _mm512_set1_epi64(table));
  }

  // Magnitudes of register s with signs, whose byte 4 k + s is that of lane k.
  DSV32_VNNI_INLINE __m512i with_signs(__m512i magnitudes, __m256i signs, int s) {
    const __m512i fourth = _mm512_mullo_epi64(order(s), _mm512_set1_epi64(0x0101010101010101));
    const __m512i of_lanes = _mm512_permutexvar_epi8(fourth, _mm512_castsi256_si512(signs));
    const __mmask64 negative = _mm512_test_epi8_mask(of_lanes, _mm512_set1_epi64(0x8040201008040201));
    const __m512i raised = _mm512_add_epi8(magnitudes, bytes_of(kRaise));
    return _mm512_mask_sub_epi8(raised, negative, bytes_of(kRaise), magnitudes);
  }

  template <class Table>
  DSV32_VNNI_INLINE void unpack_iq2(__m512i indices, __m256i signs, __m512i* out) {
    const __m512i points = Table::points(indices);
    HWY_UNROLL(4)
    for (int s = 0; s < 4; ++s) out[s] = with_signs(Table::magnitudes(points, s), signs, s);
  }
  // Delta's bit in a lane: `bit` of register 0, and `next` above it of the next register.
  template <class Table>
  DSV32_VNNI_INLINE void unpack_iq1(__m512i indices, __m512i lanes, int bit, int next, __m512i* out) {
    const __m512i points = Table::points(indices);
    HWY_UNROLL(4)
    for (int s = 0; s < 4; ++s) {
      const __mmask8 is_negative = _mm512_test_epi64_mask(lanes, _mm512_set1_epi64(1 << (bit + next * s)));
      const __m512i raise = _mm512_mask_blend_epi64(is_negative, bytes_of(kRaise + 1), bytes_of(kRaise - 1));
      out[s] = _mm512_add_epi8(Table::magnitudes(points, s), raise);
    }
  }
  // Points of four codes in nibbles.
  DSV32_VNNI_INLINE void unpack_iq3(__m512i low, __m512i high, int64_t table, __m256i signs, __m512i* out) {
    HWY_UNROLL(4)
    for (int s = 0; s < 4; ++s)
      out[s] = with_signs(values(_mm512_permutex2var_epi32(low, order(s), high), 0x1c1814100c080400, table),
                          signs, s);
  }
};

template <int kSums>
using GridFormat = RaisedFormat<kSums, Grid::kRaise>;

// Points of eight values, from their codes in registers: kCodes of two bits each, whose values are in
// kValues.
template <auto& kCodes, int64_t kValues>
struct CodesOfPoints : Grid {
  DSV32_VNNI_INLINE __m512i points(__m512i indices) { return look_up(kCodes, indices); }
  DSV32_VNNI_INLINE __m512i magnitudes(__m512i points, int s) {
    return values(_mm512_permutexvar_epi16(order(s), points), 0x0e0c0a0806040200, kValues);
  }
};

// The same by gathering them from memory. On an Intel CPU of 2023 that takes 0.4 to 0.9 of the time where
// there are more than 256 points; on an AMD one of 2024 1.2 to 1.7 of it.
template <auto& kGrid>
struct GatheredPoints : Grid {
  DSV32_VNNI_INLINE __m512i points(__m512i indices) { return indices; }
  DSV32_VNNI_INLINE __m512i magnitudes(__m512i indices, int s) {
    return _mm512_i64gather_epi64(_mm512_maskz_permutexvar_epi16(0x11111111, order(s), indices), kGrid.data(),
                                  8);
  }
};

constexpr int64_t kIq1Values = 0x000800f8000800f8, kIq2Values = 0x002b1908002b1908;

struct VnniIQ2_XXS : GridFormat<1>, Grid {
  using Block = BlockIQ2_XXS;

  DSV32_VNNI_INLINE void unpack(const Block* at, Stage& out) {
    const __m512i even_first = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    const __m512i packed = _mm512_permutexvar_epi32(even_first, _mm512_loadu_si512(at->qs));
    const __m256i words = _mm512_extracti64x4_epi64(packed, 1);
    const __m512i indices = _mm512_cvtepu8_epi16(_mm512_castsi512_si256(packed));
    unpack_iq2<CodesOfPoints<kIq2xxsCodes, kIq2Values>>(indices, unpack_signs(words), out.bytes);
    out.scales[0] = spread_scales(odd(_mm256_srli_epi32(words, 28), 15), at->d, kUnit<Block>);
  }
};

template <class Table>
struct VnniIQ2_XS : GridFormat<2>, Grid {
  using Block = BlockIQ2_XS;

  DSV32_VNNI_INLINE void unpack(const Block* at, Stage& out) {
    const __m512i codes = _mm512_loadu_si512(at->qs);
    unpack_iq2<Table>(_mm512_and_si512(codes, _mm512_set1_epi16(511)),
                      signs_of(_mm512_cvtepi16_epi8(_mm512_srli_epi16(codes, 9))), out.bytes);
    spread_nibbles(at->scales, at->d, kUnit<Block>, out.scales);
  }
};

template <class Table>
struct VnniIQ2_S : GridFormat<2>, Grid {
  using Block = BlockIQ2_S;

  DSV32_VNNI_INLINE void unpack(const Block* at, Stage& out) {
    const __m512i lanes = _mm512_cvtepu8_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at->qh)));
    unpack_iq2<Table>(indices_of(at->qs, lanes, 0x0600040002000000, 3), load<__m256i>(at->signs), out.bytes);
    spread_nibbles(at->scales, at->d, kUnit<Block>, out.scales);
  }
};

template <class Table>
struct VnniIQ1_S : GridFormat<1>, Grid {
  using Block = BlockIQ1_S;

  DSV32_VNNI_INLINE void unpack(const Block* at, Stage& out) {
    const __m128i qh = load<__m128i>(at->qh);
    const __m512i lanes = _mm512_cvtepu16_epi64(qh);
    unpack_iq1<Table>(indices_of(at->qs, lanes, 0x0900060003000000, 7), lanes, 15, 0, out.bytes);
    out.scales[0] =
        spread_scales(odd(_mm256_srli_epi32(_mm256_cvtepu16_epi32(qh), 12), 7), at->d, kUnit<Block>);
  }
};

template <class Table>
struct VnniIQ1_M : GridFormat<2>, Grid {
  using Block = BlockIQ1_M;

  DSV32_VNNI_INLINE void unpack(const Block* at, Stage& out) {
    const __m512i lanes = _mm512_cvtepu16_epi64(load<__m128i>(at->qh));
    unpack_iq1<Table>(indices_of(at->qs, lanes, 0x0c00080004000000, 7), lanes, 3, 4, out.bytes);
    const __m128i words = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(at->scales));
    const __m256i twice = _mm256_cvtepu16_epi32(_mm_unpacklo_epi16(words, words));
    HWY_UNROLL(2)
    for (int i = 0; i < 2; ++i) {
      const __m256i shifts =
          _mm256_setr_epi32(3 * i, 3 * i + 6, 3 * i, 3 * i + 6, 3 * i, 3 * i + 6, 3 * i, 3 * i + 6);
      out.scales[i] =
          spread_scales(odd(_mm256_srlv_epi32(twice, shifts), 7), shared_scale(*at), kUnit<Block>);
    }
  }
};

struct VnniIQ3_XXS : GridFormat<1>, Grid {
  using Block = BlockIQ3_XXS;

  DSV32_VNNI_INLINE void unpack(const Block* at, Stage& out) {
    const __m256i words = load<__m256i>(at->signs);
    const __m512i low = look_up(kIq3xxsCodes, indices_of(at->qs));
    const __m512i high = look_up(kIq3xxsCodes, indices_of(at->qs + 32));
    unpack_iq3(low, high, 0x3e342c241c140c04, unpack_signs(words), out.bytes);
    out.scales[0] = spread_scales(odd(_mm256_srli_epi32(words, 28), 15), at->d, kUnit<Block>);
  }
};

struct VnniIQ3_S : GridFormat<1>, Grid {
  using Block = BlockIQ3_S;

  // qh: the ninth bits.
  DSV32_VNNI_INLINE __m512i points(const uint8_t* qs, const uint8_t* qh) {
    const __m512i lower = indices_of(qs);
    return look_up(kIq3sCodes,
                   _mm512_mask_add_epi16(lower, load<uint32_t>(qh), lower, _mm512_set1_epi16(256)));
  }

  DSV32_VNNI_INLINE void unpack(const Block* at, Stage& out) {
    unpack_iq3(points(at->qs, at->qh), points(at->qs + 32, at->qh + 4), 0x0f0d0b0907050301,
               load<__m256i>(at->signs), out.bytes);
    const __m256i shifts = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
    const __m256i scales = _mm256_srlv_epi32(_mm256_set1_epi32(load<int32_t>(at->scales)), shifts);
    out.scales[0] = spread_scales(odd(scales, 15), at->d, kUnit<Block>);
  }
};

template <template <class> class Format, auto& kCodes, int64_t kValues, auto& kGrid>
const CpuKernels* points_kernels(bool gathers) {
  return gathers ? &VnniFormat<Format<GatheredPoints<kGrid>>>::kKernels
                 : &VnniFormat<Format<CodesOfPoints<kCodes, kValues>>>::kKernels;
}

}  // namespace dsv32::vnni
