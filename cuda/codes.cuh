// Stored weight values on the device: Codes<type> reads a block of gguf/quant.h, four values at a time.
//
// In every quantised format value = scale * code + min; a code fits a signed byte, and 16 or 32 values share
// scale and min. codes4() packs four consecutive codes into a word. Pointers are to global or shared memory,
// aligned to kAlign of Codes<type>. (i16, j) is value i16 + j of the block. i16 is a multiple of 16, an int
// or a type that divides like one (decode_weights.cuh); it is constant after unrolling, so that shifts fold
// and loads are shared. j is 0, 4, 8 or 12.
#pragma once

#include "cuda/common.cuh"
#include "gguf/quant.h"
#include "gguf/quant_tables.h"

namespace dsv32::cuda {

template <int kAlign>
DSV32_DEVICE uint32_t load_word(const uint8_t* p) {
  if constexpr (kAlign >= 4) return *reinterpret_cast<const uint32_t*>(p);
  if constexpr (kAlign == 1) {  // from the words of its first and last byte
    const auto word = [](uintptr_t at) { return *reinterpret_cast<const uint32_t*>(at & ~uintptr_t{3}); };
    const auto at = reinterpret_cast<uintptr_t>(p);
    return __funnelshift_r(word(at), word(at + 3), static_cast<uint32_t>(at % 4) * 8);
  }
  const auto* halves = reinterpret_cast<const uint16_t*>(p);
  return halves[0] | static_cast<uint32_t>(halves[1]) << 16;
}

DSV32_DEVICE float load_f16(const uint8_t* p) {
  return __half2float(__ushort_as_half(*reinterpret_cast<const uint16_t*>(p)));
}

// Four packed codes of 0..127 minus a constant, as signed bytes. The top bit keeps a borrow inside its byte.
DSV32_DEVICE uint32_t subtract4(uint32_t codes, uint32_t constant) {
  return ((codes | 0x80808080u) - constant * 0x01010101u) ^ 0x80808080u;
}

// Moves bit k of four to bit 0 of byte k.
DSV32_DEVICE uint32_t spread4(uint32_t bits) { return (bits & 15u) * 0x00204081u & 0x01010101u; }

// Byte `index` of a word as f32, exactly: 2^23 + byte is a float whose last mantissa bits are the byte.
DSV32_DEVICE float byte_to_float(uint32_t word, uint32_t index) {
  return __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7440u | index)) - 8388608.0f;
}

// The signed bytes of a word as f32, exactly.
DSV32_DEVICE void codes_to_floats(uint32_t codes, float out[4]) {
  DSV32_UNROLL for (int i = 0; i < 4; ++i) out[i] = byte_to_float(codes ^ 0x80808080u, i) - 128.0f;
}

// Looks up each nibble in a table of four-bit codes: x for the low nibbles of the four bytes, y for the high
// ones.
template <const int8_t (&kTable)[16]>
DSV32_DEVICE uint2 look_up_nibbles(uint32_t nibbles) {
  constexpr auto pack = [](int i) {
    uint32_t word = 0;
    for (int k = 0; k < 4; ++k) word |= static_cast<uint32_t>(static_cast<uint8_t>(kTable[i + k])) << (8 * k);
    return word;
  };
  constexpr uint32_t t0 = pack(0), t1 = pack(4), t2 = pack(8), t3 = pack(12);
  uint32_t found[2];  // of nibbles 0..3 and 4..7
  DSV32_UNROLL for (int half = 0; half < 2; ++half) {
    const uint32_t n = nibbles >> (16 * half);
    const uint32_t below_8 = __byte_perm(t0, t1, n & 0x7777u), from_8 = __byte_perm(t2, t3, n & 0x7777u);
    found[half] = __byte_perm(below_8, from_8, 0x3210u | (n >> 1 & 0x4444u));
  }
  return {__byte_perm(found[0], found[1], 0x6420), __byte_perm(found[0], found[1], 0x7531)};
}

struct ScaleMin {
  float scale, min;
};

// What the formats have in common.
template <typename Block>
struct BlockFormat {
  static constexpr int kBlockValues = Block::kValues, kBlockBytes = sizeof(Block);
  static constexpr int kGroup = Block::kGroupValues;  // values that share scale and min
  static constexpr bool kHasMin = Block::kHasMins;    // else min is 0
  static constexpr int kAlign = kBlockBytes % 4 == 0 ? 4 : kBlockBytes % 2 == 0 ? 2 : 1;
};

template <TensorType kType>
struct Codes;

// Blocks of 256 values with one scale d(block); a group's scale is d times factor(block, i16). A factor has
// few bits, and so has a code times its factor: both are exact in f32.
template <TensorType kType, typename Block>
struct SuperFormat : BlockFormat<Block> {
  __device__ static ScaleMin scale(const uint8_t* b, int i16) {
    return {Codes<kType>::d(b) * Codes<kType>::factor(b, i16), 0};
  }
};

