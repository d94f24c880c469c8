// Weights of any shape without a file, for measuring: random blocks of a chosen format, made in seconds and
// placed where a file's weights would be.
//
// A small pattern of random rows is repeated through each tensor: the values are valid and of the usual
// magnitude, which is all that speed depends on.
#pragma once

#include "weights/quant_mix.h"
#include "weights/weights.h"

namespace dsv32 {

struct SyntheticTypes {
  TensorType matrices = TensorType::q4_k;
  TensorType heads = TensorType::q8_0;  // attn_k_b and attn_v_b, whose rows are short
  const QuantMix* mix = nullptr;        // if set, replaces both
};

// The dimensions of the 671B model with n_layers layers, of which the first n_dense are dense.
ModelArgs full_size_args(int64_t n_layers, int64_t n_dense);

// Throws Error{memory} when they do not fit, Error{usage} when a row is not a whole number of its type's
// blocks.
Weights synthetic_weights(const ModelArgs& args, const SyntheticTypes& types, const WeightPlaces& places);

}  // namespace dsv32
