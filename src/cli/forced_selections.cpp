#include "cli/forced_selections.h"

#include <algorithm>
#include <numeric>

namespace dsv32 {

uint64_t ForcedSelections::n_bytes(const ModelArgs& args, int64_t n_tokens) {
  return static_cast<uint64_t>(args.n_layers * n_tokens * args.index_topk) * sizeof(int32_t);
}

ForcedSelections::ForcedSelections(Engine& engine, int64_t n_tokens, int64_t n_visible, double locality)
    : engine_(engine),
      n_visible_(n_visible),
      locality_(locality),
      device_(engine.backend(), Place::device, engine.args().n_layers * n_tokens * engine.args().index_topk,
              "forced selections") {
  for (int64_t i = 0; i < engine.args().n_layers * n_tokens; ++i) selected_.push_back(fresh());
  engine.forward().set_forced_selection(device_.data(), n_tokens);
}

ForcedSelections::~ForcedSelections() { engine_.forward().set_forced_selection(nullptr); }

std::vector<int32_t> ForcedSelections::fresh() {
  std::vector<int32_t> all(static_cast<size_t>(n_visible_)), picked;
  std::iota(all.begin(), all.end(), 0);
  for (size_t i = 0; i < static_cast<size_t>(engine_.args().index_topk); ++i) {
    std::swap(all[i], all[i + rng_.next() % (all.size() - i)]);
    picked.push_back(all[i]);
  }
  std::ranges::sort(picked);
  return picked;
}

void ForcedSelections::next() {
  std::vector<int32_t> all;
  for (std::vector<int32_t>& selected : selected_) {
    if (locality_ < 1) move(selected);
    all.insert(all.end(), selected.begin(), selected.end());
  }
  engine_.backend().upload(device_.data(), all.data(), all.size() * sizeof(int32_t));
  engine_.backend().download(nullptr, nullptr, 0);
}

void ForcedSelections::move(std::vector<int32_t>& selected) {
  std::vector<bool> is_taken(static_cast<size_t>(n_visible_));
  for (const int32_t pos : selected) is_taken[static_cast<size_t>(pos)] = true;
  for (int32_t& pos : selected) {
    if (static_cast<double>(rng_.uniform()) < locality_) continue;
    is_taken[static_cast<size_t>(pos)] = false;
    do pos = static_cast<int32_t>(rng_.next() % static_cast<uint64_t>(n_visible_));
    while (is_taken[static_cast<size_t>(pos)]);
    is_taken[static_cast<size_t>(pos)] = true;
  }
  std::ranges::sort(selected);
}

}  // namespace dsv32
