// One step of a row times prepared activations: the K formats, 256 values a block and a step.
//
// A 64-byte load holds two groups of 32 bytes, one in lanes 0..7 and one in lanes 8..15. Scales are unpacked
// eight at a time in u64 arithmetic, which runs beside the vector units.
#if defined(DSV32_CPU_FORMATS_K_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DSV32_CPU_FORMATS_K_INL_H_
#undef DSV32_CPU_FORMATS_K_INL_H_
#else
#define DSV32_CPU_FORMATS_K_INL_H_
#endif

#include "backend/cpu_formats-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dsv32 {
namespace HWY_NAMESPACE {

constexpr uint32_t kNibbles = 0x0f0f0f0f;

struct KFormat : FormatDefaults {
  using Stage = ScaleStage;
  static constexpr int kBlocks = 1, kValues = 256;
};

// out[lane] = -(sum of values 16 i .. 16 i + 16) for i = lane.
HWY_INLINE void negative_sums_of_16(const float* natural, float* out) {
  for (int i = 0; i < 16; ++i) out[i] = -sum_of_lanes(load_floats(natural + 16 * i));
}

// ---- Q4_K, Q5_K: nibbles of group 2 i below, of group 2 i + 1 above ----

struct KNibbleFormat : KFormat {
  static constexpr int kSums = 16;
  static constexpr int order(int k) {
    const int half = k / 128, high = k / 64 % 2, byte = k / 16 % 4, lane = k % 16;
    return 128 * half + 64 * (lane / 8) + 32 * high + 4 * (lane % 8) + byte;
  }

  // Lanes 0..7 are zero; lane 8 + g is -(sum of group g), to meet the mins of scales_and_mins().
  static HWY_INLINE void prepare_sums(const float* natural, float* prepared) {
    float sums[16];
    negative_sums_of_16(natural, sums);
    for (int g = 0; g < 8; ++g) {
      prepared[kValues + g] = 0.0f;
      prepared[kValues + 8 + g] = sums[2 * g] + sums[2 * g + 1];
    }
  }

  static HWY_INLINE void unpack(const uint8_t* at, Stage& stage) { stage.scales = scales_and_mins(at); }

  // {d * scale of 8 groups, dmin * min of 8 groups}; at: d, dmin and the twelve packed bytes
  static HWY_INLINE Floats scales_and_mins(const uint8_t* at) {
    const uint32_t a = load_u32(at + 4), b = load_u32(at + 8), low = load_u32(at + 12);
    const uint64_t scales =
        (a & 0x3f3f3f3fu) | static_cast<uint64_t>((low & kNibbles) | (a >> 2 & 0x30303030u)) << 32;
    const uint64_t mins =
        (b & 0x3f3f3f3fu) | static_cast<uint64_t>((low >> 4 & kNibbles) | (b >> 2 & 0x30303030u)) << 32;
    return mul(widen_bytes<uint8_t>(scales, mins), spread<0, 0, 1, 1>(widen_halves(load_u32(at))));
  }
};

struct FormatQ4_K : KNibbleFormat {
  using Block = BlockQ4_K;

  template <int T>
  static HWY_INLINE void step(const uint8_t* at, const Stage& stage, const float* const* x, Floats* sums) {
    add_products<T>(stage.scales, x, kValues, sums);
    add_half<0, T>(stage.scales, at, x, sums);
    add_half<1, T>(stage.scales, at, x, sums);
  }

  template <int H, int T>
  static HWY_INLINE void add_half(const Floats& scales, const uint8_t* at, const float* const* x,
                                  Floats* sums) {
    Floats low[T], high[T];
    set_zero<T>(low);
    set_zero<T>(high);
    add_nibbles<4, 0, T>(load_words(at + offsetof(Block, qs) + 64 * H), x, 128 * H, low, high);
    add_scaled<T>(spread<4 * H, 4 * H, 4 * H + 2, 4 * H + 2>(scales), low, sums);
    add_scaled<T>(spread<4 * H + 1, 4 * H + 1, 4 * H + 3, 4 * H + 3>(scales), high, sums);
  }
};

struct FormatQ5_K : KNibbleFormat {
  using Block = BlockQ5_K;

  template <int T>
  static HWY_INLINE void step(const uint8_t* at, const Stage& stage, const float* const* x, Floats* sums) {
    // Bit g of a byte of qh belongs to group g: bring lanes 8..15, which hold group 2 further on, level with
    // the others.
    static constexpr uint32_t kShifts[16] = {0, 0, 0, 0, 0, 0, 0, 0, 2, 2, 2, 2, 2, 2, 2, 2};
    const Words fifth = shift_right_each(load_words_twice(at + offsetof(Block, qh)), kShifts);
    add_products<T>(stage.scales, x, kValues, sums);
    add_half<0, T>(stage.scales, shift_left<4>(fifth), shift_left<3>(fifth), at, x, sums);
    add_half<1, T>(stage.scales, fifth, shift_right<1>(fifth), at, x, sums);
  }

