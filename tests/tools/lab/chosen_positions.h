// Who chooses the positions that a model attends to. To show what the indexer does, something else can do it:
// what it has selected is overwritten in each layer before the attention reads it.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/sequence.h"

namespace dsv32 {

// The model's indexer; nobody (all positions); Quest, in decode; or the latest positions or random ones, as
// many as the indexer would choose.
enum class Chooser { indexer, dense, quest, recent, random };

// Of pos + 1 visible positions n, ascending, the same in every call. chooser: recent or random.
std::vector<int32_t> choose_positions(Chooser chooser, int32_t pos, int64_t n);

// Observes the engine's forward pass as long as it lives: nobody else computes on the engine meanwhile. Both
// must outlive the object.
class ChosenPositions {
 public:
  ChosenPositions(Engine& engine, const ByHand& sequence, Chooser chooser);
  ~ChosenPositions();
  ChosenPositions(const ChosenPositions&) = delete;
  ChosenPositions& operator=(const ChosenPositions&) = delete;

 private:
  void overwrite(const Observation& seen);
  void choose(const Observation& seen);

  Engine& engine_;
  const ByHand& sequence_;
  Chooser chooser_;
  std::vector<int32_t> n_selected_, selected_;  // of the running step: [n_tokens], [n_tokens, topk]
};

}  // namespace dsv32
