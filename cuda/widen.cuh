// Sixteen stored weights as bf16, for tensor cores.
//
// bf16(scale * code + min) takes a byte permutation and an fma a value: a code, made unsigned by an offset,
// is put into the mantissa of a power of two, and the fma takes power and offset off again. Against rounding
// the reference's f32 value this is off by less than scale * 2^-9, for formats of wide codes, or 2^-16 (the
// rounding of the fma's constant) before the result is rounded.
#pragma once

#include "cuda/dequant.cuh"

namespace dsv32::cuda {

// Codes reach to -127 or 127; those of other formats stay within -64..63, or within 0..31 where there is a
// min.
template <TensorType kType>
inline constexpr bool kHasWideCodes =
    kType == TensorType::q8_0 || kType == TensorType::iq4_nl || kType == TensorType::iq4_xs;

__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// out [8]: values col..col+15 of a row, two a word; col is a multiple of 16. grid: see fill_grid.
template <TensorType kType>
__device__ __forceinline__ void widen16(const uint8_t* row, int64_t col, uint32_t* out,
                                        const uint32_t* grid) {
  if constexpr (kIsFloat<kType>) {
#pragma unroll
    for (int i = 0; i < 8; ++i)
      out[i] = pack_bf16(load_float<kType>(row, col + 2 * i), load_float<kType>(row, col + 2 * i + 1));
  } else {
    using Format = Codes<kType>;
    constexpr bool kIsWide = kHasWideCodes<kType>;
    constexpr uint32_t kToUnsigned = Format::kHasMin ? 0 : kIsWide ? 128 : 64;
    constexpr uint32_t kPower =
        kIsWide ? 0x47000000u : 0x43000000u;  // 2^15, 2^7: the code goes to byte 1 or 2
    constexpr float kOffset = (kIsWide ? 32768.0f : 128.0f) + static_cast<float>(kToUnsigned);

    const uint8_t* block = row + col / Format::kBlockValues * Format::kBlockBytes;
    const int i16 = static_cast<int>(col % Format::kBlockValues);
    const ScaleMin s = Format::scale(block, i16);
    const float constant = fmaf(-kOffset, s.scale, s.min);
#pragma unroll
    for (int j = 0; j < 16; j += 4) {
      uint32_t codes = Format::codes4(block, i16, j, grid);
      if constexpr (!Format::kHasMin) codes = (codes ^ 0x80808080u) - (128 - kToUnsigned) * 0x01010101u;
      float values[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        // Bytes of the result, lowest first: 0, (code or 0), (0 or code), 0x43 or 0x47.
        const uint32_t selector =
            kIsWide ? 0x7404u | static_cast<uint32_t>(i) << 4 : 0x7044u | static_cast<uint32_t>(i) << 8;
        values[i] = fmaf(s.scale, __uint_as_float(__byte_perm(codes, kPower, selector)), constant);
      }
      out[j / 2] = pack_bf16(values[0], values[1]);
      out[j / 2 + 1] = pack_bf16(values[2], values[3]);
    }
  }
}

}  // namespace dsv32::cuda