  // low_fifth, high_fifth: the fifth bits of low and high nibbles at bit 4 of each byte, other bits
  // arbitrary.
  template <int H, int T>
  static HWY_INLINE void add_half(const Floats& scales, const Words& low_fifth, const Words& high_fifth,
                                  const uint8_t* at, const float* const* x, Floats* sums) {
    const Words codes = load_words(at + offsetof(Block, qs) + 64 * H);
    Floats low[T], high[T];
    set_zero<T>(low);
    set_zero<T>(high);
    add_bytes<0, T>(or_bits(keep_bits(codes, kNibbles), low_fifth, 0x10101010), x, 128 * H, low);
    const Words upper = keep_bits(shift_right<4>(codes), kNibbles);
    add_bytes<0, T>(or_bits(upper, high_fifth, 0x10101010), x, 128 * H + 64, high);
    add_scaled<T>(spread<4 * H, 4 * H, 4 * H + 2, 4 * H + 2>(scales), low, sums);
    add_scaled<T>(spread<4 * H + 1, 4 * H + 1, 4 * H + 3, 4 * H + 3>(scales), high, sums);
  }
};

// ---- Q6_K ----

struct FormatQ6_K : KFormat {
  using Block = BlockQ6_K;
  static constexpr int order(int k) { return k / 64 * 64 + 4 * (k % 16) + k / 16 % 4; }

  static HWY_INLINE void unpack(const uint8_t* at, Stage& stage) {
    const auto* packed = reinterpret_cast<const int8_t*>(at + offsetof(Block, scales));
    stage.scales = mul(load_int8(packed), broadcast(half_to_float(load_u16(at + offsetof(Block, d)))));
  }

  template <int T>
  static HWY_INLINE void step(const uint8_t* at, const Stage& stage, const float* const* x, Floats* sums) {
    add_half<0, T>(stage.scales, at, x, sums);
    add_half<1, T>(stage.scales, at, x, sums);
  }

  template <int H, int T>
  static HWY_INLINE void add_half(const Floats& scales, const uint8_t* at, const float* const* x,
                                  Floats* sums) {
    // Low nibbles: values 64 on from 128 H, upper bits at 0 (lanes 0..7) and 2 (lanes 8..15); high nibbles:
    // at 4 and 6.
    static constexpr uint32_t kShifts[16] = {0, 0, 0, 0, 0, 0, 0, 0, 2, 2, 2, 2, 2, 2, 2, 2};
    const Words codes = load_words(at + offsetof(Block, ql) + 64 * H);
    const Words upper = shift_right_each(load_words_twice(at + offsetof(Block, qh) + 32 * H), kShifts);
    Floats low[T], high[T];
    set_zero<T>(low);
    set_zero<T>(high);
    add_bytes<32, T>(or_bits(keep_bits(codes, kNibbles), shift_left<4>(upper), 0x30303030), x, 128 * H, low);
    add_bytes<32, T>(or_bits(keep_bits(shift_right<4>(codes), kNibbles), upper, 0x30303030), x, 128 * H + 64,
                     high);
    add_scaled<T>(spread<8 * H, 8 * H + 1, 8 * H + 2, 8 * H + 3>(scales), low, sums);
    add_scaled<T>(spread<8 * H + 4, 8 * H + 5, 8 * H + 6, 8 * H + 7>(scales), high, sums);
  }
};

// ---- Q2_K, Q3_K: bits 2 s of a byte in lanes 0..7 are value 32 s + i, in lanes 8..15 value 128 + 32 s + i
// ----

struct FormatQ2_K : KFormat {
  using Block = BlockQ2_K;
  using Stage = OffsetStage;
  static constexpr int order(int k) {
    const int shift = k / 64, byte = k / 16 % 4, lane = k % 16;
    return 128 * (lane / 8) + 32 * shift + 4 * (lane % 8) + byte;
  }
  static constexpr int kSums = 16;

  static HWY_INLINE void prepare_sums(const float* natural, float* prepared) {
    negative_sums_of_16(natural, prepared + kValues);
  }

  static HWY_INLINE void unpack(const uint8_t* at, Stage& stage) {
    const Words packed = load_uint8(at + offsetof(Block, scales));
    const Floats d = broadcast(half_to_float(load_u16(at + offsetof(Block, d))));
    const Floats dmin = broadcast(half_to_float(load_u16(at + offsetof(Block, dmin))));
    stage.scales = mul(small_field<0, 4, 0>(packed), d);
    stage.offsets = mul(small_field<4, 4, 0>(packed), dmin);
  }

