#include "model/forward.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace dsv32 {

Forward::Forward(std::span<const StageLayers> stages, const ModelArgs& args, const Weights& weights,
                 LatentCache& cache, const StageSizes& sizes)
    : args_(args), left_(stages.size() - 1) {
  for (size_t i = 0; i < stages.size(); ++i)
    stages_.push_back(std::make_unique<Stage>(*stages[i].backend, args, weights, cache.stage(i), sizes));
}

void Forward::run(Step step) {
  if (step.role == Role::decode && step.n_tokens() != std::ssize(step.parts))
    fail(ErrorKind::internal,
         format("a decode step of %lld tokens for %zu timelines", as_ll(step.n_tokens()), step.parts.size()));
  const bool is_done_at_once = step.role == Role::decode || step.wants_logits();
  for (StepPart& part : step.parts) part.n_held = part.timeline->n_tokens();
  advance(std::make_unique<Step>(std::move(step)));
  if (is_done_at_once) finish();
}

// Each step that is under way goes through one stage, and one enters the first.
void Forward::advance(std::unique_ptr<Step> entering) {
  std::vector<Stage*> working;
  std::unique_ptr<Step> through;  // the last stage
  for (size_t i = stages_.size(); i-- > 0;) {
    std::unique_ptr<Step>& step = i > 0 ? left_[i - 1] : entering;
    if (!step) continue;
    stages_[i]->begin(*step);
    if (i > 0) hand_over(i - 1);
    working.push_back(stages_[i].get());
    (i + 1 < stages_.size() ? left_[i] : through) = std::move(step);
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

int64_t Forward::n_under_way(const Timeline& timeline) const {
  int64_t n = 0;
  for (const auto& step : left_)
    for (size_t i = 0; step && i < step->parts.size(); ++i)
      if (step->parts[i].timeline == &timeline) n += std::ssize(step->parts[i].tokens);
  return n;
}

void Forward::finish() {
  while (std::ranges::any_of(left_, [](const auto& step) { return step != nullptr; })) advance({});
}

void Forward::abandon() {
  for (auto& step : left_) step.reset();
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
  stages_.back()->backend().download(values.data(), logits_row(0), values.size() * sizeof(float));
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

void Forward::set_observer(const Observer& observer, const std::vector<std::string>& stages) {
  for (const auto& stage : stages_) stage->set_observer(observer, stages);
}

}  // namespace dsv32
