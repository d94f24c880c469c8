// A step, how it is watched, and a stage: consecutive layers on one device with their activations, their
// cache, and recordings of their decode steps.
//
// The layers are written once, over Backend: prefill and decode are the same operations over more or fewer
// tokens. stage.cpp has the loop over the layers, attention.cpp one layer's attention, feed_forward.cpp its
// MLP or experts; names and order follow spec and paper. A member of a team (backend/team.h) has all layers'
// attention, and its share of the rows of MLPs, experts and head; it works on its share of the heads or of
// the tokens, and gather.cpp puts together what the members have computed. The first stage embeds, the last
// one computes the logits; Forward moves the hidden states between stages. draft.cpp has the block for
// drafts, which follows the last stage's layers. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "context/cached_sequence.h"
#include "context/stage_cache.h"
#include "model/activations.h"
#include "weights/weights.h"

namespace dsv32 {

// Tokens of one role. A prefill step has one sequence. A decode step names the sequence of each token: the
// sequence's next token, and perhaps guesses of those that follow, one behind the other (a verifying step). A
// token's result depends on its own sequence and the role alone.
//
// A guessing step is a decode step of the block for drafts alone, with one token of each sequence.
struct Step {
  Role role = Role::prefill;
  std::vector<CachedSequence*> sequences;
  std::vector<int32_t> tokens;  // follow the tokens that their sequences hold
  int64_t n_logits = 0;         // how many last tokens of a prefill step get logits; in decode all
  // Of a guessing step: how many guesses lie between the sequence's next token and the one that is guessed.
  std::optional<int64_t> nth_guess = {};
  // Set by Forward, of the time before the step: tokens of the prompt's sequence, and for each sequence
  // whether the hidden state of its last token is known.
  int64_t n_held = 0;
  std::vector<bool> has_hidden = {};

  int64_t n_tokens() const { return std::ssize(tokens); }
  // Whether token i is the first of its sequence in the step.
  bool begins_sequence(size_t i) const {
    return i == 0 || (role == Role::decode && sequences[i] != sequences[i - 1]);
  }
  std::span<const int32_t> tokens_of(size_t sequence) const {
    return role == Role::decode ? std::span(tokens).subspan(sequence, 1) : tokens;
  }
};

// Callbacks while steps are computed.
struct StepWatch {
  std::function<bool()> is_interrupted;  // see Backend::set_interrupt()
  std::function<void(double)> on_layer;  // the share of a step's layers that is enqueued (on the CPU: done)
};

// A named intermediate of a step, downloaded, for comparison with another implementation. An observer may
// replace the indexer's selection: upload positions to `device_ints` of "selected".
struct Observation {
  const char* name;  // "qr", "q", "latent_row", "index_q", ... (see the calls of observe())
  int64_t layer, n_tokens, width;
  std::vector<float> values;       // [n_tokens, width], or
  std::vector<int32_t> ints;       // [n_tokens, width]
  int32_t* device_ints = nullptr;  // `ints` in the backend's memory
};
using Observer = std::function<void(const Observation&)>;

// Where the time of steps goes: the backend marks the begin of a step and the end of each lap
// (Backend::laps), and these are the laps' names, in order. A lap is one or several operations:
// "index_scores", "attention", ... (see the calls of lap()).
using Laps = std::vector<const char*>;

struct StageSizes {
  int64_t max_tokens = 0;            // of one step
  int64_t max_context = 0;           // of one sequence
  uint64_t expert_window_bytes = 0;  // on a device with layers whose experts are in host memory
};

// [qk_rope_head_dim / 2] the angular frequencies of rotary embedding, stretched by YaRN; computed in f32 as
// model.py (precompute_freqs_cis) does.
std::vector<float> rope_frequencies(const ModelArgs& args);

class Stage {
 public:
  // The stage has the cache's layers. In a team each member has a Stage, with its own weights and cache.
  Stage(Backend& backend, const Member& member, const ModelArgs& args, const Weights& weights,
        StageCache& cache, const StageSizes& sizes);

  // The bytes of the last stage's logits, beside its activations: for each token of a decode step, and for
  // one token of a prefill step; and of a member's share of them.
  static uint64_t logit_bytes(const ModelArgs& args, int64_t max_step_tokens, int64_t n_members) {
    const int64_t n_values = args.vocab_size * (max_step_tokens + 1);
    return static_cast<uint64_t>(n_values + (n_members > 1 ? n_values / n_members : 0)) * sizeof(float);
  }

  Backend& backend() { return backend_; }

