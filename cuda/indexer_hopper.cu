// The indexer's scores by Hopper's asynchronous tensor-core products: 128 e4m3 values, up to 64 heads.
//
//   score_decode    a block has one token at a time and many of its pages, e4m3 widened to f16
//   score_prefill   a block's 256 keys stay in registers while the tokens' queries stream past, e4m3

#include "cuda/indexer.cuh"
#include "cuda/wgmma.cuh"

namespace dsv32::cuda {
namespace {

constexpr int kDecodeThreads = 128, kDecodeBlocks = 4;  // of an SM
constexpr int32_t kPagesBeside = 6;  // they take as long as a block's fixed work for a token

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// A block's share of all tokens' pages, token by token: pages `page` to `end` of token t; n_units are left
// for the next tokens. A token has one unit for each page, and before them kPagesBeside units for its fixed
// work. The first token has none of the latter, since every block begins once.
struct Share {
  int32_t t, page, end, n_units;

  static __device__ int32_t n_before(int32_t t) { return t > 0 ? kPagesBeside : 0; }
  static __device__ int32_t units_of(const Scoring& op, int32_t t) {
    return n_before(t) + op.step.pos[t] / kPage + 1;
  }
  // Takes units from `unit` of token t on; no pages if the share ends before the first page.
  __device__ void take_token(const Scoring& op, int32_t unit) {
    const int32_t last = min(unit + n_units, units_of(op, t));
    n_units -= last - unit;
    page = max(0, unit - n_before(t)), end = last - n_before(t);
  }
  // This block's share. Every warp computes it: a lane adds up the units of consecutive tokens.
  static __device__ Share of_block(const Scoring& op, int lane) {
    const auto n_tokens = static_cast<int32_t>(op.step.n_tokens);
    const int32_t n_each = (n_tokens + 31) / 32, past = min((lane + 1) * n_each, n_tokens);
    int32_t t = min(lane * n_each, past), sum = 0;
#pragma unroll 4
    for (int32_t i = t; i < past; ++i) sum += units_of(op, i);
    const int32_t upto = warp_prefix(sum), n_all = __shfl_sync(0xffffffffu, upto, 31);
    const auto n_blocks = static_cast<int32_t>(gridDim.x), block = static_cast<int32_t>(blockIdx.x);
    const int32_t n_least = n_all / n_blocks, n_longer = n_all % n_blocks;
    const int32_t first = block * n_least + min(block, n_longer), n = n_least + (block < n_longer ? 1 : 0);
    Share share = {0, 0, 0, n};
    if (n == 0) return share;
    int32_t unit = first - (upto - sum);
    if (unit >= 0)
      for (; t < past && unit >= units_of(op, t); ++t) unit -= units_of(op, t);
    const int at = __ffs(static_cast<int>(__ballot_sync(0xffffffffu, upto > first))) - 1;
    share.t = __shfl_sync(0xffffffffu, t, at);
    share.take_token(op, __shfl_sync(0xffffffffu, unit, at));
    return share;
  }
};

#endif

// score(t, s) in decode, exact: f16 holds e4m3 values exactly, and products are summed in f32.
// All blocks have equally many pages, whatever the tokens' lengths (Share); a warp has 16 of a page's 64
// keys. The next page's keys are loaded while a page's keys are multiplied: 34 KB under way per SM.
// Bound by reading the keys, 132 bytes each. Measured (H100, 2026-11-25): 131 072 keys in 15.5 us; 201 tokens
// with 952 thousand keys, each 4 736 or one 131 072 and the rest 4 096, in 63 us, 2.0 TB/s.
__global__ void __launch_bounds__(kDecodeThreads, kDecodeBlocks) score_decode_kernel(Scoring op) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  // [2 halves of the steps][64 heads][128 bytes], f16
  __shared__ __align__(1024) uint8_t queries[2 * kQueryBytes];
  __shared__ float factors[kHeads];
  let_next_start();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, c = lane % 4;
  const int row = 16 * warp + lane / 4 + 8 * (lane & 1);  // the key whose score this lane stores
  Share share = Share::of_block(op, lane);
  const int32_t* ids = nullptr;  // of the token's pages
  const auto page_of = [&](int32_t i) {
    return i < share.end ? op.cache.key_pages + ids[i] * op.page_bytes : nullptr;
  };
  const uint8_t* next_page = nullptr;
  const auto begin_token = [&] {
    if (share.page >= share.end) return;
    ids = op.cache.pages + op.step.seq[share.t] * op.cache.max_pages;
    next_page = page_of(share.page);
  };
  begin_token();
  wait_for_inputs();
  for (bool is_first = true; share.page < share.end; is_first = false) {
    const int32_t pos = op.step.pos[share.t];
    KeyFragment keys;
    float key_scale;
    const auto load_next = [&] {
      keys.load(next_page + op.keys_offset + 16 * warp * kDim, lane);
      key_scale = reinterpret_cast<const float*>(next_page + op.scales_offset)[row];
    };
    load_next();
    next_page = page_of(share.page + 1);

    if (!is_first) __syncthreads();  // the previous token's queries are read
    widen_queries<kDecodeThreads>(op, share.t, 0, [&](unsigned h, unsigned w, unsigned p, uint32_t pair) {
      const unsigned at = w / 4 * kQueryBytes + h * 128 + (p ^ h % 8) * 16 + w % 4 * 4;
      *reinterpret_cast<uint32_t*>(queries + at) = pair;
    });
    if (threadIdx.x < kHeads) factors[threadIdx.x] = op.head_factor(share.t, threadIdx.x);
    fence_async_proxy();
    __syncthreads();
    float2 weights[8];
    DSV32_UNROLL for (int j = 0; j < 8; ++j) weights[j] =
        make_float2(factors[8 * j + 2 * c], factors[8 * j + 2 * c + 1]);
    const uint64_t b = wgmma_operand(shared_address(queries));
    float* scores = op.scores + share.t * op.scores_stride;

    for (int32_t i = share.page; i < share.end; ++i) {
      uint32_t a[8][4];
      DSV32_UNROLL for (int step = 0; step < 8; ++step) {
        keys.widened(step, a[step]);
        // Forces widening here, before the products begin, not between them.
        asm volatile("" : "+r"(a[step][0]), "+r"(a[step][1]), "+r"(a[step][2]), "+r"(a[step][3]));
      }
      const float scale = key_scale;
      if (next_page) load_next();
      next_page = page_of(i + 2);
      float products[32];
      wgmma_begin();
      DSV32_UNROLL for (int step = 0; step < 8; ++step)
          wgmma<kHeads>(products, a[step], b + step / 4 * (kQueryBytes / 16) + step % 4 * 2, step > 0);
      wgmma_commit();
      wgmma_wait<0>();
      float sums[2] = {0, 0};
      add_heads(
          products, [&](int j) { return weights[j]; }, sums);
      const float score = fold_rows(sums, lane) * scale;
      const int32_t s = i * kPage + row;
      if (c < 2 && s <= pos) scores[s] = score;
    }
    if (share.n_units == 0) break;
    ++share.t;
    share.take_token(op, 0);
    begin_token();
  }
#else
  __trap();
#endif
}

constexpr int kArrangeThreads = 2 * kHeads;

// Stores each token's e4m3 queries in the order of the products, in the layout of wgmma_operand(), and the
// factor of each head's sum. One block per token: thread (h, j) transposes 4 x 4 words of 4 bytes, half a
// head. Bound by reading and writing 8 KB a token.
__global__ void __launch_bounds__(kArrangeThreads)
    arrange_queries_kernel(Scoring op, uint8_t* queries, float* factors) {
  const int64_t t = blockIdx.x;
  const int h = static_cast<int>(threadIdx.x / 2), j = static_cast<int>(threadIdx.x % 2);
  uint4 in[4];
  DSV32_UNROLL for (int c = 0; c < 4; ++c) in[c] = op.query_word(t, h, 4 * j + c);
  DSV32_UNROLL for (int m = 0; m < 4; ++m) {
    const int place = (4 * j + m) ^ (h % 8);
    reinterpret_cast<uint4*>(queries + t * kQueryBytes + h * kDim)[place] =
        make_uint4(word_of(in[0], m), word_of(in[1], m), word_of(in[2], m), word_of(in[3], m));
  }
  if (threadIdx.x < kHeads) factors[t * kHeads + threadIdx.x] = op.head_factor(t, threadIdx.x);
}

constexpr int kPrefillThreads = 256, kPrefillKeys = 256, kPrefillTokens = 128;
constexpr int kSlots = 8;

struct PrefillShared {
  uint8_t queries[kSlots][kQueryBytes];  // first: aligned to 1024
  float factors[kSlots][kHeads];
  Pipe<kSlots> pipe;
  int32_t pos[kPrefillTokens], seq[kPrefillTokens];
};

// score(t, s) in prefill.
// Grid (256 keys, up to 128 tokens): a warpgroup has 128 keys, two operands of 64 rows; a warp has 32 of
// these keys. Keys stay in registers, queries are copied into 8 slots; one warp's sums hide behind another's
// products.
// Bound by the tensor cores: 16384 operations per token and key, e4m3 to f32 (a step keeps about 14 bits).
// Measured (H200, 2026-11-21): 128 tokens at 131 072 keys: 789 TFLOP/s.
__global__ void __launch_bounds__(kPrefillThreads, 2)
    score_prefill_kernel(Scoring op, const uint8_t* queries, const float* factors, int n_tokens_most) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ uint8_t raw_shared[];
  PrefillShared& sm =
      *reinterpret_cast<PrefillShared*>(raw_shared + (1024 - shared_address(raw_shared) % 1024) % 1024);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
  const int32_t first_key = blockIdx.x * kPrefillKeys, first_warp_key = first_key + 32 * warp;
  const int64_t first_token = static_cast<int64_t>(blockIdx.y) * n_tokens_most;
  const int n_tokens =
      static_cast<int>(min(static_cast<int64_t>(n_tokens_most), op.step.n_tokens - first_token));
  DSV32_NO_UNROLL for (int i = threadIdx.x; i < n_tokens; i += kPrefillThreads)
      sm.pos[i] = op.step.pos[first_token + i],
      sm.seq[i] = op.step.seq[first_token + i];
  if (threadIdx.x == 0) {
    sm.pipe.init(1, kPrefillThreads / 32);
    publish_barriers();
  }
  __syncthreads();

