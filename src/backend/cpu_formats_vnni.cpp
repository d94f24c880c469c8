// Products in integers, on CPUs that add 64 products of bytes at once (AVX-512 VNNI): Q8_0 and the K formats.
//
// A block of 256 values is four registers of weights as bytes, where floats need sixteen. Formats with small
// codes and scales (Q2_K, Q3_K) multiply them by a table lookup on the way and sum over the whole block; the
// others multiply the sums of each register with its scales. See cpu_formats_vnni.h for the activations and
// the one rounding.
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

namespace dsv32 {
namespace {

using namespace vnni;

constexpr int kRows = CpuKernels::kRows;

// d and dmin: f16 at `from`, in every lane.
DSV32_VNNI_INLINE __m512 float_everywhere(const uint8_t* from) {
  return _mm512_cvtph_ps(half_everywhere(from));
}

// One block of weights, unpacked, with one scale for all of it.
struct BlockStage {
  __m512i bytes[4];
  __m512 d;
};

// The same with scales for each register's lanes.
struct RegisterStage {
  __m512i bytes[4];
  __m512 scales[4];
};

// ---- Q2_K, Q3_K: register s holds bits 2 s of the 64 bytes of qs ----

struct TwoBitFormat {
  static constexpr int kBlocks = 1;  // of a step
  static constexpr bool kScaleOfBlock = true;
  static constexpr int first_value(int s, int j) { return 128 * (j / 2) + 32 * s + 16 * (j % 2); }

  // Scales of 16 groups of 16 values, one a byte, into 32-bit lanes: 4 j + s is that of lane j of register s.
  DSV32_VNNI_INLINE __m512i spread_groups(__m128i groups) {
    return _mm512_cvtepu8_epi32(
        _mm_shuffle_epi8(groups, _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15)));
  }
};

// scale * code is at most 45. A 128-bit lane has four tables of four bytes, one a register.
struct VnniQ2_K : TwoBitFormat {
  using Block = BlockQ2_K;
  using X = Activations<1>;  // sums[0][4 j + s] = -(sum of the group)
  struct Stage : BlockStage {
    __m512 mins;  // dmin * min, as the sums lie
  };

  DSV32_VNNI_INLINE void prepare_extra(const float* x, X& out) {
    for (int s = 0; s < 4; ++s)
      for (int j = 0; j < 4; ++j)
        out.sums[0][4 * j + s] = -_mm512_reduce_add_ps(_mm512_loadu_ps(x + first_value(s, j)));
  }

  DSV32_VNNI_INLINE void unpack(const uint8_t* at, Stage& out) {
    const __m512i groups = spread_groups(load_16_bytes(at + offsetof(Block, scales)));
    const __m512i scales = _mm512_and_si512(groups, _mm512_set1_epi32(15));
    const __m512i tables = _mm512_mullo_epi32(scales, _mm512_set1_epi32(0x03020100));
    const __m512i codes = _mm512_loadu_si512(at + offsetof(Block, qs));
    out.bytes[0] = _mm512_shuffle_epi8(tables, and_or(codes, 3, 0));
    out.bytes[1] = _mm512_shuffle_epi8(tables, and_or(_mm512_srli_epi32(codes, 2), 3, 4));
    out.bytes[2] = _mm512_shuffle_epi8(tables, and_or(_mm512_srli_epi32(codes, 4), 3, 8));
    out.bytes[3] = _mm512_shuffle_epi8(tables, and_or(_mm512_srli_epi32(codes, 6), 3, 12));
    const __m128 d_and_dmin = _mm_cvtph_ps(_mm_cvtsi32_si128(load<int32_t>(at + offsetof(Block, d))));
    out.d = _mm512_broadcastss_ps(d_and_dmin);
    out.mins = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_srli_epi32(groups, 4)),
                             _mm512_broadcastss_ps(_mm_movehdup_ps(d_and_dmin)));
  }

  DSV32_VNNI_INLINE Sums start(const X&, int) { return no_sums(); }
  DSV32_VNNI_INLINE __m512 total(const Sums& sums) { return wide_total(sums); }
  DSV32_VNNI_INLINE __m512 add_offsets(const Stage& w, const X& x, __m512 lanes) {
    return _mm512_fmadd_ps(w.mins, _mm512_load_ps(x.sums[0]), lanes);
  }
};

// (scale - 32) * (code - 4) is -124 to 128: a byte once kBias is added. A 128-bit lane has two tables of
// eight bytes for two registers.
struct VnniQ3_K : TwoBitFormat {
  using Block = BlockQ3_K;
  using X =
      Activations<2>;  // what the sums start from, against the bias: of plane a, and of b and c together
  using Stage = BlockStage;
  static constexpr int kBias = 124;

