#include "tests/tools/lab/chosen_positions.h"

#include <algorithm>
#include <numeric>
#include <string_view>

#include "gguf/random_weights.h"

namespace dsv32 {

std::vector<int32_t> choose_positions(Chooser chooser, int32_t pos, int64_t n) {
  std::vector<int32_t> chosen(static_cast<size_t>(pos) + 1);
  std::iota(chosen.begin(), chosen.end(), 0);
  if (chooser == Chooser::recent) return {chosen.end() - n, chosen.end()};
  std::vector<float> lots;
  for (const int32_t candidate : chosen)
    lots.push_back(Rng(static_cast<uint64_t>(pos) << 32 | static_cast<uint32_t>(candidate)).uniform());
  std::ranges::nth_element(chosen, chosen.begin() + n, [&](int32_t a, int32_t b) {
    const float lot_a = lots[static_cast<size_t>(a)], lot_b = lots[static_cast<size_t>(b)];
    return lot_a != lot_b ? lot_a > lot_b : a < b;
  });
  chosen.resize(static_cast<size_t>(n));
  std::ranges::sort(chosen);
  return chosen;
}

ChosenPositions::ChosenPositions(Engine& engine, const ByHand& sequence, Chooser chooser)
    : engine_(engine), sequence_(sequence), chooser_(chooser) {
  engine.forward().set_observer([this](const Observation& seen) { overwrite(seen); },
                                {"n_selected", "selected"});
}

ChosenPositions::~ChosenPositions() { engine_.forward().set_observer({}); }

// The numbers come before the positions, and are the same in every layer.
void ChosenPositions::overwrite(const Observation& seen) {
  if (std::string_view(seen.name) == "n_selected") {
    n_selected_ = seen.ints;
    return;
  }
  if (seen.layer == 0) choose(seen);
  engine_.backend().upload(seen.device_ints, selected_.data(), selected_.size() * sizeof(int32_t));
}

void ChosenPositions::choose(const Observation& seen) {
  selected_ = seen.ints;
  const auto first =
      static_cast<int32_t>(sequence_.tokens().size());  // the step's tokens are not counted yet
  for (int64_t t = 0; t < seen.n_tokens; ++t) {
    const auto pos = first + static_cast<int32_t>(t);
    const std::vector<int32_t> rows = choose_positions(chooser_, pos, n_selected_[static_cast<size_t>(t)]);
    std::ranges::copy(rows, selected_.begin() + t * seen.width);
  }
}

}  // namespace dsv32
