// DeepSeek-V3.2's forward pass: a step goes from stage to stage, which hand on its hidden states.
//
// A prompt's steps form a pipeline: while one is in the second stage, the next is in the first. So run() only
// begins a step that needs no logits, and later calls move it on; a step that needs logits is finished at
// once, with all steps before it. Stages that work at the same time enqueue their layers in turn, since a
// device accepts no more than about a thousand operations ahead. A team's devices are one stage, and run the
// same layers at the same time. The host does not wait. Not thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "context/latent_cache.h"
#include "model/stage.h"
#include "weights/weights.h"

namespace dsv32 {

class Forward {
 public:
  // The same stages as the cache's. weights: of all stages, or one for each member of a team.
  Forward(std::span<const StageLayers> stages, const ModelArgs& args, std::span<const Weights> weights,
          LatentCache& cache, const StageSizes& sizes);

  // That work on different layers.
  size_t n_stages() const { return team_ ? 1 : stages_.size(); }
  // Runs the step: stores its rows and keys, and computes its logits. Of a prompt's step without logits
  // perhaps only the first layers are enqueued so far. Its sequences hold its tokens afterwards. Throws
  // Error{context_full} as LatentCache::reserve() does.
  void run(Step step);
  // With a block for drafts: a guessing step, for one token of each of these sequences. `nth` tokens lie
  // between those that a sequence holds and its token here: nth 0 takes the sequence's next token, nth 1 the
  // first guess, after the call with nth 0 for these and perhaps more sequences, and so on. The logits guess
  // the token that follows. The sequences have room for the positions (LatentCache::reserve), and hold as
  // many tokens afterwards as before.
  void guess(std::vector<CachedSequence*> sequences, std::vector<int32_t> tokens, int64_t nth);
  // After a decode step: of these sequences only the first n_tokens tokens stay, at least one of the step's.
  void cut(std::span<const Stage::Cut> cuts);
  // How many of the sequence's last tokens have not gone through all stages. Their rows must be neither
  // shared nor released yet.
  int64_t n_under_way(const CachedSequence& sequence) const;
  // Completes all steps that are under way, or drops them.
  void finish();
  void abandon();
  // Waits until all enqueued work is done.
  void wait();
  // While this object exists, steps report to `watch`.
  class Watched {
   public:
    Watched(Forward& forward, const StepWatch& watch) : forward_(forward) { forward.set_watch(&watch); }
    ~Watched() { forward_.set_watch(nullptr); }

   private:
    Forward& forward_;
  };

  // A backend that has the logits.
  Backend& last_backend() { return last().backend(); }
  // Downloads the logits of the last run, [n_logits, vocab_size].
  std::vector<float> logits() const;
  // Row i of these logits in the last backend's memory, [vocab_size]; valid until the next run.
  const float* logits_row(int64_t i) const { return last().logits() + i * args_.vocab_size; }
  int64_t n_logits() const { return last().n_logits(); }

  using BufferTally = Stage::BufferTally;
  BufferTally buffer_tally() const;  // sum over all stages

  // For measuring, on one device.
  void set_forced(size_t stage, const Stage::Forced& forced) { stages_[stage]->set_forced(forced); }
  // For measuring, on one device: appends the laps' names to `laps`. Null: no laps are marked.
  void set_laps(Laps* laps) { stages_.front()->set_laps(laps); }

  // Calls the observer with the named intermediates (Observation::name) of every layer, or with all when
  // none is named; of a team the first member's, where each member then computes all of attention. Slow: each
  // is downloaded. An empty observer turns it off.
  void set_observer(const Observer& observer, const std::vector<std::string>& names = {});

 private:
  using StepOnItsWay = std::shared_ptr<const Step>;
  // One that has the logits: the last, or the first member of a team.
  Stage& last() const { return team_ ? *stages_.front() : *stages_.back(); }
  void prepare(Step& step) const;
  void advance(StepOnItsWay entering);
  void run_as_team(const Step& step);
  void restart_gathers();
  void hand_over(size_t from);
  void set_watch(const StepWatch* watch);

  const ModelArgs& args_;
  LatentCache& cache_;
  Team* const team_;                            // null: each stage has layers of its own
  std::vector<std::unique_ptr<Stage>> stages_;  // or the members
  std::vector<StepOnItsWay> left_;  // [n_stages - 1] the step that a stage has done and the next has not
  const StepWatch* watch_ = nullptr;
};

}  // namespace dsv32
