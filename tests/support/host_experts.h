// For the tests of experts in host memory: stacks of small random experts there, and steps for them.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "backend/backend.h"
#include "gguf/random_weights.h"

namespace dsv32 {

// Experts of one layer in ordinary host memory.
struct HostExpertStacks {
  HostExpertStacks(TensorType type, int64_t n_experts, int64_t dim, int64_t inter_dim, uint64_t seed) {
    const auto make = [&](WeightMatrix& w, std::vector<uint8_t>& memory, int64_t n_rows, int64_t n_cols) {
      Rng rng(seed++);
      memory = random_weights(type, static_cast<uint64_t>(n_experts * n_rows), static_cast<uint64_t>(n_cols),
                              rng, 1.0f / std::sqrt(static_cast<float>(n_cols)));
      w.data = memory.data(), w.type = type;
      w.n_rows = n_rows, w.n_cols = n_cols, w.n_mats = n_experts;
      w.row_bytes = row_bytes(type, n_cols);
      w.mat_bytes = w.row_bytes * static_cast<size_t>(n_rows);
    };
    make(stacks.w1, bytes[0], inter_dim, dim);
    make(stacks.w3, bytes[1], inter_dim, dim);
    make(stacks.w2, bytes[2], dim, inter_dim);
  }

  std::vector<uint8_t> bytes[3];  // of w1, w3, w2
  ExpertStacks stacks;
};

// The activations of a step, and the experts that each token chose: ascending, each once.
struct ExpertStep {
  ExpertStep(const ExpertStacks& stacks, int64_t n_tokens_, int64_t n_activated_, uint64_t seed)
      : n_tokens(n_tokens_),
        n_activated(n_activated_),
        x(static_cast<size_t>(n_tokens_ * stacks.w1.n_cols)),
        weights(static_cast<size_t>(n_tokens_ * n_activated_)) {
    Rng rng(seed);
    for (float& value : x) value = rng.unit();
    for (float& weight : weights) weight = rng.uniform();
    for (int64_t t = 0; t < n_tokens; ++t) {
      std::vector<int32_t> all(static_cast<size_t>(stacks.w1.n_mats));
      for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int32_t>(i);
      for (size_t i = 0; i < static_cast<size_t>(n_activated); ++i)
        std::swap(all[i], all[i + rng.next() % (all.size() - i)]);
      std::sort(all.begin(), all.begin() + n_activated);
      experts.insert(experts.end(), all.begin(), all.begin() + n_activated);
    }
  }

  int64_t n_tokens, n_activated;
  std::vector<float> x, weights;
  std::vector<int32_t> experts;
};

// The CPU's result of the step, from weights in host memory.
inline std::vector<float> run_on(Backend& cpu, const ExpertStacks& stacks, const ExpertStep& step) {
  std::vector<float> y(step.x.size());
  cpu.run_experts({stacks, step.x.data(), step.experts.data(), step.weights.data(), step.n_tokens,
                   step.n_activated, y.data(), Role::decode});
  return y;
}

}  // namespace dsv32