  // Copies and products both skip tokens that see no key of the block, and do not count them.
  const auto next_token = [&](int i) {
    while (i < n_tokens && sm.pos[i] < first_key) ++i;
    return i;
  };
  int copied = next_token(0);  // thread 0's: the next token to copy
  const auto copy_next = [&](int slot) {
    if (copied >= n_tokens) return;
    const int64_t t = first_token + copied;
    arrive_expecting(&sm.pipe.full[slot], kQueryBytes + kHeads * 4);
    copy_in(sm.queries[slot], queries + t * kQueryBytes, kQueryBytes, &sm.pipe.full[slot]);
    copy_in(sm.factors[slot], factors + t * kHeads, kHeads * 4, &sm.pipe.full[slot]);
    copied = next_token(copied + 1);
  };
  if (threadIdx.x == 0) {
    DSV32_NO_UNROLL for (int slot = 0; slot < kSlots; ++slot) copy_next(slot);
  }
  int n_left = 0;  // thread 0's: slots waited for, in the order of tokens
  const auto refill = [&](int n_done) {
    DSV32_NO_UNROLL for (; n_left < n_done && copied < n_tokens; ++n_left) {
      wait_for_phase(&sm.pipe.empty[n_left % kSlots], n_left / kSlots & 1);
      copy_next(n_left % kSlots);
    }
  };

