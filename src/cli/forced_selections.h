// Selections with a chosen overlap from step to step, since random weights have none: of the rows that a
// token of a layer selects a share stays, the others move to new places.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/engine.h"
#include "gguf/random_weights.h"

namespace dsv32 {

class ForcedSelections {
 public:
  // What they take of the device.
  static uint64_t n_bytes(const ModelArgs& args, int64_t n_tokens);

  // For steps of n_tokens, as long as the object lives; of rows [0, n_visible), more than top-k. The engine
  // must outlive it. Throws Error{memory}.
  ForcedSelections(Engine& engine, int64_t n_tokens, int64_t n_visible, double locality);
  ~ForcedSelections();
  ForcedSelections(const ForcedSelections&) = delete;
  ForcedSelections& operator=(const ForcedSelections&) = delete;

  // Those of the next step. Waits until they are there.
  void next();

 private:
  std::vector<int32_t> fresh();
  void move(std::vector<int32_t>& selected);

  Engine& engine_;
  int64_t n_visible_;
  double locality_;
  Buffer<int32_t> device_;                      // [n_layers, n_tokens, topk]
  std::vector<std::vector<int32_t>> selected_;  // [n_layers * n_tokens], ascending
  Rng rng_{7};
};

}  // namespace dsv32
