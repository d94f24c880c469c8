// ForcedChoices of inspect.h.
#include <algorithm>
#include <numeric>

#include "cli/inspect/inspect.h"
#include "engine/engine.h"

namespace dsv32 {
namespace {

// Draws the next choices: each stays with the probability `locality`, else another of [0, n_all) replaces it.
void change(std::vector<int32_t>& chosen, int64_t n_all, double locality, Rng& rng) {
  std::vector<bool> is_taken(static_cast<size_t>(n_all));
  for (const int32_t choice : chosen) is_taken[static_cast<size_t>(choice)] = true;
  for (int32_t& choice : chosen) {
    if (static_cast<double>(rng.uniform()) < locality) continue;
    is_taken[static_cast<size_t>(choice)] = false;
    do choice = static_cast<int32_t>(rng.next() % static_cast<uint64_t>(n_all));
    while (is_taken[static_cast<size_t>(choice)]);
    is_taken[static_cast<size_t>(choice)] = true;
  }
  std::ranges::sort(chosen);
}

}  // namespace

uint64_t ForcedChoices::n_bytes(const ModelArgs& args, int64_t n_tokens) {
  return static_cast<uint64_t>(args.n_all_layers() * n_tokens * (args.topk() + args.n_activated_experts)) *
         sizeof(int32_t);
}

ForcedChoices::ForcedChoices(Engine& engine, int64_t n_sequences, int64_t n_visible, const Locality& locality,
                             int64_t n_guesses)
    : engine_(engine), n_sequences_(n_sequences), n_tokens_(n_sequences * (1 + n_guesses)) {
  const ModelArgs& args = engine.args();
  for (size_t i = 0; i < engine.plan().stages.size(); ++i) {
    const StagePlan& stage = engine.plan().stages[i];
    const int64_t n_layers = stage.end_layer - stage.first_layer;
    const auto seed = static_cast<uint64_t>(2 * stage.first_layer);
    Backend& backend = *engine.backends()[i];
    Stage::Forced forced{.n_tokens = n_tokens_};
    if (locality.selection && args.topk() > 0 && n_visible > args.topk())
      forced.selection = add(backend, seed, n_layers, args.topk(), n_visible, *locality.selection);
    if (locality.experts && args.n_routed_experts > 0)
      forced.experts = add(backend, seed + 1, n_layers, args.n_activated_experts, args.n_routed_experts,
                           *locality.experts);
    engine.forward().set_forced(i, forced);
  }
}

ForcedChoices::~ForcedChoices() {
  for (size_t i = 0; i < engine_.plan().stages.size(); ++i) engine_.forward().set_forced(i, {});
}

// Draws the first choices. Returns their place on the device.
const int32_t* ForcedChoices::add(Backend& backend, uint64_t seed, int64_t n_layers, int64_t n_chosen,
                                  int64_t n_all, double locality) {
  const int64_t n_lists = n_layers * n_tokens_;
  Choices& added = choices_.emplace_back(Choices{
      &backend, n_all, locality, Rng{seed}, {backend, Place::device, n_lists * n_chosen, "forced choices"}});
  List all(static_cast<size_t>(n_all));
  std::iota(all.begin(), all.end(), 0);
  for (int64_t list = 0; list < n_lists; ++list) {
    for (size_t i = 0; i < static_cast<size_t>(n_chosen); ++i)
      std::swap(all[i], all[i + added.rng.next() % (all.size() - i)]);
    std::ranges::sort(added.chosen.emplace_back(all.begin(), all.begin() + n_chosen));
  }
  return added.device.data();
}

// A layer's choices: of each sequence one after the other, beginning after the last token that was kept.
void ForcedChoices::follow(Choices& choices, std::span<List> layer, int64_t n_guesses,
                           std::span<const int64_t> n_kept) {
  std::vector<List> last;
  for (int64_t i = 0; i < n_sequences_; ++i) {
    const int64_t n = n_kept.empty() ? 1 : std::clamp<int64_t>(n_kept[static_cast<size_t>(i)], 1, n_each_);
    last.push_back(layer[static_cast<size_t>(i * n_each_ + n - 1)]);
  }
  size_t token = 0;
  for (List& list : last)
    for (int64_t i = 0; i <= n_guesses; ++i) {
      if (choices.locality < 1) change(list, choices.n_all, choices.locality, choices.rng);
      layer[token++] = list;
    }
}

void ForcedChoices::next(int64_t n_guesses, std::span<const int64_t> n_kept) {
  const auto n_tokens = static_cast<size_t>(n_tokens_);
  for (Choices& choices : choices_) {
    for (size_t first = 0; first < choices.chosen.size(); first += n_tokens)
      follow(choices, std::span(choices.chosen).subspan(first, n_tokens), n_guesses, n_kept);
    List all;
    for (const List& chosen : choices.chosen) all.insert(all.end(), chosen.begin(), chosen.end());
    choices.backend->upload(choices.device.data(), all.data(), all.size() * sizeof(int32_t));
  }
  n_each_ = 1 + n_guesses;
}

}  // namespace dsv32
