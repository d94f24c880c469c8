// Products in integers, on CPUs that add 64 products of bytes at once (AVX-512 VNNI): the formats that models
// of this size come in.
//
// A block of 256 values is four registers of weights as bytes, where floats need sixteen. The values are laid
// out so that registers share their scales, lane by lane: integers add up over four registers, or two, before
// they meet a float. Formats with small codes and scales (Q2_K, Q3_K) multiply these by a table lookup on the
// way. See cpu_formats_vnni.h for the activations and the one rounding.
#include "backend/cpu_kernels.h"

// AVX3_DL is Highway's name for AVX-512 with VNNI and what came with it (Ice Lake, Zen 4), compiled on
// request. Its dispatch remembers what the CPU can do; hwy::SupportedTargets() asks anew, by instructions
// that leave a virtual machine.
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
#include "gguf/quant_codes.h"

namespace dsv32 {
namespace {

using namespace vnni;

// Formats with an offset for each group: a lane of `offsets` for each lane of negative sums of x.
template <int kNumber>
struct OffsetFormat {
  static constexpr int kBlocks = 1, kSums = kNumber;
  using X = Activations<1>;
  struct Stage : Weights<kSums> {
    __m512 offsets;
  };

  DSV32_VNNI_INLINE Sums start(const X&, int) { return no_sums(); }
  DSV32_VNNI_INLINE __m512 add_offsets(const Stage& w, const X& x, __m512 lanes) {
    return _mm512_fmadd_ps(w.offsets, _mm512_load_ps(x.sums[0]), lanes);
  }
};

// Formats of signed weights, raised by kBias to be bytes: what the sums have too much comes off at the start.
template <int kNumber, int kRaise>
struct RaisedFormat {
  static constexpr int kBlocks = 1, kSums = kNumber, kBias = kRaise;
  using X = Activations<2 * kSums>;  // for each sum: of plane a, and of b and c together
  using Stage = Weights<kSums>;

  DSV32_VNNI_INLINE void prepare_extra(const float*, X& out) {
    for (int sum = 0; sum < kSums; ++sum) {
      Sums bias = no_sums();
      for (int i = 0; i < 4 / kSums; ++i) add_products(bytes_of(kBias), out, 4 / kSums * sum + i, bias);
      store_negative(bias.a, out.start[2 * sum]);
      store_negative(low_total(bias), out.start[2 * sum + 1]);
    }
  }

  DSV32_VNNI_INLINE Sums start(const X& x, int sum) {
    return {_mm512_load_si512(x.start[2 * sum]), _mm512_setzero_si512(),
            _mm512_load_si512(x.start[2 * sum + 1])};
  }
  DSV32_VNNI_INLINE __m512 add_offsets(const Stage&, const X&, __m512 lanes) { return lanes; }
};

// ---- Q2_K, Q3_K: register s holds bits 2 s of the 64 bytes of qs, multiplied by their scales ----

struct TwoBits {
  static constexpr int first_value(int s, int k) { return 128 * (k / 4) + 32 * s + 8 * (k % 4); }

  // Scales of 16 groups of 16 values, one a byte, into 32-bit lanes: 4 j + s is that of lane j of register s.
  DSV32_VNNI_INLINE __m512i spread_groups(__m128i groups) {
    return _mm512_cvtepu8_epi32(
        _mm_shuffle_epi8(groups, _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15)));
  }
};

// scale * code is at most 45. A 128-bit lane has four tables of four bytes, one a register.
struct VnniQ2_K : OffsetFormat<1>, TwoBits {
  using Block = BlockQ2_K;

  // Lane 4 j + s: of the group in lane j of register s.
  DSV32_VNNI_INLINE void prepare_extra(const float* x, X& out) {
    for (int s = 0; s < 4; ++s)
      for (int j = 0; j < 4; ++j)
        out.sums[0][4 * j + s] = -_mm512_reduce_add_ps(_mm512_loadu_ps(x + first_value(s, 2 * j)));
  }

