// Steps of experts that lie in host memory, on a GPU.
#pragma once

#include <memory>

#include "backend/expert_window.h"
#include "cuda/cuda_backend.h"
#include "tests/gpu/gpu_test.h"
#include "tests/support/host_experts.h"

namespace dsv32 {

// A layer's experts as that backend has them, in the memory asked for.
inline ExpertStacks placed(const HostExpertStacks& experts, Backend& backend, Place place) {
  ExpertStacks stacks = experts.stacks;
  size_t i = 0;
  for (WeightMatrix* w : {&stacks.w1, &stacks.w3, &stacks.w2}) {
    const std::vector<uint8_t>& bytes = experts.bytes[i++];
    uint8_t* to = backend.alloc_weights(place, bytes.size(), w->mat_bytes);
    if (place == Place::host)
      std::ranges::copy(bytes, to);
    else
      backend.upload(to, bytes.data(), bytes.size());
    w->data = to;
  }
  return stacks;
}

// A step in a backend's memory.
struct PlacedStep {
  PlacedStep(Backend& backend_, const ExpertStep& step)
      : backend(&backend_),
        n_tokens(step.n_tokens),
        n_activated(step.n_activated),
        x(backend_, Place::device, std::ssize(step.x), "x"),
        weights(backend_, Place::device, std::ssize(step.weights), "weights"),
        y(backend_, Place::device, std::ssize(step.x), "y"),
        experts(backend_, Place::device, std::ssize(step.experts), "experts") {
    fill(step);
  }
  void fill(const ExpertStep& step) {
    backend->upload(x.data(), step.x.data(), x.n_bytes());
    backend->upload(weights.data(), step.weights.data(), weights.n_bytes());
    backend->upload(experts.data(), step.experts.data(), experts.n_bytes());
  }
  RunExperts operation(const ExpertStacks& stacks, Place place, Role role) const {
    RunExperts op{stacks};
    op.x = x.data(), op.experts = experts.data(), op.weights = weights.data(), op.y = y.data();
    op.n_tokens = n_tokens, op.n_activated = n_activated;
    op.role = role, op.place = place;
    return op;
  }
  std::vector<float> values(const Buffer<float>& buffer) const {
    std::vector<float> copy(static_cast<size_t>(buffer.n()));
    backend->download(copy.data(), buffer.data(), buffer.n_bytes());
    return copy;
  }
  // Its sums, and then nothing of them is left there.
  std::vector<float> take_sums() {
    std::vector<float> sums = values(y);
    const std::vector<float> nothing(sums.size(), NAN);
    backend->upload(y.data(), nothing.data(), y.n_bytes());
    return sums;
  }

  Backend* backend;
  int64_t n_tokens, n_activated;
  Buffer<float> x, weights, y;
  Buffer<int32_t> experts;
};

}  // namespace dsv32
