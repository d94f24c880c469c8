// A sequence that is driven by hand, by who has the engine for itself: a measurement, a comparison, a test.
#pragma once

#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "engine/sequence.h"

namespace dsv32 {

class ByHand : public Sequence {
 public:
  explicit ByHand(Engine& engine);  // which must outlive it

  // Called after each chunk: of n_total tokens n_done are there, n_held of them from before. Returning false
  // stops at that border, and what is done is kept.
  using Progress = std::function<bool(int64_t n_done, int64_t n_total, int64_t n_held)>;
  // hold() and all chunks. Returns what hold() did, or -1 when `progress` stopped it.
  int64_t sync(std::span<const int32_t> prompt, const Progress& progress = {},
               int64_t n_reusable = std::numeric_limits<int64_t>::max());
  // Appends one token: a decode step.
  void step(int32_t token);
  // [vocab_size] of the last token, until another sequence computes; valid until the next call.
  const std::vector<float>& logits();
  // The same in the backend's memory.
  const float* device_logits() const;
  // The likeliest token to follow, drawn where the logits are.
  int32_t likeliest();
  // Appends `tokens` as a prompt's and returns the logits of every one of them, [n, vocab_size].
  std::vector<float> all_logits(std::span<const int32_t> tokens);

 private:
  std::vector<float> logits_;
};

}  // namespace dsv32