  // Key 32 * warp + 16 * o + r of the block is row 16 * (warp % 4) + r of operand o; lane c of a row stores
  // the score of o = c / 2 and row half c % 2.
  KeyFragment keys[2];
  float key_scale = 0;
  int32_t loaded_seq = -1;
  const int32_t own_key = first_warp_key + 16 * (c / 2) + 8 * (c % 2) + g;
  const auto load_keys = [&](int i) {
    loaded_seq = sm.seq[i];
    int32_t max_pos = sm.pos[i];
    for (int k = i + 1; k < n_tokens && sm.seq[k] == loaded_seq; ++k) max_pos = max(max_pos, sm.pos[k]);
    keys[0].clear(), keys[1].clear();
    if (first_warp_key / kPage * kPage > max_pos) return;  // the page may not exist
    const uint8_t* page = op.page(loaded_seq, first_warp_key / kPage);
    const uint8_t* rows = page + op.keys_offset + first_warp_key % kPage * kDim;
    keys[0].load(rows, lane), keys[1].load(rows + 16 * kDim, lane);
    key_scale = __ldg(reinterpret_cast<const float*>(page + op.scales_offset) + own_key % kPage);
  };

  constexpr int kTogether = 4;  // tokens whose products follow each other without a pause
  float products[2][32];
  const auto start = [&](int o, int slot) {
    const uint64_t b = wgmma_operand(shared_address(sm.queries[slot]));
    __syncwarp();
    wgmma_begin();
    DSV32_UNROLL for (int step = 0; step < 4; ++step)
        wgmma_e4m3(products[o],
                   {keys[o].word(0, 2 * step), keys[o].word(1, 2 * step), keys[o].word(0, 2 * step + 1),
                    keys[o].word(1, 2 * step + 1)},
                   b + 2 * step, step > 0);
    wgmma_commit();
  };
  // Adds up the finished products of operand o.
  const auto add = [&](int o, int slot, float(&sums)[2]) {
    DSV32_UNROLL for (int j = 0; j < 32; ++j) asm volatile("" : "+f"(products[o][j])::"memory");
    add_heads(
        products[o],
        [&](int j) { return *reinterpret_cast<const float2*>(&sm.factors[slot][8 * j + 2 * c]); }, sums);
  };

