// Names and sizes of the storage formats, and the reference dequantisation.
//
// One dequantize() per block struct, written as its layout reads: loops over groups, then over values. The
// order of the f32 operations is that of the Python package `gguf`, so the results are equal to it bit for
// bit.
#include "gguf/quant.h"

#include <algorithm>
#include <cassert>
#include <cstdio>
#include <cstring>
#include <iterator>

#include "base/numbers.h"
#include "gguf/quant_tables.h"

namespace dsv32 {
namespace {

struct NamedType {
  uint32_t number;
  TypeTraits traits;
};

template <class Block>
constexpr TypeTraits block_type(const char* name, uint32_t block_values) {
  return {name, block_values, sizeof(Block), true};
}

// A type this program names in its messages but cannot compute with.
constexpr TypeTraits unsupported(const char* name, uint32_t block_values = 1, uint32_t block_bytes = 0) {
  return {name, block_values, block_bytes, false};
}

// By ascending number. From 133 on: types of ik_llama.cpp only; its row-interleaved ones begin at 202 and
// have no entry.
constexpr NamedType kTypes[] = {
    {0, {"F32", 1, 4, true}},
    {1, {"F16", 1, 2, true}},
    {2, block_type<BlockQ4_0>("Q4_0", 32)},
    {3, unsupported("Q4_1", 32, 20)},
    {6, block_type<BlockQ5_0>("Q5_0", 32)},
    {7, block_type<BlockQ5_1>("Q5_1", 32)},
    {8, block_type<BlockQ8_0>("Q8_0", 32)},
    {9, unsupported("Q8_1", 32, 40)},
    {10, block_type<BlockQ2_K>("Q2_K", 256)},
    {11, block_type<BlockQ3_K>("Q3_K", 256)},
    {12, block_type<BlockQ4_K>("Q4_K", 256)},
    {13, block_type<BlockQ5_K>("Q5_K", 256)},
    {14, block_type<BlockQ6_K>("Q6_K", 256)},
    {15, unsupported("Q8_K", 256, 292)},
    {16, block_type<BlockIQ2_XXS>("IQ2_XXS", 256)},
    {17, unsupported("IQ2_XS", 256, 74)},
    {18, block_type<BlockIQ3_XXS>("IQ3_XXS", 256)},
    {19, unsupported("IQ1_S", 256, 50)},
    {20, block_type<BlockIQ4_NL>("IQ4_NL", 32)},
    {21, unsupported("IQ3_S", 256, 110)},
    {22, unsupported("IQ2_S", 256, 82)},
    {23, block_type<BlockIQ4_XS>("IQ4_XS", 256)},
    {24, unsupported("I8", 1, 1)},
    {25, unsupported("I16", 1, 2)},
    {26, unsupported("I32", 1, 4)},
    {27, unsupported("I64", 1, 8)},
    {28, unsupported("F64", 1, 8)},
    {29, unsupported("IQ1_M", 256, 56)},
    {30, {"BF16", 1, 2, true}},
    {34, unsupported("TQ1_0", 256, 54)},
    {35, unsupported("TQ2_0", 256, 66)},
    {39, unsupported("MXFP4", 32, 17)},
    {40, unsupported("NVFP4", 64, 36)},
    {41, unsupported("Q1_0", 128, 18)},
    {42, unsupported("Q2_0")},
    {133, unsupported("Q6_0")},
    {137, unsupported("IQ2_K")},
    {138, unsupported("IQ3_K")},
    {139, unsupported("IQ4_K")},
    {140, unsupported("IQ5_K")},
    {141, unsupported("IQ6_K")},
    {144, unsupported("IQ4_KS")},
    {145, unsupported("IQ2_KS")},
    {146, unsupported("IQ4_KSS")},
    {152, unsupported("IQ5_KS")},
    {153, unsupported("IQ2_KT")},
    {154, unsupported("IQ3_KT")},
    {155, unsupported("IQ4_KT")},
    {156, unsupported("IQ3_KS")},
    {157, unsupported("IQ2_KL")},
    {158, unsupported("IQ1_KT")},
};

int bit(const uint8_t* bits, int i) { return bits[i / 8] >> (i % 8) & 1; }

// Value i of 32 in a nibble array of 16 bytes.
int nibble(const uint8_t* qs, int i) { return i < 16 ? qs[i] & 15 : qs[i - 16] >> 4; }

void dequantize(const BlockQ4_0& b, float* out) {
  const float d = f16_to_f32(b.d);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(nibble(b.qs, i) - 8);
}

void dequantize(const BlockQ5_0& b, float* out) {
  const float d = f16_to_f32(b.d);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>((nibble(b.qs, i) | bit(b.qh, i) << 4) - 16);
}

void dequantize(const BlockQ5_1& b, float* out) {
  const float d = f16_to_f32(b.d), m = f16_to_f32(b.m);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(nibble(b.qs, i) | bit(b.qh, i) << 4) + m;
}

void dequantize(const BlockQ8_0& b, float* out) {
  const float d = f16_to_f32(b.d);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(b.qs[i]);
}

void dequantize(const BlockQ2_K& b, float* out) {
  const float d = f16_to_f32(b.d), dmin = f16_to_f32(b.dmin);
  for (int group = 0; group < 16; ++group) {
    const float scale = d * static_cast<float>(b.scales[group] & 15);
    const float min = dmin * static_cast<float>(b.scales[group] >> 4);
    for (int v = 16 * group; v < 16 * group + 16; ++v) {
      const int q = b.qs[v / 128 * 32 + v % 32] >> (v % 128 / 32 * 2) & 3;
      out[v] = scale * static_cast<float>(q) - min;
    }
  }
}

void dequantize(const BlockQ3_K& b, float* out) {
  const float d = f16_to_f32(b.d);
  uint8_t scales[16];
  unpack_q3_k_scales(b.scales, scales);
  for (int v = 0; v < 256; ++v) {
    const int low = b.qs[v / 128 * 32 + v % 32] >> (v % 128 / 32 * 2) & 3;
    const int high = b.hmask[v % 32] >> (v / 32) & 1;
    out[v] = d * static_cast<float>(scales[v / 16] - 32) * static_cast<float>((low | high << 2) - 4);
  }
}

void dequantize(const BlockQ4_K& b, float* out) {
  const float d = f16_to_f32(b.d), dmin = f16_to_f32(b.dmin);
  uint8_t scales[8], mins[8];
  unpack_k_scales(b.scales, scales, mins);
  for (int v = 0; v < 256; ++v) {
    const int group = v / 32;
    const int q = b.qs[group / 2 * 32 + v % 32] >> (group % 2 * 4) & 15;
    out[v] = d * static_cast<float>(scales[group]) * static_cast<float>(q) -
             dmin * static_cast<float>(mins[group]);
  }
}

void dequantize(const BlockQ5_K& b, float* out) {
  const float d = f16_to_f32(b.d), dmin = f16_to_f32(b.dmin);
  uint8_t scales[8], mins[8];
  unpack_k_scales(b.scales, scales, mins);
  for (int v = 0; v < 256; ++v) {
    const int group = v / 32;
    const int low = b.qs[group / 2 * 32 + v % 32] >> (group % 2 * 4) & 15;
    const int high = b.qh[v % 32] >> group & 1;
    out[v] = d * static_cast<float>(scales[group]) * static_cast<float>(low | high << 4) -
             dmin * static_cast<float>(mins[group]);
  }
}

void dequantize(const BlockQ6_K& b, float* out) {
  const float d = f16_to_f32(b.d);
  for (int v = 0; v < 256; ++v) {
    const int half = v / 128, within = v % 128;
    const int low = b.ql[half * 64 + within % 64] >> (within / 64 * 4) & 15;
    const int high = b.qh[half * 32 + within % 32] >> (within / 32 * 2) & 3;
    out[v] = d * static_cast<float>(b.scales[v / 16]) * static_cast<float>((low | high << 4) - 32);
  }
}

void dequantize(const BlockIQ2_XXS& b, float* out) {
  const float d = f16_to_f32(b.d);
  for (int group = 0; group < 8; ++group) {
    uint32_t words[2];
    std::memcpy(words, b.qs + 4 * group, sizeof words);
    const float scale = d * (0.5f + static_cast<float>(words[1] >> 28)) * 0.25f;
    for (int i = 0; i < 32; ++i) {
      const uint64_t point = kIq2xxsGrid[words[0] >> (i / 8 * 8) & 255];
      const float magnitude = scale * static_cast<float>(point >> (i % 8 * 8) & 255);
      const bool negative = iq_signs(words[1] >> (i / 8 * 7) & 127) >> (i % 8) & 1;
      out[32 * group + i] = negative ? -magnitude : magnitude;
    }
  }
}

void dequantize(const BlockIQ3_XXS& b, float* out) {
  const float d = f16_to_f32(b.d);
  for (int group = 0; group < 8; ++group) {
    uint32_t word;
    std::memcpy(&word, b.signs + 4 * group, sizeof word);
    const float scale = d * (0.5f + static_cast<float>(word >> 28)) * 0.5f;
    for (int i = 0; i < 32; ++i) {
      const uint32_t point = kIq3xxsGrid[b.qs[8 * group + i / 4]];
      const float magnitude = scale * static_cast<float>(point >> (i % 4 * 8) & 255);
      const bool negative = iq_signs(word >> (i / 8 * 7) & 127) >> (i % 8) & 1;
      out[32 * group + i] = negative ? -magnitude : magnitude;
    }
  }
}

void dequantize(const BlockIQ4_NL& b, float* out) {
  const float d = f16_to_f32(b.d);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(kIq4Values[nibble(b.qs, i)]);
}

void dequantize(const BlockIQ4_XS& b, float* out) {
  const float d = f16_to_f32(b.d);
  for (int group = 0; group < 8; ++group) {
    const int low = b.scales_l[group / 2] >> (group % 2 * 4) & 15;
    const int high = b.scales_h >> (2 * group) & 3;
    const float scale = d * static_cast<float>((low | high << 4) - 32);
    for (int i = 0; i < 32; ++i)
      out[32 * group + i] = scale * static_cast<float>(kIq4Values[nibble(b.qs + 16 * group, i)]);
  }
}

template <class Block>
void dequantize_blocks(const void* row, float* out, int64_t n_values, int block_values) {
  const auto* bytes = static_cast<const uint8_t*>(row);
  for (int64_t v = 0; v < n_values; v += block_values, bytes += sizeof(Block)) {
    Block block;
    std::memcpy(&block, bytes, sizeof block);
    dequantize(block, out + v);
  }
}

// Of f16 and bf16.
template <class ToF32>
void widen(const void* row, float* out, int64_t n_values, ToF32 to_f32) {
  const auto* bytes = static_cast<const uint8_t*>(row);
  for (int64_t v = 0; v < n_values; ++v) {
    uint16_t bits;
    std::memcpy(&bits, bytes + 2 * v, sizeof bits);
    out[v] = to_f32(bits);
  }
}

}  // namespace

void unpack_k_scales(const uint8_t packed[12], uint8_t scales[8], uint8_t mins[8]) {
  for (int i = 0; i < 4; ++i) {
    const uint8_t a = packed[i], b = packed[i + 4], low = packed[i + 8];
    scales[i] = a & 63;
    mins[i] = b & 63;
    scales[i + 4] = static_cast<uint8_t>((low & 15) | (a >> 6) << 4);
    mins[i + 4] = static_cast<uint8_t>((low >> 4) | (b >> 6) << 4);
  }
}

void unpack_q3_k_scales(const uint8_t packed[12], uint8_t scales[16]) {
  for (int i = 0; i < 16; ++i) {
    const int low = i < 8 ? packed[i] & 15 : packed[i - 8] >> 4;
    const int high = packed[8 + i % 4] >> (i / 4 * 2) & 3;
    scales[i] = static_cast<uint8_t>(low | high << 4);
  }
}

const TypeTraits* find_traits(TensorType type) {
  const auto number = static_cast<uint32_t>(type);
  const auto* at = std::lower_bound(std::begin(kTypes), std::end(kTypes), number,
                                    [](const NamedType& entry, uint32_t n) { return entry.number < n; });
  return at != std::end(kTypes) && at->number == number ? &at->traits : nullptr;
}

const TypeTraits& traits(TensorType type) {
  const TypeTraits* found = find_traits(type);
  assert(found != nullptr && found->is_supported);
  return *found;
}

const char* type_name(TensorType type) {
  if (const TypeTraits* found = find_traits(type)) return found->name;
  thread_local char name[24];
  std::snprintf(name, sizeof name, "type %u", static_cast<unsigned>(type));
  return name;
}

size_t row_bytes(TensorType type, int64_t n_values) {
  const TypeTraits& t = traits(type);
  assert(n_values >= 0 && n_values % t.block_values == 0);
  return static_cast<size_t>(n_values) / t.block_values * t.block_bytes;
}

void dequantize_row(TensorType type, const void* row, float* out, int64_t n) {
  assert(n >= 0 && n % traits(type).block_values == 0);
  switch (type) {
    case TensorType::f32: std::memcpy(out, row, static_cast<size_t>(n) * sizeof(float)); return;
    case TensorType::f16: widen(row, out, n, f16_to_f32); return;
    case TensorType::bf16: widen(row, out, n, bf16_to_f32); return;
    case TensorType::q4_0: dequantize_blocks<BlockQ4_0>(row, out, n, 32); return;
    case TensorType::q5_0: dequantize_blocks<BlockQ5_0>(row, out, n, 32); return;
    case TensorType::q5_1: dequantize_blocks<BlockQ5_1>(row, out, n, 32); return;
    case TensorType::q8_0: dequantize_blocks<BlockQ8_0>(row, out, n, 32); return;
    case TensorType::iq4_nl: dequantize_blocks<BlockIQ4_NL>(row, out, n, 32); return;
    case TensorType::q2_k: dequantize_blocks<BlockQ2_K>(row, out, n, 256); return;
    case TensorType::q3_k: dequantize_blocks<BlockQ3_K>(row, out, n, 256); return;
    case TensorType::q4_k: dequantize_blocks<BlockQ4_K>(row, out, n, 256); return;
    case TensorType::q5_k: dequantize_blocks<BlockQ5_K>(row, out, n, 256); return;
    case TensorType::q6_k: dequantize_blocks<BlockQ6_K>(row, out, n, 256); return;
    case TensorType::iq2_xxs: dequantize_blocks<BlockIQ2_XXS>(row, out, n, 256); return;
    case TensorType::iq3_xxs: dequantize_blocks<BlockIQ3_XXS>(row, out, n, 256); return;
    case TensorType::iq4_xs: dequantize_blocks<BlockIQ4_XS>(row, out, n, 256); return;
  }
  assert(false);  // not a supported type; the reader of the file refuses those
}

}  // namespace dsv32
