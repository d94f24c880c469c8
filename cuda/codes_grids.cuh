// IQ1, IQ2 and IQ3 on the device: codes are indices into a grid, a table of points in the block's shared
// memory.
#pragma once

#include "cuda/codes.cuh"

namespace dsv32::cuda {

// Gives four magnitudes the signs in bits `first`.. of `signs`. No magnitude is 0, so adding one to a byte of
// the complement never carries.
DSV32_DEVICE uint32_t apply_signs(uint32_t magnitudes, uint32_t signs, int first) {
  const uint32_t ones = spread4(signs >> first);
  return (magnitudes ^ (ones << 8) - ones) + ones;
}

// The eight signs of a seven-bit code (quant_tables.h, iq_signs).
DSV32_DEVICE uint32_t all_iq_signs(uint32_t code) { return code | (__popc(code) & 1u) << 7; }

// Four values of a grid in shared memory (fill_grid): their codes as nibbles, the form of a __byte_perm
// selector.
DSV32_DEVICE uint32_t grid4(const uint32_t* grid, uint32_t index) {
  return reinterpret_cast<const uint16_t*>(grid)[index];
}

// IQ2, IQ3: the magnitudes of a grid's codes, a byte each.
struct Magnitudes {
  uint32_t of_0, of_4;  // of codes 0..3 and 4..7
};

// Eight values from (i16, j) on, j 0 or 8, of one point or two. codes: nibbles that select bytes of
// kMagnitudes, four in each word's lower half. signs: as bits.
struct Signed8 {
  uint32_t codes[2], signs;
};

// IQ2 and IQ3. For the eight values around (i16, j): point(), the grid index (of eight, or of four of them),
// and signs().
template <TensorType kType, typename Block, uint32_t kOf0, uint32_t kOf4 = 0>
struct SignedFormat : SuperFormat<kType, Block> {
  using Format = Codes<kType>;
  static constexpr Magnitudes kMagnitudes = {kOf0, kOf4};
  static constexpr bool kHasEights = kOf4 == 0;  // a point is eight values, else four

