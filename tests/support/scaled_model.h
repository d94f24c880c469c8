// Factors beside matrices, as conversions to NVFP4 write them.
#pragma once

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/contains.h"
#include "tests/support/gguf_writer.h"

namespace dsv32 {

inline void add_scales(GgufWriter& model, const std::string& name, const std::vector<float>& scales) {
  model.add_tensor(name, TensorType::f32, {scales.size()},
                   GgufWriter::bytes_of(scales.data(), scales.size()));
}

inline bool is_ffn(const std::string& name) {
  return contains(name, "ffn_") && !contains(name, "norm") && !contains(name, "ffn_gate_inp");
}

// Doubles a block's values. Codes up to 15 are multiples of the smallest scale; 8 more doubles the others.
inline void double_scales(BlockNVFP4& block) {
  for (uint8_t& code : block.scales) code = static_cast<uint8_t>(code < 8 ? 2 * code : code + 8);
}

// Multiplies every NVFP4 matrix of MLPs and experts by 2^n and writes 2^-n beside it; n differs among
// matrices.
inline void take_out_powers(GgufWriter& model) {
  std::vector<std::pair<std::string, std::vector<float>>> all;
  for (GgufWriter::Tensor& tensor : model.tensors()) {
    if (tensor.type != TensorType::nvfp4 || !is_ffn(tensor.name)) continue;
    const size_t n_mats = tensor.ne.size() > 2 ? tensor.ne[2] : 1, n_each = tensor.data.size() / n_mats;
    std::vector<float> scales;
    for (size_t mat = 0; mat < n_mats; ++mat) {
      const int n = static_cast<int>((mat + all.size()) % 3);
      for (size_t at = mat * n_each; at < (mat + 1) * n_each; at += sizeof(BlockNVFP4))
        for (int i = 0; i < n; ++i) double_scales(reinterpret_cast<BlockNVFP4&>(tensor.data[at]));
      scales.push_back(std::ldexp(1.0f, -n));
    }
    all.emplace_back(tensor.name, scales);
  }
  for (const auto& [name, scales] : all) {
    const std::string base = name.substr(0, name.rfind('.'));
    add_scales(model, (contains(name, "_up") ? name : base) + ".scale", scales);  // both spellings
    add_scales(model, base + ".input_scale", scales);  // of quantised activations; dsv32 ignores it
  }
}

}  // namespace dsv32
