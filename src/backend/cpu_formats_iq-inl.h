// One step of a row times prepared activations: the IQ formats of 256 values.
//
// IQ2_XXS and IQ3_XXS name points of a grid. They are looked up in scalar code, for several rows ahead of the
// products (unpack() into a Stage), so that the vector loads find the words in the cache and not in the store
// queue.
#if defined(DSV32_CPU_FORMATS_IQ_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DSV32_CPU_FORMATS_IQ_INL_H_
#undef DSV32_CPU_FORMATS_IQ_INL_H_
#else
#define DSV32_CPU_FORMATS_IQ_INL_H_
#endif

#include "backend/cpu_formats-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dsv32 {
namespace HWY_NAMESPACE {

struct FormatIQ4_XS : FormatDefaults {
  using Block = BlockIQ4_XS;
  using Stage = ScaleStage;
  static constexpr int kBlocks = 1, kValues = 256;
  // Each half is four nibble arrays.
  static constexpr int order(int k) { return k / 128 * 128 + NibbleFormat<BlockIQ4_NL>::order(k % 128); }

  template <int T>
  static HWY_INLINE void step(const uint8_t* at, const Stage& stage, const float* const* x, Floats* sums) {
    add_half<0, T>(stage.scales, at, x, sums);
    add_half<1, T>(stage.scales, at, x, sums);
  }

  template <int H, int T>
  static HWY_INLINE void add_half(const Floats& scales, const uint8_t* at, const float* const* x,
                                  Floats* sums) {
    Floats inner[T];
    set_zero<T>(inner);
    add_table_nibbles<T>(load_words(at + offsetof(Block, qs) + 64 * H), kIq4Table, x, 128 * H, inner);
    add_scaled<T>(spread<4 * H, 4 * H + 1, 4 * H + 2, 4 * H + 3>(scales), inner, sums);
  }

  // Scales are d * (scale - 32) of 8 groups: nibbles and pairs of bits spread out to bytes.
  static HWY_INLINE void unpack(const uint8_t* at, Stage& stage) {
    uint64_t low = load_u32(at + offsetof(Block, scales_l));
    low = (low | low << 16) & 0x0000ffff0000ffffu;
    low = (low | low << 8) & 0x00ff00ff00ff00ffu;
    low = (low | low << 4) & 0x0f0f0f0f0f0f0f0fu;
    uint64_t high = load_u16(at + offsetof(Block, scales_h));
    high = (high | high << 24) & 0x000000ff000000ffu;
    high = (high | high << 12) & 0x000f000f000f000fu;
    high = (high | high << 6) & 0x0303030303030303u;
    const Floats d = broadcast(half_to_float(load_u16(at)));
    stage.scales = mul(add(widen_bytes<uint8_t>(low | high << 4, 0), broadcast(-32.0f)), d);
  }
};

// A block of a grid format as nibbles: the code of a magnitude and, in the bit above it, the sign. Nibble i
// of word w is value 8 w + i.
struct GridStage {
  alignas(64) uint32_t words[32];
  Floats scales;  // of 8 groups of 32 values
};

// Bit kSignBit of nibble i is bit i of iq_signs(code).
template <int kSignBit>
struct SpreadSigns {
  uint32_t of[128];
};
template <int kSignBit>
constexpr SpreadSigns<kSignBit> kSpreadSigns = [] {
  SpreadSigns<kSignBit> spread_signs{};
  for (uint32_t code = 0; code < 128; ++code)
    for (int i = 0; i < 8; ++i) spread_signs.of[code] |= (iq_signs(code) >> i & 1u) << (4 * i + kSignBit);
  return spread_signs;
}();

// Magnitudes by their codes below the sign bit; the codes above kValues are not used.
template <int kSignBit>
constexpr Table16 signed_table(const int (&magnitudes)[8]) {
  Table16 table{};
  for (int i = 0; i < 16; ++i) {
    const int value = magnitudes[i & ((1 << kSignBit) - 1)] * (i >> kSignBit & 1 ? -1 : 1);
    table.values[i] = static_cast<float>(value);
    table.bytes[i] = static_cast<uint8_t>(value + 128);
  }
  return table;
}

struct GridFormat : FormatDefaults {
  static constexpr int kBlocks = 1, kValues = 256;
  using Stage = GridStage;
  static constexpr bool kUnpacksAhead = true;
  // Word 16 h + l in lane l; low nibbles of its four bytes, then high ones.
  static constexpr int order(int k) {
    const int half = k / 128, high = k / 64 % 2, byte = k / 16 % 4, lane = k % 16;
    return 8 * (16 * half + lane) + 2 * byte + high;
  }

