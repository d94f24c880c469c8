// Sparse MLA of decode by Hopper's asynchronous products, in two kernels: one makes weights of scores, the
// other adds values. Bits do not depend on how the work is cut.
//
// A block's weights are relative to its own largest score, rounded up to a power of two; brought to the
// largest score of all they are multiplied by a power of two. Then all rows are added in ascending order, in
// one chain an output. So the first kernel may be cut by blocks, the second by columns, and nothing is
// merged. Fp16 weights pass between them, as the threads that multiply hold them. One or two tokens have
// kernels of their own (mla_few.cu), with the same bits.
#include "cuda/mla_add.cuh"
#include "cuda/mla_weigh.cuh"

namespace dsv32::cuda {
namespace {

// CTAs that share a token's blocks: with which the first kernel takes the shortest; a CTA begins as long as
// two blocks take.
int choose_splits(int64_t n_ctas, int64_t n_blocks, int n_sms) {
  int best = 1;
  int64_t least = INT64_MAX;
  for (int n = 1; n <= n_blocks; ++n) {
    const int64_t time = ceil_div(n * n_ctas, n_sms) * (ceil_div(n_blocks, n) + 2);
    if (time < least) least = time, best = n;
  }
  return best;
}

// CTAs are of 128 heads, which share what is brought in; where few tokens have few of these, the second
// kernel's are of 64.
template <KvType kKv>
void attend_tokens(const Attend& op, Plan plan, const Launch& launch) {
  const int64_t n_single = op.step.n_tokens * ceil_div(op.n_heads, kHeads);
  const int64_t n_double = op.step.n_tokens * ceil_div(op.n_heads, 2 * kHeads);
  constexpr int kSingleColumns = 64;
  plan.n_head_tiles = static_cast<int>(ceil_div(op.n_heads, 2 * kHeads));
  plan.n_splits = choose_splits(n_double, plan.n_most_blocks, launch.n_sms);
  launch_weigh<kKv>(op, plan, launch);
  // A CTA of 128 columns takes two thirds as long as one of 256.
  const auto rounds = [&](int n_columns) { return ceil_div(n_double * (kRank / n_columns), launch.n_sms); };
  if (n_single * (kRank / kSingleColumns) <= launch.n_sms)
    launch_add<kKv, 1, kSingleColumns>(op, plan, launch);
  else if (2 * rounds(128) <= 3 * rounds(256))
    launch_add<kKv, 2, 128>(op, plan, launch);
  else
    launch_add<kKv, 2, 256>(op, plan, launch);
}

}  // namespace

void attend_decode(const Attend& op, Plan plan, const Launch& launch) {
  plan.n_most_blocks = static_cast<int>(ceil_div(std::min(op.topk, op.step.max_pos + 1), kBlockRows));
  if (attends_few(op.step.n_tokens, op.n_heads, plan.n_most_blocks * kBlockRows, launch.n_sms))
    return attend_few(op, plan, launch);
  plan.n_head_warps = static_cast<int>(ceil_div(op.n_heads, 2 * kHeads)) * 8;
  const int64_t n_weights = plan.n_most_blocks * weights_of(plan.n_head_warps);
  const int64_t n_bytes_token = n_weights * static_cast<int64_t>(sizeof(uint4)) +
                                plan.n_most_blocks * kBlockRows * static_cast<int64_t>(sizeof(FoundRow));
  in_groups(op, n_bytes_token, launch, [&](const Attend& part, int64_t n_together, uint8_t* scratch) {
    plan.weights = reinterpret_cast<uint4*>(scratch);
    plan.found = reinterpret_cast<FoundRow*>(plan.weights + n_together * n_weights);
    if (op.cache.layout.kv_type == KvType::fp8)
      attend_tokens<KvType::fp8>(part, plan, launch);
    else
      attend_tokens<KvType::bf16>(part, plan, launch);
  });
}

}  // namespace dsv32::cuda
