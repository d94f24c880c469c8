// Stored weight values on the device: Codes<type> reads a block of gguf/quant.h four values at a time.
//
// Every quantised format is the same thing seen from here: value = scale * code + min, with a code that fits
// a signed byte and one scale and min for a group of 16 or 32 values. codes4() gives four consecutive codes
// packed in a word, ready for integer products; dequantize16() gives f32 as the reference does, up to the
// rounding of one fma. Pointers lead to global or shared memory. Alignment wanted: kAlign of Codes<type>, two
// bytes where the block's size is no multiple of four. In (i16, j): i16 is the first value of a run of 16 in
// the block, a constant after unrolling, so that shifts fold and loads that several runs share are made once;
// j is 0, 4, 8 or 12.
#pragma once

#include "cuda/common.cuh"
#include "gguf/quant.h"
#include "gguf/quant_tables.h"

namespace dsv32::cuda {

template <int kAlign>
__device__ __forceinline__ uint32_t load_word(const uint8_t* p) {
  if constexpr (kAlign >= 4) return *reinterpret_cast<const uint32_t*>(p);
  const auto* halves = reinterpret_cast<const uint16_t*>(p);
  return halves[0] | static_cast<uint32_t>(halves[1]) << 16;
}

__device__ __forceinline__ float load_f16(const uint8_t* p) {
  return __half2float(__ushort_as_half(*reinterpret_cast<const uint16_t*>(p)));
}

// Four packed codes of 0..127 less a constant, as signed bytes. The top bit keeps a borrow inside its byte.
__device__ __forceinline__ uint32_t subtract4(uint32_t codes, uint32_t constant) {
  return ((codes | 0x80808080u) - constant * 0x01010101u) ^ 0x80808080u;
}

// Bit k of four to bit 0 of byte k.
__device__ __forceinline__ uint32_t spread4(uint32_t bits) {
  return (bits & 15u) * 0x00204081u & 0x01010101u;
}

// Byte `index` of a word as f32, exactly: 2^23 + byte is a float whose last mantissa bits are the byte.
__device__ __forceinline__ float byte_to_float(uint32_t word, uint32_t index) {
  return __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7440u | index)) - 8388608.0f;
}

// The signed bytes of a word as f32, exactly.
__device__ __forceinline__ void codes_to_floats(uint32_t codes, float out[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) out[i] = byte_to_float(codes ^ 0x80808080u, i) - 128.0f;
}

// The value of kIq4Values for each nibble: x the low nibbles of the four bytes, y the high ones.
__device__ __forceinline__ uint2 iq4_values(uint32_t nibbles) {
  constexpr auto pack = [](int i) {
    uint32_t word = 0;
    for (int k = 0; k < 4; ++k)
      word |= static_cast<uint32_t>(static_cast<uint8_t>(kIq4Values[i + k])) << (8 * k);
    return word;
  };
  constexpr uint32_t t0 = pack(0), t1 = pack(4), t2 = pack(8), t3 = pack(12);
  uint32_t found[2];  // of nibbles 0..3 and 4..7
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t n = nibbles >> (16 * half);
    const uint32_t below_8 = __byte_perm(t0, t1, n & 0x7777u), from_8 = __byte_perm(t2, t3, n & 0x7777u);
    found[half] = __byte_perm(below_8, from_8, 0x3210u | (n >> 1 & 0x4444u));
  }
  return {__byte_perm(found[0], found[1], 0x6420), __byte_perm(found[0], found[1], 0x7531)};
}

// Four magnitudes with the signs of bits `first`.. of a sign code (quant_tables.h, iq_signs). No magnitude is
// 0, so adding one to a byte of the complement never carries.
__device__ __forceinline__ uint32_t apply_iq_signs(uint32_t magnitudes, uint32_t code, int first) {
  const uint32_t signs = code | (__popc(code) & 1u) << 7;
  const uint32_t ones = spread4(signs >> first);
  return (magnitudes ^ (ones << 8) - ones) + ones;
}

struct ScaleMin {
  float scale, min;
};

// What the formats have in common; each Codes says what differs.
template <int kValues, int kBytes, int kGroupValues, bool kMins = false>
struct BlockFormat {
  static constexpr int kBlockValues = kValues, kBlockBytes = kBytes;
  static constexpr int kGroup = kGroupValues;  // values that share scale and min
  static constexpr bool kHasMin = kMins;       // else min is 0
  static constexpr int kAlign = kBytes % 4 == 0 ? 4 : 2;
};

template <TensorType kType>
struct Codes;

template <>
struct Codes<TensorType::q4_0> : BlockFormat<32, sizeof(BlockQ4_0), 32> {
  __device__ static uint32_t codes4(const uint8_t* b, int i16, int j, const uint32_t*) {
    return subtract4(load_word<kAlign>(b + 2 + j) >> (i16 / 4) & 0x0f0f0f0fu, 8);
  }
  __device__ static ScaleMin scale(const uint8_t* b, int) { return {load_f16(b), 0}; }
};

