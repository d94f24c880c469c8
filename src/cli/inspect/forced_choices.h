// Choices with a chosen overlap from step to step, since random weights have none: of the rows that a token
// of a layer selects, or of its experts, a share stays, the others change.
#pragma once

#include <cstdint>
#include <vector>

#include "cli/options/options.h"
#include "engine/engine.h"
#include "gguf/random_weights.h"

namespace dsv32 {

class ForcedChoices {
 public:
  // What they take of a device.
  static uint64_t n_bytes(const ModelArgs& args, int64_t n_tokens);

  // For steps of n_tokens, as long as the object lives; of rows [0, n_visible), and none of them are forced
  // unless they are more than top-k. The engine must outlive it. Throws Error{memory}.
  ForcedChoices(Engine& engine, int64_t n_tokens, int64_t n_visible, const Locality& locality);
  ~ForcedChoices();
  ForcedChoices(const ForcedChoices&) = delete;
  ForcedChoices& operator=(const ForcedChoices&) = delete;

  // Those of the next step. Waits until they are there.
  void next();

 private:
  // Of some layers' tokens, on the device that has the layers.
  class Choices {
   public:
    Choices(Backend& backend, int64_t n_lists, int64_t n_chosen, int64_t n_all, double locality, Rng& rng);
    const int32_t* data() const { return device_.data(); }
    void next(Rng& rng);

   private:
    void move(std::vector<int32_t>& chosen, Rng& rng) const;

    Backend* backend_;
    int64_t n_all_;
    double locality_;
    Buffer<int32_t> device_;                    // [n_lists, n_chosen]
    std::vector<std::vector<int32_t>> chosen_;  // [n_lists], ascending
  };

  Engine& engine_;
  Rng rng_{7};
  std::vector<Choices> choices_;
};

}  // namespace dsv32
