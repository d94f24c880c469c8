// One layer's attention (MLA with the lightning indexer), in the paper's order:
//   1 project, rope, store   2 indexer scores   3 exact top-k   4 resolve and fetch   5 sparse MLA, absorbed
// Without an indexer every row is selected, or in decode Quest's scores take step 2's place.
//
// Products of the same vector are one operation. Missing rows are fetched as soon as they are known, those of
// many tokens slice by slice: meanwhile the queries are multiplied by W_UK, the next slice's positions are
// selected and the previous slice attends.
#include <algorithm>
#include <cmath>
#include <utility>

#include "model/stage.h"

namespace dsv32 {
namespace {

constexpr float kIndexNormEps = 1e-6f;  // model.py, Indexer.k_norm; no file states it

}  // namespace

// Steps 2 to 5, from the results of project() and store(); h += out() [n, dim]
Stage::LeftSum Stage::attention(const Piece& whole, const LayerWeights& w, const CacheView& cache) {
  claim_others(whole, cache);
  const Share& share = whole.share;
  const Piece p{some_of(whole.tokens, share.first, share.n_tokens), whole.first + share.first, share};
  queries(p, w, cache);
  lap("other");
  for (const StepTokens& slice : slices(p, cache)) {
    select_positions(p, slice, cache);
    find_rows(p, slice, cache);
  }
  observe_ints(p, "n_selected", act_.n_selected.data(), 1);
  observe_ints(p, "selected", act_.selected.data(), topk());  // the first n_selected of each token are valid
  attend_selected(p, w, cache);
  return output(p, w);
}

// The piece in consecutive parts; only one without buffers, when nothing is fetched.
std::vector<StepTokens> Stage::slices(const Piece& p, const CacheView& cache) const {
  const int64_t n = p.tokens.n_tokens, n_slices = cache.buffers ? fetch_parts(n) : 1;
  std::vector<StepTokens> slices;
  for (int64_t i = 0; i < n_slices; ++i)
    slices.push_back(some_of(p.tokens, i * n / n_slices, (i + 1) * n / n_slices - i * n / n_slices));
  return slices;
}

// in: x() [n, dim] after attn_norm.  qr = wq_a x;  kv = wkv_a x;  k_I = wk x;  w_I = weights_proj x, if
// has_index_queries(). kv and k_I of all tokens, the others of the share's
void Stage::project(const Piece& p, const LayerWeights& w) {
  std::vector<Matmul> products = {product_of_owned(p, w.wq_a, act_.qr.data()),
                                  product_of_owned(p, w.wkv_a, act_.kv.data())};
  if (args_.has_indexer()) products.push_back(product_of_owned(p, w.indexer.wk, act_.index_k.data()));
  if (has_index_queries())
    products.push_back(product_of_owned(p, w.indexer.weights_proj, act_.index_weights.data()));
  backend_.matmuls(products);
  gather_owned(
      p, by_tokens(p, act_.kv.data(), w.wkv_a.n_rows),
      args_.has_indexer() ? by_tokens(p, act_.index_k.data(), args_.index_head_dim) : Gather::Piece{});
  if (has_index_queries()) observe(p, "index_weights", act_.index_weights.data(), args_.index_n_heads);
}

// qr = RMSNorm(qr);  c = RMSNorm(kv[:rank]);  k_pe = rope(kv[rank:]);  k_I = rope(LayerNorm(k_I));  store (c,
// k_pe) in the host's pool and its slot, H k_I in its key page;  where the layer attends: q = wq_b qr;  q_I =
// the indexer's wq_b qr, if is_scored(). H: Hadamard
void Stage::store(const Piece& p, const LayerWeights& w, const CacheView& cache) {
  const int64_t rank = args_.kv_lora_rank;
  StoreTokens op{p.tokens, is_alone() ? cache : cache_.storing(cache), frequencies_.data(), args_.norm_eps};
  op.qr = act_.qr.data(), op.q_norm = w.q_norm.data(), op.q_lora_rank = args_.q_lora_rank;
  op.kv = act_.kv.data(), op.kv_norm = w.kv_norm.data(), op.c = act_.c.data();
  if (args_.has_indexer()) {
    op.k = act_.index_k.data();
    op.k_norm = w.indexer.k_norm.data(), op.k_norm_bias = w.indexer.k_norm_bias.data();
    op.k_norm_eps = kIndexNormEps;
  }
  const bool attends = !leaves_rows_only(layer_), by_heads = p.share.division == Division::heads;
  const float* qr = act_.qr.data() + p.share.first * args_.q_lora_rank;
  if (attends) op.to_q = product(p, by_heads ? own_rows(w.wq_b) : w.wq_b, qr, act_.q.data());
  if (attends && has_index_queries()) op.to_index_q = product(p, w.indexer.wq_b, qr, act_.index_q.data());
  op.to_q.n_tokens = op.to_index_q.n_tokens = p.share.n_tokens;
  backend_.store_tokens(op);
  observe(p, "qr", act_.qr.data(), args_.q_lora_rank);
  observe(p, "c", act_.c.data(), rank);
  observe(p, "kv", act_.kv.data(), rank + args_.qk_rope_head_dim);
  if (op.k) observe(p, "index_k", op.k, args_.index_head_dim);
}

// q = rope(q);  q_I = H rope(q_I), if is_scored();  q_c, if absorbs_early()
void Stage::queries(const Piece& p, const LayerWeights& w, const CacheView& cache) {
  TurnQueries op{p.tokens, frequencies_.data(), args_.qk_rope_head_dim};
  op.q = act_.q.data(), op.n_heads = p.share.n_heads, op.head_dim = args_.qk_head_dim();
  if (has_index_queries()) {
    op.index_q = act_.index_q.data();
    op.n_index_heads = args_.index_n_heads, op.index_dim = args_.index_head_dim;
    if (cache.layout.kv_type == KvType::f32)
      op.turned = act_.turned_index_q();
    else
      op.turned_fp8 = act_.index_q_fp8.data(), op.turned_scales = act_.index_q_scales.data();
  }
  if (absorbs_early(p, cache)) op.absorb = absorb(p, w);
  backend_.turn_queries(op);
  observe(p, "q", op.q, op.n_heads * op.head_dim);
  if (op.index_q) observe(p, "index_q", op.index_q, op.n_index_heads * op.index_dim);
}

// The most rows that a token of this step attends to.
int64_t Stage::topk() const {
  const bool is_quest = args_.selector() == Selector::quest && step_.role == Role::decode;
  return is_quest ? std::min(args_.topk(), act_.max_context) : act_.topk;
}

// Whether positions are scored; else every visible position is selected.
bool Stage::is_scored() const {
  const bool is_dense = args_.selector() == Selector::quest && step_.role == Role::prefill;
  return args_.topk() > 0 && !is_dense && step_.max_pos >= args_.topk();
}

// With the indexer: I(t, s) = sum_h w_h ReLU(q_I . k_I).  With Quest: sum_h softmax_p(bound of q and span p).
void Stage::score_positions(const Piece& p, const StepTokens& some, const CacheView& cache) {
  const int64_t t = some.tokens - p.tokens.tokens;
  if (has_spans()) {
    const int64_t heads = args_.n_heads, head_dim = args_.qk_head_dim();
    backend_.quest_scores({some, cache, heads, act_.q_c() + t * heads * args_.kv_lora_rank,
                           act_.q.data() + t * heads * head_dim + args_.qk_nope_head_dim, heads * head_dim,
                           head_dim, args_.softmax_scale(), act_.scores.data() + some.n_tokens * act_.n_spans,
                           act_.scores.data(), scores_stride()});
  } else {
    const int64_t heads = args_.index_n_heads, dim = args_.index_head_dim;
    const int64_t q = t * heads * dim, q_scale = t * heads * CacheLayout::tiles(dim);
    const bool is_fp8 = cache.layout.kv_type != KvType::f32;
    backend_.indexer_scores({some, cache, heads, is_fp8 ? nullptr : act_.turned_index_q() + q,
                             is_fp8 ? act_.index_q_fp8.data() + q : nullptr,
                             act_.index_q_scales.data() + q_scale,
                             act_.index_weights.data() + (p.share.first + t) * heads,
                             1.0f / std::sqrt(static_cast<float>(heads) * static_cast<float>(dim)),
                             act_.scores.data(), scores_stride()});
  }
  lap("index_scores");
}

// Selects the topk best positions, by the scores of as many tokens at a time as act_.scores has room for.
void Stage::select_positions(const Piece& p, const StepTokens& slice, const CacheView& cache) {
  const bool is_scored = this->is_scored();
  const int64_t n_of_token = scores_stride() * (has_spans() ? 1 + args_.n_heads : 1);
  const int64_t n_together = is_scored ? std::max<int64_t>(1, act_.scores.n() / n_of_token) : slice.n_tokens;
  for (int64_t at = 0; at < slice.n_tokens; at += n_together) {
    const StepTokens some = some_of(slice, at, std::min(n_together, slice.n_tokens - at));
    const int64_t t = some.tokens - p.tokens.tokens;
    if (is_scored) score_positions(p, some, cache);
    backend_.select_topk({some, is_scored ? act_.scores.data() : nullptr, scores_stride(), topk(),
                          act_.selected.data() + t * topk(), act_.n_selected.data() + t,
                          is_in_block() ? 1 : 0, has_spans() ? kSpanTokens : 1});
    lap("topk");
  }
}

// The positions that the piece's tokens attend to: those that were selected, or the forced ones.
const int32_t* Stage::selected(const Piece& p) const {
  const int32_t* forced = this->forced().selection;
  if (!forced) return act_.selected.data();
  return forced + ((layer_ - cache_.first_layer()) * forced_.n_tokens + p.first) * topk();
}

// Finds the selected rows' slots in buffers, and starts the fetch of missing rows.
void Stage::find_rows(const Piece& p, const StepTokens& slice, const CacheView& cache) {
  const int64_t t = slice.tokens - p.tokens.tokens, at = t * topk();
  if (cache.buffers)
    backend_.resolve({slice, cache, selected(p) + at, act_.n_selected.data() + t, topk(),
                      act_.row_ids.data() + at, act_.misses.data() + at, act_.n_misses.data() + t,
                      act_.tally.data()});
  lap("resolve");
  if (cache.buffers)
    backend_.fetch_latents({slice, cache, selected(p) + at, act_.row_ids.data() + at, act_.misses.data() + at,
                            act_.n_misses.data() + t, topk()});
  lap("fetch");
}

// q_c = W_UK^T q_nope
MatmulHeads Stage::absorb(const Piece& p, const LayerWeights& w) const {
  const int64_t head_dim = args_.qk_head_dim();
  return {own_heads(p, w.w_uk), act_.q.data(), p.share.n_heads * head_dim, head_dim, act_.q_c(),
          p.tokens.n_tokens,    step_.role};
}

// Whether q_c is computed together with the queries' rotation. Only in decode; not if it can hide the fetch
// of many tokens' rows, nor with f32 keys, when q_c holds index queries until positions are scored. Quest
// scores with q_c.
bool Stage::absorbs_early(const Piece& p, const CacheView& cache) const {
  if (args_.selector() == Selector::quest) return step_.role == Role::decode;
  const bool is_fetched_beside = cache.buffers && p.tokens.n_tokens > kFewFetchTokens;
  return step_.role == Role::decode && !is_fetched_beside && cache.layout.kv_type != KvType::f32;
}

// q_c, if not computed yet;  o_c = attention over the selected rows
void Stage::attend_selected(const Piece& p, const LayerWeights& w, const CacheView& cache) {
  const int64_t heads = p.share.n_heads, head_dim = args_.qk_head_dim(), rank = args_.kv_lora_rank;
  const float* q_pe = act_.q.data() + args_.qk_nope_head_dim;
  if (!absorbs_early(p, cache)) backend_.matmul_heads(absorb(p, w));
  lap("other");
  if (step_.role == Role::decode) observe(p, "q_c", act_.q_c(), heads * rank);
  for (const StepTokens& slice : slices(p, cache)) {
    const int64_t t = slice.tokens - p.tokens.tokens, at = t * topk();
    backend_.attend({slice, cache, heads, act_.q_c() + t * heads * rank, q_pe + t * heads * head_dim,
                     heads * head_dim, head_dim, args_.softmax_scale(), selected(p) + at,
                     act_.n_selected.data() + t, cache.buffers ? act_.row_ids.data() + at : nullptr, topk(),
                     act_.o_c.data() + t * heads * rank, absorbs_early(p, cache)});
    lap("attention");
  }
}

// o = concat_h(W_UV o_c);  h += out = wo o
Stage::LeftSum Stage::output(const Piece& p, const LayerWeights& w) {
  const int64_t n = p.tokens.n_tokens, heads = p.share.n_heads, rank = args_.kv_lora_rank;
  const Gather all_o = columns(act_.o.data(), act_.all_o.data(), n, w.wo.n_cols);
  announce(all_o), announce(sum_of_parts(p, act_.part.data()));
  backend_.matmul_heads(
      {own_heads(p, w.w_uv), act_.o_c.data(), heads * rank, rank, act_.o.data(), n, step_.role});
  if (p.share.division == Division::heads) {
    backend_.gather(all_o);
    backend_.matmul(product(p, own_rows(w.wo), act_.all_o.data(), act_.part.data()));
    return add_parts(p, act_.part.data(), "attention_out");
  }
  Matmul output = product(p, w.wo, act_.o.data(), out(p));
  output.sum = h(p);
  backend_.matmul(output);
  observe(p, "attention_out", out(p), args_.dim);
  return {};
}

}  // namespace dsv32
