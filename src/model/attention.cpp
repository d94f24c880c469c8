// One layer's attention (MLA with the lightning indexer), in the paper's order:
//   1 project, rope, store   2 indexer scores   3 exact top-k   4 resolve and fetch   5 sparse MLA, absorbed
//
// The indexer comes before the query projection, so that a backend can fetch missing rows while the
// projection runs.
#include <algorithm>
#include <cmath>

#include "model/stage.h"

namespace dsv32 {
namespace {

constexpr float kIndexNormEps = 1e-6f;  // model.py, Indexer.k_norm; no file states it

}  // namespace

// in: x() [n, dim] after attn_norm; out: out() [n, dim]
void Stage::attention(const LayerWeights& w, const CacheView& cache) {
  project_latent(w, cache);
  if (args_.has_indexer()) index_keys_and_queries(w, cache);
  lap("other");
  select_positions(cache);
  backend_.resolve({piece_, cache, selected_, act_.n_selected.data(), act_.topk, act_.row_ids.data(),
                    act_.misses.data(), act_.n_misses.data(), act_.tally.data()});
  lap("resolve");
  if (cache.buffers)
    backend_.fetch_latents(
        {piece_, cache, selected_, act_.row_ids.data(), act_.misses.data(), act_.n_misses.data(), act_.topk});
  lap("fetch");
  attend_selected(w, cache);
}

// qr = RMSNorm(wq_a x);  kv = wkv_a x;  c = RMSNorm(kv[:rank]);  k_pe = rope(kv[rank:]);  store (c, k_pe)
void Stage::project_latent(const LayerWeights& w, const CacheView& cache) {
  const int64_t n = piece_.n_tokens, rank = args_.kv_lora_rank, rope_dim = args_.qk_rope_head_dim;
  matmul(w.wq_a, x(), act_.qr.data());
  backend_.rms_norm({act_.qr.data(), args_.q_lora_rank, w.q_norm.data(), args_.norm_eps, act_.qr.data(), n,
                     args_.q_lora_rank});
  observe("qr", act_.qr.data(), args_.q_lora_rank);
  matmul(w.wkv_a, x(), act_.kv.data());
  backend_.rms_norm(
      {act_.kv.data(), rank + rope_dim, w.kv_norm.data(), args_.norm_eps, act_.c.data(), n, rank});
  float* k_pe = act_.kv.data() + rank;
  backend_.rope(
      {piece_, RopeLayout::interleaved, k_pe, 1, 0, rank + rope_dim, frequencies_.data(), rope_dim});
  observe("c", act_.c.data(), rank);
  observe("kv", act_.kv.data(), rank + rope_dim);
  backend_.store_latents({piece_, cache, act_.c.data(), k_pe, rank + rope_dim});
}

// q_I = H rope(wq_b qr);  k_I = H rope(LayerNorm(wk x));  w_I = weights_proj x;  store k_I.  H: Hadamard
void Stage::index_keys_and_queries(const LayerWeights& w, const CacheView& cache) {
  const IndexerWeights& indexer = w.indexer;
  const int64_t n = piece_.n_tokens, heads = args_.index_n_heads, dim = args_.index_head_dim;
  const int64_t rope_dim = args_.qk_rope_head_dim;
  matmul(indexer.wk, x(), act_.index_k.data());
  backend_.layer_norm({act_.index_k.data(), indexer.k_norm.data(), indexer.k_norm_bias.data(), kIndexNormEps,
                       act_.index_k.data(), n, dim});
  backend_.rope(
      {piece_, RopeLayout::half_split, act_.index_k.data(), 1, dim, dim, frequencies_.data(), rope_dim});
  observe("index_k", act_.index_k.data(), dim);
  backend_.hadamard({act_.index_k.data(), n, dim});
  backend_.store_index_keys({piece_, cache, act_.index_k.data()});

  if (piece_.max_pos < args_.index_topk) return;  // every visible position will be selected
  matmul(indexer.wq_b, act_.qr.data(), act_.index_q.data());
  backend_.rope({piece_, RopeLayout::half_split, act_.index_q.data(), heads, dim, heads * dim,
                 frequencies_.data(), rope_dim});
  observe("index_q", act_.index_q.data(), heads * dim);
  backend_.hadamard({act_.index_q.data(), n * heads, dim});
  if (cache.layout.kv_type != KvType::f32)
    backend_.quantize_fp8(
        {act_.index_q.data(), act_.index_q_fp8.data(), act_.index_q_scales.data(), n * heads, dim});
  matmul(indexer.weights_proj, x(), act_.index_weights.data());
  observe("index_weights", act_.index_weights.data(), heads);
}

// I(t, s) = sum_h w_h ReLU(q_I . k_I);  the topk best positions. Scores are kept for as many tokens as their
// room holds.
void Stage::select_positions(const CacheView& cache) {
  const int64_t heads = args_.index_n_heads, dim = args_.index_head_dim, n_visible = piece_.max_pos + 1;
  const bool is_scored = args_.has_indexer() && n_visible > args_.index_topk;
  const bool is_fp8 = cache.layout.kv_type != KvType::f32;
  const int64_t n_together = is_scored ? std::max<int64_t>(1, act_.scores.n() / n_visible) : piece_.n_tokens;
  for (int64_t t = 0; t < piece_.n_tokens; t += n_together) {
    StepTokens part = piece_;
    part.n_tokens = std::min(n_together, piece_.n_tokens - t);
    part.tokens += t, part.pos += t, part.seq += t;
    if (is_scored) {
      const int64_t q = t * heads * dim, q_scale = t * heads * CacheLayout::tiles(dim);
      backend_.indexer_scores({part, cache, heads, is_fp8 ? nullptr : act_.index_q.data() + q,
                               is_fp8 ? act_.index_q_fp8.data() + q : nullptr,
                               act_.index_q_scales.data() + q_scale, act_.index_weights.data() + t * heads,
                               1.0f / std::sqrt(static_cast<float>(heads) * static_cast<float>(dim)),
                               act_.scores.data(), n_visible});
      lap("index_scores");
    }
    backend_.select_topk({part, is_scored ? act_.scores.data() : nullptr, n_visible, act_.topk,
                          act_.selected.data() + t * act_.topk, act_.n_selected.data() + t});
    lap("topk");
  }
  const int32_t* forced = this->forced().selection;
  const int64_t layer = layer_ - cache_.first_layer();
  selected_ = forced ? forced + (layer * step_.n_tokens + first_) * act_.topk : act_.selected.data();
  observe_ints("n_selected", act_.n_selected.data(), 1);
  observe_ints("selected", act_.selected.data(), act_.topk);  // of each token the first n_selected count
}

// q = wq_b qr;  q_c = W_UK^T q_nope;  o_c = attention over the selected rows;  out = wo concat_h(W_UV o_c)
void Stage::attend_selected(const LayerWeights& w, const CacheView& cache) {
  const int64_t n = piece_.n_tokens, heads = args_.n_heads, head_dim = args_.qk_head_dim(),
                rank = args_.kv_lora_rank;
  matmul(w.wq_b, act_.qr.data(), act_.q.data());
  float* q_pe = act_.q.data() + args_.qk_nope_head_dim;
  backend_.rope({piece_, RopeLayout::interleaved, q_pe, heads, head_dim, heads * head_dim,
                 frequencies_.data(), args_.qk_rope_head_dim});
  observe("q", act_.q.data(), heads * head_dim);
  backend_.matmul_heads({w.w_uk, act_.q.data(), heads * head_dim, head_dim, act_.q_c.data(), n, piece_.role});
  lap("other");
  backend_.attend({piece_, cache, heads, act_.q_c.data(), q_pe, heads * head_dim, head_dim,
                   args_.softmax_scale(), selected_, act_.n_selected.data(), act_.row_ids.data(), act_.topk,
                   act_.o_c.data()});
  lap("attention");
  backend_.matmul_heads({w.w_uv, act_.o_c.data(), heads * rank, rank, act_.o.data(), n, piece_.role});
  matmul(w.wo, act_.o.data(), out());
}

}  // namespace dsv32