  DSV32_VNNI_INLINE void prepare_extra(const float*, X& out) {
    Sums bias = no_sums();
    for (int s = 0; s < 4; ++s) add_bias(kBias, out, s, bias);
    store_negative(bias.a, out.start[0]);
    store_negative(low_total(bias), out.start[1]);
  }

  // 16 codes of six bits; see unpack_q3_k_scales().
  DSV32_VNNI_INLINE __m512i unpack_scales(const uint8_t* packed) {
    constexpr uint64_t kLow = 0x0f0f0f0f0f0f0f0f, kUpper = 0x3030303030303030;
    const uint64_t low = load<uint64_t>(packed), high = load<uint32_t>(packed + 8);
    const uint64_t first = (low & kLow) | ((high << 4 | high << 34) & kUpper);
    const uint64_t second = (low >> 4 & kLow) | ((high | high << 30) & kUpper);
    return spread_groups(both(first, second));
  }

  DSV32_VNNI_INLINE void unpack(const uint8_t* at, Stage& out) {
    // Four bytes of a table in one multiplication, of a scale with four small factors: the bias makes good
    // what one byte borrows from the next.
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
    // Bit k of a byte of hmask belongs to value 32 k + i: bring the upper half (k + 4) level with the lower.
    const __m256i hmask = load_32_bytes(at + offsetof(Block, hmask));
    const __m512i third = join(hmask, _mm256_srli_epi32(hmask, 4));
    const __m512i codes = _mm512_loadu_si512(at + offsetof(Block, qs));
    out.bytes[0] = look_up(tables_0_1, codes, _mm512_slli_epi32(third, 2), 0);
    out.bytes[1] = look_up(tables_0_1, _mm512_srli_epi32(codes, 2), _mm512_slli_epi32(third, 1), 8);
    out.bytes[2] = look_up(tables_2_3, _mm512_srli_epi32(codes, 4), third, 0);
    out.bytes[3] = look_up(tables_2_3, _mm512_srli_epi32(codes, 6), _mm512_srli_epi32(third, 1), 8);
    out.d = float_everywhere(at + offsetof(Block, d));
  }

  // low: codes at bits 0 and 1 of a byte; third: at bit 2; other bits arbitrary. table: 0 or 8, of the lane's
  // two.
  DSV32_VNNI_INLINE __m512i look_up(__m512i tables, __m512i low, __m512i third, int table) {
    return _mm512_shuffle_epi8(tables, and_or(select(3, low, third), 7, table));
  }

  DSV32_VNNI_INLINE Sums start(const X& x, int) {
    return {_mm512_load_si512(x.start[0]), _mm512_setzero_si512(), _mm512_load_si512(x.start[1])};
  }
  DSV32_VNNI_INLINE __m512 total(const Sums& sums) { return wide_total(sums); }
  DSV32_VNNI_INLINE __m512 add_offsets(const Stage&, const X&, __m512 lanes) { return lanes; }
};

// ---- Q4_K, Q5_K: register 2 h + n holds nibble n of 64 bytes: groups 4 h + n and 4 h + 2 + n ----

struct NibbleFormat {
  static constexpr int kBlocks = 1;
  static constexpr bool kScaleOfBlock = false;
  using X = Activations<1>;  // sums[0][2 g + 1] = -(sum of group g), to meet the mins; even lanes are zero
  struct Stage : RegisterStage {
    __m512 offsets;
  };

  static constexpr int first_value(int s, int j) {
    return 128 * (s / 2) + 64 * (j / 2) + 32 * (s % 2) + 16 * (j % 2);
  }

  DSV32_VNNI_INLINE void prepare_extra(const float* x, X& out) {
    for (int g = 0; g < 8; ++g) {
      const float* group = x + 32 * g;
      out.sums[0][2 * g] = 0.0f;
      out.sums[0][2 * g + 1] =
          -_mm512_reduce_add_ps(_mm512_add_ps(_mm512_loadu_ps(group), _mm512_loadu_ps(group + 16)));
    }
  }