  // codes: 8 bytes; factor: the constant of the format's scale
  static HWY_INLINE Floats scales_of(uint64_t codes, uint16_t d, float factor) {
    return mul(add(widen_bytes<uint8_t>(codes, 0), broadcast(0.5f)), broadcast(half_to_float(d) * factor));
  }

  template <int T>
  static HWY_INLINE void add_words(const GridStage& stage, const Table16& table, const float* const* x,
                                   Floats* sums) {
    add_half<0, T>(stage.scales, stage, table, x, sums);
    add_half<1, T>(stage.scales, stage, table, x, sums);
  }

  template <int H, int T>
  static HWY_INLINE void add_half(const Floats& scales, const GridStage& stage, const Table16& table,
                                  const float* const* x, Floats* sums) {
    Floats inner[T];
    set_zero<T>(inner);
    add_table_nibbles<T>(load_words(stage.words + 16 * H), table, x, 128 * H, inner);
    add_scaled<T>(spread<4 * H, 4 * H + 1, 4 * H + 2, 4 * H + 3>(scales), inner, sums);
  }
};

struct FormatIQ2_XXS : GridFormat {
  using Block = BlockIQ2_XXS;
  static constexpr int kSignBit = 2;
  static constexpr Table16 kTable = signed_table<kSignBit>({8, 25, 43, 0, 0, 0, 0, 0});

  struct Points {
    uint32_t of[256];
  };
  static constexpr Points kPoints = [] {  // the codes of kIq2xxsCodes in nibbles
    Points points{};
    for (int p = 0; p < 256; ++p)
      for (int i = 0; i < 8; ++i) points.of[p] |= (kIq2xxsCodes[p] >> (2 * i) & 3u) << (4 * i);
    return points;
  }();

  static HWY_INLINE void unpack(const uint8_t* at, GridStage& stage) {
    const auto& signs = kSpreadSigns<kSignBit>.of;
    uint64_t scales = 0;
    HWY_UNROLL(8) for (int group = 0; group < 8; ++group) {
      const uint64_t word = load_u64(at + offsetof(Block, qs) + 8 * group);
      HWY_UNROLL(4)
      for (int i = 0; i < 4; ++i)
        stage.words[4 * group + i] = kPoints.of[word >> (8 * i) & 255] | signs[word >> (32 + 7 * i) & 127];
      scales = scales >> 8 | word >> 60 << 56;
    }
    stage.scales = scales_of(scales, load_u16(at), 0.25f);
  }

  template <int T>
  static HWY_INLINE void step(const uint8_t*, const GridStage& stage, const float* const* x, Floats* sums) {
    add_words<T>(stage, kTable, x, sums);
  }
};

struct FormatIQ3_XXS : GridFormat {
  using Block = BlockIQ3_XXS;
  static constexpr int kSignBit = 3;
  static constexpr Table16 kTable = signed_table<kSignBit>({4, 12, 20, 28, 36, 44, 52, 62});

  static HWY_INLINE void unpack(const uint8_t* at, GridStage& stage) {
    const auto& signs = kSpreadSigns<kSignBit>.of;
    uint64_t scales = 0;
    HWY_UNROLL(8) for (int group = 0; group < 8; ++group) {
      const uint64_t points = load_u64(at + offsetof(Block, qs) + 8 * group);
      const uint64_t word = load_u32(at + offsetof(Block, signs) + 4 * group);
      HWY_UNROLL(4) for (int i = 0; i < 4; ++i) {
        const uint32_t low = kIq3xxsCodes[points >> (16 * i) & 255],
                       high = kIq3xxsCodes[points >> (16 * i + 8) & 255];
        stage.words[4 * group + i] = low | high << 16 | signs[word >> (7 * i) & 127];
      }
      scales = scales >> 8 | word >> 28 << 56;
    }
    stage.scales = scales_of(scales, load_u16(at), 0.5f);
  }

  template <int T>
  static HWY_INLINE void step(const uint8_t*, const GridStage& stage, const float* const* x, Floats* sums) {
    add_words<T>(stage, kTable, x, sums);
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace dsv32
HWY_AFTER_NAMESPACE();

#endif  // DSV32_CPU_FORMATS_IQ_INL_H_
