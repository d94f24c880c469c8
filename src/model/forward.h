// DeepSeek-V3.2's forward pass: steps walk the stages, and between two of them go the hidden states.
//
// A prompt's steps follow each other through the stages: while one is in the second, the next is in the
// first. So a step that wants no logits is only begun by run(), and goes on with those behind it; any other
// is done, and all before it. Layers of stages that work side by side are enqueued in turn, since a device
// takes a thousand operations ahead and no more. The host does not wait. Not thread-safe.
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
  // The stages are those of the cache, on these backends.
  Forward(std::span<const StageLayers> stages, const ModelArgs& args, const Weights& weights,
          LatentCache& cache, const StageSizes& sizes);

  int64_t max_tokens() const { return stages_.front()->max_tokens(); }
  size_t n_stages() const { return stages_.size(); }
  // Runs the step, if it is of a prompt and wants no logits perhaps only the first layers of it: stores its
  // rows and keys, and leaves the logits that it wants. Its timelines hold its tokens then. Throws
  // Error{context_full} as LatentCache::reserve() does.
  void run(Step step);
  // How many tokens of the timeline have not been through all stages: its last so many rows may not be shared
  // yet, and it keeps them.
  int64_t n_under_way(const Timeline& timeline) const;
  // Brings all that is under way to its end, or forgets it.
  void finish();
  void abandon();
  // Waits until all that was enqueued is done.
  void wait();
  // While it lives, steps are watched.
  class Watched {
   public:
    Watched(Forward& forward, const StepWatch& watch) : forward_(forward) { forward.set_watch(&watch); }
    ~Watched() { forward_.set_watch(nullptr); }

   private:
    Forward& forward_;
  };

  // The backend that has the logits.
  Backend& last_backend() { return stages_.back()->backend(); }
  // Downloads the logits of the last run, [n_logits, vocab_size].
  std::vector<float> logits() const;
  // Row i of them in the last backend's memory, [vocab_size]; until the next run.
  const float* logits_row(int64_t i) const { return stages_.back()->logits() + i * args_.vocab_size; }
  int64_t n_logits() const { return stages_.back()->n_logits(); }

  using BufferTally = Stage::BufferTally;
  BufferTally buffer_tally() const;  // of all stages

  // For measuring; of one stage.
  void set_forced(size_t stage, const Stage::Forced& forced) { stages_[stage]->set_forced(forced); }
  // For measuring, on one device: the laps of steps are named there. Null: none are marked.
  void set_laps(Laps* laps) { stages_.front()->set_laps(laps); }

  // Called at the named stages of every layer, or at all of them when none is named; slow, since each is
  // downloaded. An empty one turns it off.
  void set_observer(const Observer& observer, const std::vector<std::string>& stages = {});

 private:
  using StepOnItsWay = std::shared_ptr<const Step>;
  void advance(StepOnItsWay entering);
  void hand_over(size_t from);
  void set_watch(const StepWatch* watch);

  const ModelArgs& args_;
  LatentCache& cache_;
  std::vector<std::unique_ptr<Stage>> stages_;
  std::vector<StepOnItsWay> left_;  // [n_stages - 1] what a stage has done and the next has not
  const StepWatch* watch_ = nullptr;
};

}  // namespace dsv32
