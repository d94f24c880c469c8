#include "model/activations.h"

#include <algorithm>

namespace dsv32 {
namespace {

// How many score values are kept at once: tokens are scored in groups of as many as fit (64 MiB), at least
// one.
constexpr int64_t kMostScores = int64_t{1} << 24;

// More tokens at a time make attention no faster.
constexpr int64_t kMostPieceTokens = 2048;

int64_t widest_mlp(const ModelArgs& args) {
  return std::max(args.inter_dim, args.moe_inter_dim * std::max<int64_t>(args.n_shared_experts, 1));
}

int64_t rows_attended(const ModelArgs& args, int64_t max_context) {
  return args.has_indexer() ? std::min(args.index_topk, max_context) : max_context;
}

// Shows `visit` every buffer with its number of values: what is allocated and what is planned come from this
// one list.
template <typename Visit>
void for_each_buffer(Activations& a, const ModelArgs& args, int64_t n_all, int64_t max_context, Visit visit) {
  const int64_t n = std::min(n_all, kMostPieceTokens);
  const int64_t index_width = args.index_n_heads * args.index_head_dim;
  const int64_t topk = rows_attended(args, max_context);
  const int64_t n_scores =
      args.has_indexer() ? std::max(max_context, std::min(n * max_context, kMostScores)) : 0;
  visit(a.step_ints, 3 * n_all);
  visit(a.h, n_all * args.dim), visit(a.x, n_all * args.dim), visit(a.out, n_all * args.dim);
  visit(a.qr, n * args.q_lora_rank);
  visit(a.q, n * args.n_heads * args.qk_head_dim());
  visit(a.q_c, n * std::max(args.n_heads * args.kv_lora_rank, index_width)),
      visit(a.o_c, n * args.n_heads * args.kv_lora_rank);
  visit(a.o, n * args.n_heads * args.v_head_dim);
  visit(a.kv, n * (args.kv_lora_rank + args.qk_rope_head_dim)), visit(a.c, n * args.kv_lora_rank);
  visit(a.index_q, n * index_width), visit(a.index_q_fp8, n * index_width);
  visit(a.index_q_scales, n * args.index_n_heads * CacheLayout::tiles(args.index_head_dim));
  visit(a.index_k, n * args.index_head_dim), visit(a.index_weights, n * args.index_n_heads);
  visit(a.scores, n_scores);
  visit(a.selected, n * topk), visit(a.n_selected, n), visit(a.row_ids, n * topk);
  visit(a.misses, n * topk), visit(a.n_misses, n), visit(a.tally, int64_t{2});
  visit(a.gate, n * widest_mlp(args)), visit(a.up, n * widest_mlp(args));
  visit(a.route_logits, n * args.n_routed_experts);
  visit(a.experts, n_all * args.n_activated_experts);
  visit(a.expert_weights, n_all * args.n_activated_experts);
}

}  // namespace

Activations::Activations(Backend& backend, const ModelArgs& args, int64_t n_tokens, int64_t context)
    : max_tokens(n_tokens),
      piece_tokens(std::min(n_tokens, kMostPieceTokens)),
      max_context(context),
      topk(rows_attended(args, context)) {
  for_each_buffer(*this, args, n_tokens, context, [&]<typename T>(Buffer<T>& buffer, int64_t n_values) {
    buffer = Buffer<T>(backend, Place::device, n_values, "activations");
  });
}

uint64_t activation_bytes(const ModelArgs& args, int64_t max_tokens, int64_t max_context) {
  Activations none;
  uint64_t n_bytes = 0;
  for_each_buffer(none, args, max_tokens, max_context, [&]<typename T>(Buffer<T>&, int64_t n_values) {
    n_bytes += static_cast<uint64_t>(n_values) * sizeof(T);
  });
  return n_bytes;
}

}  // namespace dsv32
