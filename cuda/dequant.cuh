// Stored weights on the device, of any type: which there are, and sixteen values at a time as f32.
#pragma once

#include "cuda/codes_grids.cuh"

namespace dsv32::cuda {

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
    case q4_1: return work.template operator()<q4_1>();
    case q5_0: return work.template operator()<q5_0>();
    case q5_1: return work.template operator()<q5_1>();
    case q8_0: return work.template operator()<q8_0>();
    case q2_k: return work.template operator()<q2_k>();
    case q3_k: return work.template operator()<q3_k>();
    case q4_k: return work.template operator()<q4_k>();
    case q5_k: return work.template operator()<q5_k>();
    case q6_k: return work.template operator()<q6_k>();
    case iq1_s: return work.template operator()<iq1_s>();
    case iq1_m: return work.template operator()<iq1_m>();
    case iq2_xxs: return work.template operator()<iq2_xxs>();
    case iq2_xs: return work.template operator()<iq2_xs>();
    case iq2_s: return work.template operator()<iq2_s>();
    case iq3_xxs: return work.template operator()<iq3_xxs>();
    case iq3_s: return work.template operator()<iq3_s>();
    case iq4_nl: return work.template operator()<iq4_nl>();
    case iq4_xs: return work.template operator()<iq4_xs>();
    case mxfp4: return work.template operator()<mxfp4>();
    case nvfp4: return work.template operator()<nvfp4>();
  }
  fail(ErrorKind::internal, format("no kernel reads weights of type %u", static_cast<unsigned>(type)));
}

// out [16]: values col..col+15 of a row, as the reference has them up to the rounding of one fma; col is a
// multiple of 16. grid: see fill_grid.
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
