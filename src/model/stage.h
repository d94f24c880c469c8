// What the forward pass computes at a time and how it is watched, and a stage: consecutive layers on one
// device with their activations, their cache, and recordings of their steps.
//
// The layers are written once, over Backend: prefill and decode are the same operations over more or fewer
// tokens. stage.cpp has the loop over the layers, attention.cpp one layer's attention, feed_forward.cpp its
// MLP or experts; the names and their order are those of spec and paper. The first stage embeds, the last one
// makes the logits; between stages go the hidden states (Forward). Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "context/stage_cache.h"
#include "context/timeline.h"
#include "weights/weights.h"

namespace dsv32 {

// Of one role. A prompt's step has one timeline, a decode step one for each token; a token's result depends
// on its own timeline and the role alone.
struct Step {
  Role role = Role::prefill;
  std::vector<Timeline*> timelines;
  std::vector<int32_t> tokens;  // follow those that their timelines hold
  int64_t n_logits = 0;         // wanted of a prompt's last so many tokens; a decode step has all
  int64_t n_held = 0;           // the tokens before a prompt's; Forward fills it in

  int64_t n_tokens() const { return std::ssize(tokens); }
  std::span<const int32_t> tokens_of(size_t timeline) const {
    return role == Role::decode ? std::span(tokens).subspan(timeline, 1) : tokens;
  }
};

// Asked and told while steps are computed.
struct StepWatch {
  std::function<bool()> is_interrupted;  // as Backend::set_interrupt() has it
  std::function<void(double)> on_layer;  // what share of a step's layers is enqueued, on the CPU done
};

// A named intermediate of a step, downloaded, for comparison with another implementation. What an observer
// uploads to `device_ints` of the stage "selected" is attended to in place of what the indexer selected.
struct Observation {
  const char* stage;  // "qr", "q", "latent_row", "index_q", ... (see the calls of observe())
  int64_t layer, n_tokens, width;
  std::vector<float> values;       // [n_tokens, width], or
  std::vector<int32_t> ints;       // [n_tokens, width]
  int32_t* device_ints = nullptr;  // these, in the backend's memory
};
using Observer = std::function<void(const Observation&)>;

// Where the time of steps goes: their backend marks where a step begins and each of its laps ends
// (Backend::laps).
struct Laps {
  // A step is one lap, "step", and is recorded as ever; else one for each operation or several of them:
  // "index_scores", "attention", ... (see the calls of lap()). A draw from its logits is one more.
  bool is_whole = false;
  std::vector<const char*> names = {};  // of the laps, in their order
};

// The working memory of a step: every intermediate of one layer.
//
// Allocated once, overwritten by each layer. A layer goes through a long step in pieces; only what leads from
// piece to piece has room for all of its tokens (N), the rest for those of a piece (n).
class Activations {
  Backend* const backend_;
  const ModelArgs& args_;

 public:
  // Without a backend nothing is allocated, and n_bytes says what would be.
  Activations(Backend* backend, const ModelArgs& args, int64_t n_tokens, int64_t context)
      : backend_(backend), args_(args), max_tokens(n_tokens), max_context(context) {}

  static constexpr int64_t kMostPieceTokens = 2048;         // more at a time make attention no faster
  static constexpr int64_t kMostScores = int64_t{1} << 24;  // 64 MiB, or one token's

  uint64_t n_bytes = 0;
  const int64_t max_tokens, max_context;
  const int64_t piece_tokens = std::min(max_tokens, kMostPieceTokens);
  // The most rows that one token attends to.
  const int64_t topk = args_.has_indexer() ? std::min(args_.index_topk, max_context) : max_context;

