// Names and sizes of the storage formats, and the reference dequantisation.
//
// The f32 operations are in the order of the Python package `gguf`, so results are equal bit for bit.
#include "gguf/quant.h"

#include <array>
#include <cassert>
#include <cstdio>
#include <cstring>

#include "base/numbers.h"
#include "gguf/quant_codes.h"

namespace dsv32 {
namespace {

using enum TensorType;

struct BlockType {
  TensorType type;
  const char* name;
};
constexpr BlockType kBlockTypes[] = {
    {q4_0, "Q4_0"},       {q4_1, "Q4_1"},   {q5_0, "Q5_0"},       {q5_1, "Q5_1"},     {q8_0, "Q8_0"},
    {q2_k, "Q2_K"},       {q3_k, "Q3_K"},   {q4_k, "Q4_K"},       {q5_k, "Q5_K"},     {q6_k, "Q6_K"},
    {iq1_s, "IQ1_S"},     {iq1_m, "IQ1_M"}, {iq2_xxs, "IQ2_XXS"}, {iq2_xs, "IQ2_XS"}, {iq2_s, "IQ2_S"},
    {iq3_xxs, "IQ3_XXS"}, {iq3_s, "IQ3_S"}, {iq4_nl, "IQ4_NL"},   {iq4_xs, "IQ4_XS"}, {mxfp4, "MXFP4"},
    {nvfp4, "NVFP4"}};

// Types that only messages name. Numbers from 133 on are types of ik_llama.cpp; its row-interleaved types,
// from 202 on, have no entry.
struct OtherType {
  uint32_t number;
  const char* name;
};
constexpr OtherType kOtherTypes[] = {
    {9, "Q8_1"},     {15, "Q8_K"},     {24, "I8"},      {25, "I16"},     {26, "I32"},     {27, "I64"},
    {28, "F64"},     {34, "TQ1_0"},    {35, "TQ2_0"},   {41, "Q1_0"},    {42, "Q2_0"},    {133, "Q6_0"},
    {137, "IQ2_K"},  {138, "IQ3_K"},   {139, "IQ4_K"},  {140, "IQ5_K"},  {141, "IQ6_K"},  {144, "IQ4_KS"},
    {145, "IQ2_KS"}, {146, "IQ4_KSS"}, {152, "IQ5_KS"}, {153, "IQ2_KT"}, {154, "IQ3_KT"}, {155, "IQ4_KT"},
    {156, "IQ3_KS"}, {157, "IQ2_KL"},  {158, "IQ1_KT"}};

// By type number; the name is null where GGUF defines no type.
constexpr auto kTypes = [] {
  std::array<TypeTraits, 159> types{};
  for (const OtherType& t : kOtherTypes) types[t.number] = {t.name};
  const auto traits_of = [&](TensorType type) -> TypeTraits& { return types[static_cast<uint32_t>(type)]; };
  traits_of(f32) = {"F32", 1, 4, true};
  traits_of(f16) = {"F16", 1, 2, true};
  traits_of(bf16) = {"BF16", 1, 2, true};
  for (const BlockType& t : kBlockTypes)
    with_block(t.type, [&](auto block) {
      traits_of(t.type) = {t.name, static_cast<uint32_t>(block.kValues), sizeof block, true};
    });
  return types;
}();

template <class Block>
void dequantize_blocks(const uint8_t* row, float* out, int64_t n_values) {
  for (const float* end = out + n_values; out < end; row += sizeof(Block), out += Block::kValues) {
    Block b;
    std::memcpy(&b, row, sizeof b);
    int8_t codes[Block::kValues];
    const Groups groups = unpack(b, codes);
    const float d = f16_to_f32(shared_scale(b)) * Block::kScaleFactor;
    float dmin = 0;
    if constexpr (requires { b.dmin; }) dmin = f16_to_f32(b.dmin);
    if constexpr (requires { b.m; }) dmin = -f16_to_f32(b.m);
    for (int v = 0; v < Block::kValues; ++v) {
      const float scale = scale_number<Block>(groups.scales[v / Block::kGroupValues]);
      const auto min = static_cast<int8_t>(groups.mins[v / Block::kGroupValues]);
      out[v] = d * scale * static_cast<float>(codes[v]) - dmin * static_cast<float>(min);
    }
  }
}

// f16 and bf16.
template <class ToF32>
void widen(const uint8_t* row, float* out, int64_t n_values, ToF32 to_f32) {
  for (int64_t v = 0; v < n_values; ++v) out[v] = to_f32(load<uint16_t>(row + 2 * v));
}

}  // namespace

const TypeTraits* find_traits(TensorType type) {
  const auto number = static_cast<uint32_t>(type);
  return number < kTypes.size() && kTypes[number].name ? &kTypes[number] : nullptr;
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

void dequantize_row(TensorType type, const void* stored, float* out, int64_t n) {
  assert(n >= 0 && n % traits(type).block_values == 0);
  const auto* row = static_cast<const uint8_t*>(stored);
  if (type == f32)
    std::memcpy(out, row, static_cast<size_t>(n) * sizeof(float));
  else if (type == f16)
    widen(row, out, n, f16_to_f32);
  else if (type == bf16)
    widen(row, out, n, bf16_to_f32);
  else
    with_block(type, [&](auto block) { dequantize_blocks<decltype(block)>(row, out, n); });
}

}  // namespace dsv32