  // Copies the step's tokens and tables to the device, where advance() reads them.
  void begin(const Step& step);
  // Computes the next layer of a prefill step, or all layers of a decode step: updates the hidden states and
  // stores rows and keys. The first stage begins with the embedding; the last one ends with the logits.
  // False: the step is complete in this stage.
  bool advance();

  // On the last stage of a model with a block for drafts: after a decode step, of which these sequences keep
  // only their first n_tokens tokens.
  struct Cut {
    CachedSequence* sequence = nullptr;
    int64_t n_tokens = 0;
  };
  void cut(std::span<const Cut> cuts);

  // [n_tokens, dim] of the current step.
  float* hidden_states() { return act_.h.data(); }
  int64_t n_tokens() const { return step_.n_tokens; }
  // The last step's logits, [n_logits, vocab_size], in the backend's memory; valid until the next step.
  const float* logits() const { return logits_; }
  int64_t n_logits() const { return n_logits_; }

  // Rows looked up in top-k buffers so far, and rows that had to be fetched.
  struct BufferTally {
    int64_t n_rows = 0, n_misses = 0;
  };
  BufferTally buffer_tally() const;

  // For measuring: positions and experts that replace the choice of indexer and router in steps of at most
  // n_tokens tokens, ascending for each token, in this device's memory. Indexer and router run all the same.
  // Null: their choice is used.
  struct Forced {
    const int32_t* selection = nullptr;  // [the stage's layers, with a block; n_tokens, topk]
    const int32_t* experts = nullptr;    // [the stage's layers, with a block; n_tokens, n_activated]
    int64_t n_tokens = 0;
    bool operator==(const Forced&) const = default;
  };
  void set_forced(const Forced& forced) { forced_ = forced; }
  void set_laps(Laps* laps) { laps_ = laps; }
  void set_observer(Observer observer, std::vector<std::string> names) {
    observer_ = std::move(observer), observed_names_ = std::move(names);
  }

 private:
  // What the member does of a piece's attention: some of its tokens, from index `first` on, and some heads.
  struct Share {
    Division division = Division::none;
    int64_t first = 0, n_tokens = 0, n_heads = 0;
    bool is_by_tokens() const { return division == Division::tokens; }
  };
  // Tokens of the step that are worked on at a time: `tokens` from index `first` on.
  struct Piece {
    StepTokens tokens;
    int64_t first = 0;
    Share share;
  };
  // In a team: what adds the members' parts of the last product to h. That of a whole step is left to the
  // norm that follows.
  using LeftSum = std::optional<Gather>;

  bool is_first() const { return cache_.first_layer() == 0; }
  bool is_last() const { return cache_.end_layer() == args_.n_all_layers(); }
  bool has_block() const { return is_last() && args_.n_draft_layers > 0; }
  bool is_in_block() const { return layer_ == args_.n_layers; }
  int64_t recordable_max_pos(int64_t max_pos) const;
  Forced forced() const { return step_.n_tokens <= forced_.n_tokens ? forced_ : Forced{}; }  // of step_
  void upload(const Step& step);
  void place_logits();
  void replay();
  bool run_layer();
  bool leaves_rows_only(int64_t layer) const;
  void run_head(const Vector& norm, const WeightMatrix& head, const LeftSum& left);
  std::vector<Piece> pieces() const;
  Share share_of(int64_t n_tokens) const;
  void norm(const Piece& p, const Vector& weight, const char* name, LeftSum left);

  // gather.cpp
  Matmul product_of_owned(const Piece& p, const WeightMatrix& weight, float* y);
  Gather::Piece by_tokens(const Piece& p, float* values, int64_t width) const;
  void gather_owned(const Piece& p, const Gather::Piece& values, const Gather::Piece& others = {});
  bool is_alone() const { return member_.is_alone(); }
  WeightMatrix own_rows(const WeightMatrix& weight) const;
  WeightMatrix own_heads(const Piece& p, const WeightMatrix& stack) const;
  Gather columns(const float* part, float* whole, int64_t n_rows, int64_t width) const;
  Gather hidden_values(const ExpertWeights& w) const;
  Gather sum_of_parts(const Piece& p, const float* part);
  bool announces_gathers() const;
  void announce(const Gather& gather);
  LeftSum add_parts(const Piece& p, const float* part, const char* name);

