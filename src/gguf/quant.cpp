// Names and sizes of the storage formats.
#include "gguf/quant.h"

#include <algorithm>
#include <cassert>
#include <cstdio>
#include <iterator>

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

}  // namespace dsv32
