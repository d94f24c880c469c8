// The mixes of llama.cpp's llama-quantize: in which format each matrix is stored. With them a plan can be
// made for a file that is not there, within 1 % of its size.
//
// The rules are those of version 0.5.0, for files with attn_k_b and attn_v_b, and with an importance matrix
// where the format asks for one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gguf/quant.h"

namespace dsv32 {

// The kinds of matrices that a mix distinguishes. gate_or_up and down are also those of experts.
enum class MatrixRole { embedding, head, attn_output, gate_or_up, down, other };

struct QuantMix {
  // Which layers get better_down: the first eighth or sixteenth, or those that "use more bits". first_five:
  // an eighth, when llama-quantize counts matrices, of which a layer with experts has two.
  enum class Layers { none, first_five, first_sixteenth, first_eighth, more_bits };

  const char* name;  // "Q4_K_M"
  TensorType others, head, embedding, attn_output, down;
  Layers which = Layers::none;
  TensorType better_down = TensorType::q6_k;  // replaces `down` in the layers of `which`
};

// By name, upper or lower case; null when there is none.
const QuantMix* find_mix(const std::string& name);
std::vector<std::string> mix_names();

// The type of a matrix with rows of n_cols values: a substitute where they are not whole blocks of the mix's
// type.
TensorType type_in(const QuantMix& mix, MatrixRole role, int64_t layer, int64_t n_layers, int64_t n_cols);

}  // namespace dsv32
