// Sparse MLA of decode on Hopper for one or two tokens of 128 heads: the weights and sums of mla_decode.cu,
// to the bit, in two kernels that are cut finer.
//
// One token is bound by what a CTA waits for: rows that lie where a table says, queries, weights. So CTAs are
// of 32 heads and bring all that they need in at once, and the second kernel has all of its values in shared
// memory when the first is done. Each CTA fills a multiprocessor: mla_decode.cu is faster with more tokens
// than have CTAs at once.
#include "cuda/mla_few_add.cuh"
#include "cuda/mla_few_weigh.cuh"

namespace dsv32::cuda {
namespace {

template <KvType kKv>
void attend_tokens(const Attend& op, const Plan& plan, const Launch& launch) {
  launch_few_weigh<kKv>(op, plan, launch);
  launch_few_add<kKv>(op, plan, launch);
}

}  // namespace

void attend_few(const Attend& op, Plan plan, const Launch& launch) {
  plan.n_head_tiles = static_cast<int>(ceil_div(op.n_heads, kFewHeads));
  const int64_t n_blocks = int64_t{plan.n_head_tiles} * plan.n_most_blocks;  // of a token
  constexpr int64_t kBytes = kFewChunks * sizeof(uint4) + kFewHeads * sizeof(float2);
  in_groups(op, n_blocks * kBytes, launch, [&](const Attend& part, int64_t n_together, uint8_t* scratch) {
    plan.weights = reinterpret_cast<uint4*>(scratch);
    plan.powers = reinterpret_cast<float2*>(plan.weights + n_together * n_blocks * kFewChunks);
    if (op.cache.layout.kv_type == KvType::fp8)
      attend_tokens<KvType::fp8>(part, plan, launch);
    else
      attend_tokens<KvType::bf16>(part, plan, launch);
  });
}

}  // namespace dsv32::cuda