  // at: d, dmin and the twelve packed bytes; see unpack_k_scales(). Lanes 2 g and 2 g + 1 are d * scale and
  // dmin * min of group g.
  DSV32_VNNI_INLINE void unpack_scales(const uint8_t* at, Stage& out) {
    constexpr uint32_t kNibbles = 0x0f0f0f0f, kSix = 0x3f3f3f3f, kUpper = 0x30303030;
    const uint32_t a = load<uint32_t>(at + 4), b = load<uint32_t>(at + 8), low = load<uint32_t>(at + 12);
    const uint64_t scales = (a & kSix) | uint64_t{(low & kNibbles) | (a >> 2 & kUpper)} << 32;
    const uint64_t mins = (b & kSix) | uint64_t{(low >> 4 & kNibbles) | (b >> 2 & kUpper)} << 32;
    const __m128i codes = _mm_unpacklo_epi8(both(scales, 0), both(mins, 0));
    const __m512 factors = _mm512_cvtph_ps(_mm256_set1_epi32(load<int32_t>(at)));
    out.offsets = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(codes)), factors);
    HWY_UNROLL(4) for (int s = 0; s < 4; ++s) {
      const int group = 4 * (s / 2) + s % 2;
      const __m512i lanes = join(_mm256_set1_epi32(2 * group), _mm256_set1_epi32(2 * (group + 2)));
      out.scales[s] = _mm512_permutexvar_ps(lanes, out.offsets);
    }
  }

  DSV32_VNNI_INLINE Sums start(const X&, int) { return no_sums(); }
  // Four codes of at most 31 times 2^23 end below 2^31.
  DSV32_VNNI_INLINE __m512 total(const Sums& sums) { return _mm512_cvtepi32_ps(int_total(sums)); }
  DSV32_VNNI_INLINE __m512 add_offsets(const Stage& w, const X& x, __m512 lanes) {
    return _mm512_fmadd_ps(w.offsets, _mm512_load_ps(x.sums[0]), lanes);
  }
};

struct VnniQ4_K : NibbleFormat {
  using Block = BlockQ4_K;

  DSV32_VNNI_INLINE void unpack(const uint8_t* at, Stage& out) {
    unpack_scales(at, out);
    HWY_UNROLL(2) for (int h = 0; h < 2; ++h) {
      const __m512i codes = _mm512_loadu_si512(at + offsetof(Block, qs) + 64 * h);
      out.bytes[2 * h] = _mm512_and_si512(codes, bytes_of(15));
      out.bytes[2 * h + 1] = _mm512_and_si512(_mm512_srli_epi32(codes, 4), bytes_of(15));
    }
  }
};

struct VnniQ5_K : NibbleFormat {
  using Block = BlockQ5_K;

  DSV32_VNNI_INLINE void unpack(const uint8_t* at, Stage& out) {
    unpack_scales(at, out);
    // Bit g of a byte of qh belongs to group g: bring the upper half, which holds group 2 further on, level.
    const __m256i qh = load_32_bytes(at + offsetof(Block, qh));
    const __m512i fifth = join(qh, _mm256_srli_epi32(qh, 2));
    const __m512i at_bit_4[4] = {_mm512_slli_epi32(fifth, 4), _mm512_slli_epi32(fifth, 3), fifth,
                                 _mm512_srli_epi32(fifth, 1)};
    HWY_UNROLL(2) for (int h = 0; h < 2; ++h) {
      const __m512i codes = _mm512_loadu_si512(at + offsetof(Block, qs) + 64 * h);
      out.bytes[2 * h] = _mm512_and_si512(select(15, codes, at_bit_4[2 * h]), bytes_of(31));
      out.bytes[2 * h + 1] =
          _mm512_and_si512(select(15, _mm512_srli_epi32(codes, 4), at_bit_4[2 * h + 1]), bytes_of(31));
    }
  }
};

// ---- Q6_K, Q8_0: values as they lie; what the bytes are raised by comes off the sums again ----

struct NaturalFormat {
  static constexpr bool kScaleOfBlock = false;
  using Stage = RegisterStage;
  static constexpr int first_value(int s, int j) { return 64 * s + 16 * j; }

  template <class X>
  DSV32_VNNI_INLINE __m512 add_offsets(const Stage&, const X&, __m512 lanes) {
    return lanes;
  }
};

struct VnniQ6_K : NaturalFormat {
  using Block = BlockQ6_K;
  static constexpr int kBlocks = 1;
  using X = Activations<4>;  // what a register's sums start from, all planes together
  static constexpr int kBias = 32;

  DSV32_VNNI_INLINE void prepare_extra(const float*, X& out) {
    for (int s = 0; s < 4; ++s) {
      Sums bias = no_sums();
      add_bias(kBias, out, s, bias);
      store_negative(int_total(bias), out.start[s]);
    }
  }