  // attention.cpp
  void project(const Piece& p, const LayerWeights& w);
  void store(const Piece& p, const LayerWeights& w, const CacheView& cache);
  LeftSum attention(const Piece& p, const LayerWeights& w, const CacheView& cache);
  int64_t topk() const;
  bool is_scored() const;
  bool has_index_queries() const { return args_.has_indexer() && is_scored(); }
  MatmulHeads absorb(const Piece& p, const LayerWeights& w) const;
  LeftSum output(const Piece& p, const LayerWeights& w);
  bool absorbs_early(const Piece& p, const CacheView& cache) const;
  void queries(const Piece& p, const LayerWeights& w, const CacheView& cache);
  std::vector<StepTokens> slices(const Piece& p, const CacheView& cache) const;
  bool has_spans() const { return args_.selector() == Selector::quest && is_scored(); }
  int64_t scores_stride() const { return has_spans() ? act_.n_spans : step_.max_pos + 1; }
  void score_positions(const Piece& p, const StepTokens& some, const CacheView& cache);
  void select_positions(const Piece& p, const StepTokens& slice, const CacheView& cache);
  const int32_t* selected(const Piece& p) const;
  void find_rows(const Piece& p, const StepTokens& slice, const CacheView& cache);
  void attend_selected(const Piece& p, const LayerWeights& w, const CacheView& cache);

  // draft.cpp
  std::vector<int32_t> hidden_rows(const Step& step) const;
  int32_t kept_row(const CachedSequence& sequence) const;
  void enter_block(const LeftSum& left);
  void claim_slots(const StepTokens& some, const CacheView& cache);
  void claim_others(const Piece& p, const CacheView& cache);
  struct Kept {
    int64_t sequence;
    int32_t row;
  };
  void keep(std::span<const Kept> kept);
  void keep_last();

  // feed_forward.cpp
  LeftSum mlp(const Piece& p, const MlpWeights& w, const float* plus, float* y);
  bool runs_shared_beside() const;
  float* routed_sum(int64_t first);
  Matmul shared_output(const ExpertWeights& w);
  void route(const Piece& p, const ExpertWeights& w);
  void routed_experts(const ExpertWeights& w);
  LeftSum shared_expert(const Piece& p, const ExpertWeights& w);
  RunExperts experts_op(const ExpertStacks& stacks);
  void announce_host_experts();
  const ExpertStacks* host_experts_after(int64_t layer) const;

  // The piece's part of each: [n_tokens, dim].
  float* h(const Piece& p) { return act_.h.data() + p.first * args_.dim; }
  float* x(const Piece& p) { return act_.x.data() + p.first * args_.dim; }
  float* out(const Piece& p) { return act_.out() + p.first * args_.dim; }
  Matmul product(const Piece& p, const WeightMatrix& weight, const float* x, float* y) const;
  void observe(const Piece& p, const char* name, const float* values, int64_t width);
  void observe_ints(const Piece& p, const char* name, int32_t* ints, int64_t width);
  bool is_observed(const char* name) const;
  void lap(const char* name);

  Backend& backend_;
  const Member member_;
  const ModelArgs& args_;
  const Weights& weights_;
  StageCache& cache_;
  Activations act_;
  Buffer<float> frequencies_;    // [qk_rope_head_dim / 2]
  Buffer<float> decode_logits_;  // [max_seqs, vocab_size]; never moves, since recordings hold its address
  Buffer<float> prompt_logits_;  // [most logits of a prefill step so far, vocab_size]
  float* logits_ = nullptr;      // of the last step, in one of these two
  Buffer<float> logit_part_;     // in a team the member's share of them
  int64_t n_logits_ = 0;         // of the current step
  StepTokens step_;              // the current step's tokens, on the device
  bool is_guess_ = false;        // it is a guessing step
  LeftSum left_;                 // by the layer before
  Buffer<uint8_t> expert_window_;
  uint64_t n_link_bytes_ = 0;  // the part of expert_window_ that the link uses in decode
  int64_t layer_ = 0;
  struct Spot {
    const CachedSequence* sequence;
    int64_t pos;
    bool operator==(const Spot&) const = default;
  };
  std::vector<Spot> spots_;      // of the tokens of the last step, of a guessing step too
  bool kept_in_second_ = false;  // which rows of act_.hidden have the sequences' hidden states
  Forced forced_;
  Laps* laps_ = nullptr;
  Observer observer_;
  std::vector<std::string> observed_names_;  // empty: all

  // All parameters of a decode step's operations that differ between steps.
  struct RecordKey {
    int64_t n_tokens = 0, max_pos = 0;
    Forced forced;
    bool has_buffers = false, is_guess = false;
    bool operator==(const RecordKey&) const = default;
  };
  std::vector<std::pair<RecordKey, std::unique_ptr<Recording>>> recorded_;  // the most recently used first
};

// n_tokens of the step's tokens, from index `first` on.
inline StepTokens some_of(StepTokens step, int64_t first, int64_t n_tokens) {
  step.n_tokens = n_tokens;
  step.tokens += first, step.pos += first, step.seq += first;
  return step;
}

}  // namespace dsv32
