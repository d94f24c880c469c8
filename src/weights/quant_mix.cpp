#include "weights/quant_mix.h"

#include "base/text.h"

namespace dsv32 {
namespace {

using enum TensorType;
using Layers = QuantMix::Layers;

// Q2_K_L is the one here that llama-quantize has no name for: publishers make it by two of its flags.
constexpr QuantMix kMixes[] = {
    {.name = "IQ1_S",
     .others = iq1_s,
     .head = q5_k,
     .embedding = q2_k,
     .attn_output = iq2_xxs,
     .which = Layers::first_five,
     .better_down = q2_k},
    {.name = "IQ1_M",
     .others = iq1_m,
     .head = q5_k,
     .embedding = q2_k,
     .attn_output = iq2_xxs,
     .which = Layers::first_five,
     .better_down = q2_k},
    {.name = "IQ2_XXS",
     .others = iq2_xxs,
     .head = q5_k,
     .embedding = q2_k,
     .which = Layers::first_five,
     .better_down = q2_k},
    {.name = "IQ2_XS",
     .others = iq2_xs,
     .head = q5_k,
     .embedding = q2_k,
     .which = Layers::first_five,
     .better_down = q2_k},
    {.name = "IQ2_S",
     .others = iq2_xs,
     .head = q5_k,
     .embedding = iq3_s,
     .attn_output = iq3_s,
     .which = Layers::first_five,
     .better_down = iq3_s},
    {.name = "IQ2_M",
     .others = iq2_s,
     .head = q5_k,
     .embedding = iq3_s,
     .attn_output = iq3_s,
     .which = Layers::first_five,
     .better_down = iq3_s},
    {.name = "Q2_K_S", .others = q2_k, .which = Layers::first_eighth, .better_down = q4_k},
    {.name = "Q2_K", .others = q2_k, .attn_output = q3_k, .down = q3_k},
    {.name = "Q2_K_L", .others = q2_k, .head = q8_0, .embedding = q8_0, .attn_output = q3_k, .down = q3_k},
    {.name = "IQ3_XXS", .others = iq3_xxs, .head = q5_k, .embedding = iq3_s, .attn_output = iq3_s},
    {.name = "IQ3_XS", .others = iq3_s, .middle_gate_or_up = iq3_xxs},
    {.name = "IQ3_S", .others = iq3_s},
    {.name = "IQ3_M",
     .others = iq3_s,
     .attn_output = q4_k,
     .which = Layers::first_eighth,
     .better_down = q4_k},
    {.name = "Q3_K_S", .others = q3_k},
    {.name = "Q3_K_M",
     .others = q3_k,
     .attn_output = q4_k,
     .down = q4_k,
     .which = Layers::first_sixteenth,
     .better_down = q5_k},
    {.name = "Q3_K_L", .others = q3_k, .attn_output = q5_k, .down = q5_k},
    {.name = "IQ4_XS", .others = iq4_xs},
    {.name = "IQ4_NL", .others = iq4_nl},
    {.name = "Q4_0", .others = q4_0},
    {.name = "Q4_1", .others = q4_1},
    {.name = "Q4_K_S", .others = q4_k, .which = Layers::first_eighth, .better_down = q5_k},
    {.name = "Q4_K_M", .others = q4_k, .which = Layers::more_bits},
    {.name = "Q5_K_S", .others = q5_k},
    {.name = "Q5_K_M", .others = q5_k, .which = Layers::more_bits},
    {.name = "Q6_K", .others = q6_k},
    {.name = "Q8_0", .others = q8_0, .head = q8_0},
};

bool is_among(Layers which, int64_t layer, int64_t n_layers) {
  const int64_t n_first = n_layers / 8;
  switch (which) {
    case Layers::none: return false;
    case Layers::first_five: return layer < 5;
    case Layers::first_sixteenth: return layer < n_layers / 16;
    case Layers::first_eighth: return layer < n_first;
    case Layers::more_bits: return layer < n_first || layer >= 7 * n_layers / 8 || (layer - n_first) % 3 == 2;
  }
  return false;
}

TensorType wanted(const QuantMix& mix, MatrixRole role, int64_t layer, int64_t n_layers) {
  switch (role) {
    case MatrixRole::embedding: return mix.embedding.value_or(mix.others);
    case MatrixRole::head: return mix.head;
    case MatrixRole::attn_output: return mix.attn_output.value_or(mix.others);
    case MatrixRole::down:
      return is_among(mix.which, layer, n_layers) ? mix.better_down : mix.down.value_or(mix.others);
    case MatrixRole::gate_or_up:
      if (layer >= n_layers / 8 && layer < 7 * n_layers / 8)
        return mix.middle_gate_or_up.value_or(mix.others);
      break;
    case MatrixRole::other: break;
  }
  return mix.others;
}

// In place of a type of 256 values a block.
TensorType of_short_rows(TensorType type) {
  switch (type) {
    case q2_k:
    case q3_k: return q4_0;
    case q4_k: return q5_0;
    case q5_k: return q5_1;
    case q6_k: return q8_0;
    default: return iq4_nl;
  }
}

}  // namespace

const QuantMix* find_mix(const std::string& name) {
  for (const QuantMix& mix : kMixes)
    if (upper_case(name) == mix.name) return &mix;
  return nullptr;
}

std::vector<std::string> mix_names() {
  std::vector<std::string> names;
  for (const QuantMix& mix : kMixes) names.emplace_back(mix.name);
  return names;
}

TensorType type_in(const QuantMix& mix, MatrixRole role, int64_t layer, int64_t n_layers, int64_t n_cols) {
  const TensorType type = wanted(mix, role, layer, n_layers);
  return n_cols % traits(type).block_values == 0 ? type : of_short_rows(type);
}

}  // namespace dsv32
