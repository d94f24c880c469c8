// A sequence that is driven step by step, with the engine for itself: by a measurement, a comparison, a test.
#pragma once

#include <span>
#include <vector>

#include "engine/sequence.h"

namespace dsv32 {

class ByHand : public Sequence {
 public:
  explicit ByHand(Engine& engine);  // which must outlive it

  // hold() and all chunks. Returns what hold() did.
  int64_t sync(std::span<const int32_t> prompt);
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
