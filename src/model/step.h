// What the forward pass is asked for at a time.
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
  Timeline* timeline = nullptr;     // has room for the tokens
  std::span<const int32_t> tokens;  // follow those that it holds; one in a decode step
  int64_t n_logits = 1;             // wanted of the last so many tokens
  int64_t n_held = 0;               // the tokens before these; Forward fills it in
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

// Who follows steps while they are computed.
struct StepWatch {
  std::function<bool()> is_interrupted;  // as Backend::set_interrupt() has it
  std::function<void(double)> on_layer;  // what share of a step's layers is enqueued, on the CPU done
};

}  // namespace dsv32
