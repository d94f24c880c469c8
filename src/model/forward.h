// DeepSeek-V3.2's forward pass, written once over Backend: prefill and decode are the same operations, and
// each is told which of the two roles its tokens have.
//
// forward.cpp has the loop over the layers, attention.cpp one layer's attention, feed_forward.cpp its MLP or
// experts; the names and their order are those of spec and paper. Knows no file and no terminal. Not
// thread-safe.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "context/latent_cache.h"
#include "model/activations.h"
#include "model/recordings.h"
#include "weights/weights.h"

namespace dsv32 {

// The tokens of a step, on the host. Each sequence's tokens are consecutive and follow what the cache holds
// of it; in decode it has one.
struct Step {
  std::vector<int32_t> tokens;       // [n_tokens]
  std::vector<int32_t> pos;          // [n_tokens]
  std::vector<int32_t> seq;          // [n_tokens] index into sequences
  std::vector<Sequence*> sequences;  // room for the step's tokens is reserved
  int64_t first_logits = 0;          // logits are computed for tokens [first_logits, n_tokens)
  Role role = Role::prefill;

  int64_t n_tokens() const { return static_cast<int64_t>(tokens.size()); }
};

// One intermediate, downloaded, for comparison with another implementation.
struct Observation {
  const char* stage;  // "qr", "q", "latent_row", "index_q", ... (see the calls of observe())
  int64_t layer, n_tokens, width;
  std::vector<float> values;  // [n_tokens, width], or
  std::vector<int32_t> ints;  // [n_tokens, width]
};
using Observer = std::function<void(const Observation&)>;

// What a position is worth to the token at `pos`, instead of what the indexer says.
using ScoreRule = std::function<float(int32_t pos, int32_t candidate)>;

class Forward {
 public:
  // max_tokens: of one step; max_context: of one sequence.
  Forward(Backend& backend, const ModelArgs& args, const Weights& weights, LatentCache& cache,
          int64_t max_tokens, int64_t max_context);

  // What logits take beside the activations: room for the tokens of a recorded step and one of any other.
  static uint64_t logit_bytes(const ModelArgs& args);

  int64_t max_tokens() const { return act_.max_tokens; }

  // Runs the step, stores its rows and keys, and leaves logits [n_tokens - first_logits, vocab_size] in
  // logits().
  void run(const Step& step);
  // Downloads the logits of the last run.
  std::vector<float> logits() const;
  // [vocab_size] of the last token of the last run, in the backend's memory; until the next run.
  const float* last_logits() const { return logits_ + (n_logits_ - 1) * args_.vocab_size; }

  // Rows looked up in top-k buffers so far, and those that had to be fetched.
  struct BufferTally {
    int64_t n_rows = 0, n_misses = 0;
  };
  BufferTally buffer_tally() const;

  // For measuring: decode steps of one token attend to these positions [n_layers, topk] (of this backend's
  // memory, ascending in each layer) instead of what the indexer selects, which is computed all the same.
  // Null: the indexer's.
  void set_forced_selection(const int32_t* selection) { forced_selection_ = selection; }

  // For measuring: top-k takes its positions by this rule; the indexer computes all the same. An empty one:
  // the indexer's scores. Slow.
  void set_score_rule(ScoreRule rule) { score_rule_ = std::move(rule); }

  // Called at the named stages of every layer, or at all of them when none is named; slow, since each is
  // downloaded. An empty one turns it off.
  void set_observer(Observer observer, std::vector<std::string> stages = {}) {
    observer_ = std::move(observer), observed_stages_ = std::move(stages);
  }

 private:
  int64_t recordable_max_pos(int64_t max_pos) const;
  const int32_t* forced_selection() const;
  void run_layers();
  void run_layer(int64_t layer);

  // attention.cpp
  void attention(int64_t layer);
  void project_latent(const LayerWeights& w, const CacheView& cache);
  void index_keys_and_queries(const LayerWeights& w, const CacheView& cache);
  void select_positions(const CacheView& cache);
  void replace_scores(int64_t first_token, int64_t n_tokens, int64_t n_visible);
  void attend_selected(const LayerWeights& w, const CacheView& cache);

  // feed_forward.cpp
  void feed_forward(int64_t layer);
  void mlp(const MlpWeights& w, float* out);
  void experts(const ExpertWeights& w);

  void matmul(const WeightMatrix& weight, const Buffer<float>& x, const Buffer<float>& y);
  bool is_observed(const char* stage) const;
  void observe(const char* stage, const float* values, int64_t width);
  void observe_ints(const char* stage, const int32_t* ints, int64_t width);

  Backend& backend_;
  const ModelArgs& args_;
  const Weights& weights_;
  LatentCache& cache_;
  Activations act_;
  Buffer<float> frequencies_;  // [qk_rope_head_dim / 2]
  Buffer<float>
      decode_logits_;          // [kMostRecorded, vocab_size]: recordings keep the address, so it never moves
  Buffer<float> many_logits_;  // [tokens of the largest other step, vocab_size]
  float* logits_ = nullptr;    // of the last run, in one of them
  int64_t n_logits_ = 0;
  StepTokens step_;  // of the running step, on the device
  int64_t layer_ = 0;
  const int32_t* forced_selection_ = nullptr;
  const int32_t* selected_ = nullptr;  // of the layer: act_.selected or a forced one
  Observer observer_;
  ScoreRule score_rule_;
  std::vector<int32_t> pos_;                  // of the running step, for the rule
  std::vector<std::string> observed_stages_;  // empty: all
  Recordings recordings_;                     // they lead to all of the above
};

// The YaRN frequencies [dim / 2], computed in f32 as model.py (precompute_freqs_cis) does.
std::vector<float> rope_frequencies(const ModelArgs& args);

}  // namespace dsv32
