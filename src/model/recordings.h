// The decode steps that were recorded, kept by who runs the layers: a recording holds the addresses of its
// owner's memory, so nobody else replays it and it goes with its owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "backend/backend.h"

namespace dsv32 {

class Recordings {
 public:
  explicit Recordings(Backend& backend) : backend_(backend) {}  // which must outlive it

  // All that the params of a step say and that differs from step to step.
  struct Key {
    int64_t n_tokens = 0, max_pos = 0;
    const int32_t *forced_selection = nullptr, *forced_experts = nullptr;
    bool has_buffers = false;
    bool operator==(const Key&) const = default;
  };

  // Does what `step` enqueues: as it was recorded under this key, or recording it now. Where the backend does
  // not record, `step` itself runs.
  void run(const Key& key, const std::function<void()>& step);

 private:
  // A position's rounding gives a long answer a few keys, a small batch that ends one by one eight.
  static constexpr size_t kMost = 16;

  struct Recorded {
    Key key;
    std::unique_ptr<Recording> recording;
  };
  Backend& backend_;
  std::vector<Recorded> recorded_;  // the last used first
};

}  // namespace dsv32
