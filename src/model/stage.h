// Consecutive layers on one device: their activations, their cache, and recordings of their steps.
//
// The layers are written once, over Backend: prefill and decode are the same operations over more or fewer
// tokens. stage.cpp has the loop over the layers, attention.cpp one layer's attention, feed_forward.cpp its
// MLP or experts; the names and their order are those of spec and paper. The first stage embeds, the last one
// makes the logits; between stages go the hidden states (Forward). Not thread-safe.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "context/stage_cache.h"
#include "model/activations.h"
#include "model/step.h"
#include "weights/weights.h"

namespace dsv32 {

struct StageSizes {
  int64_t max_tokens = 0;            // of one step
  int64_t max_context = 0;           // of one timeline
  uint64_t expert_window_bytes = 0;  // on a device that has layers with experts in host memory
};

// [qk_rope_head_dim / 2] the angles' speeds of rotary embedding, stretched by YaRN; computed in f32 as
// model.py (precompute_freqs_cis) does.
std::vector<float> rope_frequencies(const ModelArgs& args);

class Stage {
 public:
  // The layers are those of the cache.
  Stage(Backend& backend, const ModelArgs& args, const Weights& weights, StageCache& cache,
        const StageSizes& sizes);

  // What logits take beside the activations of the last stage: room for the tokens of a decode step, and for
  // one of any other.
  static uint64_t logit_bytes(const ModelArgs& args, int64_t max_seqs) {
    return static_cast<uint64_t>(args.vocab_size * (max_seqs + 1)) * sizeof(float);
  }

  Backend& backend() { return backend_; }
  int64_t max_tokens() const { return act_.max_tokens; }

  // Takes over the step's tokens and tables. What advance() reads afterwards is in the device's memory.
  void begin(const Step& step);
  // Computes more of the step, from the hidden states to the hidden states, and stores its rows and keys: a
  // layer of a prompt, or all of a decode step. The first stage begins with the embedding; the last one
  // leaves logits, of the wanted tokens in the order of the parts. False: that was all of it.
  bool advance();

  // [n_tokens, dim] of the running step.
  float* hidden_states() { return act_.h.data(); }
  int64_t n_tokens() const { return step_.n_tokens; }
  // Of the last run, [n_logits, vocab_size], in the backend's memory; until the next run.
  const float* logits() const { return logits_; }
  int64_t n_logits() const { return n_logits_; }

  // Rows looked up in top-k buffers so far, and those that had to be fetched.
  struct BufferTally {
    int64_t n_rows = 0, n_misses = 0;
  };
  BufferTally buffer_tally() const;

  // For measuring: what the tokens of steps of n_tokens attend to and which experts they use, of the memory
  // of this device and ascending for each token, in place of what indexer and router choose, which is
  // computed all the same. Null: what they choose.
  struct Forced {
    const int32_t* selection = nullptr;  // [the stage's layers, n_tokens, topk]
    const int32_t* experts = nullptr;    // [the stage's layers, n_tokens, n_activated]
    int64_t n_tokens = 0;
    bool operator==(const Forced&) const = default;
  };
  void set_forced(const Forced& forced) { forced_ = forced; }
  void set_laps(Laps* laps) { laps_ = laps; }
  void set_observer(Observer observer, std::vector<std::string> stages) {
    observer_ = std::move(observer), observed_stages_ = std::move(stages);
  }

 private:
  bool is_first() const { return cache_.first_layer() == 0; }
  bool is_last() const { return cache_.end_layer() == args_.n_layers; }
  int64_t recordable_max_pos(int64_t max_pos) const;
  Forced forced() const { return step_.n_tokens == forced_.n_tokens ? forced_ : Forced{}; }  // of the step
  void upload(const Step& step);
  void place_logits(const Step& step);
  bool is_recorded() const;
  void replay();
  bool run_layer();
  bool leaves_rows_only(int64_t layer) const;
  void run_head();
  bool take_piece();
  void norm(const Vector& weight, const char* name);

  // attention.cpp
  void attention(const LayerWeights& w, const CacheView& cache);
  bool is_scored() const;
  MatmulHeads absorb(const LayerWeights& w) const;
  bool absorbs_early(const CacheView& cache) const;
  void project(const LayerWeights& w);
  void store(const LayerWeights& w, const CacheView& cache);
  void queries(const LayerWeights& w, const CacheView& cache);
  std::vector<StepTokens> slices(const CacheView& cache) const;
  void select_positions(const StepTokens& slice, const CacheView& cache);
  void find_rows(const StepTokens& slice, const CacheView& cache);
  void attend_selected(const LayerWeights& w, const CacheView& cache);

  // feed_forward.cpp
  void mlp(const MlpWeights& w, const float* plus, float* y);
  bool runs_shared_beside() const;
  Matmul shared_output(const ExpertWeights& w);
  void route(const ExpertWeights& w);
  void routed_experts(const ExpertWeights& w);
  void shared_expert(const ExpertWeights& w);
  RunExperts experts_op(const ExpertStacks& stacks);
  void announce_host_experts();
  const ExpertStacks* host_experts_after(int64_t layer) const;

  // Of the piece: [n_tokens, dim].
  float* h() { return act_.h.data() + first_ * args_.dim; }
  float* x() { return act_.x.data() + first_ * args_.dim; }
  float* out() { return act_.out.data() + first_ * args_.dim; }
  Matmul product(const WeightMatrix& weight, const float* x, float* y) const;
  void observe(const char* stage, const float* values, int64_t width);
  void observe_ints(const char* stage, int32_t* ints, int64_t width);
  bool is_observed(const char* stage) const;
  void lap(const char* name, bool is_whole = false);

  Backend& backend_;
  const ModelArgs& args_;
  const Weights& weights_;
  StageCache& cache_;
  Activations act_;
  Buffer<float> frequencies_;    // [qk_rope_head_dim / 2]
  Buffer<float> decode_logits_;  // [max_seqs, vocab_size]: recordings keep the address, so it never moves
  Buffer<float> prompt_logits_;  // [most wanted of a prefill step, vocab_size]
  float* logits_ = nullptr;      // of the last run, in one of them
  int64_t n_logits_ = 0;
  // Tokens of the step that follow one another and whose logits are wanted.
  struct LogitRun {
    int64_t first_token, n_tokens;
  };
  std::vector<LogitRun> logit_runs_;
  StepTokens step_;    // of the running step, on the device
  StepTokens piece_;   // of these, those that are worked on
  int64_t first_ = 0;  // which is the piece's first
  bool wants_logits_ = false;
  Buffer<uint8_t> expert_window_;
  uint64_t n_link_bytes_ = 0;  // of it, in decode
  int64_t layer_ = 0;
  Forced forced_;
  const int32_t* selected_ = nullptr;  // of the layer: act_.selected or a forced one
  Laps* laps_ = nullptr;
  Observer observer_;
  std::vector<std::string> observed_stages_;  // empty: all

  // All that the operations of a decode step say and that differs from step to step.
  struct RecordKey {
    int64_t n_tokens = 0, max_pos = 0;
    const int32_t *forced_selection = nullptr, *forced_experts = nullptr;
    bool has_buffers = false;
    bool operator==(const RecordKey&) const = default;
  };
  std::vector<std::pair<RecordKey, std::unique_ptr<Recording>>> recorded_;  // the last used first
};

// n_tokens of them from the first_ on.
inline StepTokens some_of(StepTokens step, int64_t first, int64_t n_tokens) {
  step.n_tokens = n_tokens;
  step.tokens += first, step.pos += first, step.seq += first;
  return step;
}

}  // namespace dsv32