  int n_done = 0;
  for (int i = next_token(0); i < n_tokens;) {
    if (sm.seq[i] != loaded_seq) load_keys(i);
    int tokens[kTogether], n = 1;  // n of them; the rest repeat the last one
    tokens[0] = i;
    i = next_token(i + 1);
    DSV32_UNROLL for (int u = 1; u < kTogether; ++u) {
      const bool is_one = n == u && i < n_tokens && sm.seq[i] == loaded_seq;
      tokens[u] = is_one ? i : tokens[u - 1];
      if (is_one) ++n, i = next_token(i + 1);
    }
    wait_for_phase(&sm.pipe.full[n_done % kSlots], n_done / kSlots & 1);
    start(0, n_done % kSlots), start(1, n_done % kSlots);
    DSV32_UNROLL for (int u = 0; u < kTogether; ++u) {
      const int at = n_done + min(u, n - 1), next = n_done + min(u + 1, n - 1);
      float sums[2][2] = {{0, 0}, {0, 0}};
      wgmma_wait<1>();
      add(0, at % kSlots, sums[0]);
      if (u + 1 < kTogether) {
        wait_for_phase(&sm.pipe.full[next % kSlots], next / kSlots & 1);
        start(0, next % kSlots);
        wgmma_wait<1>();
      } else {
        wgmma_wait<0>();
      }
      add(1, at % kSlots, sums[1]);
      if (u + 1 < kTogether) start(1, next % kSlots);
      const float sum = fold(fold(sums[0][0], sums[0][1], c, 1), fold(sums[1][0], sums[1][1], c, 1), c, 2);
      if (own_key <= sm.pos[tokens[u]])
        op.scores[(first_token + tokens[u]) * op.scores_stride + own_key] = sum * key_scale;
      // Refills the slots of the tokens before this group.
      if (u == kTogether / 2 && threadIdx.x == 0) refill(n_done);
    }
    __syncwarp();
    if (lane < n) arrive(&sm.pipe.empty[(n_done + lane) % kSlots]);
    n_done += n;
  }
#else
  __trap();
#endif
}

}  // namespace

void score_decode(const Scoring& op, int64_t n_pages, const Launch& launch) {
  const int64_t n_blocks =
      std::min<int64_t>(kDecodeBlocks * launch.n_sms, op.step.n_tokens * (n_pages + kPagesBeside));
  launch_kernel(score_decode_kernel, {n_blocks, kDecodeThreads}, launch, op);
}

void score_prefill(const Scoring& op, int64_t n_pages, const Launch& launch) {
  uint8_t* queries = launch.workspace->take<uint8_t>(op.step.n_tokens * kQueryBytes);
  float* factors = launch.workspace->take<float>(op.step.n_tokens * kHeads);
  launch_plain(arrange_queries_kernel, {op.step.n_tokens, kArrangeThreads}, launch, op, queries, factors);
  // Two blocks per SM; with enough work at least four rounds of blocks, since the last is not full.
  const int64_t n_blocks = ceil_div(n_pages * kPage, kPrefillKeys);
  const int64_t n_tokens =
      std::clamp<int64_t>(n_blocks * op.step.n_tokens / (8 * launch.n_sms), 16, kPrefillTokens);
  launch_plain(
      score_prefill_kernel,
      {{n_blocks, ceil_div(op.step.n_tokens, n_tokens)}, kPrefillThreads, sizeof(PrefillShared) + 1024},
      launch, op, queries, factors, n_tokens);
}

}  // namespace dsv32::cuda
