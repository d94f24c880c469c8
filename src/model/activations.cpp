#include "model/activations.h"

#include <algorithm>

namespace dsv32 {

Activations::Activations(Backend* backend, const ModelArgs& args, int64_t n_tokens, int64_t context)
    : max_tokens(n_tokens), max_context(context) {
  constexpr int64_t kMostPieceTokens = 2048;         // more at a time make attention no faster
  constexpr int64_t kMostScores = int64_t{1} << 24;  // 64 MiB, or one token's
  const int64_t n = piece_tokens = std::min(n_tokens, kMostPieceTokens);
  topk = args.has_indexer() ? std::min(args.index_topk, context) : context;
  const int64_t heads = args.n_heads, rank = args.kv_lora_rank, rope = args.qk_rope_head_dim;
  const int64_t index_heads = args.index_n_heads, index_dim = args.index_head_dim;
  const int64_t n_scores = args.has_indexer() ? std::max(context, std::min(n * context, kMostScores)) : 0;
  const int64_t widest_mlp =
      std::max(args.inter_dim, args.moe_inter_dim * std::max<int64_t>(args.n_shared_experts, 1));
  const auto make = [&]<typename T>(Buffer<T>& buffer, int64_t n_values) {
    n_bytes += static_cast<uint64_t>(n_values) * sizeof(T);
    if (backend) buffer = Buffer<T>(*backend, Place::device, n_values, "activations");
  };
  make(step_ints, 3 * n_tokens);
  make(h, n_tokens * args.dim), make(x, n_tokens * args.dim), make(out, n_tokens * args.dim);
  make(qr, n * args.q_lora_rank);
  make(q, n * heads * args.qk_head_dim());
  make(q_c, n * std::max(heads * rank, index_heads * index_dim)), make(o_c, n * heads * rank);
  make(o, n * heads * args.v_head_dim);
  make(kv, n * (rank + rope)), make(c, n * rank);
  make(index_q, n * index_heads * index_dim), make(index_q_fp8, n * index_heads * index_dim);
  make(index_q_scales, n * index_heads * CacheLayout::tiles(index_dim));
  make(index_k, n * index_dim), make(index_weights, n * index_heads);
  make(scores, n_scores);
  make(selected, n * topk), make(n_selected, n), make(row_ids, n * topk);
  make(misses, n * topk), make(n_misses, n), make(tally, 2);
  make(gate, n * widest_mlp), make(up, n * widest_mlp);
  make(route_logits, n * args.n_routed_experts);
  make(experts, n_tokens * args.n_activated_experts);
  make(expert_weights, n_tokens * args.n_activated_experts);
}

}  // namespace dsv32
