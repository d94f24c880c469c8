// Sparse MLA, absorbed: all heads of a token attend to the same selected latent rows, which are keys and
// values. choose_attention() chooses the kernel.
#include "cuda/mla.cuh"

namespace dsv32::cuda {
namespace {

bool has_fast_shape(const Attend& op) {
  const CacheLayout& layout = op.cache.layout;
  return layout.kv_type != KvType::f32 && layout.kv_lora_rank == kRank && layout.qk_rope_head_dim == kRope &&
         is_aligned(op.cache.slots, 16) && is_aligned(op.q_c, 16) && is_aligned(op.o_c, 16) &&
         is_aligned(op.cache.key_pages, 16);
}

AttentionKernel kernel_of(const Attend& op) {
  return choose_attention(op.step.role == Role::decode, has_fast_shape(op), card().family);
}

}  // namespace

bool attends_rounded(const Attend& op) { return kernel_of(op) == AttentionKernel::hopper_prompt; }

void attend(const Attend& op, const Launch& launch, bool is_rounded) {
  if (op.step.n_tokens == 0 || op.n_heads == 0) return;
  const CacheLayout& layout = op.cache.layout;
  if (op.step.n_tokens < 0 || op.n_heads < 0 || op.topk < 1 || op.topk > INT32_MAX / 2 ||
      layout.kv_lora_rank < 1 || op.step.n_tokens * op.n_heads > INT32_MAX)
    fail(ErrorKind::internal, format("attend: %ld tokens of %ld heads over %ld rows of rank %ld",
                                     op.step.n_tokens, op.n_heads, op.topk, layout.kv_lora_rank));
  if (!op.cache.slots) fail(ErrorKind::internal, "attend: the cache has no slots");
  Plan plan{};
  plan.rows = op.cache.slots;
  plan.page_bytes = layout.key_page_bytes();
  if (is_rounded) plan.rounded = rounded_rows_in(op.o_c, op.step.n_tokens * op.n_heads, kRank);
  switch (kernel_of(op)) {
    case AttentionKernel::plain: return attend_plain(op, launch);
    case AttentionKernel::generic: return attend_generic(op, launch);
    case AttentionKernel::hopper_prompt: return attend_hopper(op, plan, launch);
    case AttentionKernel::hopper_decode: return attend_decode(op, plan, launch);
  }
}

}  // namespace dsv32::cuda
