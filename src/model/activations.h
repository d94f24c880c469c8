// The working memory of a step: every intermediate of one layer.
//
// Allocated once, overwritten by each layer. A layer works on a long step in pieces; only what must outlive a
// piece has room for all tokens of a step (N), the rest for the tokens of a piece (n).
#pragma once

#include <algorithm>
#include <cstdint>

#include "backend/backend.h"
#include "weights/config.h"

namespace dsv32 {

class Activations {
  Backend* const backend_;
  const ModelArgs& args_;
  const int64_t n_members_;

 public:
  // Without a backend nothing is allocated, but n_bytes is the same. n_members: of the team.
  Activations(Backend* backend, const ModelArgs& args, int64_t n_tokens, int64_t context, int64_t max_seqs,
              int64_t n_members)
      : backend_(backend),
        args_(args),
        n_members_(n_members),
        max_tokens(n_tokens),
        max_context(context),
        max_sequences(max_seqs) {}

  static constexpr int64_t kMostPieceTokens = 2048;         // larger pieces make attention no faster
  static constexpr int64_t kMostScores = int64_t{1} << 24;  // 64 MiB, or more for one token

  uint64_t n_bytes = 0;
  const int64_t max_tokens, max_context, max_sequences;
  const int64_t piece_tokens = std::min(max_tokens, kMostPieceTokens);
  // The most rows that one token attends to: with Quest a prompt's, which attends to all.
  const int64_t topk = args_.has_indexer() ? std::min(args_.index_topk, max_context) : max_context;
  const int64_t n_spans =  // rounded up to whole vectors of scores
      args_.selector() == Selector::quest ? (max_context / kSpanTokens + 4) / 4 * 4 : 0;
  // Rows of `hidden` before a step's.
  const int64_t n_kept = args_.n_draft_layers > 0 ? 1 + 2 * max_sequences : 0;

 private:
  const int64_t N = max_tokens, n = piece_tokens, dim_ = args_.dim, heads_ = args_.n_heads,
                latents_ = heads_ * args_.kv_lora_rank, index_heads_ = args_.index_n_heads,
                index_dim_ = args_.index_head_dim, indices_ = index_heads_ * index_dim_,
                n_experts_ = args_.n_activated_experts, n_pairs_ = n * max_context,
                joined_ = args_.n_draft_layers * 2 * dim_;
  const int64_t widest_mlp_ =
      std::max(args_.inter_dim, std::max<int64_t>(args_.n_shared_experts, 1) * args_.moe_inter_dim);
  // Of one token, and of as many as suit.
  const int64_t n_least_scores_ = args_.has_indexer() ? max_context : n_spans * (1 + heads_);
  const int64_t n_suitable_scores_ = args_.has_indexer() ? n_pairs_ : n_least_scores_ * max_sequences;
  const int64_t n_scores_ = std::max(n_least_scores_, std::min(kMostScores, n_suitable_scores_));
  template <typename T>
  Buffer<T> make(int64_t n_values) {
    n_bytes += static_cast<uint64_t>(n_values) * sizeof(T);
    return backend_ ? Buffer<T>(*backend_, Place::device, n_values, "activations") : Buffer<T>();
  }
  Buffer<float> floats(int64_t n_values) { return make<float>(n_values); }
  Buffer<int32_t> ints(int64_t n_values) { return make<int32_t>(n_values); }

 public:
  Buffer<int32_t> step_ints = ints(4 * N);  // tokens, positions, sequences, rows of `hidden`
  Buffer<float> h = floats(N * dim_);       // the residual stream
  Buffer<float> x = floats(N * dim_);       // after a norm
  // A row of zeros, twice a row for each sequence, whose last token's hidden state it may have (the block for
  // drafts begins with it), and `out`: of attention, of the MLP; in the end the normed hidden states.
  Buffer<float> hidden = floats((n_kept + N) * dim_);
  Buffer<int32_t> kept = ints(n_kept > 0 ? max_sequences : 0);  // for each sequence a row of `hidden`
  float* out() const { return hidden.data() + n_kept * dim_; }
  Buffer<float> qr = floats(n * args_.q_lora_rank);
  Buffer<float> q = floats(n * heads_ * args_.qk_head_dim());  // qk_nope | qk_rope of each head

 private:
  // One memory for values of which each is read for the last time before the next one is written.
  Buffer<float> in_turn_ = floats(n * std::max({latents_, indices_, joined_}));

 public:
  float* joined() const { return in_turn_.data(); }          // the block's [RMSNorm_e(embed); RMSNorm_h(h)]
  float* turned_index_q() const { return in_turn_.data(); }  // H index_q, for f32 keys
  float* q_c() const { return in_turn_.data(); }
  // Behind attention: for experts on their way.
  uint8_t* expert_window() const { return reinterpret_cast<uint8_t*>(in_turn_.data()); }
  size_t n_expert_window_bytes() const { return in_turn_.n_bytes(); }
  Buffer<float> o_c = floats(n * latents_);
  Buffer<float> o = floats(n * heads_ * args_.v_head_dim);
  Buffer<float> kv = floats(n * (args_.kv_lora_rank + args_.qk_rope_head_dim));
  Buffer<float> c = floats(n * args_.kv_lora_rank);
  Buffer<float> index_q = floats(n * indices_);
  Buffer<uint8_t> index_q_fp8 = make<uint8_t>(n * indices_);  // the same as e4m3
  Buffer<float> index_q_scales = floats(n * index_heads_ * CacheLayout::tiles(index_dim_));
  Buffer<float> index_k = floats(n * index_dim_), index_weights = floats(n * index_heads_);
  // As many tokens as fit: [tokens, context], or [tokens, spans] and each head's bounds.
  Buffer<float> scores = floats(n_scores_);
  Buffer<int32_t> selected = ints(n * topk), n_selected = ints(n);
  Buffer<int64_t> row_ids = make<int64_t>(n * topk);
  Buffer<int32_t> misses = ints(n * topk), n_misses = ints(n);
  Buffer<int32_t> none = ints(n_kept > 0 || n_members_ > 1 ? n : 0);  // zeros
  Buffer<int64_t> tally = make<int64_t>(2);  // rows looked up in buffers, rows missing there
  Buffer<float> gate = floats(n * widest_mlp_), up = floats(n * widest_mlp_);
  Buffer<float> route_logits = floats(n * args_.n_routed_experts);
  Buffer<int32_t> experts = ints(N * n_experts_);
  Buffer<float> expert_weights = floats(N * n_experts_);

  // In a team. A member's share of the outputs: of the routed experts, of the product in hand.
 private:
  int64_t of_team(int64_t n_values) const { return n_members_ > 1 ? n_values : 0; }

 public:
  Buffer<float> expert_part = floats(of_team(N * dim_ / n_members_));
  Buffer<float> part = floats(of_team(N * dim_ / n_members_));
  // What the members gather, beside `out`, h, x, kv and index_k.
  Buffer<float> all_o = floats(of_team(n * heads_ * args_.v_head_dim));
  Buffer<float> all_gate = floats(of_team(n * widest_mlp_));
  Buffer<uint8_t> all_hidden = make<uint8_t>(
      of_team(4 * N * args_.moe_inter_dim * (n_experts_ + std::max<int64_t>(args_.n_shared_experts, 0))));
};

}  // namespace dsv32