// Q4_0 to Q5_1: d; with mins m; with a fifth bit of each code four bytes of these; then nibbles.
template <typename Block, bool kHasFifth>
struct PlainNibbles : BlockFormat<Block> {
  using Format = BlockFormat<Block>;
  static constexpr int kFifth = Format::kHasMin ? 4 : 2, kNibbles = kFifth + (kHasFifth ? 4 : 0);

  __device__ static uint32_t codes4(const uint8_t* b, auto i16, int j, const uint32_t*) {
    uint32_t codes = load_word<Format::kAlign>(b + kNibbles + j) >> (i16 / 4) & 0x0f0f0f0fu;
    if constexpr (kHasFifth) codes |= spread4(load_word<Format::kAlign>(b + kFifth) >> (i16 + j)) << 4;
    return Format::kHasMin ? codes : subtract4(codes, kHasFifth ? 16 : 8);
  }
  __device__ static ScaleMin scale(const uint8_t* b, int) {
    return {load_f16(b), Format::kHasMin ? load_f16(b + 2) : 0};
  }
};
template <>
struct Codes<TensorType::q4_0> : PlainNibbles<BlockQ4_0, false> {};
template <>
struct Codes<TensorType::q4_1> : PlainNibbles<BlockQ4_1, false> {};
template <>
struct Codes<TensorType::q5_0> : PlainNibbles<BlockQ5_0, true> {};
template <>
struct Codes<TensorType::q5_1> : PlainNibbles<BlockQ5_1, true> {};

template <>
struct Codes<TensorType::q8_0> : BlockFormat<BlockQ8_0> {
  __device__ static uint32_t codes4(const uint8_t* b, auto i16, int j, const uint32_t*) {
    return load_word<kAlign>(b + 2 + i16 + j);
  }
  __device__ static ScaleMin scale(const uint8_t* b, int) { return {load_f16(b), 0}; }
};

template <>
struct Codes<TensorType::q2_k> : BlockFormat<BlockQ2_K> {
  __device__ static uint32_t codes4(const uint8_t* b, auto i16, int j, const uint32_t*) {
    return load_word<kAlign>(b + 16 + i16 / 128 * 32 + i16 % 32 + j) >> (i16 % 128 / 32 * 2) & 0x03030303u;
  }
  __device__ static ScaleMin scale(const uint8_t* b, int i16) {
    const uint32_t packed = load_word<kAlign>(b + i16 / 64 * 4), index = i16 / 16 % 4;
    return {load_f16(b + 80) * byte_to_float(packed & 0x0f0f0f0fu, index),
            -load_f16(b + 82) * byte_to_float(packed >> 4 & 0x0f0f0f0fu, index)};
  }
};

template <>
struct Codes<TensorType::q3_k> : SuperFormat<TensorType::q3_k, BlockQ3_K> {
  __device__ static uint32_t codes4(const uint8_t* b, auto i16, int j, const uint32_t*) {
    const uint32_t low =
        load_word<kAlign>(b + 32 + i16 / 128 * 32 + i16 % 32 + j) >> (i16 % 128 / 32 * 2) & 0x03030303u;
    const uint32_t high = load_word<kAlign>(b + i16 % 32 + j) >> (i16 / 32) & 0x01010101u;
    return subtract4(low | high << 2, 4);
  }
  __device__ static float d(const uint8_t* b) { return load_f16(b + 108); }
  __device__ static float factor(const uint8_t* b, auto i16) {
    const int quad = i16 / 64;  // one word has the lower bits of scales 4 quad .. 4 quad + 3
    const uint32_t low = load_word<kAlign>(b + 96 + quad % 2 * 4) >> (quad / 2 * 4) & 0x0f0f0f0fu;
    const uint32_t high = load_word<kAlign>(b + 104) >> (quad * 2) & 0x03030303u;
    return byte_to_float(low | high << 4, i16 / 16 % 4) - 32.0f;
  }
};

// Q4_K, Q5_K: scales and mins of the lower or the upper four groups, a byte each (quant_codes.h,
// unpack_k_scales). head: a block's first 16 bytes.
DSV32_DEVICE ScaleMin k_scale(const uint4& head, int i16) {
  const bool is_upper = i16 >= 128;
  const uint32_t a = head.y, m = head.z, low = head.w, index = i16 / 32 % 4;
  const uint32_t scales = is_upper ? (low & 0x0f0f0f0fu) | (a >> 2 & 0x30303030u) : a & 0x3f3f3f3fu,
                 mins = is_upper ? (low >> 4 & 0x0f0f0f0fu) | (m >> 2 & 0x30303030u) : m & 0x3f3f3f3fu;
  const float2 d = unpack_f16(head.x);
  return {d.x * byte_to_float(scales, index), -d.y * byte_to_float(mins, index)};
}

