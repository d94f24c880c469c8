// Looking into a step: named intermediates, downloaded, for comparison with another implementation.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace dsv32 {

struct Observation {
  const char* stage;  // "qr", "q", "latent_row", "index_q", ... (see the calls of observe())
  int64_t layer, n_tokens, width;
  std::vector<float> values;  // [n_tokens, width], or
  std::vector<int32_t> ints;  // [n_tokens, width]
};
using Observer = std::function<void(const Observation&)>;

// What a position is worth to the token at `pos`, instead of what the indexer says.
using ScoreRule = std::function<float(int32_t pos, int32_t candidate)>;

}  // namespace dsv32
