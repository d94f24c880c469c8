#include "model/forward.h"

#include "base/error.h"

namespace dsv32 {

Forward::Forward(std::span<const StageLayers> stages, const ModelArgs& args, const Weights& weights,
                 LatentCache& cache, const StageSizes& sizes)
    : args_(args) {
  for (size_t i = 0; i < stages.size(); ++i)
    stages_.push_back(std::make_unique<Stage>(*stages[i].backend, args, weights, cache.part(i), sizes));
}

void Forward::run(const Step& step) {
  if (step.role == Role::decode && step.n_tokens() != std::ssize(step.parts))
    fail(ErrorKind::internal, format("a decode step of %lld tokens for %zu timelines",
                                     static_cast<long long>(step.n_tokens()), step.parts.size()));
  for (size_t i = 0; i < stages_.size(); ++i) {
    Stage& stage = *stages_[i];
    stage.begin(step);
    if (i > 0) {
      Stage& before = *stages_[i - 1];
      before.backend().hand_over(
          {before.hidden_states(), &stage.backend(), stage.hidden_states(), before.n_tokens() * args_.dim});
    }
    stage.run();
  }
}

void Forward::wait() {
  for (const auto& stage : stages_) stage->backend().download(nullptr, nullptr, 0);
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
