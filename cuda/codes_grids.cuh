// IQ1, IQ2 and IQ3 on the device: codes are places in a table of points, which a block has in shared memory.
#pragma once

#include "cuda/codes.cuh"

namespace dsv32::cuda {

// Four magnitudes with the signs of bits `first`.. of eight. No magnitude is 0, so adding one to a byte of
// the complement never carries.
__device__ __forceinline__ uint32_t apply_signs(uint32_t magnitudes, uint32_t signs, int first) {
  const uint32_t ones = spread4(signs >> first);
  return (magnitudes ^ (ones << 8) - ones) + ones;
}

// The eight signs of a seven-bit code (quant_tables.h, iq_signs).
__device__ __forceinline__ uint32_t all_iq_signs(uint32_t code) { return code | (__popc(code) & 1u) << 7; }

// Four values of a grid that is in shared memory (fill_grid): their codes are nibbles, as __byte_perm wants.
__device__ __forceinline__ uint32_t grid4(const uint32_t* grid, uint32_t index) {
  return reinterpret_cast<const uint16_t*>(grid)[index];
}

// IQ2, IQ3: the magnitudes of a grid's codes, a byte each.
struct Magnitudes {
  uint32_t of_0, of_4;  // of codes 0..3 and 4..7
};
constexpr Magnitudes kIq2Magnitudes = {0x002b1908u, 0}, kIq3xxsMagnitudes = {0x1c140c04u, 0x3e342c24u},
                     kIq3sMagnitudes = {0x07050301u, 0x0f0d0b09u};
__device__ __forceinline__ uint32_t iq2_magnitudes(uint32_t codes) {
  return __byte_perm(kIq2Magnitudes.of_0, kIq2Magnitudes.of_4, codes);
}
__device__ __forceinline__ uint32_t iq3_xxs_magnitudes(uint32_t codes) {
  return __byte_perm(kIq3xxsMagnitudes.of_0, kIq3xxsMagnitudes.of_4, codes);
}
__device__ __forceinline__ uint32_t iq3_s_magnitudes(uint32_t codes) {
  return __byte_perm(kIq3sMagnitudes.of_0, kIq3sMagnitudes.of_4, codes);
}

// Eight values of IQ2 and IQ3, of a point or of two: their codes, nibbles that select bytes of kMagnitudes,
// four in each lower half; and their signs as bits. Of the values that codes4 has from (i16, j) on; j is 0
// or 8. Points of eight values are read at once.
struct Signed8 {
  uint32_t codes[2], signs;
};

template <>
struct Codes<TensorType::iq2_xxs> : SuperFormat<TensorType::iq2_xxs, sizeof(BlockIQ2_XXS), 32> {
  static constexpr Magnitudes kMagnitudes = kIq2Magnitudes;
  __device__ static uint32_t codes4(const uint8_t* b, auto i16, int j, const uint32_t* grid) {
    const uint8_t* group = b + 2 + i16 / 32 * 8;
    const int i = i16 % 32 + j;  // of the group; i / 8: which grid point
    const uint32_t signs = all_iq_signs(load_word<kAlign>(group + 4) >> (i / 8 * 7) & 127u);
    return apply_signs(iq2_magnitudes(grid4(grid, 2 * group[i / 8] + i / 4 % 2)), signs, i % 8);
  }
  __device__ static Signed8 signed8(const uint8_t* b, auto i16, int j, const uint32_t* grid) {
    const uint8_t* group = b + 2 + i16 / 32 * 8;
    const int i = i16 % 32 + j;
    const uint32_t codes = grid[group[i / 8]];
    return {{codes, codes >> 16}, all_iq_signs(load_word<kAlign>(group + 4) >> (i / 8 * 7) & 127u)};
  }
  __device__ static float d(const uint8_t* b) { return load_f16(b); }
  __device__ static float factor(const uint8_t* b, auto i16) {
    const uint32_t word = load_word<kAlign>(b + 2 + i16 / 32 * 8 + 4);
    return (0.5f + static_cast<float>(word >> 28)) * 0.25f;
  }
};

// Scales of four bits, `n` values each: that of the values from i16 on.
__device__ __forceinline__ float nibble_scale(const uint8_t* scales, auto i16, int n) {
  return byte_to_float(scales[i16 / (2 * n)] >> (i16 / n % 2 * 4) & 15u, 0);
}

template <>
struct Codes<TensorType::iq2_xs> : SuperFormat<TensorType::iq2_xs, sizeof(BlockIQ2_XS), 16> {
  static constexpr Magnitudes kMagnitudes = kIq2Magnitudes;
  __device__ static uint32_t codes4(const uint8_t* b, auto i16, int j, const uint32_t* grid) {
    const uint32_t q = reinterpret_cast<const uint16_t*>(b + 2)[i16 / 8 + j / 8];
    return apply_signs(iq2_magnitudes(grid4(grid, 2 * (q & 511u) + j / 4 % 2)), all_iq_signs(q >> 9), j % 8);
  }
  __device__ static Signed8 signed8(const uint8_t* b, auto i16, int j, const uint32_t* grid) {
    const uint32_t q = reinterpret_cast<const uint16_t*>(b + 2)[i16 / 8 + j / 8], codes = grid[q & 511u];
    return {{codes, codes >> 16}, all_iq_signs(q >> 9)};
  }
  __device__ static float d(const uint8_t* b) { return load_f16(b); }
  __device__ static float factor(const uint8_t* b, auto i16) {
    return (0.5f + nibble_scale(b + 66, i16, 16)) * 0.25f;
  }
};

template <>
struct Codes<TensorType::iq2_s> : SuperFormat<TensorType::iq2_s, sizeof(BlockIQ2_S), 16> {
  static constexpr Magnitudes kMagnitudes = kIq2Magnitudes;
  __device__ static uint32_t codes4(const uint8_t* b, auto i16, int j, const uint32_t* grid) {
    const int i = i16 / 8 + j / 8;  // which grid point
    const uint32_t point = b[2 + i] | (b[66 + i / 4] >> (i % 4 * 2) & 3u) << 8;
    return apply_signs(iq2_magnitudes(grid4(grid, 2 * point + j / 4 % 2)), b[34 + i], j % 8);
  }
  __device__ static Signed8 signed8(const uint8_t* b, auto i16, int j, const uint32_t* grid) {
    const int i = i16 / 8 + j / 8;
    const uint32_t codes = grid[b[2 + i] | (b[66 + i / 4] >> (i % 4 * 2) & 3u) << 8];
    return {{codes, codes >> 16}, b[34 + i]};
  }
  __device__ static float d(const uint8_t* b) { return load_f16(b); }
  __device__ static float factor(const uint8_t* b, auto i16) {
    return (0.5f + nibble_scale(b + 74, i16, 16)) * 0.25f;
  }
};

template <>
struct Codes<TensorType::iq3_xxs> : SuperFormat<TensorType::iq3_xxs, sizeof(BlockIQ3_XXS), 32> {
  static constexpr Magnitudes kMagnitudes = kIq3xxsMagnitudes;
  __device__ static uint32_t codes4(const uint8_t* b, auto i16, int j, const uint32_t* grid) {
    const int i = i16 % 32 + j;
    const uint32_t signs = all_iq_signs(load_word<kAlign>(b + 66 + i16 / 32 * 4) >> (i / 8 * 7) & 127u);
    return apply_signs(iq3_xxs_magnitudes(grid4(grid, b[2 + (i16 + j) / 4])), signs, i % 8);
  }
  __device__ static Signed8 signed8(const uint8_t* b, auto i16, int j, const uint32_t* grid) {
    const int i = i16 % 32 + j;
    const uint8_t* points = b + 2 + (i16 + j) / 4;
    return {{grid4(grid, points[0]), grid4(grid, points[1])},
            all_iq_signs(load_word<kAlign>(b + 66 + i16 / 32 * 4) >> (i / 8 * 7) & 127u)};
  }
  __device__ static float d(const uint8_t* b) { return load_f16(b); }
  __device__ static float factor(const uint8_t* b, auto i16) {
    const uint32_t word = load_word<kAlign>(b + 66 + i16 / 32 * 4);
    return (0.5f + static_cast<float>(word >> 28)) * 0.5f;
  }
};

template <>
struct Codes<TensorType::iq3_s> : SuperFormat<TensorType::iq3_s, sizeof(BlockIQ3_S), 32> {
  static constexpr Magnitudes kMagnitudes = kIq3sMagnitudes;
  __device__ static uint32_t codes4(const uint8_t* b, auto i16, int j, const uint32_t* grid) {
    const int i = i16 / 4 + j / 4;  // which grid point
    const uint32_t point = b[2 + i] | (b[66 + i / 8] >> (i % 8) & 1u) << 8;
    return apply_signs(iq3_s_magnitudes(grid4(grid, point)), b[74 + i / 2], j % 8);
  }
  __device__ static Signed8 signed8(const uint8_t* b, auto i16, int j, const uint32_t* grid) {
    const int i = i16 / 4 + j / 4;
    const uint32_t upper = b[66 + i / 8] >> (i % 8);  // i is even
    return {{grid4(grid, b[2 + i] | (upper & 1u) << 8), grid4(grid, b[3 + i] | (upper >> 1 & 1u) << 8)},
            b[74 + i / 2]};
  }
  __device__ static float d(const uint8_t* b) { return load_f16(b); }
  __device__ static float factor(const uint8_t* b, auto i16) {
    return 1.0f + 2.0f * nibble_scale(b + 106, i16, 32);
  }
};

// Eight times grid + delta, of the half j / 4 of a point. upper: the point's three upper bits and, above
// them, delta's.
__device__ __forceinline__ uint32_t iq1_codes(const uint32_t* grid, uint32_t lower, uint32_t upper, int j) {
  const uint32_t codes = grid4(grid, 2 * (lower | (upper & 7u) << 8) + j / 4 % 2);
  return __byte_perm(0x000901f9u, 0x0007fff7u, upper & 8u ? codes | 0x4444u : codes);
}

template <>
struct Codes<TensorType::iq1_s> : SuperFormat<TensorType::iq1_s, sizeof(BlockIQ1_S), 32> {
  __device__ static uint32_t group(const uint8_t* b, auto i16) {
    return reinterpret_cast<const uint16_t*>(b + 34)[i16 / 32];
  }
  __device__ static uint32_t codes4(const uint8_t* b, auto i16, int j, const uint32_t* grid) {
    const int i = i16 / 8 + j / 8;  // which grid point
    const uint32_t qh = group(b, i16);
    return iq1_codes(grid, b[2 + i], (qh >> (i % 4 * 3) & 7u) | (qh >> 12 & 8u), j);
  }
  __device__ static float d(const uint8_t* b) { return load_f16(b); }
  __device__ static float factor(const uint8_t* b, auto i16) {
    return byte_to_float((group(b, i16) >> 11 & 14u) | 1u, 0) * 0.125f;
  }
};

template <>
struct Codes<TensorType::iq1_m> : SuperFormat<TensorType::iq1_m, sizeof(BlockIQ1_M), 16> {
  __device__ static uint32_t codes4(const uint8_t* b, auto i16, int j, const uint32_t* grid) {
    const int i = i16 / 8 + j / 8;
    return iq1_codes(grid, b[i], static_cast<uint32_t>(b[32 + i16 / 16]) >> (j / 8 * 4), j);
  }
  __device__ static float d(const uint8_t* b) {
    const uint32_t low = load_word<kAlign>(b + 48), high = load_word<kAlign>(b + 52);
    const uint32_t bits =
        (low >> 12 & 0xfu) | (low >> 24 & 0xf0u) | (high >> 4 & 0xf00u) | (high >> 16 & 0xf000u);
    return __half2float(__ushort_as_half(static_cast<uint16_t>(bits)));
  }
  __device__ static float factor(const uint8_t* b, auto i16) {
    const int group = i16 / 16;
    const uint32_t word = load_word<kAlign>(b + 48 + group / 8 * 4);
    const uint32_t scale = word >> (group / 4 % 2 * 16 + group % 4 * 3) & 7u;
    return byte_to_float(2u * scale + 1u, 0) * 0.125f;
  }
};

// The points of eight codes with a nibble a code, as those of four codes have them.
template <size_t kPoints>
constexpr std::array<uint32_t, kPoints> as_nibbles(const std::array<uint16_t, kPoints>& codes) {
  std::array<uint32_t, kPoints> nibbles{};
  for (size_t point = 0; point < kPoints; ++point)
    for (int i = 0; i < 8; ++i) nibbles[point] |= (codes[point] >> (2 * i) & 3u) << (4 * i);
  return nibbles;
}

struct IqGrids {
  std::array<uint32_t, 2048> iq1;
  std::array<uint32_t, 256> iq2_xxs;
  std::array<uint32_t, 512> iq2_xs;
  std::array<uint32_t, 1024> iq2_s;
  std::array<uint16_t, 256> iq3_xxs;
  std::array<uint16_t, 512> iq3_s;
};
static __device__ const IqGrids kIqGrids = {as_nibbles(kIq1Codes),
                                            as_nibbles(kIq2xxsCodes),
                                            as_nibbles(kIq2xsCodes),
                                            as_nibbles(kIq2sCodes),
                                            kIq3xxsCodes,
                                            kIq3sCodes};

// Words of shared memory that fill_grid() wants.
template <TensorType kType>
inline constexpr int kGridWords = [] {
  switch (kType) {
    using enum TensorType;
    case iq1_s:
    case iq1_m: return sizeof(IqGrids::iq1) / 4;
    case iq2_xxs: return sizeof(IqGrids::iq2_xxs) / 4;
    case iq2_xs: return sizeof(IqGrids::iq2_xs) / 4;
    case iq2_s: return sizeof(IqGrids::iq2_s) / 4;
    case iq3_xxs: return sizeof(IqGrids::iq3_xxs) / 4;
    case iq3_s: return sizeof(IqGrids::iq3_s) / 4;
    default: return size_t{0};
  }
}();

template <TensorType kType>
__device__ __forceinline__ const void* grid_of() {
  switch (kType) {
    using enum TensorType;
    case iq1_s:
    case iq1_m: return &kIqGrids.iq1;
    case iq2_xxs: return &kIqGrids.iq2_xxs;
    case iq2_xs: return &kIqGrids.iq2_xs;
    case iq2_s: return &kIqGrids.iq2_s;
    case iq3_xxs: return &kIqGrids.iq3_xxs;
    case iq3_s: return &kIqGrids.iq3_s;
    default: return nullptr;
  }
}

// Called by all threads of a block before codes4 or dequantize16; a __syncthreads() follows. Nothing for
// types without a grid.
template <TensorType kType>
__device__ __forceinline__ void fill_grid(uint32_t* grid) {
  const auto* from = static_cast<const uint32_t*>(grid_of<kType>());
  for (int i = threadIdx.x; i < kGridWords<kType>; i += blockDim.x) grid[i] = from[i];
}

}  // namespace dsv32::cuda
