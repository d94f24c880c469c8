// Decode steps of a sequence, with what each layer's indexer selected in them: the material on which policies
// of the top-k buffer are compared.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/sequence.h"
#include "tests/tools/lab/buffer_policies.h"

namespace dsv32 {

// Observes the engine's forward pass as long as it lives: nobody else computes on the engine meanwhile.
class RecordedSteps {
 public:
  // Both must outlive the object.
  RecordedSteps(Engine& engine, ByHand& sequence);
  ~RecordedSteps();
  RecordedSteps(const RecordedSteps&) = delete;
  RecordedSteps& operator=(const RecordedSteps&) = delete;

  // Appends the token to the sequence. Throws what ByHand::step() throws.
  void step(int32_t token) { sequence_.step(token); }

  // Of every step so far, what the layer selected.
  std::span<const SelectedRows> layer(int64_t layer) const { return layers_[static_cast<size_t>(layer)]; }

 private:
  void keep(const Observation& seen);

  Forward& forward_;
  ByHand& sequence_;
  int32_t n_selected_ = 0;                         // of the running layer
  std::vector<std::vector<SelectedRows>> layers_;  // [n_layers][steps]
};

}  // namespace dsv32