template <>
struct Codes<TensorType::q5_0> : BlockFormat<32, sizeof(BlockQ5_0), 32> {
  __device__ static uint32_t codes4(const uint8_t* b, int i16, int j, const uint32_t*) {
    const uint32_t low = load_word<kAlign>(b + 6 + j) >> (i16 / 4) & 0x0f0f0f0fu;
    return subtract4(low | spread4(load_word<kAlign>(b + 2) >> (i16 + j)) << 4, 16);
  }
  __device__ static ScaleMin scale(const uint8_t* b, int) { return {load_f16(b), 0}; }
};

template <>
struct Codes<TensorType::q5_1> : BlockFormat<32, sizeof(BlockQ5_1), 32, true> {
  __device__ static uint32_t codes4(const uint8_t* b, int i16, int j, const uint32_t*) {
    const uint32_t low = load_word<kAlign>(b + 8 + j) >> (i16 / 4) & 0x0f0f0f0fu;
    return low | spread4(load_word<kAlign>(b + 4) >> (i16 + j)) << 4;
  }
  __device__ static ScaleMin scale(const uint8_t* b, int) { return {load_f16(b), load_f16(b + 2)}; }
};

template <>
struct Codes<TensorType::q8_0> : BlockFormat<32, sizeof(BlockQ8_0), 32> {
  __device__ static uint32_t codes4(const uint8_t* b, int i16, int j, const uint32_t*) {
    return load_word<kAlign>(b + 2 + i16 + j);
  }
  __device__ static ScaleMin scale(const uint8_t* b, int) { return {load_f16(b), 0}; }
};

template <>
struct Codes<TensorType::q2_k> : BlockFormat<256, sizeof(BlockQ2_K), 16, true> {
  __device__ static uint32_t codes4(const uint8_t* b, int i16, int j, const uint32_t*) {
    return load_word<kAlign>(b + 16 + i16 / 128 * 32 + i16 % 32 + j) >> (i16 % 128 / 32 * 2) & 0x03030303u;
  }
  __device__ static ScaleMin scale(const uint8_t* b, int i16) {
    const uint32_t packed = load_word<kAlign>(b + i16 / 64 * 4), index = i16 / 16 % 4;
    return {load_f16(b + 80) * byte_to_float(packed & 0x0f0f0f0fu, index),
            -load_f16(b + 82) * byte_to_float(packed >> 4 & 0x0f0f0f0fu, index)};
  }
};

template <>
struct Codes<TensorType::q3_k> : BlockFormat<256, sizeof(BlockQ3_K), 16> {
  __device__ static uint32_t codes4(const uint8_t* b, int i16, int j, const uint32_t*) {
    const uint32_t low =
        load_word<kAlign>(b + 32 + i16 / 128 * 32 + i16 % 32 + j) >> (i16 % 128 / 32 * 2) & 0x03030303u;
    const uint32_t high = load_word<kAlign>(b + i16 % 32 + j) >> (i16 / 32) & 0x01010101u;
    return subtract4(low | high << 2, 4);
  }
  __device__ static ScaleMin scale(const uint8_t* b, int i16) {
    const int quad = i16 / 64;  // scales 4 quad .. 4 quad + 3 lie in one word of lower bits
    const uint32_t low = load_word<kAlign>(b + 96 + quad % 2 * 4) >> (quad / 2 * 4) & 0x0f0f0f0fu;
    const uint32_t high = load_word<kAlign>(b + 104) >> (quad * 2) & 0x03030303u;
    return {load_f16(b + 108) * (byte_to_float(low | high << 4, i16 / 16 % 4) - 32.0f), 0};
  }
};

// Q4_K, Q5_K: scales and mins of four groups at a time (quant_codes.h, unpack_k_scales). b: a block.
__device__ __forceinline__ ScaleMin k_scale(const uint8_t* b, int i16) {
  const uint32_t a = load_word<4>(b + 4), m = load_word<4>(b + 8), low = load_word<4>(b + 12);
  const bool is_upper = i16 >= 128;
  const uint32_t scales = is_upper ? (low & 0x0f0f0f0fu) | (a >> 2 & 0x30303030u) : a & 0x3f3f3f3fu;
  const uint32_t mins = is_upper ? (low >> 4 & 0x0f0f0f0fu) | (m >> 2 & 0x30303030u) : m & 0x3f3f3f3fu;
  const uint32_t index = i16 / 32 % 4;
  return {load_f16(b) * byte_to_float(scales, index), -load_f16(b + 2) * byte_to_float(mins, index)};
}

