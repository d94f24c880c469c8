// One step of a row times prepared activations: the IQ formats of 256 values.
//
// IQ2_XXS and IQ3_XXS name points of a grid. unpack() turns a block into nibbles, a magnitude's code and its
// sign, that a table of sixteen floats gives a meaning: in registers on AVX-512, else point by point. It does
// so for several rows ahead of the products, so that the wide loads find the words in the cache and not in
// the store queue.
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

// Magnitudes by their codes below the sign bit, negative where that is set.
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

#if HWY_TARGET == HWY_AVX3

// 256 u16, indexed by lanes below 256: four lookups in pairs of registers, chosen by the two upper bits of
// the index.
HWY_INLINE __m512i look_up_256(const uint16_t* table, __m512i indices) {
  const auto pair = [table, indices](int i) HWY_ATTR {
    return _mm512_permutex2var_epi16(_mm512_loadu_si512(table + 64 * i), indices,
                                     _mm512_loadu_si512(table + 64 * i + 32));
  };
  const __mmask32 bit6 = _mm512_test_epi16_mask(indices, _mm512_set1_epi16(64));
  const __mmask32 bit7 = _mm512_test_epi16_mask(indices, _mm512_set1_epi16(128));
  return _mm512_mask_blend_epi16(bit7, _mm512_mask_blend_epi16(bit6, pair(0), pair(1)),
                                 _mm512_mask_blend_epi16(bit6, pair(2), pair(3)));
}

// words: per group four 7-bit sign codes  ->  iq_signs() of each as a byte
HWY_INLINE __m256i sign_bytes(__m256i words) {
  const auto code = [](__m256i shifted, int mask)
                        HWY_ATTR { return _mm256_and_si256(shifted, _mm256_set1_epi32(mask)); };
  const __m256i low = _mm256_or_si256(code(words, 0x7f), code(_mm256_slli_epi32(words, 1), 0x7f00));
  const __m256i high = _mm256_or_si256(code(_mm256_slli_epi32(words, 2), 0x7f0000),
                                       code(_mm256_slli_epi32(words, 3), 0x7f000000));
  const __m256i codes = _mm256_or_si256(low, high);
  // The eighth sign of a byte is the parity of the other seven: folded into bit 0, moved to bit 7.
  __m256i parity = _mm256_xor_si256(codes, _mm256_srli_epi32(codes, 4));
  parity = _mm256_xor_si256(parity, _mm256_srli_epi32(parity, 2));
  parity = _mm256_xor_si256(parity, _mm256_srli_epi32(parity, 1));
  return _mm256_or_si256(codes,
                         _mm256_and_si256(_mm256_slli_epi32(parity, 7), _mm256_set1_epi32(~0x7f7f7f7f)));
}

// Each byte of `nibbles` (below 16) looked up: bit `a` of the nibble goes to bit `to_a`, bit `b` to bit
// `to_b`.
template <int a, int to_a, int b, int to_b>
HWY_INLINE __m512i move_two_bits(__m512i nibbles) {
  struct Table {
    alignas(16) uint8_t of[16];
  };
  static constexpr Table kMoved = [] {
    Table table{};
    for (int n = 0; n < 16; ++n)
      table.of[n] = static_cast<uint8_t>((n >> a & 1) << to_a | (n >> b & 1) << to_b);
    return table;
  }();
  const __m128i table = _mm_load_si128(reinterpret_cast<const __m128i*>(kMoved.of));
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), nibbles);
}

// The 4-bit scales on top of eight words, as {0.5 + scale} of lanes 0..7.
HWY_INLINE Floats scales_on_top(__m256i words, uint16_t d, float factor) {
  const __m512 scales = _mm512_castps256_ps512(_mm256_cvtepi32_ps(_mm256_srli_epi32(words, 28)));
  Floats out;
  out.part[0] = hn::Vec<FloatTag>{scales};
  return mul(add(out, broadcast(0.5f)), broadcast(half_to_float(d) * factor));
}

#endif  // HWY_TARGET == HWY_AVX3

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

