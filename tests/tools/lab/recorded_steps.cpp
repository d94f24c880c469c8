#include "tests/tools/lab/recorded_steps.h"

#include <string_view>

namespace dsv32 {

RecordedSteps::RecordedSteps(Engine& engine, ByHand& sequence)
    : forward_(engine.forward()), sequence_(sequence), layers_(static_cast<size_t>(engine.args().n_layers)) {
  forward_.set_observer([this](const Observation& seen) { keep(seen); }, {"n_selected", "selected"});
}

RecordedSteps::~RecordedSteps() { forward_.set_observer({}); }

// The number comes before the positions, of which only so many count.
void RecordedSteps::keep(const Observation& seen) {
  if (std::string_view(seen.name) == "n_selected") {
    n_selected_ = seen.ints[0];
    return;
  }
  const auto newest = static_cast<int32_t>(sequence_.tokens().size());  // the step's token is not counted yet
  layers_[static_cast<size_t>(seen.layer)].push_back(
      {newest, {seen.ints.begin(), seen.ints.begin() + n_selected_}});
}

}  // namespace dsv32
