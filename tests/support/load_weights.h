// A file's weights, without a team.
#pragma once

#include "weights/weights.h"

namespace dsv32 {

inline Weights load_weights(const GgufFile& file, const ModelArgs& args, const WeightPlaces& places) {
  return std::move(load_weights(file, args, std::span(&places, 1)).front());
}

// All on one backend.
inline Weights load_weights(const GgufFile& file, const ModelArgs& args, Backend& backend) {
  return load_weights(file, args, WeightPlaces{[&](int64_t) -> Backend& { return backend; }});
}

}  // namespace dsv32
