// Sixteen stored weights as fp16, for tensor cores.
//
// f16(scale * code + min) takes a byte permutation and an fma a value: a code, made unsigned by an offset,
// goes into the mantissa of a power of two, and the fma takes power and offset off. Against rounding the
// reference's f32 value this is off by the rounding of the fma's constant: less than scale * 2^-9 for formats
// of large codes, 2^-16 for the others, which is 2^-15 of a block's largest value or less, where fp16 rounds
// off 2^-11.
//
// No scale is applied: values from 2^-14 to 65504 keep eleven bits, and smaller ones err by 2^-25 at most,
// nothing beside the roundings of ordinary values (0.01) in the same sums. Values past 65504, which only F32,
// BF16 and absurd scales have, become 65504.
#pragma once

#include "cuda/dequant.cuh"

namespace dsv32::cuda {

// Codes reach to -127 or 127; those of other formats stay within -64..63, or within 0..31 where there is a
// min.
template <TensorType kType>
inline constexpr bool kHasLargeCodes =
    kType == TensorType::q8_0 || kType == TensorType::iq4_nl || kType == TensorType::iq4_xs;

// What makes codes unsigned, and, with the power of two that they are put into, what the fma takes off again.
template <TensorType kType>
inline constexpr uint32_t kToUnsigned = Codes<kType>::kHasMin   ? 0
                                        : kHasLargeCodes<kType> ? 128
                                                                : 64;

template <TensorType kType>
__device__ __forceinline__ float widen_constant(const ScaleMin& s) {
  return fmaf(-((kHasLargeCodes<kType> ? 32768.0f : 128.0f) + static_cast<float>(kToUnsigned<kType>)),
              s.scale, s.min);
}

// Sixteen 16-bit values, from an even address.
__device__ __forceinline__ void load_pairs(const uint8_t* from, uint32_t* out) {
  if (reinterpret_cast<uintptr_t>(from) % 16 == 0) {
    const uint4 low = reinterpret_cast<const uint4*>(from)[0], high = reinterpret_cast<const uint4*>(from)[1];
    out[0] = low.x, out[1] = low.y, out[2] = low.z, out[3] = low.w;
    out[4] = high.x, out[5] = high.y, out[6] = high.z, out[7] = high.w;
  } else {
    DSV32_UNROLLED (int i = 0; i < 8; ++i) out[i] = load_word<2>(from + 4 * i);
  }
}

// Four codes as codes4() has them, which scale * code + min turns into values; out: two words. constant: of
// widen_constant().
template <TensorType kType>
__device__ __forceinline__ void widen4(uint32_t codes, float scale, float constant, uint32_t* out) {
  constexpr bool kIsLarge = kHasLargeCodes<kType>;
  constexpr uint32_t kPower =
      kIsLarge ? 0x47000000u : 0x43000000u;  // 2^15, 2^7: the code goes to byte 1 or 2
  if constexpr (!Codes<kType>::kHasMin)
    codes = (codes ^ 0x80808080u) - (128 - kToUnsigned<kType>)*0x01010101u;
  float values[4];
  DSV32_UNROLLED (int i = 0; i < 4; ++i) {
    // Bytes of the result, lowest first: 0, (code or 0), (0 or code), 0x43 or 0x47.
    const uint32_t selector =
        kIsLarge ? 0x7404u | static_cast<uint32_t>(i) << 4 : 0x7044u | static_cast<uint32_t>(i) << 8;
    values[i] = fmaf(scale, __uint_as_float(__byte_perm(codes, kPower, selector)), constant);
  }
  out[0] = pack_f16(values[0], values[1]);
  out[1] = pack_f16(values[2], values[3]);
}

// out [8]: values col..col+15 of a row, two a word; col is a multiple of 16. grid: see fill_grid.
template <TensorType kType>
__device__ __forceinline__ void widen16(const uint8_t* row, int64_t col, uint32_t* out,
                                        const uint32_t* grid) {
  if constexpr (kType == TensorType::f32) {
    DSV32_UNROLLED (int i = 0; i < 8; ++i)
      out[i] = pack_f16(load_float<kType>(row, col + 2 * i), load_float<kType>(row, col + 2 * i + 1));
  } else if constexpr (kIsFloat<kType>) {
    load_pairs(row + 2 * col, out);
    if constexpr (kType == TensorType::bf16) {
      DSV32_UNROLLED (int i = 0; i < 8; ++i)
        out[i] = pack_f16(__uint_as_float(out[i] << 16), __uint_as_float(out[i] & 0xffff0000u));
    }
  } else {
    using Format = Codes<kType>;
    const uint8_t* block = row + col / Format::kBlockValues * Format::kBlockBytes;
    const int i16 = static_cast<int>(col % Format::kBlockValues);
    const ScaleMin s = Format::scale(block, i16);
    const float constant = widen_constant<kType>(s);
    DSV32_UNROLLED (int j = 0; j < 16; j += 4)
      widen4<kType>(Format::codes4(block, i16, j, grid), s.scale, constant, out + j / 2);
  }
}

// out [32]: values col..col+63 of a row, two a word, the same bits; col is a multiple of 64.
template <TensorType kType>
__device__ __forceinline__ void widen64(const uint8_t* row, int64_t col, uint32_t* out,
                                        const uint32_t* grid) {
  if constexpr (kType == TensorType::q4_k) {
    // 32 bytes have the lower nibbles of 32 values and the upper ones of the next: read once, in whole
    // pieces.
    const uint8_t* block = row + col / 256 * sizeof(BlockQ4_K);
    const int i16 = static_cast<int>(col % 256);
    if (reinterpret_cast<uintptr_t>(block) % 16 == 0) {
      const auto* pieces = reinterpret_cast<const uint4*>(block);
      const ScaleMin low = k_scale(pieces[0], i16), high = k_scale(pieces[0], i16 + 32);
      const float low_constant = widen_constant<kType>(low), high_constant = widen_constant<kType>(high);
      DSV32_UNROLLED (int i = 0; i < 2; ++i) {
        const uint4 piece = pieces[1 + i16 / 32 + i];
        const uint32_t words[4] = {piece.x, piece.y, piece.z, piece.w};
        DSV32_UNROLLED (int k = 0; k < 4; ++k) {
          widen4<kType>(words[k] & 0x0f0f0f0fu, low.scale, low_constant, out + 8 * i + 2 * k);
          widen4<kType>(words[k] >> 4 & 0x0f0f0f0fu, high.scale, high_constant, out + 16 + 8 * i + 2 * k);
        }
      }
      return;
    }
  }
  DSV32_UNROLLED (int i = 0; i < 4; ++i) widen16<kType>(row, col + 16 * i, out + 8 * i, grid);
}

}  // namespace dsv32::cuda
