// The indexer's scores by mma.sync, for every card: keys of 128 e4m3 values.
#include "cuda/indexer.cuh"

namespace dsv32::cuda {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps;
constexpr int kWarpKeys = 32;                           // keys that a warp multiplies at once: half a page
constexpr int kStepPages = kWarps * kWarpKeys / kPage;  // pages of a block's step
constexpr int kHeadBytes = 2 * kDim + 64;  // of a head's queries as f16; eight lanes' reads cover all banks

// Puts the queries of 64 heads as f16 where multiply_keys() finds them: the 16 words that lane 4 g + c
// multiplies for head g lie side by side, as four pieces, piece i at place i ^ c.
DSV32_DEVICE void put_queries(const Scoring& op, int64_t t, int first_head, uint8_t* queries) {
  uint32_t piece[4];
  widen_queries<kThreads>(op, t, first_head, [&](unsigned h, unsigned w, unsigned p, uint32_t pair) {
    piece[p % 4] = pair;
    if (p % 4 < 3) return;
    const unsigned c = w % 4, i = w / 4 * 2 + p / 4;
    *reinterpret_cast<uint4*>(queries + h * kHeadBytes + c * 64 + (i ^ c) * 16) = {piece[0], piece[1],
                                                                                   piece[2], piece[3]};
  });
}

// Adds the products of two lots of 16 keys with eight heads. `head`: the queries of this lane's head.
DSV32_DEVICE void multiply_keys(const uint32_t (&keys)[2][8][4], const uint8_t* head, int c,
                                float (&products)[2][4]) {
  DSV32_UNROLL for (int i = 0; i < 4; ++i) {
    const uint4 q = *reinterpret_cast<const uint4*>(head + c * 64 + (i ^ c) * 16);
    DSV32_UNROLL for (int lot = 0; lot < 2; ++lot) {
      multiply_f16(products[lot], keys[lot][2 * i], q.x, q.y);
      multiply_f16(products[lot], keys[lot][2 * i + 1], q.z, q.w);
    }
  }
}

// score(t, s) = sum over heads h of w[t, h] * max(0, q[t, h] . key[s]) for the pages of a block's share.
// Grid (shares of n_pages_block pages, tokens). The token's queries lie in shared memory as f16; a warp holds
// 32 keys in registers and multiplies them by every head, so that each read of a query serves two products.
// Bound by the tensor cores' f16 rate, and by widening the keys. Measured (H100, code for 8.0, 2026-11-26):
// one token, 131 072 keys 20 us; 128 tokens 1.08 ms, 255 TFLOP/s; 2 048 tokens of 8 192 positions 0.89 ms.
__global__ void __launch_bounds__(kThreads, 3)
    score_mma_kernel(const Scoring op, int n_pages_block, int n_head_lots) {
  extern __shared__ __align__(16) uint8_t queries[];  // [64 n_head_lots, kHeadBytes]
  float* factors = reinterpret_cast<float*>(queries + n_head_lots * kHeads * kHeadBytes);
  let_next_start();
  wait_for_inputs();
  const int64_t t = blockIdx.y;
  const int32_t pos = op.step.pos[t], seq = op.step.seq[t];
  const int first_page = static_cast<int>(blockIdx.x) * n_pages_block;
  const int end_page = min(first_page + n_pages_block, pos / kPage + 1);
  if (first_page >= end_page) return;
  for (int lot = 0; lot < n_head_lots; ++lot)
    put_queries(op, t, lot * kHeads, queries + lot * kHeads * kHeadBytes);
  for (int h = threadIdx.x; h < n_head_lots * kHeads; h += kThreads) factors[h] = op.head_factor(t, h);
  __syncthreads();

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
  const int first_key = warp * kWarpKeys % kPage;  // of the warp's, in its page
  for (int p = first_page + warp * kWarpKeys / kPage; p < end_page; p += kStepPages) {
    const uint8_t* page = op.page(seq, p);
    uint32_t keys[2][8][4];
    DSV32_UNROLL for (int lot = 0; lot < 2; ++lot) {
      KeyFragment fragment;
      fragment.load(page + op.keys_offset + (first_key + 16 * lot) * kDim, lane);
      DSV32_UNROLL for (int step = 0; step < 8; ++step) fragment.widened(step, keys[lot][step]);
    }
    float sums[2][2] = {};
    for (int j = 0; j < n_head_lots * kHeads / 8; ++j) {
      float products[2][4] = {};
      multiply_keys(keys, queries + (8 * j + g) * kHeadBytes, c, products);
      const float2 w = *reinterpret_cast<const float2*>(factors + 8 * j + 2 * c);
      DSV32_UNROLL for (int lot = 0; lot < 2; ++lot) add_two_heads(products[lot], w, sums[lot]);
    }
    DSV32_UNROLL for (int lot = 0; lot < 2; ++lot) {
      const int key = first_key + 16 * lot + g + 8 * (lane & 1);
      const float key_scale = reinterpret_cast<const float*>(page + op.scales_offset)[key];
      const float score = fold_rows(sums[lot], lane) * key_scale;
      const int32_t s = p * kPage + key;
      if (c < 2 && s <= pos) op.scores[t * op.scores_stride + s] = score;
    }
  }
}

}  // namespace

void score_generic(const Scoring& op, int64_t n_pages, const Launch& launch) {
  constexpr int64_t kBlocksSm = 4, kMostPages = 64;
  const int n_head_lots = static_cast<int>(ceil_div(op.n_heads, kHeads));
  const int64_t n_even = ceil_div(n_pages * op.step.n_tokens, kBlocksSm * launch.n_sms);
  const int64_t n_pages_block =
      std::clamp<int64_t>(ceil_div(n_even, int64_t{kStepPages}), 1, kMostPages / kStepPages) * kStepPages;
  launch_kernel(score_mma_kernel,
                {{ceil_div(n_pages, n_pages_block), op.step.n_tokens},
                 kThreads,
                 n_head_lots * kHeads * (kHeadBytes + static_cast<int>(sizeof(float)))},
                launch, op, static_cast<int>(n_pages_block), n_head_lots);
}

}  // namespace dsv32::cuda
