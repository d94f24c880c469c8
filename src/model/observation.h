// Looking into a step: named intermediates, downloaded, for comparison with another implementation.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace dsv32 {

// What an observer uploads to `device_ints` of the stage "selected" is attended to instead of what the
// indexer selected.
struct Observation {
  const char* stage;  // "qr", "q", "latent_row", "index_q", ... (see the calls of observe())
  int64_t layer, n_tokens, width;
  std::vector<float> values;       // [n_tokens, width], or
  std::vector<int32_t> ints;       // [n_tokens, width]
  int32_t* device_ints = nullptr;  // these, in the backend's memory
};
using Observer = std::function<void(const Observation&)>;

// Where the time of steps goes: their backend marks where a step begins and each of its laps ends
// (Backend::laps).
struct Laps {
  // A step is one lap, "step", and is recorded as ever; else one for each operation or group of them:
  // "index_scores", "attention", ... (see the calls of lap()). A draw from its logits is one more.
  bool is_whole = false;
  std::vector<const char*> names = {};  // of the laps, in their order
};

}  // namespace dsv32
