// The mixes of formats in which llama.cpp's llama-quantize makes files of this shape: which matrix is stored
// how. So a plan can be made for a file that one does not have, within 1 % of its size.
//
// The rules are those of its version 0.5.0, for files with attn_k_b and attn_v_b, and with an importance
// matrix where the format asks for one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gguf/quant.h"

namespace dsv32 {

// What a matrix is to a mix; of MLPs those of routed and shared experts too.
enum class MatrixRole { embedding, head, attn_output, gate_or_up, down, other };

struct QuantMix {
  // Of all layers: the first eighth or sixteenth, or those that "use more bits". first_five: an eighth of
  // counted matrices, of which a layer with experts has two.
  enum class Layers { none, first_five, first_sixteenth, first_eighth, more_bits };

  const char* name;  // "Q4_K_M"
  TensorType others, head, embedding, attn_output, down;
  Layers which = Layers::none;
  TensorType better_down = TensorType::q6_k;  // of `down` in these layers
};

// By its name in any case; null when there is none.
const QuantMix* find_mix(const std::string& name);
std::vector<std::string> mix_names();

// Of a matrix with rows of n_cols values: another type where these are no whole blocks of what the mix has.
TensorType type_in(const QuantMix& mix, MatrixRole role, int64_t layer, int64_t n_layers, int64_t n_cols);

}  // namespace dsv32
