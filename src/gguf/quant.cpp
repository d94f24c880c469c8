// Names and sizes of the storage formats, and the reference dequantisation.
//
// The order of the f32 operations is that of the Python package `gguf`, so the results are equal to it bit
// for bit.
#include "gguf/quant.h"

#include <algorithm>
#include <cassert>
#include <cstdio>
#include <cstring>
#include <iterator>

#include "base/numbers.h"
#include "gguf/quant_codes.h"

namespace dsv32 {
namespace {

struct NamedType {
  uint32_t number;
  TypeTraits traits;
};

template <class Block>
constexpr TypeTraits block_type(const char* name) {
  return {name, Block::kValues, sizeof(Block), true};
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
    {2, block_type<BlockQ4_0>("Q4_0")},
    {3, block_type<BlockQ4_1>("Q4_1")},
    {6, block_type<BlockQ5_0>("Q5_0")},
    {7, block_type<BlockQ5_1>("Q5_1")},
    {8, block_type<BlockQ8_0>("Q8_0")},
    {9, unsupported("Q8_1", 32, 40)},
    {10, block_type<BlockQ2_K>("Q2_K")},
    {11, block_type<BlockQ3_K>("Q3_K")},
    {12, block_type<BlockQ4_K>("Q4_K")},
    {13, block_type<BlockQ5_K>("Q5_K")},
    {14, block_type<BlockQ6_K>("Q6_K")},
    {15, unsupported("Q8_K", 256, 292)},
    {16, block_type<BlockIQ2_XXS>("IQ2_XXS")},
    {17, block_type<BlockIQ2_XS>("IQ2_XS")},
    {18, block_type<BlockIQ3_XXS>("IQ3_XXS")},
    {19, block_type<BlockIQ1_S>("IQ1_S")},
    {20, block_type<BlockIQ4_NL>("IQ4_NL")},
    {21, block_type<BlockIQ3_S>("IQ3_S")},
    {22, block_type<BlockIQ2_S>("IQ2_S")},
    {23, block_type<BlockIQ4_XS>("IQ4_XS")},
    {24, unsupported("I8", 1, 1)},
    {25, unsupported("I16", 1, 2)},
    {26, unsupported("I32", 1, 4)},
    {27, unsupported("I64", 1, 8)},
    {28, unsupported("F64", 1, 8)},
    {29, block_type<BlockIQ1_M>("IQ1_M")},
    {30, {"BF16", 1, 2, true}},
    {34, unsupported("TQ1_0", 256, 54)},
    {35, unsupported("TQ2_0", 256, 66)},
    {39, block_type<BlockMXFP4>("MXFP4")},
    {40, block_type<BlockNVFP4>("NVFP4")},
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

template <class Block>
void dequantize(const Block& b, float* out) {
  int8_t codes[Block::kValues];
  const Groups groups = unpack(b, codes);
  const float d = f16_to_f32(shared_scale(b)) * kUnit<Block>;
  float dmin = 0;
  if constexpr (requires { b.dmin; }) dmin = f16_to_f32(b.dmin);
  if constexpr (requires { b.m; }) dmin = -f16_to_f32(b.m);
  for (int v = 0; v < Block::kValues; ++v) {
    const float scale = scale_number<Block>(groups.scales[v / Block::kGroupValues]);
    const auto min = static_cast<int8_t>(groups.mins[v / Block::kGroupValues]);
    out[v] = d * scale * static_cast<float>(codes[v]) - dmin * static_cast<float>(min);
  }
}

template <class Block>
void dequantize_blocks(const void* row, float* out, int64_t n_values) {
  const auto* bytes = static_cast<const uint8_t*>(row);
  for (int64_t v = 0; v < n_values; v += Block::kValues, bytes += sizeof(Block)) {
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
    case TensorType::q4_0: dequantize_blocks<BlockQ4_0>(row, out, n); return;
    case TensorType::q4_1: dequantize_blocks<BlockQ4_1>(row, out, n); return;
    case TensorType::q5_0: dequantize_blocks<BlockQ5_0>(row, out, n); return;
    case TensorType::q5_1: dequantize_blocks<BlockQ5_1>(row, out, n); return;
    case TensorType::q8_0: dequantize_blocks<BlockQ8_0>(row, out, n); return;
    case TensorType::iq4_nl: dequantize_blocks<BlockIQ4_NL>(row, out, n); return;
    case TensorType::mxfp4: dequantize_blocks<BlockMXFP4>(row, out, n); return;
    case TensorType::nvfp4: dequantize_blocks<BlockNVFP4>(row, out, n); return;
    case TensorType::q2_k: dequantize_blocks<BlockQ2_K>(row, out, n); return;
    case TensorType::q3_k: dequantize_blocks<BlockQ3_K>(row, out, n); return;
    case TensorType::q4_k: dequantize_blocks<BlockQ4_K>(row, out, n); return;
    case TensorType::q5_k: dequantize_blocks<BlockQ5_K>(row, out, n); return;
    case TensorType::q6_k: dequantize_blocks<BlockQ6_K>(row, out, n); return;
    case TensorType::iq1_s: dequantize_blocks<BlockIQ1_S>(row, out, n); return;
    case TensorType::iq1_m: dequantize_blocks<BlockIQ1_M>(row, out, n); return;
    case TensorType::iq2_xxs: dequantize_blocks<BlockIQ2_XXS>(row, out, n); return;
    case TensorType::iq2_xs: dequantize_blocks<BlockIQ2_XS>(row, out, n); return;
    case TensorType::iq2_s: dequantize_blocks<BlockIQ2_S>(row, out, n); return;
    case TensorType::iq3_xxs: dequantize_blocks<BlockIQ3_XXS>(row, out, n); return;
    case TensorType::iq3_s: dequantize_blocks<BlockIQ3_S>(row, out, n); return;
    case TensorType::iq4_xs: dequantize_blocks<BlockIQ4_XS>(row, out, n); return;
  }
  assert(false);  // not a supported type; the reader of the file refuses those
}

}  // namespace dsv32
