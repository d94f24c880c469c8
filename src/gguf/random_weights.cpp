// Random blocks, and for each format where its scales lie and how large its codes are.
//
// The magnitudes are worked out from the formats' definitions, not measured with dequantize_row(), so that a
// test which dequantises these blocks and finds another deviation has found a mistake.
#include "gguf/random_weights.h"

#include <cmath>
#include <cstddef>
#include <cstring>

#include "base/error.h"
#include "base/numbers.h"
#include "gguf/quant_codes.h"

namespace dsv32 {
namespace {

struct ScaleFields {
  size_t d;                  // offset of the scale in the block
  float rms;                 // of the values when d = 1 and all other bits are random
  size_t second = SIZE_MAX;  // offset of dmin or m, when there is one
  float ratio = 0;           // second / d that brings the mean to zero
};

// rms from the moments of even codes: for n codes 0..n-1 the variance is (n^2 - 1) / 12. With a second scale
// the mean of d * scale * q - dmin * min vanishes at dmin = d * E[q], as scale and min have the same moments;
// then rms^2 = E[s^2] (E[q^2] + E[q]^2) - 2 E[s]^2 E[q]^2. Grids: the mean square of the grid's entries.
ScaleFields scale_fields(TensorType type) {
  switch (type) {
    case TensorType::q4_0: return {offsetof(BlockQ4_0, d), 4.637f};
    case TensorType::q4_1: return {offsetof(BlockQ4_1, d), 4.610f, offsetof(BlockQ4_1, m), -7.5f};
    case TensorType::q5_0: return {offsetof(BlockQ5_0, d), 9.247f};
    case TensorType::q5_1: return {offsetof(BlockQ5_1, d), 9.233f, offsetof(BlockQ5_1, m), -15.5f};
    case TensorType::q8_0: return {offsetof(BlockQ8_0, d), 73.90f};
    case TensorType::q2_k: return {offsetof(BlockQ2_K, d), 13.87f, offsetof(BlockQ2_K, dmin), 1.5f};
    case TensorType::q3_k: return {offsetof(BlockQ3_K, d), 43.34f};
    case TensorType::q4_k: return {offsetof(BlockQ4_K, d), 258.3f, offsetof(BlockQ4_K, dmin), 7.5f};
    case TensorType::q5_k: return {offsetof(BlockQ5_K, d), 526.9f, offsetof(BlockQ5_K, dmin), 15.5f};
    case TensorType::q6_k: return {offsetof(BlockQ6_K, d), 1365.7f};
    case TensorType::iq1_s: return {offsetof(BlockIQ1_S, d), 7.199f};
    case TensorType::iq1_m: return {offsetof(BlockIQ1_M, scales), 7.199f};
    case TensorType::iq2_xxs: return {offsetof(BlockIQ2_XXS, d), 53.36f};
    case TensorType::iq2_xs: return {offsetof(BlockIQ2_XS, d), 55.90f};
    case TensorType::iq2_s: return {offsetof(BlockIQ2_S, d), 56.39f};
    case TensorType::iq3_xxs: return {offsetof(BlockIQ3_XXS, d), 142.4f};
    case TensorType::iq3_s: return {offsetof(BlockIQ3_S, d), 140.2f};
    case TensorType::iq4_nl: return {offsetof(BlockIQ4_NL, d), 67.44f};
    case TensorType::iq4_xs: return {offsetof(BlockIQ4_XS, d), 1246.3f};
    case TensorType::mxfp4: return {offsetof(BlockMXFP4, e), 5.852f};
    case TensorType::nvfp4: return {offsetof(BlockNVFP4, scales), 5.852f};
    default: fail(ErrorKind::internal, "this type has no blocks");
  }
}

template <typename T>
void append(std::vector<uint8_t>& bytes, T value) {
  const size_t at = bytes.size();
  bytes.resize(at + sizeof value);
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

void put_f16(uint8_t* place, float value) {
  const uint16_t bits = f32_to_f16(value);
  std::memcpy(place, &bits, sizeof bits);
}

// One of the two codes around a scale above 0, such that the mean square is the scale's.
template <class Block>
uint8_t random_neighbour(float scale, Rng& rng) {
  uint8_t code = 0;
  float low = scale_number<Block>(code), high = scale_number<Block>(1);
  for (; high > low && high <= scale; high = scale_number<Block>(static_cast<uint8_t>(code + 1)))
    ++code, low = high;
  const bool is_high = rng.uniform() * (high * high - low * low) < scale * scale - low * low;
  return static_cast<uint8_t>(code + is_high);
}

// d: of ordinary size. The scales of FP4 have no sign; their codes have.
void put_scale(TensorType type, uint8_t* place, float d, Rng& rng) {
  if (type == TensorType::mxfp4) {
    *place = random_neighbour<BlockMXFP4>(std::fabs(d), rng);
  } else if (type == TensorType::nvfp4) {
    for (int i = 0; i < 4; ++i) place[i] = random_neighbour<BlockNVFP4>(std::fabs(d), rng);
  } else if (type == TensorType::iq1_m) {
    for (int i = 0, bits = f32_to_f16(d); i < 4; ++i, bits >>= 4)
      place[2 * i + 1] = static_cast<uint8_t>((place[2 * i + 1] & 15) | (bits & 15) << 4);
  } else {
    put_f16(place, d);
  }
}

void fill_blocks(std::vector<uint8_t>& bytes, TensorType type, Rng& rng, float stddev) {
  for (size_t i = 0; i < bytes.size(); i += 8) {
    const uint64_t random = rng.next();
    std::memcpy(bytes.data() + i, &random, bytes.size() - i < 8 ? bytes.size() - i : 8);
  }
  const ScaleFields fields = scale_fields(type);
  for (size_t at = 0; at < bytes.size(); at += traits(type).block_bytes) {
    // The sign takes out what mean the codes have left; the factor makes blocks differ.
    const float sign = rng.uniform() < 0.5f ? -1.0f : 1.0f;
    const float d = sign * stddev / fields.rms * (0.75f + 0.5f * rng.uniform());
    put_scale(type, bytes.data() + at + fields.d, d, rng);
    if (fields.second != SIZE_MAX) put_f16(bytes.data() + at + fields.second, d * fields.ratio);
  }
}

}  // namespace

std::vector<uint8_t> random_weights(TensorType type, uint64_t n_rows, uint64_t n_cols, Rng& rng,
                                    float stddev) {
  std::vector<uint8_t> bytes;
  const uint64_t n_values = n_rows * n_cols;
  if (traits(type).block_values > 1) {
    bytes.resize(n_rows * row_bytes(type, static_cast<int64_t>(n_cols)));
    fill_blocks(bytes, type, rng, stddev);
    return bytes;
  }
  bytes.reserve(n_values * traits(type).block_bytes);
  for (uint64_t i = 0; i < n_values; ++i) {
    const float value = stddev * rng.unit();
    if (type == TensorType::f32)
      append(bytes, value);
    else if (type == TensorType::f16)
      append(bytes, f32_to_f16(value));
    else
      append(bytes, f32_to_bf16(value));
  }
  return bytes;
}

}  // namespace dsv32
