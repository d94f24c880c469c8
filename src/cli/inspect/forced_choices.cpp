#include "cli/inspect/forced_choices.h"

#include <algorithm>
#include <numeric>

namespace dsv32 {

ForcedChoices::Choices::Choices(Backend& backend, int64_t n_lists, int64_t n_chosen, int64_t n_all,
                                double locality, Rng& rng)
    : backend_(&backend),
      n_all_(n_all),
      locality_(locality),
      device_(backend, Place::device, n_lists * n_chosen, "forced choices") {
  std::vector<int32_t> all(static_cast<size_t>(n_all));
  std::iota(all.begin(), all.end(), 0);
  for (int64_t list = 0; list < n_lists; ++list) {
    for (size_t i = 0; i < static_cast<size_t>(n_chosen); ++i)
      std::swap(all[i], all[i + rng.next() % (all.size() - i)]);
    std::vector<int32_t>& chosen = chosen_.emplace_back(all.begin(), all.begin() + n_chosen);
    std::ranges::sort(chosen);
  }
}

void ForcedChoices::Choices::next(Rng& rng) {
  std::vector<int32_t> all;
  for (std::vector<int32_t>& chosen : chosen_) {
    if (locality_ < 1) move(chosen, rng);
    all.insert(all.end(), chosen.begin(), chosen.end());
  }
  backend_->upload(device_.data(), all.data(), all.size() * sizeof(int32_t));
  backend_->download(nullptr, nullptr, 0);
}

void ForcedChoices::Choices::move(std::vector<int32_t>& chosen, Rng& rng) const {
  std::vector<bool> is_taken(static_cast<size_t>(n_all_));
  for (const int32_t choice : chosen) is_taken[static_cast<size_t>(choice)] = true;
  for (int32_t& choice : chosen) {
    if (static_cast<double>(rng.uniform()) < locality_) continue;
    is_taken[static_cast<size_t>(choice)] = false;
    do choice = static_cast<int32_t>(rng.next() % static_cast<uint64_t>(n_all_));
    while (is_taken[static_cast<size_t>(choice)]);
    is_taken[static_cast<size_t>(choice)] = true;
  }
  std::ranges::sort(chosen);
}

uint64_t ForcedChoices::n_bytes(const ModelArgs& args, int64_t n_tokens) {
  return static_cast<uint64_t>(args.n_layers * n_tokens * (args.index_topk + args.n_activated_experts)) *
         sizeof(int32_t);
}

ForcedChoices::ForcedChoices(Engine& engine, int64_t n_tokens, int64_t n_visible, const Locality& locality)
    : engine_(engine) {
  const ModelArgs& args = engine.args();
  const bool selects = locality.selection && args.has_indexer() && n_visible > args.index_topk;
  const bool chooses = locality.experts && args.n_routed_experts > 0;
  for (size_t i = 0; i < engine.plan().stages.size(); ++i) {
    const StagePlan& stage = engine.plan().stages[i];
    const int64_t n_lists = (stage.end_layer - stage.first_layer) * n_tokens;
    Stage::Forced forced{.n_tokens = n_tokens};
    if (selects)
      forced.selection = choices_
                             .emplace_back(*engine.backends()[i], n_lists, args.index_topk, n_visible,
                                           *locality.selection, rng_)
                             .data();
    if (chooses)
      forced.experts = choices_
                           .emplace_back(*engine.backends()[i], n_lists, args.n_activated_experts,
                                         args.n_routed_experts, *locality.experts, rng_)
                           .data();
    engine.forward().set_forced(i, forced);
  }
}

ForcedChoices::~ForcedChoices() {
  for (size_t i = 0; i < engine_.plan().stages.size(); ++i) engine_.forward().set_forced(i, {});
}

void ForcedChoices::next() {
  for (Choices& choices : choices_) choices.next(rng_);
}

}  // namespace dsv32