  template <int T>
  static HWY_INLINE void step(const uint8_t* at, const Stage& stage, const float* const* x, Floats* sums) {
    add_products<T>(stage.offsets, x, kValues, sums);
    const Words codes = load_words(at + offsetof(Block, qs));
    add_quarter<0, T>(stage.scales, codes, x, sums);
    add_quarter<1, T>(stage.scales, codes, x, sums);
    add_quarter<2, T>(stage.scales, codes, x, sums);
    add_quarter<3, T>(stage.scales, codes, x, sums);
  }

  // The codes at bit 2 S of each byte.
  template <int S, int T>
  static HWY_INLINE void add_quarter(const Floats& scales, const Words& codes, const float* const* x,
                                     Floats* sums) {
    Floats inner[T];
    set_zero<T>(inner);
    add_products<T>(small_field<2 * S, 2, 0>(codes), x, 64 * S, inner);
    add_products<T>(small_field<2 * S + 8, 2, 0>(codes), x, 64 * S + 16, inner);
    add_products<T>(small_field<2 * S + 16, 2, 0>(codes), x, 64 * S + 32, inner);
    add_products<T>(small_field<2 * S + 24, 2, 0>(codes), x, 64 * S + 48, inner);
    add_scaled<T>(spread<2 * S, 2 * S + 1, 8 + 2 * S, 9 + 2 * S>(scales), inner, sums);
  }
};

struct FormatQ3_K : KFormat {
  using Block = BlockQ3_K;
  // Shifts in the order 0, 2, 1, 3: see step().
  static constexpr int order(int k) {
    const int shift = k / 64 % 2 * 2 + k / 128, byte = k / 16 % 4, lane = k % 16;
    return 128 * (lane / 8) + 32 * shift + 4 * (lane % 8) + byte;
  }

  template <int T>
  static HWY_INLINE void step(const uint8_t* at, const Stage& stage, const float* const* x, Floats* sums) {
    // Bit k of a byte of hmask belongs to value 32 k + i: bring lanes 8..15 (k + 4) level with the others.
    static constexpr uint32_t kShifts[16] = {0, 0, 0, 0, 0, 0, 0, 0, 4, 4, 4, 4, 4, 4, 4, 4};
    const Words third = shift_right_each(load_words_twice(at + offsetof(Block, hmask)), kShifts);
    const Words codes = load_words(at + offsetof(Block, qs));
    // Codes of three bits in nibbles, the fourth arbitrary: those of shifts 0 (low nibbles) and 2 (high),
    // then of 1 and 3.
    const Words even_third = select_bits(kNibbles, shift_left<2>(third), shift_left<4>(third));
    const Words even = select_bits(0x33333333, codes, even_third);
    const Words odd = select_bits(0x33333333, shift_right<2>(codes), shift_right<1>(even_third));
    add_half<0, T>(stage.scales, even, x, sums);
    add_half<1, T>(stage.scales, odd, x, sums);
  }

  // The nibbles of shifts S and S + 2.
  template <int S, int T>
  static HWY_INLINE void add_half(const Floats& scales, const Words& codes, const float* const* x,
                                  Floats* sums) {
    Floats low[T], high[T];
    set_zero<T>(low);
    set_zero<T>(high);
    add_nibbles<3, 4, T>(codes, x, 128 * S, low, high);
    add_scaled<T>(spread<2 * S, 2 * S + 1, 8 + 2 * S, 9 + 2 * S>(scales), low, sums);
    add_scaled<T>(spread<2 * S + 4, 2 * S + 5, 12 + 2 * S, 13 + 2 * S>(scales), high, sums);
  }

  // Scales are d * (scale - 32) of 16 groups; see unpack_q3_k_scales().
  static HWY_INLINE void unpack(const uint8_t* at, Stage& stage) {
    constexpr uint64_t kLow = 0x0f0f0f0f0f0f0f0f, kUpper = 0x3030303030303030;
    const uint64_t low = load_u64(at + offsetof(Block, scales));
    const uint64_t high = load_u32(at + offsetof(Block, scales) + 8);
    const uint64_t first = (low & kLow) | ((high << 4 | high << 34) & kUpper);
    const uint64_t second = (low >> 4 & kLow) | ((high | high << 30) & kUpper);
    const Floats d = broadcast(half_to_float(load_u16(at + offsetof(Block, d))));
    stage.scales = mul(add(widen_bytes<uint8_t>(first, second), broadcast(-32.0f)), d);
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace dsv32
HWY_AFTER_NAMESPACE();

#endif  // DSV32_CPU_FORMATS_K_INL_H_
