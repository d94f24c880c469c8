#include "model/forward.h"

#include <algorithm>
#include <utility>

#include "backend/team.h"
#include "base/error.h"

namespace dsv32 {

Forward::Forward(std::span<const StageLayers> stages, const ModelArgs& args, std::span<const Weights> weights,
                 LatentCache& cache, const StageSizes& sizes)
    : args_(args), cache_(cache), team_(stages.front().member.team), left_(team_ ? 0 : stages.size() - 1) {
  for (size_t i = 0; i < stages.size(); ++i)
    stages_.push_back(std::make_unique<Stage>(*stages[i].backend, stages[i].member, args,
                                              weights[team_ ? i : 0], cache.stage(i), sizes));
}

void Forward::run(Step step) {
  const bool is_decode = step.role == Role::decode;
  const std::vector<CachedSequence*> sequences = step.sequences;
  if (sequences.size() != (is_decode ? step.tokens.size() : 1))
    fail(ErrorKind::internal,
         format("a step of %zu tokens for %zu sequences", step.tokens.size(), sequences.size()));
  prepare(step);
  for (size_t i = 0, n = 0; i < sequences.size(); i += n) {
    for (n = 1; i + n < sequences.size() && sequences[i + n] == sequences[i];) ++n;
    const int64_t n_tokens = is_decode ? static_cast<int64_t>(n) : step.n_tokens();
    cache_.reserve(*sequences[i], sequences[i]->n_tokens() + n_tokens);
  }
  const auto running = std::make_shared<const Step>(std::move(step));
  advance(running);
  if (running->n_logits > 0) finish();
  for (size_t i = 0; i < sequences.size(); ++i)
    cache_.append(*sequences[i], running->tokens_of(i), running->role);
}

void Forward::prepare(Step& step) const {
  step.n_held = step.sequences.front()->n_tokens();
  if (step.role == Role::decode) step.n_logits = step.n_tokens();
  for (const CachedSequence* sequence : step.sequences) step.has_hidden.push_back(sequence->has_hidden());
}

void Forward::guess(std::vector<CachedSequence*> sequences, std::vector<int32_t> tokens, int64_t nth) {
  Step step{Role::decode, std::move(sequences), std::move(tokens)};
  step.nth_guess = nth;
  prepare(step);
  if (team_) return run_as_team(step);
  last().begin(step);
  while (last().advance()) continue;
}

void Forward::cut(std::span<const Stage::Cut> cuts) {
  for (const Stage::Cut& one : cuts) cache_.cut(*one.sequence, one.n_tokens);
  if (args_.n_draft_layers == 0 || cuts.empty()) return;
  if (!team_) return last().cut(cuts);
  for (const auto& member : stages_) member->cut(cuts);
}

// Each member in a thread of its own, as they meet while they enqueue operations.
void Forward::run_as_team(const Step& step) {
  restart_gathers();
  team_->run([&](int64_t member) {
    Stage& stage = *stages_[static_cast<size_t>(member)];
    stage.begin(step);
    for (int n_done = 1; stage.advance(); ++n_done)
      if (member == 0 && watch_)
        watch_->on_layer(std::min(1.0, n_done / static_cast<double>(args_.n_layers)));
  });
}

// After a step in which a member was late.
void Forward::restart_gathers() {
  if (std::ranges::none_of(stages_, [](const auto& member) { return member->backend().missed_gather(); }))
    return;
  for (int i = 0; i < 2; ++i)
    for (const auto& member : stages_) member->backend().restart_gathers();
}

// Moves each step under way through one more stage, and `entering` through the first.
void Forward::advance(StepOnItsWay entering) {
  if (team_) return run_as_team(*entering);
  std::vector<Stage*> working;
  for (size_t i = stages_.size(); i-- > 0;) {
    const StepOnItsWay step = std::exchange(i > 0 ? left_[i - 1] : entering, nullptr);
    if (!step) continue;
    stages_[i]->begin(*step);
    if (i > 0) hand_over(i - 1);
    working.push_back(stages_[i].get());
    if (i + 1 < stages_.size()) left_[i] = step;
  }
  const auto n_layers = static_cast<double>(args_.n_layers) / static_cast<double>(stages_.size());
  for (int n_done = 1; !working.empty(); ++n_done) {
    std::vector<Stage*> going_on;
    for (Stage* stage : working)
      if (stage->advance()) going_on.push_back(stage);
    working = std::move(going_on);
    if (watch_) watch_->on_layer(std::min(1.0, n_done / n_layers));
  }
}

void Forward::hand_over(size_t from) {
  Stage &before = *stages_[from], &after = *stages_[from + 1];
  before.backend().hand_over(
      {before.hidden_states(), &after.backend(), after.hidden_states(), before.n_tokens() * args_.dim});
}

int64_t Forward::n_under_way(const CachedSequence& sequence) const {
  int64_t n = 0;
  for (const StepOnItsWay& step : left_)
    for (size_t i = 0; step && i < step->sequences.size(); ++i)
      if (step->sequences[i] == &sequence) n += std::ssize(step->tokens_of(i));
  return n;
}

void Forward::finish() {
  while (std::ranges::any_of(left_, [](const auto& step) { return step != nullptr; })) advance({});
}

void Forward::abandon() {
  for (StepOnItsWay& step : left_) step.reset();
}

void Forward::wait() {
  for (const auto& stage : stages_) stage->backend().download(nullptr, nullptr, 0);
}

void Forward::set_watch(const StepWatch* watch) {
  watch_ = watch;
  for (const auto& stage : stages_) stage->backend().set_interrupt(watch ? &watch->is_interrupted : nullptr);
}

std::vector<float> Forward::logits() const {
  std::vector<float> values(static_cast<size_t>(n_logits() * args_.vocab_size));
  last().backend().download(values.data(), logits_row(0), values.size() * sizeof(float));
  return values;
}

Forward::BufferTally Forward::buffer_tally() const {
  BufferTally sum;
  for (const auto& stage : stages_) {
    const BufferTally tally = stage->buffer_tally();
    sum.n_rows += tally.n_rows, sum.n_misses += tally.n_misses;
  }
  return sum;
}

void Forward::set_observer(const Observer& observer, const std::vector<std::string>& names) {
  for (const auto& stage : stages_) stage->set_observer(observer, names);
}

}  // namespace dsv32