template <>
struct Codes<TensorType::q4_k> : BlockFormat<256, sizeof(BlockQ4_K), 32, true> {
  __device__ static uint32_t codes4(const uint8_t* b, int i16, int j, const uint32_t*) {
    return load_word<kAlign>(b + 16 + i16 / 64 * 32 + i16 % 32 + j) >> (i16 % 64 / 32 * 4) & 0x0f0f0f0fu;
  }
  __device__ static ScaleMin scale(const uint8_t* b, int i16) { return k_scale(b, i16); }
};

template <>
struct Codes<TensorType::q5_k> : BlockFormat<256, sizeof(BlockQ5_K), 32, true> {
  __device__ static uint32_t codes4(const uint8_t* b, int i16, int j, const uint32_t*) {
    const uint32_t low =
        load_word<kAlign>(b + 48 + i16 / 64 * 32 + i16 % 32 + j) >> (i16 % 64 / 32 * 4) & 0x0f0f0f0fu;
    const uint32_t high = load_word<kAlign>(b + 16 + i16 % 32 + j) >> (i16 / 32) & 0x01010101u;
    return low | high << 4;
  }
  __device__ static ScaleMin scale(const uint8_t* b, int i16) { return k_scale(b, i16); }
};

template <>
struct Codes<TensorType::q6_k> : BlockFormat<256, sizeof(BlockQ6_K), 16> {
  __device__ static uint32_t codes4(const uint8_t* b, int i16, int j, const uint32_t*) {
    const uint32_t low =
        load_word<kAlign>(b + i16 / 128 * 64 + i16 % 64 + j) >> (i16 % 128 / 64 * 4) & 0x0f0f0f0fu;
    const uint32_t high =
        load_word<kAlign>(b + 128 + i16 / 128 * 32 + i16 % 32 + j) >> (i16 % 128 / 32 * 2) & 0x03030303u;
    return subtract4(low | high << 4, 32);
  }
  __device__ static ScaleMin scale(const uint8_t* b, int i16) {
    const auto scale = static_cast<int8_t>(b[192 + i16 / 16]);
    return {load_f16(b + 208) * static_cast<float>(scale), 0};
  }
};

template <>
struct Codes<TensorType::iq2_xxs> : BlockFormat<256, sizeof(BlockIQ2_XXS), 32> {
  __device__ static uint32_t codes4(const uint8_t* b, int i16, int j, const uint32_t* grid) {
    const uint8_t* group = b + 2 + i16 / 32 * 8;
    const int i = i16 % 32 + j;  // of the group; i / 8: which grid point
    const uint32_t magnitudes = grid[2 * group[i / 8] + i / 4 % 2];
    return apply_iq_signs(magnitudes, load_word<kAlign>(group + 4) >> (i / 8 * 7) & 127u, i % 8);
  }
  __device__ static ScaleMin scale(const uint8_t* b, int i16) {
    const uint32_t word = load_word<kAlign>(b + 2 + i16 / 32 * 8 + 4);
    return {load_f16(b) * (0.5f + static_cast<float>(word >> 28)) * 0.25f, 0};
  }
};

template <>
struct Codes<TensorType::iq3_xxs> : BlockFormat<256, sizeof(BlockIQ3_XXS), 32> {
  __device__ static uint32_t codes4(const uint8_t* b, int i16, int j, const uint32_t* grid) {
    const int i = i16 % 32 + j;
    const uint32_t magnitudes = grid[b[2 + (i16 + j) / 4]];
    return apply_iq_signs(magnitudes, load_word<kAlign>(b + 66 + i16 / 32 * 4) >> (i / 8 * 7) & 127u, i % 8);
  }
  __device__ static ScaleMin scale(const uint8_t* b, int i16) {
    const uint32_t word = load_word<kAlign>(b + 66 + i16 / 32 * 4);
    return {load_f16(b) * (0.5f + static_cast<float>(word >> 28)) * 0.5f, 0};
  }
};

template <>
struct Codes<TensorType::iq4_nl> : BlockFormat<32, sizeof(BlockIQ4_NL), 32> {
  __device__ static uint32_t codes4(const uint8_t* b, int i16, int j, const uint32_t*) {
    const uint2 values = iq4_values(load_word<kAlign>(b + 2 + j));
    return i16 < 16 ? values.x : values.y;
  }
  __device__ static ScaleMin scale(const uint8_t* b, int) { return {load_f16(b), 0}; }
};

