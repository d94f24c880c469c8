// The angles' speeds of rotary embedding, stretched by YaRN.
#pragma once

#include <vector>

#include "weights/config.h"

namespace dsv32 {

// [qk_rope_head_dim / 2], computed in f32 as model.py (precompute_freqs_cis) does.
std::vector<float> rope_frequencies(const ModelArgs& args);

}  // namespace dsv32
