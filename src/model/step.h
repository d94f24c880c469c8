// What the forward pass computes at a time, and how it is watched.
//
// A step has one role. Its parts are of different timelines, and a token's result depends on its own timeline
// and the role alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "context/timeline.h"

namespace dsv32 {

struct StepPart {
  StepPart(Timeline* timeline_, std::span<const int32_t> tokens_, int64_t n_logits_ = 1)
      : timeline(timeline_), tokens(tokens_.begin(), tokens_.end()), n_logits(n_logits_) {}
  Timeline* timeline;           // has room for the tokens
  std::vector<int32_t> tokens;  // follow those that it holds; one in a decode step
  int64_t n_logits;             // wanted of the last so many tokens
  int64_t n_held = 0;           // the tokens before these; Forward fills it in
};

struct Step {
  Role role = Role::prefill;
  std::vector<StepPart> parts;

  int64_t n_tokens() const {
    int64_t n = 0;
    for (const StepPart& part : parts) n += std::ssize(part.tokens);
    return n;
  }
  bool wants_logits() const {
    return std::ranges::any_of(parts, [](const StepPart& part) { return part.n_logits > 0; });
  }
};

// Asked and told while steps are computed.
struct StepWatch {
  std::function<bool()> is_interrupted;  // as Backend::set_interrupt() has it
  std::function<void(double)> on_layer;  // what share of a step's layers is enqueued, on the CPU done
};

// A named intermediate of a step, downloaded, for comparison with another implementation. What an observer
// uploads to `device_ints` of the stage "selected" is attended to in place of what the indexer selected.
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
  // A step is one lap, "step", and is recorded as ever; else one for each operation or several of them:
  // "index_scores", "attention", ... (see the calls of lap()). A draw from its logits is one more.
  bool is_whole = false;
  std::vector<const char*> names = {};  // of the laps, in their order
};

}  // namespace dsv32
