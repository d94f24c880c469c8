#include "engine/plan.h"

#include <algorithm>

#include "base/error.h"
#include "model/activations.h"

namespace dsv32 {
namespace {

long long as_ll(int64_t value) { return value; }

CacheLayout layout_of(const ModelArgs& args, KvType kv_type) {
  return {kv_type, args.kv_lora_rank, args.qk_rope_head_dim, args.has_indexer() ? args.index_head_dim : 0};
}

int64_t choose_context(const ModelArgs& args, const EngineOptions& options, int64_t token_bytes,
                       uint64_t n_free) {
  if (options.context) {
    if (*options.context < 1 || *options.context > args.max_seq_len)
      fail(ErrorKind::usage, format("--ctx is %lld, expected 1 to %lld, the model's context",
                                    as_ll(*options.context), as_ll(args.max_seq_len)));
    return *options.context;
  }
  const int64_t n_fitting = static_cast<int64_t>(n_free / 2) / token_bytes / kPageTokens * kPageTokens;
  return std::clamp(n_fitting, std::min<int64_t>(kPageTokens, args.max_seq_len), args.max_seq_len);
}

int64_t choose_buffer_rows(const ModelArgs& args, const EngineOptions& options, int64_t context) {
  if (!options.topk_buffer || *options.topk_buffer >= context) return 0;
  if (!args.has_indexer())
    fail(ErrorKind::usage,
         format("--topk-buffer is %lld, but this model has no indexer and attends to every row",
                as_ll(*options.topk_buffer)),
         "leave the flag out, or say --topk-buffer full");
  if (*options.topk_buffer < args.index_topk)
    fail(ErrorKind::usage,
         format("--topk-buffer is %lld, expected at least %lld, the rows that one step selects",
                as_ll(*options.topk_buffer), as_ll(args.index_topk)));
  return *options.topk_buffer;
}

// A dense model lists every position of every token of a step: the step is kept small enough for that.
int64_t choose_chunk(const ModelArgs& args, int64_t chunk, int64_t context) {
  if (chunk < 1 || chunk > 1 << 16)
    fail(ErrorKind::usage, format("--chunk is %lld, expected 1 to 65536", as_ll(chunk)));
  constexpr int64_t kMostListed = int64_t{1} << 25;
  const int64_t n_attended = args.has_indexer() ? std::min(args.index_topk, context) : context;
  return std::max<int64_t>(1, std::min({chunk, context, kMostListed / n_attended}));
}

}  // namespace

MemoryPlan make_plan(const ModelArgs& args, const EngineOptions& options, uint64_t n_host_bytes_free) {
  MemoryPlan plan;
  plan.cache.layout = layout_of(args, options.kv_type);
  plan.cache.n_layers = args.n_layers;
  const int64_t token_bytes =
      args.n_layers * (plan.cache.layout.row_bytes() + plan.cache.layout.key_entry_bytes());
  plan.cache.max_tokens = choose_context(args, options, token_bytes, n_host_bytes_free);
  plan.cache.buffer_rows = choose_buffer_rows(args, options, plan.cache.max_tokens);
  plan.chunk = choose_chunk(args, options.chunk, plan.cache.max_tokens);
  plan.n_activation_bytes = activation_bytes(args, plan.chunk, plan.cache.max_tokens);
  return plan;
}

}  // namespace dsv32
