#include "weights/quant_mix.h"

#include <algorithm>

#include "base/text.h"

namespace dsv32 {
namespace {

using enum TensorType;
using enum QuantMix::Layers;

// others, head, embedding, attn_output, down. llama-quantize has no name for Q2_K_L: publishers make it with
// two of its flags.
constexpr QuantMix kMixes[] = {
    {"IQ1_S", iq1_s, q5_k, q2_k, iq2_xxs, iq1_s, first_five, q2_k},
    {"IQ1_M", iq1_m, q5_k, q2_k, iq2_xxs, iq1_m, first_five, q2_k},
    {"IQ2_XXS", iq2_xxs, q5_k, q2_k, iq2_xxs, iq2_xxs, first_five, q2_k},
    {"IQ2_XS", iq2_xs, q5_k, q2_k, iq2_xs, iq2_xs, first_five, q2_k},
    {"IQ2_S", iq2_xs, q5_k, iq3_s, iq3_s, iq2_xs, first_five, iq3_s},
    {"IQ2_M", iq2_s, q5_k, iq3_s, iq3_s, iq2_s, first_five, iq3_s},
    {"Q2_K_S", q2_k, q6_k, q2_k, q2_k, q2_k, first_eighth, q4_k},
    {"Q2_K", q2_k, q6_k, q2_k, q3_k, q3_k},
    {"Q2_K_L", q2_k, q8_0, q8_0, q3_k, q3_k},
    {"IQ3_XXS", iq3_xxs, q5_k, iq3_s, iq3_s, iq3_xxs},
    {"IQ3_XS", iq3_s, q6_k, iq3_s, iq3_s, iq3_s},
    {"IQ3_S", iq3_s, q6_k, iq3_s, iq3_s, iq3_s},
    {"IQ3_M", iq3_s, q6_k, iq3_s, q4_k, iq3_s, first_eighth, q4_k},
    {"Q3_K_S", q3_k, q6_k, q3_k, q3_k, q3_k},
    {"Q3_K_M", q3_k, q6_k, q3_k, q4_k, q4_k, first_sixteenth, q5_k},
    {"Q3_K_L", q3_k, q6_k, q3_k, q5_k, q5_k},
    {"IQ4_XS", iq4_xs, q6_k, iq4_xs, iq4_xs, iq4_xs},
    {"IQ4_NL", iq4_nl, q6_k, iq4_nl, iq4_nl, iq4_nl},
    {"Q4_0", q4_0, q6_k, q4_0, q4_0, q4_0},
    {"Q4_1", q4_1, q6_k, q4_1, q4_1, q4_1},
    {"Q4_K_S", q4_k, q6_k, q4_k, q4_k, q4_k, first_eighth, q5_k},
    {"Q4_K_M", q4_k, q6_k, q4_k, q4_k, q4_k, more_bits},
    {"Q5_K_S", q5_k, q6_k, q5_k, q5_k, q5_k},
    {"Q5_K_M", q5_k, q6_k, q5_k, q5_k, q5_k, more_bits},
    {"Q6_K", q6_k, q6_k, q6_k, q6_k, q6_k},
    {"Q8_0", q8_0, q8_0, q8_0, q8_0, q8_0},
};

bool is_among(QuantMix::Layers which, int64_t layer, int64_t n_layers) {
  const int64_t n_first = n_layers / 8;
  switch (which) {
    case none: return false;
    case first_five: return layer < 5;
    case first_sixteenth: return layer < n_layers / 16;
    case first_eighth: return layer < n_first;
    case more_bits: return layer < n_first || layer >= 7 * n_layers / 8 || (layer - n_first) % 3 == 2;
  }
  return false;
}

TensorType wanted(const QuantMix& mix, MatrixRole role, int64_t layer, int64_t n_layers) {
  switch (role) {
    case MatrixRole::embedding: return mix.embedding;
    case MatrixRole::head: return mix.head;
    case MatrixRole::attn_output: return mix.attn_output;
    case MatrixRole::down: return is_among(mix.which, layer, n_layers) ? mix.better_down : mix.down;
    case MatrixRole::gate_or_up:
      // IQ3_XS has IQ3_XXS here, except in the first and the last eighth of the layers.
      if (mix.name == std::string_view("IQ3_XS") && layer >= n_layers / 8 && layer < 7 * n_layers / 8)
        return iq3_xxs;
      break;
    case MatrixRole::other: break;
  }
  return mix.others;
}

// The substitute for a type of 256 values a block, for rows that are not whole blocks.
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
  const auto found = std::ranges::find(kMixes, upper_case(name), &QuantMix::name);
  return found == std::end(kMixes) ? nullptr : found;
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