  DSV32_VNNI_INLINE void unpack(const uint8_t* at, Stage& out) {
    const __m512i codes = _mm512_cvtepi8_epi32(load_16_bytes(at + offsetof(Block, scales)));
    const __m512 scales = _mm512_mul_ps(_mm512_cvtepi32_ps(codes), float_everywhere(at + offsetof(Block, d)));
    HWY_UNROLL(4) for (int s = 0; s < 4; ++s) {
      const __m512i lane = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
      out.scales[s] = _mm512_permutexvar_ps(_mm512_add_epi32(lane, _mm512_set1_epi32(4 * s)), scales);
    }
    HWY_UNROLL(2) for (int h = 0; h < 2; ++h) {
      // Upper bits of the low nibbles' values: at bit 0 for the lower half, at 2 for the upper; of the high
      // nibbles': at 4 and 6.
      const __m256i qh = load_32_bytes(at + offsetof(Block, qh) + 32 * h);
      const __m512i upper = join(qh, _mm256_srli_epi32(qh, 2));
      const __m512i low = _mm512_loadu_si512(at + offsetof(Block, ql) + 64 * h);
      out.bytes[2 * h] = _mm512_and_si512(select(15, low, _mm512_slli_epi32(upper, 4)), bytes_of(63));
      out.bytes[2 * h + 1] = _mm512_and_si512(select(15, _mm512_srli_epi32(low, 4), upper), bytes_of(63));
    }
  }

  DSV32_VNNI_INLINE Sums start(const X& x, int s) {
    return {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_load_si512(x.start[s])};
  }
  // Four weights of -32 to 31 times 2^23 are within 2^30; what passes 2^31 on the way comes back.
  DSV32_VNNI_INLINE __m512 total(const Sums& sums) { return _mm512_cvtepi32_ps(int_total(sums)); }
};

struct VnniQ8_0 : NaturalFormat {
  using Block = BlockQ8_0;
  static constexpr int kBlocks = 8;
  using X = Activations<8>;  // what a register's sums start from: of plane a, and of b and c together
  static constexpr int kBias = 128;

  DSV32_VNNI_INLINE void prepare_extra(const float*, X& out) {
    for (int s = 0; s < 4; ++s) {
      Sums bias = no_sums();
      add_bias(kBias, out, s, bias);
      store_negative(bias.a, out.start[2 * s]);
      store_negative(low_total(bias), out.start[2 * s + 1]);
    }
  }

  DSV32_VNNI_INLINE void unpack(const uint8_t* at, Stage& out) {
    HWY_UNROLL(4) for (int s = 0; s < 4; ++s) {
      const uint8_t* first = at + 2 * s * sizeof(Block);
      const uint8_t* second = first + sizeof(Block);
      out.scales[s] =
          _mm512_cvtph_ps(_mm256_blend_epi32(half_everywhere(first), half_everywhere(second), 0xf0));
      out.bytes[s] = _mm512_xor_si512(
          join(load_32_bytes(first + offsetof(Block, qs)), load_32_bytes(second + offsetof(Block, qs))),
          bytes_of(kBias));
    }
  }

  DSV32_VNNI_INLINE Sums start(const X& x, int s) {
    return {_mm512_load_si512(x.start[2 * s]), _mm512_setzero_si512(), _mm512_load_si512(x.start[2 * s + 1])};
  }
  DSV32_VNNI_INLINE __m512 total(const Sums& sums) { return wide_total(sums); }
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
  using X = typename F::X;
  using Stage = typename F::Stage;
  static constexpr size_t kStepBytes = F::kBlocks * sizeof(typename F::Block);

  DSV32_VNNI static void prepare_step(const float* x, int n_values, float* out) {
    alignas(64) float padded[kValues] = {};
    std::memcpy(padded, x, static_cast<size_t>(n_values) * sizeof(float));
    X& prepared = *reinterpret_cast<X*>(out);
    prepare_planes(padded, F::first_value, prepared);
    F::prepare_extra(padded, prepared);
  }

  // One step of R rows times T tokens. Pair p, of P = R * T, is row p / T and token p % T; lanes [P].
  template <int R, int T>
  DSV32_VNNI_INLINE void step(const uint8_t* const* at, const X* const* x, __m512* lanes) {
    Stage weights[R];
    __m512 block[R * T];
    HWY_UNROLL(4)
    for (int r = 0; r < R; ++r) F::unpack(at[r], weights[r]);
    if constexpr (F::kScaleOfBlock)
      sum_block<R, T>(weights, x, block);
    else
      sum_registers<R, T>(weights, x, block);
    HWY_UNROLL(4)
    for (int p = 0; p < R * T; ++p) {
      const X& token = *x[p % T];
      lanes[p] = F::add_offsets(weights[p / T], token, lanes[p]);
      lanes[p] = _mm512_fmadd_ps(block[p], _mm512_set1_ps(token.unit[0]), lanes[p]);
    }
  }

