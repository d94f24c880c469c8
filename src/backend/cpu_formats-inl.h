// One step of a row times prepared activations: the float formats and those of 32 values a block.
//
// A format F has kBlocks of its Block a step and kValues columns; order(k), the natural column of prepared
// value k; and step(), which adds a step's products to the accumulators of T tokens. Codes become floats
// exactly and are multiplied with unrounded activations; the scales of a group multiply the group's sum.
// Several tokens share everything before mul_add, and a token's operations do not depend on T.
#if defined(DSV32_CPU_FORMATS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DSV32_CPU_FORMATS_INL_H_
#undef DSV32_CPU_FORMATS_INL_H_
#else
#define DSV32_CPU_FORMATS_INL_H_
#endif

#include <cstring>

#include "backend/vec16-inl.h"
#include "gguf/quant.h"
#include "gguf/quant_tables.h"

HWY_BEFORE_NAMESPACE();
namespace dsv32 {
namespace HWY_NAMESPACE {

HWY_INLINE uint16_t load_u16(const void* from) {
  uint16_t value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

HWY_INLINE uint32_t load_u32(const void* from) {
  uint32_t value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

HWY_INLINE uint64_t load_u64(const void* from) {
  uint64_t value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// sums[t] += q * x[t][at .. at + 16)
template <int T>
HWY_INLINE void add_products(const Floats& q, const float* const* x, int at, Floats* sums) {
  HWY_UNROLL(4) for (int t = 0; t < T; ++t) sums[t] = mul_add(q, load_floats(x[t] + at), sums[t]);
}

// sums[t] += scale * inner[t]
template <int T>
HWY_INLINE void add_scaled(const Floats& scale, const Floats* inner, Floats* sums) {
  HWY_UNROLL(4) for (int t = 0; t < T; ++t) sums[t] = mul_add(scale, inner[t], sums[t]);
}

template <int T>
HWY_INLINE void set_zero(Floats* sums) {
  HWY_UNROLL(4) for (int t = 0; t < T; ++t) sums[t] = zeros();
}

// 64 byte codes, less kBias, times prepared values at .. at + 64: byte b of lane l meets value 16 b + l.
template <int kBias, int T>
HWY_INLINE void add_bytes(const Words& codes, const float* const* x, int at, Floats* sums) {
  const Words upper = shift_right<16>(codes);
  add_products<T>(field<0, 255, kBias>(codes), x, at, sums);
  add_products<T>(field<8, 255, kBias>(codes), x, at + 16, sums);
  add_products<T>(field<0, 255, kBias>(upper), x, at + 32, sums);
  add_products<T>(field<8, 255, kBias>(upper), x, at + 48, sums);
}

// 128 nibble codes of kBits, less kBias: low nibbles with values at .. at + 64 into `low`, high ones with the
// next 64 into `high`; byte b of lane l meets value 16 b + l of its 64.
template <int kBits, int kBias, int T>
HWY_INLINE void add_nibbles(const Words& codes, const float* const* x, int at, Floats* low, Floats* high) {
  add_products<T>(small_field<0, kBits, kBias>(codes), x, at, low);
  add_products<T>(small_field<4, kBits, kBias>(codes), x, at + 64, high);
  add_products<T>(small_field<8, kBits, kBias>(codes), x, at + 16, low);
  add_products<T>(small_field<12, kBits, kBias>(codes), x, at + 80, high);
  add_products<T>(small_field<16, kBits, kBias>(codes), x, at + 32, low);
  add_products<T>(small_field<20, kBits, kBias>(codes), x, at + 96, high);
  add_products<T>(small_field<24, kBits, kBias>(codes), x, at + 48, low);
  add_products<T>(small_field<28, kBits, kBias>(codes), x, at + 112, high);
}

template <int kPos, int T>
HWY_INLINE void add_looked_up(const Words& codes, const Table16& table, const float* const* x, int at,
                              Floats* sums) {
  Floats values;
  values.part[0] = look_up_lanes(hn::Load(FloatTag(), table.values), hn::ShiftRight<kPos>(codes.part[0]));
  add_products<T>(values, x, at, sums);
}

// 128 nibbles that name values of a table, with the values at .. at + 128 as above.
template <int T>
HWY_INLINE void add_table_nibbles(const Words& codes, const Table16& table, const float* const* x, int at,
                                  Floats* sums) {
  if constexpr (kParts == 1) {
    add_looked_up<0, T>(codes, table, x, at, sums);
    add_looked_up<8, T>(codes, table, x, at + 16, sums);
    add_looked_up<16, T>(codes, table, x, at + 32, sums);
    add_looked_up<24, T>(codes, table, x, at + 48, sums);
    add_looked_up<4, T>(codes, table, x, at + 64, sums);
    add_looked_up<12, T>(codes, table, x, at + 80, sums);
    add_looked_up<20, T>(codes, table, x, at + 96, sums);
    add_looked_up<28, T>(codes, table, x, at + 112, sums);
  } else {
    add_bytes<128, T>(look_up_bytes(table.bytes, keep_bits(codes, 0x0f0f0f0f)), x, at, sums);
    add_bytes<128, T>(look_up_bytes(table.bytes, keep_bits(shift_right<4>(codes), 0x0f0f0f0f)), x, at + 64,
                      sums);
  }
}

// What unpack() makes of a block, for step().
struct NoStage {};
struct ScaleStage {
  Floats scales;
};
struct OffsetStage {
  Floats scales, offsets;
};

// What a format has unless it says otherwise: no sums behind the prepared values, nothing to unpack before
// step().
struct FormatDefaults {
  static constexpr int kSums = 0;
  static constexpr bool kNatural = false;  // order(k) == k
  using Stage = NoStage;
  static constexpr bool kUnpacksAhead = false;  // unpack() of all rows, then step() of all rows
  static HWY_INLINE void unpack(const uint8_t*, Stage&) {}
  // natural [kValues]: a step's activations; prepared: the same in order, followed by room for kSums floats
  static HWY_INLINE void prepare_sums(const float* /*natural*/, float* /*prepared*/) {}
};

// ---- floats: 64 values a step, as they lie ----

template <class Load, int kBytes>
struct FloatFormat : FormatDefaults {
  struct Block {
    uint8_t bytes[kBytes];
  };
  static constexpr int kBlocks = 64, kValues = 64;
  static constexpr bool kNatural = true;
  static constexpr int order(int k) { return k; }

  template <int T>
  static HWY_INLINE void step(const uint8_t* at, const NoStage&, const float* const* x, Floats* sums) {
    Floats inner[T];
    set_zero<T>(inner);
    HWY_UNROLL(4) for (int i = 0; i < 64; i += 16) add_products<T>(Load::load(at + i * kBytes), x, i, inner);
    HWY_UNROLL(4) for (int t = 0; t < T; ++t) sums[t] = add(sums[t], inner[t]);
  }
};

struct LoadF32 {
  static HWY_INLINE Floats load(const uint8_t* from) { return load_floats_anywhere(from); }
};

// Half: hwy::float16_t or hwy::bfloat16_t
template <class Half>
struct LoadHalves {
  static HWY_INLINE Floats load(const uint8_t* from) {
    const hn::Rebind<Half, FloatTag> half_tag;
    const hn::Repartition<uint8_t, decltype(half_tag)> byte_tag;
    Floats out;
    DSV32_EACH_PART(p) {
      const auto bytes = hn::LoadU(byte_tag, from + p * kPartBytes / 2);
      out.part[p] = hn::PromoteTo(FloatTag(), hn::BitCast(half_tag, bytes));
    }
    return out;
  }
};

using FormatF32 = FloatFormat<LoadF32, 4>;
using FormatF16 = FloatFormat<LoadHalves<hwy::float16_t>, 2>;
using FormatBF16 = FloatFormat<LoadHalves<hwy::bfloat16_t>, 2>;

// ---- 32 values a block, four blocks a step ----

// The f16 at the same offset of four blocks.
template <class Block>
HWY_INLINE uint64_t four_halves(const uint8_t* at) {
  return load_u16(at) | static_cast<uint64_t>(load_u16(at + sizeof(Block))) << 16 |
         static_cast<uint64_t>(load_u16(at + 2 * sizeof(Block))) << 32 |
         static_cast<uint64_t>(load_u16(at + 3 * sizeof(Block))) << 48;
}

struct FormatQ8_0 : FormatDefaults {
  using Block = BlockQ8_0;
  static constexpr int kBlocks = 4, kValues = 128;
  static constexpr bool kNatural = true;
  using Stage = ScaleStage;
  static constexpr int order(int k) { return k; }

  static HWY_INLINE void unpack(const uint8_t* at, Stage& stage) {
    stage.scales = widen_halves(four_halves<Block>(at));
  }

  template <int T>
  static HWY_INLINE void step(const uint8_t* at, const Stage& stage, const float* const* x, Floats* sums) {
    add_block<0, T>(stage.scales, at, x, sums);
    add_block<1, T>(stage.scales, at, x, sums);
    add_block<2, T>(stage.scales, at, x, sums);
    add_block<3, T>(stage.scales, at, x, sums);
  }

  template <int B, int T>
  static HWY_INLINE void add_block(const Floats& scales, const uint8_t* at, const float* const* x,
                                   Floats* sums) {
    const auto* codes = reinterpret_cast<const int8_t*>(at + B * sizeof(Block) + offsetof(Block, qs));
    Floats inner[T];
    set_zero<T>(inner);
    add_products<T>(load_int8(codes), x, 32 * B, inner);
    add_products<T>(load_int8(codes + 16), x, 32 * B + 16, inner);
    add_scaled<T>(spread<B, B, B, B>(scales), inner, sums);
  }
};

// Q4_0, Q5_0, Q5_1, IQ4_NL: lanes 4 k .. 4 k + 3 hold the nibble array of block k.
template <class B>
struct NibbleFormat : FormatDefaults {
  using Block = B;
  using Stage = ScaleStage;
  static constexpr int kBlocks = 4, kValues = 128;
  static constexpr int order(int k) {
    const int high = k / 64, byte = k / 16 % 4, lane = k % 16;
    return 32 * (lane / 4) + 16 * high + 4 * (lane % 4) + byte;
  }

  static HWY_INLINE Floats halves_of_blocks(const uint8_t* at) {
    return spread<0, 1, 2, 3>(widen_halves(four_halves<Block>(at)));
  }
  static HWY_INLINE void unpack(const uint8_t* at, Stage& stage) { stage.scales = halves_of_blocks(at); }
};

struct FormatQ4_0 : NibbleFormat<BlockQ4_0> {
  template <int T>
  static HWY_INLINE void step(const uint8_t* at, const Stage& stage, const float* const* x, Floats* sums) {
    const Words codes = load_four_pieces(at + offsetof(Block, qs), sizeof(Block));
    Floats low[T], high[T];
    set_zero<T>(low);
    set_zero<T>(high);
    add_nibbles<4, 8, T>(codes, x, 0, low, high);
    add_scaled<T>(stage.scales, low, sums);
    add_scaled<T>(stage.scales, high, sums);
  }
};

constexpr Table16 kIq4Table = [] {
  Table16 table{};
  for (int i = 0; i < 16; ++i) {
    table.values[i] = kIq4Values[i];
    table.bytes[i] = static_cast<uint8_t>(kIq4Values[i] + 128);
  }
  return table;
}();

struct FormatIQ4_NL : NibbleFormat<BlockIQ4_NL> {
  template <int T>
  static HWY_INLINE void step(const uint8_t* at, const Stage& stage, const float* const* x, Floats* sums) {
    const Words codes = load_four_pieces(at + offsetof(Block, qs), sizeof(Block));
    Floats inner[T];
    set_zero<T>(inner);
    add_table_nibbles<T>(codes, kIq4Table, x, 0, inner);
    add_scaled<T>(stage.scales, inner, sums);
  }
};

// Q5_0 and Q5_1: codes of five bits in bytes, those of the low nibbles and those of the high ones.
struct FiveBits {
  Words low, high;
};

template <class Block>
HWY_INLINE FiveBits load_five_bits(const uint8_t* at) {
  // Lane l needs bits 4 (l % 4) .. + 4 of its block for the low nibbles, and 16 further on for the high ones.
  static constexpr uint32_t kShifts[16] = {0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12};
  const Words codes = load_four_pieces(at + offsetof(Block, qs), sizeof(Block));
  const Words bits = shift_right_each(load_four_words(at + offsetof(Block, qh), sizeof(Block)), kShifts);
  return {or_bits(keep_bits(codes, 0x0f0f0f0f), nibble_to_fifth_bits(bits), 0x10101010),
          or_bits(keep_bits(shift_right<4>(codes), 0x0f0f0f0f), nibble_to_fifth_bits(shift_right<16>(bits)),
                  0x10101010)};
}

struct FormatQ5_0 : NibbleFormat<BlockQ5_0> {
  template <int T>
  static HWY_INLINE void step(const uint8_t* at, const Stage& stage, const float* const* x, Floats* sums) {
    const FiveBits codes = load_five_bits<Block>(at);
    Floats inner[T];
    set_zero<T>(inner);
    add_bytes<16, T>(codes.low, x, 0, inner);
    add_bytes<16, T>(codes.high, x, 64, inner);
    add_scaled<T>(stage.scales, inner, sums);
  }
};

struct FormatQ5_1 : NibbleFormat<BlockQ5_1> {
  using Stage = OffsetStage;
  static constexpr int kSums = 16;

  static HWY_INLINE void unpack(const uint8_t* at, Stage& stage) {
    stage.scales = halves_of_blocks(at);
    stage.offsets = halves_of_blocks(at + offsetof(Block, m));
  }

  // Lane l: the sum of the values that meet lane l, all of one block.
  static HWY_INLINE void prepare_sums(const float* /*natural*/, float* prepared) {
    Floats sum = load_floats(prepared);
    for (int k = 16; k < kValues; k += 16) sum = add(sum, load_floats(prepared + k));
    store_floats(sum, prepared + kValues);
  }

  template <int T>
  static HWY_INLINE void step(const uint8_t* at, const Stage& stage, const float* const* x, Floats* sums) {
    const FiveBits codes = load_five_bits<Block>(at);
    Floats inner[T];
    set_zero<T>(inner);
    add_bytes<0, T>(codes.low, x, 0, inner);
    add_bytes<0, T>(codes.high, x, 64, inner);
    add_scaled<T>(stage.scales, inner, sums);
    add_products<T>(stage.offsets, x, kValues, sums);
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace dsv32
HWY_AFTER_NAMESPACE();

#endif  // DSV32_CPU_FORMATS_INL_H_
