// DeepSeek-V3.2's forward pass: a step walks the stages, and between two of them go the hidden states.
//
// Nobody waits on the host: a prompt's next chunk may be given to the first stage while the last one still
// computes the chunk before. Not thread-safe.
#pragma once

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

  // Runs the step: stores its rows and keys, and leaves the logits that it wants, in the order of its parts.
  // The timelines do not know of its tokens yet (LatentCache::append).
  void run(const Step& step);
  // Waits until all that was run is done.
  void wait();

  // The backend that has the logits.
  Backend& last_backend() { return stages_.back()->backend(); }
  // Downloads the logits of the last run, [n_logits, vocab_size].
  std::vector<float> logits() const;
  // Row i of them in the last backend's memory, [vocab_size]; until the next run.
  const float* logits_row(int64_t i) const { return stages_.back()->logits() + i * args_.vocab_size; }
  int64_t n_logits() const { return stages_.back()->n_logits(); }

  using BufferTally = Stage::BufferTally;
  BufferTally buffer_tally() const;  // of all stages

  // For measuring, on one device: the tokens of steps of n_tokens attend to these positions [n_layers,
  // n_tokens, topk] (of its memory, ascending for each token) instead of what the indexer selects, which is
  // computed all the same. Null: the indexer's.
  void set_forced_selection(const int32_t* selection, int64_t n_tokens = 1) {
    stages_.front()->set_forced_selection(selection, n_tokens);
  }
  // For measuring, on one device: the laps of steps are named there. Null: none are marked.
  void set_laps(Laps* laps) { stages_.front()->set_laps(laps); }

  // Called at the named stages of every layer, or at all of them when none is named; slow, since each is
  // downloaded. An empty one turns it off.
  void set_observer(const Observer& observer, const std::vector<std::string>& stages = {});

 private:
  const ModelArgs& args_;
  std::vector<std::unique_ptr<Stage>> stages_;
};

}  // namespace dsv32