// Their head, with a fifth bit of each code 32 bytes of these, and nibbles.
template <typename Block, bool kHasFifth>
struct NibblesOf256 : BlockFormat<Block> {
  __device__ static uint32_t codes4(const uint8_t* b, auto i16, int j, const uint32_t*) {
    constexpr int kAlign = BlockFormat<Block>::kAlign, kNibbles = kHasFifth ? 48 : 16;
    uint32_t codes =
        load_word<kAlign>(b + kNibbles + i16 / 64 * 32 + i16 % 32 + j) >> (i16 % 64 / 32 * 4) & 0x0f0f0f0fu;
    if constexpr (kHasFifth)
      codes |= (load_word<kAlign>(b + 16 + i16 % 32 + j) >> (i16 / 32) & 0x01010101u) << 4;
    return codes;
  }
  __device__ static ScaleMin scale(const uint8_t* b, int i16) {
    const auto* words = reinterpret_cast<const uint32_t*>(b);
    return k_scale(make_uint4(words[0], words[1], words[2], words[3]), i16);
  }
};
template <>
struct Codes<TensorType::q4_k> : NibblesOf256<BlockQ4_K, false> {};
template <>
struct Codes<TensorType::q5_k> : NibblesOf256<BlockQ5_K, true> {};

template <>
struct Codes<TensorType::q6_k> : SuperFormat<TensorType::q6_k, BlockQ6_K> {
  __device__ static uint32_t codes4(const uint8_t* b, auto i16, int j, const uint32_t*) {
    const uint32_t low =
        load_word<kAlign>(b + i16 / 128 * 64 + i16 % 64 + j) >> (i16 % 128 / 64 * 4) & 0x0f0f0f0fu;
    const uint32_t high =
        load_word<kAlign>(b + 128 + i16 / 128 * 32 + i16 % 32 + j) >> (i16 % 128 / 32 * 2) & 0x03030303u;
    return subtract4(low | high << 4, 32);
  }
  __device__ static float d(const uint8_t* b) { return load_f16(b + 208); }
  __device__ static float factor(const uint8_t* b, auto i16) {
    return static_cast<float>(static_cast<int8_t>(b[192 + i16 / 16]));
  }
};

template <>
struct Codes<TensorType::iq4_nl> : BlockFormat<BlockIQ4_NL> {
  __device__ static uint32_t codes4(const uint8_t* b, auto i16, int j, const uint32_t*) {
    const uint2 values = look_up_nibbles<kIq4Values>(load_word<kAlign>(b + 2 + j));
    return i16 < 16 ? values.x : values.y;
  }
  __device__ static ScaleMin scale(const uint8_t* b, int) { return {load_f16(b), 0}; }
};

template <>
struct Codes<TensorType::iq4_xs> : SuperFormat<TensorType::iq4_xs, BlockIQ4_XS> {
  __device__ static uint32_t codes4(const uint8_t* b, auto i16, int j, const uint32_t*) {
    const uint2 values = look_up_nibbles<kIq4Values>(load_word<kAlign>(b + 8 + i16 / 32 * 16 + j));
    return i16 % 32 < 16 ? values.x : values.y;
  }
  __device__ static float d(const uint8_t* b) { return load_f16(b); }
  __device__ static float factor(const uint8_t* b, auto i16) {
    const int group = i16 / 32;
    const uint32_t low = load_word<kAlign>(b + 4) >> (4 * group) & 15u;
    const uint32_t high =
        static_cast<uint32_t>(*reinterpret_cast<const uint16_t*>(b + 2)) >> (2 * group) & 3u;
    return byte_to_float(low | high << 4, 0) - 32.0f;
  }
};

template <>
struct Codes<TensorType::mxfp4> : BlockFormat<BlockMXFP4> {
  __device__ static uint32_t codes4(const uint8_t* b, auto i16, int j, const uint32_t*) {
    const uint2 values = look_up_nibbles<kFp4Values>(load_word<kAlign>(b + 1 + j));
    return i16 < 16 ? values.x : values.y;
  }
  __device__ static ScaleMin scale(const uint8_t* b, int) {
    const uint32_t e = b[0];
    return {__uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23), 0};
  }
};

template <>
struct Codes<TensorType::nvfp4> : BlockFormat<BlockNVFP4> {
  __device__ static uint32_t codes4(const uint8_t* b, auto i16, int j, const uint32_t*) {
    const uint2 values = look_up_nibbles<kFp4Values>(load_word<kAlign>(b + 4 + i16 / 2 + j % 8));
    return j < 8 ? values.x : values.y;
  }
  // kHalvedScales: the code as the upper bits of a float has exponent bias 127, not 7. The factor 2^119
  // corrects that and halves.
  __device__ static ScaleMin scale(const uint8_t* b, int i16) {
    const uint32_t code = b[i16 / 16];
    return {code == 0x7fu ? 0.0f : __uint_as_float((code & 127u) << 20) * 0x1p119f, 0};
  }
};

}  // namespace dsv32::cuda