  __device__ static uint32_t codes4(const uint8_t* b, auto i16, int j, const uint32_t* grid) {
    const uint32_t signs = Format::signs(b, i16, j);
    uint32_t point;
    if constexpr (kHasEights)
      point = 2 * Format::point(b, i16, j) + j / 4 % 2;
    else
      point = Format::point(b, i16, j);
    return apply_signs(__byte_perm(kOf0, kOf4, grid4(grid, point)), signs, j % 8);
  }
  __device__ static Signed8 signed8(const uint8_t* b, auto i16, int j, const uint32_t* grid) {
    if constexpr (kHasEights) {
      const uint32_t codes = grid[Format::point(b, i16, j)];
      return {{codes, codes >> 16}, Format::signs(b, i16, j)};
    } else {
      return {{grid4(grid, Format::point(b, i16, j)), grid4(grid, Format::point(b, i16, j + 4))},
              Format::signs(b, i16, j)};
    }
  }
  __device__ static float d(const uint8_t* b) { return load_f16(b); }
};

// The scale of the values from i16 on. Scales have four bits, and `n` values share one.
DSV32_DEVICE float nibble_scale(const uint8_t* scales, auto i16, int n) {
  return byte_to_float(scales[i16 / (2 * n)] >> (i16 / n % 2 * 4) & 15u, 0);
}

constexpr uint32_t kIq2Magnitudes = 0x002b1908u;

template <>
struct Codes<TensorType::iq2_xxs> : SignedFormat<TensorType::iq2_xxs, BlockIQ2_XXS, kIq2Magnitudes> {
  __device__ static uint32_t word(const uint8_t* b, auto i16) {  // signs, and the scale above them
    return load_word<kAlign>(b + 2 + i16 / 32 * 8 + 4);
  }
  __device__ static uint32_t point(const uint8_t* b, auto i16, int j) {
    return (b + 2 + i16 / 32 * 8)[(i16 % 32 + j) / 8];
  }
  __device__ static uint32_t signs(const uint8_t* b, auto i16, int j) {
    return all_iq_signs(word(b, i16) >> ((i16 % 32 + j) / 8 * 7) & 127u);
  }
  __device__ static float factor(const uint8_t* b, auto i16) {
    return (0.5f + static_cast<float>(word(b, i16) >> 28)) * 0.25f;
  }
};

template <>
struct Codes<TensorType::iq2_xs> : SignedFormat<TensorType::iq2_xs, BlockIQ2_XS, kIq2Magnitudes> {
  __device__ static uint32_t both(const uint8_t* b, auto i16, int j) {
    return reinterpret_cast<const uint16_t*>(b + 2)[i16 / 8 + j / 8];
  }
  __device__ static uint32_t point(const uint8_t* b, auto i16, int j) { return both(b, i16, j) & 511u; }
  __device__ static uint32_t signs(const uint8_t* b, auto i16, int j) {
    return all_iq_signs(both(b, i16, j) >> 9);
  }
  __device__ static float factor(const uint8_t* b, auto i16) {
    return (0.5f + nibble_scale(b + 66, i16, 16)) * 0.25f;
  }
};

template <>
struct Codes<TensorType::iq2_s> : SignedFormat<TensorType::iq2_s, BlockIQ2_S, kIq2Magnitudes> {
  __device__ static uint32_t point(const uint8_t* b, auto i16, int j) {
    const int i = i16 / 8 + j / 8;
    return b[2 + i] | (b[66 + i / 4] >> (i % 4 * 2) & 3u) << 8;
  }
  __device__ static uint32_t signs(const uint8_t* b, auto i16, int j) { return b[34 + (i16 / 8 + j / 8)]; }
  __device__ static float factor(const uint8_t* b, auto i16) {
    return (0.5f + nibble_scale(b + 74, i16, 16)) * 0.25f;
  }
};

template <>
struct Codes<TensorType::iq3_xxs>
    : SignedFormat<TensorType::iq3_xxs, BlockIQ3_XXS, 0x1c140c04u, 0x3e342c24u> {
  __device__ static uint32_t word(const uint8_t* b, auto i16) {  // signs, and the scale above them
    return load_word<kAlign>(b + 66 + i16 / 32 * 4);
  }
  __device__ static uint32_t point(const uint8_t* b, auto i16, int j) { return b[2 + (i16 + j) / 4]; }
  __device__ static uint32_t signs(const uint8_t* b, auto i16, int j) {
    return all_iq_signs(word(b, i16) >> ((i16 % 32 + j) / 8 * 7) & 127u);
  }
  __device__ static float factor(const uint8_t* b, auto i16) {
    return (0.5f + static_cast<float>(word(b, i16) >> 28)) * 0.5f;
  }
};

template <>
struct Codes<TensorType::iq3_s> : SignedFormat<TensorType::iq3_s, BlockIQ3_S, 0x07050301u, 0x0f0d0b09u> {
  __device__ static uint32_t point(const uint8_t* b, auto i16, int j) {
    const int i = i16 / 4 + j / 4;
    return b[2 + i] | (b[66 + i / 8] >> (i % 8) & 1u) << 8;
  }
  __device__ static uint32_t signs(const uint8_t* b, auto i16, int j) {
    return b[74 + (i16 / 4 + j / 4) / 2];
  }
  __device__ static float factor(const uint8_t* b, auto i16) {
    return 1.0f + 2.0f * nibble_scale(b + 106, i16, 32);
  }
};

// 8 * (grid + delta) for half j / 4 of a point. upper: the point's three upper bits, and above them the bit
// of delta.
DSV32_DEVICE uint32_t iq1_codes(const uint32_t* grid, uint32_t lower, uint32_t upper, int j) {
  const uint32_t codes = grid4(grid, 2 * (lower | (upper & 7u) << 8) + j / 4 % 2);
  return __byte_perm(0x000901f9u, 0x0007fff7u, upper & 8u ? codes | 0x4444u : codes);
}

template <>
struct Codes<TensorType::iq1_s> : SuperFormat<TensorType::iq1_s, BlockIQ1_S> {
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
struct Codes<TensorType::iq1_m> : SuperFormat<TensorType::iq1_m, BlockIQ1_M> {
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

// Points of eight codes as eight nibbles, the form that points of four codes have already.
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

// The grid of a type.
template <TensorType kType>
constexpr auto grid_of() {
  using enum TensorType;
  if constexpr (kType == iq1_s || kType == iq1_m) return &IqGrids::iq1;
  if constexpr (kType == iq2_xxs) return &IqGrids::iq2_xxs;
  if constexpr (kType == iq2_xs) return &IqGrids::iq2_xs;
  if constexpr (kType == iq2_s) return &IqGrids::iq2_s;
  if constexpr (kType == iq3_xxs) return &IqGrids::iq3_xxs;
  if constexpr (kType == iq3_s) return &IqGrids::iq3_s;
}
template <TensorType kType>
inline constexpr bool kHasGrid = !std::is_void_v<decltype(grid_of<kType>())>;

// Words of shared memory that fill_grid() needs.
template <TensorType kType>
inline constexpr int kGridWords = [] {
  if constexpr (kHasGrid<kType>) return static_cast<int>(sizeof(IqGrids{}.*grid_of<kType>()) / 4);
  return 0;
}();

// All threads of a block call it before codes4 or dequantize16, and then __syncthreads(). Does nothing for
// types without a grid.
template <TensorType kType>
DSV32_DEVICE void fill_grid(uint32_t* grid) {
  if constexpr (kHasGrid<kType>) {
    const auto* from = reinterpret_cast<const uint32_t*>(&(kIqGrids.*grid_of<kType>()));
    for (int i = threadIdx.x; i < kGridWords<kType>; i += blockDim.x) grid[i] = from[i];
  }
}

}  // namespace dsv32::cuda