  template <int R, int T>
  DSV32_VNNI_INLINE void sum_block(const Stage* weights, const X* const* x, __m512* block) {
    Sums sums[R * T];
    HWY_UNROLL(4)
    for (int p = 0; p < R * T; ++p) sums[p] = F::start(*x[p % T], 0);
    HWY_UNROLL(4)
    for (int s = 0; s < 4; ++s) {
      HWY_UNROLL(4)
      for (int p = 0; p < R * T; ++p) add_products(weights[p / T].bytes[s], *x[p % T], s, sums[p]);
    }
    HWY_UNROLL(4)
    for (int p = 0; p < R * T; ++p) block[p] = _mm512_mul_ps(F::total(sums[p]), weights[p / T].d);
  }

  template <int R, int T>
  DSV32_VNNI_INLINE void sum_registers(const Stage* weights, const X* const* x, __m512* block) {
    HWY_UNROLL(4)
    for (int p = 0; p < R * T; ++p) block[p] = _mm512_setzero_ps();
    HWY_UNROLL(4)
    for (int s = 0; s < 4; ++s) {
      HWY_UNROLL(4)
      for (int p = 0; p < R * T; ++p) {
        Sums sums = F::start(*x[p % T], s);
        add_products(weights[p / T].bytes[s], *x[p % T], s, sums);
        block[p] = _mm512_fmadd_ps(F::total(sums), weights[p / T].scales[s], block[p]);
      }
    }
  }

  // One token: two rows at a time share the activations in registers. Four tokens share a row's weights, and
  // there are no registers for more.
  template <int T>
  DSV32_VNNI static void rows_times_tokens(const uint8_t* const* rows, size_t row_bytes,
                                           const float* const* x, float* sums) {
    constexpr int R = T == 1 ? 2 : 1;
    __m512 lanes[kRows * T];
    const uint8_t* at[kRows];
    const X* x_at[T];
    for (__m512& sum : lanes) sum = _mm512_setzero_ps();
    for (int r = 0; r < kRows; ++r) at[r] = rows[r];
    for (int t = 0; t < T; ++t) x_at[t] = reinterpret_cast<const X*>(x[t]);
    const size_t ahead = prefetch_distance(row_bytes);
    size_t left = row_bytes;
    for (; left >= kStepBytes; left -= kStepBytes) {
      HWY_UNROLL(4)
      for (int r = 0; r < kRows; ++r) prefetch_weights(at[r] + ahead, kStepBytes);
      HWY_UNROLL(4)
      for (int r = 0; r < kRows; r += R) step<R, T>(at + r, x_at, lanes + r * T);
      HWY_UNROLL(4)
      for (int r = 0; r < kRows; ++r) at[r] += kStepBytes;
      HWY_UNROLL(4)
      for (int t = 0; t < T; ++t) ++x_at[t];
    }
    if (F::kBlocks > 1 && left > 0) {
      uint8_t padded[kRows][kStepBytes] = {};
      for (int r = 0; r < kRows; ++r) std::memcpy(padded[r], at[r], left);
      for (int r = 0; r < kRows; ++r) at[r] = padded[r];
      for (int r = 0; r < kRows; r += R) step<R, T>(at + r, x_at, lanes + r * T);
    }
    for (int p = 0; p < kRows * T; ++p) sums[p] = sum_of_lanes(lanes[p]);
  }

  static constexpr CpuKernels kKernels = {kValues, sizeof(X) / sizeof(float), prepare_step,
                                          rows_times_tokens<1>, rows_times_tokens<CpuKernels::kTokens>};
};

}  // namespace

HWY_EXPORT(has_vnni);

const CpuKernels* vnni_kernels_of(TensorType type) {
  if (!HWY_DYNAMIC_DISPATCH(has_vnni)()) return nullptr;
  switch (type) {
    case TensorType::q2_k: return &VnniFormat<VnniQ2_K>::kKernels;
    case TensorType::q3_k: return &VnniFormat<VnniQ3_K>::kKernels;
    case TensorType::q4_k: return &VnniFormat<VnniQ4_K>::kKernels;
    case TensorType::q5_k: return &VnniFormat<VnniQ5_K>::kKernels;
    case TensorType::q6_k: return &VnniFormat<VnniQ6_K>::kKernels;
    case TensorType::q8_0: return &VnniFormat<VnniQ8_0>::kKernels;
    default: return nullptr;
  }
}

}  // namespace dsv32

#else

namespace dsv32 {

const CpuKernels* vnni_kernels_of(TensorType) { return nullptr; }

}  // namespace dsv32

#endif  // HWY_ARCH_X86
#endif  // HWY_ONCE