#if HWY_TARGET == HWY_AVX3

  // The first sixteen words hold the even values of two points each, the second the odd ones.
  static constexpr int order(int k) {
    const int odd = k / 128, nibble = k / 16 % 4 * 2 + k / 64 % 2, lane = k % 16;
    return 16 * lane + 2 * nibble + odd;
  }

  static HWY_INLINE void unpack(const uint8_t* at, GridStage& stage) {
    const __m512i even_first = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    const __m512i packed = _mm512_permutexvar_epi32(even_first, _mm512_loadu_si512(at + offsetof(Block, qs)));
    const __m256i words = _mm512_extracti64x4_epi64(packed, 1);
    const __m512i points = _mm512_cvtepu8_epi16(_mm512_castsi512_si256(packed));
    const __m512i codes = look_up_256(kIq2xxsCodes, points);
    const __m512i signs = _mm512_cvtepu8_epi16(sign_bytes(words));
    const __m512i two = _mm512_set1_epi16(0x3333), nibble = _mm512_set1_epi16(0x0f0f);
    const __m512i nibbles = _mm512_and_si512(_mm512_or_si512(signs, _mm512_slli_epi16(signs, 4)), nibble);
    const __m512i even = _mm512_and_si512(codes, two);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi16(codes, 2), two);
    _mm512_store_si512(stage.words, _mm512_or_si512(even, move_two_bits<0, 2, 2, 6>(nibbles)));
    _mm512_store_si512(stage.words + 16, _mm512_or_si512(odd, move_two_bits<1, 2, 3, 6>(nibbles)));
    stage.scales = scales_on_top(words, load_u16(at), 0.25f);
  }

  template <int T>
  static HWY_INLINE void step(const uint8_t*, const GridStage& stage, const float* const* x, Floats* sums) {
    alignas(64) static constexpr uint32_t kGroups[16] = {0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7};
    Floats even[T], odd[T], scales;
    set_zero<T>(even);
    set_zero<T>(odd);
    add_table_nibbles<T>(load_words(stage.words), kTable, x, 0, even);
    add_table_nibbles<T>(load_words(stage.words + 16), kTable, x, 128, odd);
    scales.part[0] = look_up_lanes(stage.scales.part[0], hn::Load(WordTag(), kGroups));
    add_scaled<T>(scales, even, sums);
    add_scaled<T>(scales, odd, sums);
  }

#else

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

#endif
};

struct FormatIQ3_XXS : GridFormat {
  using Block = BlockIQ3_XXS;
  static constexpr int kSignBit = 3;
  static constexpr Table16 kTable = signed_table<kSignBit>({4, 12, 20, 28, 36, 44, 52, 62});

#if HWY_TARGET == HWY_AVX3

  static HWY_INLINE void unpack(const uint8_t* at, GridStage& stage) {
    const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at + offsetof(Block, signs)));
    const __m256i signs = sign_bytes(words);
    const uint8_t* points = at + offsetof(Block, qs);
    _mm512_store_si512(stage.words, half(points, _mm256_castsi256_si128(signs)));
    _mm512_store_si512(stage.words + 16, half(points + 32, _mm256_extracti128_si256(signs, 1)));
    stage.scales = scales_on_top(words, load_u16(at), 0.5f);
  }

  // 32 points and their 16 bytes of signs as words.
  static HWY_INLINE __m512i half(const uint8_t* points, __m128i signs) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(points));
    const __m512i codes = look_up_256(kIq3xxsCodes, _mm512_cvtepu8_epi16(bytes));
    // Two signs for each byte of the word, then one for each of its nibbles.
    const __m512i wide = _mm512_cvtepu8_epi32(signs);
    const __m512i low = _mm512_or_si512(wide, _mm512_slli_epi32(wide, 6));
    const __m512i high = _mm512_or_si512(_mm512_slli_epi32(wide, 12), _mm512_slli_epi32(wide, 18));
    const __m512i pairs = _mm512_and_si512(_mm512_or_si512(low, high), _mm512_set1_epi32(0x03030303));
    return _mm512_or_si512(codes, move_two_bits<0, 3, 1, 7>(pairs));
  }

#else

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

#endif

  template <int T>
  static HWY_INLINE void step(const uint8_t*, const GridStage& stage, const float* const* x, Floats* sums) {
    add_words<T>(stage, kTable, x, sums);
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace dsv32
HWY_AFTER_NAMESPACE();

#endif  // DSV32_CPU_FORMATS_IQ_INL_H_