 private:
  const int64_t N = max_tokens, n = piece_tokens, dim_ = args_.dim, heads_ = args_.n_heads,
                latents_ = heads_ * args_.kv_lora_rank, index_heads_ = args_.index_n_heads,
                index_dim_ = args_.index_head_dim, indices_ = index_heads_ * index_dim_,
                n_experts_ = args_.n_activated_experts, n_pairs_ = n * max_context;
  const int64_t widest_mlp_ =
      std::max(args_.inter_dim, std::max<int64_t>(args_.n_shared_experts, 1) * args_.moe_inter_dim);
  const int64_t n_scores_ = args_.has_indexer() ? std::max(max_context, std::min(kMostScores, n_pairs_)) : 0;
  template <typename T>
  Buffer<T> make(int64_t n_values) {
    n_bytes += static_cast<uint64_t>(n_values) * sizeof(T);
    return backend_ ? Buffer<T>(*backend_, Place::device, n_values, "activations") : Buffer<T>();
  }
  Buffer<float> floats(int64_t n_values) { return make<float>(n_values); }
  Buffer<int32_t> ints(int64_t n_values) { return make<int32_t>(n_values); }

 public:
  Buffer<int32_t> step_ints = ints(3 * N);  // tokens, positions, sequences
  Buffer<float> h = floats(N * dim_);       // the residual stream
  Buffer<float> x = floats(N * dim_);       // after a norm
  Buffer<float> out = floats(N * dim_);     // of attention, of the MLP
  Buffer<float> qr = floats(n * args_.q_lora_rank);
  Buffer<float> q = floats(n * heads_ * args_.qk_head_dim());  // qk_nope | qk_rope of each head
  // q_c has H index_q first, for f32 keys.
  Buffer<float> q_c = floats(n * std::max(latents_, indices_));
  Buffer<float> o_c = floats(n * latents_);
  Buffer<float> o = floats(n * heads_ * args_.v_head_dim);
  Buffer<float> kv = floats(n * (args_.kv_lora_rank + args_.qk_rope_head_dim));
  Buffer<float> c = floats(n * args_.kv_lora_rank);
  Buffer<float> index_q = floats(n * indices_);
  Buffer<uint8_t> index_q_fp8 = make<uint8_t>(n * indices_);  // the same as e4m3
  Buffer<float> index_q_scales = floats(n * index_heads_ * CacheLayout::tiles(index_dim_));
  Buffer<float> index_k = floats(n * index_dim_), index_weights = floats(n * index_heads_);
  Buffer<float> scores = floats(n_scores_);  // [some tokens, context]: as many tokens at a time as fit
  Buffer<int32_t> selected = ints(n * topk), n_selected = ints(n);
  Buffer<int64_t> row_ids = make<int64_t>(n * topk);
  Buffer<int32_t> misses = ints(n * topk), n_misses = ints(n);
  Buffer<int64_t> tally = make<int64_t>(2);  // rows looked up in buffers, rows missing
  Buffer<float> gate = floats(n * widest_mlp_), up = floats(n * widest_mlp_);
  Buffer<float> route_logits = floats(n * args_.n_routed_experts);
  Buffer<int32_t> experts = ints(N * n_experts_);
  Buffer<float> expert_weights = floats(N * n_experts_);
};

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
  // leaves logits of the wanted tokens. False: that was all of it.
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
  void place_logits();
  void replay();
  bool run_layer();
  bool leaves_rows_only(int64_t layer) const;
  void run_head();
  bool take_piece();
  void norm(const Vector& weight, const char* name);

  // attention.cpp
  void project(const LayerWeights& w);
  void store(const LayerWeights& w, const CacheView& cache);
  void attention(const LayerWeights& w, const CacheView& cache);
  bool is_scored() const;
  MatmulHeads absorb(const LayerWeights& w) const;
  bool absorbs_early(const CacheView& cache) const;
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
  int64_t n_logits_ = 0;         // that the step wants
  StepTokens step_;              // of the running step, on the device
  StepTokens piece_;             // of these, those that are worked on
  int64_t first_ = 0;            // which is the piece's first
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
    Forced forced;
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