template <>
struct Codes<TensorType::iq4_xs> : BlockFormat<256, sizeof(BlockIQ4_XS), 32> {
  __device__ static uint32_t codes4(const uint8_t* b, int i16, int j, const uint32_t*) {
    const uint2 values = iq4_values(load_word<kAlign>(b + 8 + i16 / 32 * 16 + j));
    return i16 % 32 < 16 ? values.x : values.y;
  }
  __device__ static ScaleMin scale(const uint8_t* b, int i16) {
    const int group = i16 / 32;
    const uint32_t low = load_word<kAlign>(b + 4) >> (4 * group) & 15u;
    const uint32_t high =
        static_cast<uint32_t>(*reinterpret_cast<const uint16_t*>(b + 2)) >> (2 * group) & 3u;
    return {load_f16(b) * (byte_to_float(low | high << 4, 0) - 32.0f), 0};
  }
};

// F32, F16 and BF16 are no codes: one value at a time.
template <TensorType kType>
inline constexpr bool kIsFloat =
    kType == TensorType::f32 || kType == TensorType::f16 || kType == TensorType::bf16;

template <TensorType kType>
__device__ __forceinline__ float load_float(const uint8_t* row, int64_t i) {
  if constexpr (kType == TensorType::f32)
    return reinterpret_cast<const float*>(row)[i];
  else if constexpr (kType == TensorType::f16)
    return load_f16(row + 2 * i);
  else
    return __uint_as_float(static_cast<uint32_t>(reinterpret_cast<const uint16_t*>(row)[i]) << 16);
}

// Calls work.operator()<type>(): the one place that lists what the kernels are made for. Throws
// Error{internal} for a type that is not computed.
template <typename Work>
void with_type(TensorType type, const Work& work) {
  switch (type) {
    using enum TensorType;
    case f32: return work.template operator()<f32>();
    case f16: return work.template operator()<f16>();
    case bf16: return work.template operator()<bf16>();
    case q4_0: return work.template operator()<q4_0>();
    case q5_0: return work.template operator()<q5_0>();
    case q5_1: return work.template operator()<q5_1>();
    case q8_0: return work.template operator()<q8_0>();
    case q2_k: return work.template operator()<q2_k>();
    case q3_k: return work.template operator()<q3_k>();
    case q4_k: return work.template operator()<q4_k>();
    case q5_k: return work.template operator()<q5_k>();
    case q6_k: return work.template operator()<q6_k>();
    case iq2_xxs: return work.template operator()<iq2_xxs>();
    case iq3_xxs: return work.template operator()<iq3_xxs>();
    case iq4_nl: return work.template operator()<iq4_nl>();
    case iq4_xs: return work.template operator()<iq4_xs>();
  }
  fail(ErrorKind::internal, format("no kernel reads weights of type %u", static_cast<unsigned>(type)));
}

// The IQ grids as words, little-endian as they are used.
struct IqGrids {
  uint32_t iq2_xxs[512], iq3_xxs[256];
};
constexpr IqGrids make_iq_grids() {
  IqGrids grids{};
  for (int i = 0; i < 512; ++i) grids.iq2_xxs[i] = static_cast<uint32_t>(kIq2xxsGrid[i / 2] >> (i % 2 * 32));
  for (int i = 0; i < 256; ++i) grids.iq3_xxs[i] = kIq3xxsGrid[i];
  return grids;
}
static __device__ const IqGrids kIqGrids = make_iq_grids();

// Words of shared memory that fill_grid() wants.
template <TensorType kType>
inline constexpr int kGridWords = kType == TensorType::iq2_xxs   ? 512
                                  : kType == TensorType::iq3_xxs ? 256
                                                                 : 0;

// Called by all threads of a block before codes4 or dequantize16; a __syncthreads() follows. Nothing for
// types without a grid.
template <TensorType kType>
__device__ __forceinline__ void fill_grid(uint32_t* grid) {
  const uint32_t* from = kType == TensorType::iq2_xxs ? kIqGrids.iq2_xxs : kIqGrids.iq3_xxs;
  for (int i = threadIdx.x; i < kGridWords<kType>; i += blockDim.x) grid[i] = from[i];
}

// out [16]: values col..col+15 of a row; col is a multiple of 16. grid: see fill_grid.
template <TensorType kType>
__device__ __forceinline__ void dequantize16(const uint8_t* row, int64_t col, float* out,
                                             const uint32_t* grid) {
  if constexpr (kIsFloat<kType>) {
#pragma unroll
    for (int i = 0; i < 16; ++i) out[i] = load_float<kType>(row, col + i);
  } else {
    using Format = Codes<kType>;
    const uint8_t* block = row + col / Format::kBlockValues * Format::kBlockBytes;
    const int i16 = static_cast<int>(col % Format::kBlockValues);
    const ScaleMin s = Format::scale(block, i16);
#pragma unroll
    for (int j = 0; j < 16; j += 4) {
      float codes[4];
      codes_to_floats(Format::codes4(block, i16, j, grid), codes);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        out[j + i] = Format::kHasMin ? fmaf(s.scale, codes[i], s.min) : s.scale * codes[i];
    }
  }
}

}  // namespace dsv32::cuda