  DSV32_VNNI_INLINE void unpack(const Block* at, Stage& out) {
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

// (scale - 32) * (code - 4) is -124 to 128: a byte once kBias is added. A 128-bit lane has two tables of
// eight bytes for two registers.
struct VnniQ3_K : RaisedFormat<1, 124>, TwoBits {
  using Block = BlockQ3_K;

  DSV32_VNNI_INLINE void unpack(const Block* at, Stage& out) {
    // Four bytes of a table in one multiplication, of a scale with four small factors: the bias makes good
    // what one byte borrows from the next.
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
    // Bit k of a byte of hmask belongs to value 32 k + i: bring the upper half (k + 4) level with the lower.
    const __m256i hmask = load<__m256i>(at->hmask);
    const __m512i third = join(hmask, _mm256_srli_epi32(hmask, 4));
    const __m512i codes = _mm512_loadu_si512(at->qs);
    out.bytes[0] = look_up(tables_0_1, codes, _mm512_slli_epi32(third, 2), 0);
    out.bytes[1] = look_up(tables_0_1, _mm512_srli_epi32(codes, 2), _mm512_slli_epi32(third, 1), 8);
    out.bytes[2] = look_up(tables_2_3, _mm512_srli_epi32(codes, 4), third, 0);
    out.bytes[3] = look_up(tables_2_3, _mm512_srli_epi32(codes, 6), _mm512_srli_epi32(third, 1), 8);
    out.scales[0] = half_everywhere(at->d);
  }

  // low: codes at bits 0 and 1 of a byte; third: at bit 2; other bits arbitrary. table: 0 or 8, of the lane's
  // two.
  DSV32_VNNI_INLINE __m512i look_up(__m512i tables, __m512i low, __m512i third, int table) {
    return _mm512_shuffle_epi8(tables, and_or(select(3, low, third), 7, table));
  }
};

// ---- Q4_K, Q5_K: registers 2 n and 2 n + 1 hold nibble n of the two halves of each 32 bytes of qs ----

struct NibbleFormat : OffsetFormat<2> {
  static constexpr int first_value(int s, int k) {
    return 64 * (k / 2) + 32 * (s / 2) + 16 * (s % 2) + 8 * (k % 2);
  }

  // Lane 2 g + 1: of group g, to meet the mins; even lanes are zero.
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
  DSV32_VNNI_INLINE void unpack_scales(const Block& b, Stage& out) {
    const Groups groups = unpack_k_scales(b.scales);
    const __m128i codes =
        _mm_unpacklo_epi8(reinterpret_cast<__m128i>(groups.scales), reinterpret_cast<__m128i>(groups.mins));
    const __m512 d_and_dmin = _mm512_cvtph_ps(_mm256_set1_epi32(load<int32_t>(&b.d)));
    out.offsets = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(codes)), d_and_dmin);
    const __m512i even = _mm512_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12);
    out.scales[0] = _mm512_permutexvar_ps(even, out.offsets);
    out.scales[1] = _mm512_permutexvar_ps(_mm512_add_epi32(even, _mm512_set1_epi32(2)), out.offsets);
  }

  // Of the 32-byte pieces at qs, the first halves and the second halves.
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

  DSV32_VNNI_INLINE void unpack(const Block* at, Stage& out) {
    unpack_scales(*at, out);
    const Halves codes = load_halves(at->qs);
    HWY_UNROLL(2) for (int i = 0; i < 2; ++i) {
      out.bytes[i] = _mm512_and_si512(codes.of[i], bytes_of(15));
      out.bytes[2 + i] = _mm512_and_si512(_mm512_srli_epi32(codes.of[i], 4), bytes_of(15));
    }
  }
};

struct VnniQ5_K : NibbleFormat {
  using Block = BlockQ5_K;

