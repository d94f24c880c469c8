// Random blocks, and how large each format's codes are.
//
// The magnitudes are derived from the formats' definitions, not measured with dequantize_row(): when a test
// dequantises these blocks and finds another standard deviation, there is a mistake.
#include "gguf/random_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/numbers.h"
#include "gguf/quant_codes.h"

namespace dsv32 {
namespace {

using enum TensorType;

struct Magnitude {
  TensorType type;
  float rms;        // of the values when d = 1 and all other bits are random
  float ratio = 0;  // dmin or m divided by d that brings the mean to zero
};

// rms follows from the moments of uniform codes: for n codes 0..n-1 the variance is (n^2 - 1) / 12. With a
// second scale the mean of d * scale * q - dmin * min vanishes at dmin = d * E[q], as scale and min have the
// same moments; then rms^2 = E[s^2] (E[q^2] + E[q]^2) - 2 E[s]^2 E[q]^2. Grids: the mean square of the grid's
// entries.
constexpr Magnitude kMagnitudes[] = {{q4_0, 4.637f},         {q4_1, 4.610f, -7.5f}, {q5_0, 9.247f},
                                     {q5_1, 9.233f, -15.5f}, {q8_0, 73.90f},        {q2_k, 13.87f, 1.5f},
                                     {q3_k, 43.34f},         {q4_k, 258.3f, 7.5f},  {q5_k, 526.9f, 15.5f},
                                     {q6_k, 1365.7f},        {iq1_s, 7.199f},       {iq1_m, 7.199f},
                                     {iq2_xxs, 53.36f},      {iq2_xs, 55.90f},      {iq2_s, 56.39f},
                                     {iq3_xxs, 142.4f},      {iq3_s, 140.2f},       {iq4_nl, 67.44f},
                                     {iq4_xs, 1246.3f},      {mxfp4, 5.852f},       {nvfp4, 5.852f}};

// One of the two scale codes around `scale`, which is above 0; drawn so that the expected square is scale^2.
template <class Block>
uint8_t random_neighbour(float scale, Rng& rng) {
  uint8_t code = 0;
  float low = scale_number<Block>(code), high = scale_number<Block>(1);
  for (; high > low && high <= scale; high = scale_number<Block>(static_cast<uint8_t>(code + 1)))
    ++code, low = high;
  const bool is_high = rng.uniform() * (high * high - low * low) < scale * scale - low * low;
  return static_cast<uint8_t>(code + is_high);
}

// Sets a block's outer scales to d and d * ratio. FP4 scales have no sign and get |d|.
template <class Block>
void put_scales(Block& b, float d, float ratio, Rng& rng) {
  if constexpr (requires { b.e; })
    b.e = random_neighbour<Block>(std::fabs(d), rng);
  else if constexpr (requires { b.d; })
    b.d = f32_to_f16(d);
  else if constexpr (std::is_same_v<Block, BlockNVFP4>)
    for (uint8_t& scale : b.scales) scale = random_neighbour<Block>(std::fabs(d), rng);
  else  // IQ1_M: each u16 has a nibble of d on top
    for (int i = 0, bits = f32_to_f16(d); i < 4; ++i, bits >>= 4)
      b.scales[i] = static_cast<uint16_t>((b.scales[i] & 0xfff) | (bits & 15) << 12);
  if constexpr (requires { b.dmin; }) b.dmin = f32_to_f16(d * ratio);
  if constexpr (requires { b.m; }) b.m = f32_to_f16(d * ratio);
}

void fill_blocks(std::vector<uint8_t>& bytes, TensorType type, Rng& rng, float stddev) {
  for (size_t i = 0; i < bytes.size(); i += 8) {
    const uint64_t random = rng.next();
    std::memcpy(bytes.data() + i, &random, std::min<size_t>(bytes.size() - i, 8));
  }
  const Magnitude& magnitude = *std::ranges::find(kMagnitudes, type, &Magnitude::type);
  with_block(type, [&](auto block) {
    for (size_t at = 0; at < bytes.size(); at += sizeof block) {
      // The random sign cancels the codes' remaining mean; the factor makes blocks differ.
      const float sign = rng.uniform() < 0.5f ? -1.0f : 1.0f;
      const float d = sign * stddev / magnitude.rms * (0.75f + 0.5f * rng.uniform());
      std::memcpy(&block, bytes.data() + at, sizeof block);
      put_scales(block, d, magnitude.ratio, rng);
      std::memcpy(bytes.data() + at, &block, sizeof block);
    }
  });
}

}  // namespace

std::vector<uint8_t> random_weights(TensorType type, uint64_t n_rows, uint64_t n_cols, Rng& rng,
                                    float stddev) {
  std::vector<uint8_t> bytes(n_rows * row_bytes(type, static_cast<int64_t>(n_cols)));
  if (traits(type).block_values > 1) {
    fill_blocks(bytes, type, rng, stddev);
    return bytes;
  }
  const size_t value_bytes = traits(type).block_bytes;
  for (uint64_t i = 0; i < n_rows * n_cols; ++i) {
    const float value = stddev * rng.unit();
    const uint16_t half = type == f16 ? f32_to_f16(value) : f32_to_bf16(value);
    std::memcpy(bytes.data() + i * value_bytes, type == f32 ? static_cast<const void*>(&value) : &half,
                value_bytes);
  }
  return bytes;
}

}  // namespace dsv32