  DSV32_VNNI_INLINE void unpack(const Block* at, Stage& out) {
    unpack_scales(*at, out);
    const Halves codes = load_halves(at->qs);
    HWY_UNROLL(2) for (int i = 0; i < 2; ++i) {
      // Bit g of a byte of qh belongs to group g, and lane j holds groups 2 j and 2 j + 1: make them bits 0
      // and 1.
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
  static constexpr int first_value(int s, int k) {
    return 128 * (s / 2) + 64 * (k % 2) + 16 * (k / 2) + 8 * (s % 2);
  }

  DSV32_VNNI_INLINE void unpack(const Block* at, Stage& out) {
    const __m512i groups = _mm512_cvtepi8_epi32(load<__m128i>(at->scales));
    const __m512 scales = _mm512_mul_ps(_mm512_cvtepi32_ps(groups), half_everywhere(at->d));
    const __m512i order = _mm512_setr_epi32(0, 0, 4, 4, 1, 1, 5, 5, 2, 2, 6, 6, 3, 3, 7, 7);
    HWY_UNROLL(2) for (int h = 0; h < 2; ++h) {
      // Upper bits of the low nibbles' values: at bit 0 for the lower half, at 2 for the upper; of the high
      // nibbles': at 4 and 6.
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
  static constexpr int first_value(int s, int k) {
    return 128 * (s / 2) + 32 * (k / 2) + 16 * (s % 2) + 8 * (k % 2);
  }

  // of_groups: of 8 groups, lowest first.
  DSV32_VNNI_INLINE void spread_scales(__m256 of_groups, Stage& out) {
    const __m512i order = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    const __m512 scales = _mm512_castps256_ps512(of_groups);
    out.scales[0] = _mm512_permutexvar_ps(order, scales);
    out.scales[1] = _mm512_permutexvar_ps(_mm512_add_epi32(order, _mm512_set1_epi32(4)), scales);
  }
};

struct VnniQ8_0 : GroupOf32Format {
  using Block = BlockQ8_0;
  static constexpr int kBlocks = 8;

  DSV32_VNNI_INLINE void unpack(const Block* at, Stage& out) {
    using Halves [[gnu::vector_size(16)]] = uint16_t;
    const Halves d = {at[0].d, at[1].d, at[2].d, at[3].d, at[4].d, at[5].d, at[6].d, at[7].d};
    spread_scales(_mm256_cvtph_ps(reinterpret_cast<__m128i>(d)), out);
    HWY_UNROLL(4) for (int s = 0; s < 4; ++s) {
      const auto pair = [first = at + s / 2 * 4, piece = s % 2 * 16](int i) DSV32_VNNI {
        return _mm256_set_m128i(load<__m128i>(first[i + 1].qs + piece), load<__m128i>(first[i].qs + piece));
      };
      out.bytes[s] = _mm512_xor_si512(join(pair(0), pair(2)), bytes_of(kBias));
    }
  }
};

struct VnniIQ4_XS : GroupOf32Format {
  using Block = BlockIQ4_XS;

  DSV32_VNNI_INLINE void unpack(const Block* at, Stage& out) {
    const __m256i groups = _mm256_cvtepi8_epi32(reinterpret_cast<__m128i>(unpack_iq4_xs_scales(*at)));
    spread_scales(_mm256_mul_ps(_mm256_cvtepi32_ps(groups), _mm512_castps512_ps256(half_everywhere(at->d))),
                  out);
    const __m512i table = _mm512_xor_si512(lanes_of(kIq4Values), bytes_of(kBias));
    HWY_UNROLL(2) for (int h = 0; h < 2; ++h) {
      const __m512i codes = _mm512_loadu_si512(at->qs + 64 * h), high = _mm512_srli_epi32(codes, 4);
      out.bytes[2 * h] = _mm512_shuffle_epi8(table, _mm512_and_si512(codes, bytes_of(15)));
      out.bytes[2 * h + 1] = _mm512_shuffle_epi8(table, _mm512_and_si512(high, bytes_of(15)));
    }
  }
};

// ---- IQ1, IQ2, IQ3: register s holds values 8 s on of each 32, and a 64-bit lane those of one 32 ----

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

}  // namespace

HWY_EXPORT(has_vnni);

bool gathers_fast() {
  static const bool is_intel = __builtin_cpu_is("intel");
  return is_intel;
}

const CpuKernels* vnni_kernels_of(TensorType type, bool gathers) {
  if (!HWY_DYNAMIC_DISPATCH(has_vnni)()) return nullptr;
  switch (type) {
    case TensorType::q2_k: return &VnniFormat<VnniQ2_K>::kKernels;
    case TensorType::q3_k: return &VnniFormat<VnniQ3_K>::kKernels;
    case TensorType::q4_k: return &VnniFormat<VnniQ4_K>::kKernels;
    case TensorType::q5_k: return &VnniFormat<VnniQ5_K>::kKernels;
    case TensorType::q6_k: return &VnniFormat<VnniQ6_K>::kKernels;
    case TensorType::q8_0: return &VnniFormat<VnniQ8_0>::kKernels;
    case TensorType::iq4_xs: return &VnniFormat<VnniIQ4_XS>::kKernels;
    case TensorType::iq1_s: return points_kernels<VnniIQ1_S, kIq1Codes, kIq1Values, kIq1Grid>(gathers);
    case TensorType::iq1_m: return points_kernels<VnniIQ1_M, kIq1Codes, kIq1Values, kIq1Grid>(gathers);
    case TensorType::iq2_xxs: return &VnniFormat<VnniIQ2_XXS>::kKernels;
    case TensorType::iq2_xs: return points_kernels<VnniIQ2_XS, kIq2xsCodes, kIq2Values, kIq2xsGrid>(gathers);
    case TensorType::iq2_s: return points_kernels<VnniIQ2_S, kIq2sCodes, kIq2Values, kIq2sGrid>(gathers);
    case TensorType::iq3_xxs: return &VnniFormat<VnniIQ3_XXS>::kKernels;
    case TensorType::iq3_s: return &VnniFormat<VnniIQ3_S>::kKernels;
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
