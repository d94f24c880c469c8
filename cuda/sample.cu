// Draws tokens from logits: the likeliest of each share of a row, then a block per token, nothing sorted.
//
// What a rule keeps is a beginning of the tokens in order of likelihood (equal logits: the lower id first),
// so it is a cut: the last kept token. Histograms of integer weights find it digit by digit, the draw then
// adds the kept weights in the order of ids. Sums of integers are the same in every order: no result depends
// on which thread came first.
#include <algorithm>

#include "cuda/common.cuh"
#include "cuda/kernels.h"

namespace dsv32::cuda {
namespace {

constexpr int kThreads = 1024, kWarps = kThreads / 32;
constexpr int kShares = 32, kShareThreads = 256;  // of a row, whose likeliest is found first
constexpr int kBins = 2048;
constexpr int kRowsOfALaunch = 112;        // their rules travel as kernel arguments, of 4 KiB
constexpr int64_t kMostTokens = 1 << 22;   // ids have two digits of 11 bits
constexpr float kWidthOfBins = 28;         // below exp(-28) a weight is 0 (2^-40 = exp(-27.7))
constexpr float kLargestBinScale = 1e30f;  // 0 * it is 0 still

struct Rules {
  SampleRule rule[kRowsOfALaunch];
};

// What is known of a token's likeliest id from some of its ids.
struct Found {
  uint64_t best = 0;           // key, then the complement of the id
  uint32_t bad = 0xffffffffu;  // the lowest id whose logit is not finite
};

struct Shared {
  uint32_t low[kBins], high[kBins];  // the histogram's 64-bit amounts
  uint64_t warp_sums[kWarps];
  uint64_t best;  // of all, as in Found
  uint32_t bad;
  // What find_bin and find_drawn leave for all threads.
  uint32_t digit;
  uint64_t before, amount, total;
  int32_t drawn;
  int32_t n_listed;
  int32_t listed[kMostTopLogprobs];
};

// The logits of one token and what is known of them.
struct Row {
  const float* logits;
  int32_t n;
  float largest;
  float temperature;
};

// The last token that is kept: those with a larger key are, and those of this key up to the id.
struct Cut {
  uint32_t key = 0;
  int32_t last_id = INT32_MAX;

  __device__ bool keeps(uint32_t other, int32_t id) const {
    return other > key || (other == key && id <= last_id);
  }
};

// Finite floats as integers that sort alike; -0 equals 0.
__device__ __forceinline__ uint32_t rank_key(float logit) {
  const uint32_t bits = logit == 0 ? 0 : __float_as_uint(logit);
  return (bits & 0x80000000u) ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float logit_of(uint32_t key) {
  return __uint_as_float((key & 0x80000000u) ? key ^ 0x80000000u : ~key);
}

__device__ __forceinline__ float probability(const Row& row, float logit) {
  return expf((logit - row.largest) / row.temperature);
}
__device__ __forceinline__ uint64_t weight(float p) { return static_cast<uint64_t>(p * 0x1p40f); }

__device__ __forceinline__ uint64_t warp_sum_u64(uint64_t x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}

// The sum over the threads before this one; `total` over all. All threads of the block call it.
__device__ uint64_t block_prefix(Shared& sm, uint64_t x, uint64_t& total) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  uint64_t sum = x;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const uint64_t y = __shfl_up_sync(0xffffffffu, sum, offset);
    if (lane >= offset) sum += y;
  }
  __syncthreads();  // the previous readers are done
  if (lane == 31) sm.warp_sums[warp] = sum;
  __syncthreads();
  uint64_t before = sum - x;
  total = 0;
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) before += sm.warp_sums[w];
    total += sm.warp_sums[w];
  }
  return before;
}

// Calls visit(id, logit) for every token; several loads are on their way at once.
template <typename Visit>
__device__ __forceinline__ void visit_logits(const Row& row, const Visit& visit) {
  constexpr int kTogether = 8;
#pragma unroll 1
  for (int first = static_cast<int>(threadIdx.x); first < row.n; first += kThreads * kTogether) {
    float logits[kTogether];
#pragma unroll
    for (int u = 0; u < kTogether; ++u)
      logits[u] = first + u * kThreads < row.n ? __ldg(row.logits + first + u * kThreads) : 0.0f;
#pragma unroll
    for (int u = 0; u < kTogether; ++u)
      if (first + u * kThreads < row.n) visit(first + u * kThreads, logits[u]);
  }
}

// 64-bit addition in two halves, which the hardware does without trying again: who makes the low half wrap
// carries into the high one.
__device__ __forceinline__ void add_amount(Shared& sm, uint32_t digit, uint64_t amount) {
  const uint32_t low = static_cast<uint32_t>(amount);
  const uint32_t old = atomicAdd(&sm.low[digit], low);
  const uint32_t high = static_cast<uint32_t>(amount >> 32) + (old + low < old ? 1u : 0u);
  if (high) atomicAdd(&sm.high[digit], high);
}

__device__ void clear_bins(Shared& sm) {
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kBins; i += kThreads) sm.low[i] = 0, sm.high[i] = 0;
  __syncthreads();
}

// From the highest digit down, the one at which the amounts reach need_of(total): sm.digit, with sm.amount in
// it and sm.before above it. Each thread has two bins, the first thread the highest.
template <typename NeedOf>
__device__ void find_bin(Shared& sm, const NeedOf& need_of) {
  __syncthreads();
  const int high = kBins - 1 - 2 * static_cast<int>(threadIdx.x);
  const uint64_t n_high = static_cast<uint64_t>(sm.high[high]) << 32 | sm.low[high];
  const uint64_t n_low = static_cast<uint64_t>(sm.high[high - 1]) << 32 | sm.low[high - 1];
  uint64_t total = 0;
  const uint64_t before = block_prefix(sm, n_high + n_low, total), need = need_of(total);
  if (before < need && need <= before + n_high + n_low) {
    const bool is_high = need <= before + n_high;
    sm.digit = static_cast<uint32_t>(is_high ? high : high - 1);
    sm.before = is_high ? before : before + n_high;
    sm.amount = is_high ? n_high : n_low;
    sm.total = total;
  }
  __syncthreads();
}

// The cut at which the amounts of the tokens that `within` keeps, likeliest first, reach need_of(their
// total). Amounts are weights or, for counting, ones.
//
// The first digit is a bin on a linear scale, `bin_scale` a logit below the largest: a float's highest bits
// are the same for most logits, and all threads would add to the same few bins. In that bin the three digits
// of the key follow, and the two of the id where not all of the equal logits are needed.
template <bool kWeighs, typename NeedOf>
__device__ Cut find_cut(Shared& sm, const Row& row, const Cut& within, float bin_scale,
                        const NeedOf& need_of) {
  const auto amount_of = [&](float logit) -> uint64_t {
    if constexpr (kWeighs)
      return weight(probability(row, logit));
    else
      return 1;
  };
  uint64_t need = 0;
  uint32_t bin = 0, prefix = 0;
#pragma unroll 1
  for (int level = 0; level < 4; ++level) {
    const int shift = level == 1 ? 21 : level == 2 ? 10 : 0, n_bits = level == 3 ? 10 : 11;
    clear_bins(sm);
    visit_logits(row, [&](int32_t id, float logit) {
      const uint32_t key = rank_key(logit);
      uint32_t digit =
          kBins - 1 - static_cast<uint32_t>(fminf((row.largest - logit) * bin_scale, kBins - 1.0f));
      if (level > 0) {
        if (digit != bin || (key >> shift) >> n_bits != prefix) return;
        digit = key >> shift & ((1u << n_bits) - 1);
      }
      if (!within.keeps(key, id)) return;
      const uint64_t amount = amount_of(logit);
      if (amount) add_amount(sm, digit, amount);
    });
    find_bin(sm, [&](uint64_t total) { return level == 0 ? need_of(total) : need; });
    need = (level == 0 ? need_of(sm.total) : need) - sm.before;
    if (level == 0)
      bin = sm.digit;
    else
      prefix = prefix << n_bits | sm.digit;
  }
  const uint32_t key = prefix;
  if (need + amount_of(logit_of(key)) > sm.amount)
    return {key, within.key == key ? within.last_id : INT32_MAX};

  uint32_t id_prefix = 0;  // of the number of ids after it: lower ids come first
#pragma unroll 1
  for (int level = 0; level < 2; ++level) {
    clear_bins(sm);
    visit_logits(row, [&](int32_t id, float logit) {
      if (rank_key(logit) != key || !within.keeps(key, id)) return;
      const uint32_t n_after = static_cast<uint32_t>(kMostTokens) - 1 - static_cast<uint32_t>(id);
      if (level == 1 && n_after >> 11 != id_prefix) return;
      add_amount(sm, level == 0 ? n_after >> 11 : n_after & (kBins - 1), amount_of(logit));
    });
    find_bin(sm, [&](uint64_t) { return need; });
    need -= sm.before;
    id_prefix = id_prefix << 11 | sm.digit;
  }
  return {key, static_cast<int32_t>(static_cast<uint32_t>(kMostTokens) - 1 - id_prefix)};
}

__device__ Cut find_cut_of_count(Shared& sm, const Row& row, int64_t n_kept) {
  return find_cut<false>(sm, row, Cut{}, kBins / kWidthOfBins,
                         [&](uint64_t) { return static_cast<uint64_t>(n_kept); });
}

__device__ Cut find_cut_of_rule(Shared& sm, const Row& row, const SampleRule& rule) {
  Cut cut;
  if (rule.top_k > 0 && rule.top_k < row.n) cut = find_cut_of_count(sm, row, rule.top_k);
  if (!(rule.top_p < 1)) return cut;
  const float bin_scale = fminf(kBins / kWidthOfBins / rule.temperature, kLargestBinScale);
  return find_cut<true>(sm, row, cut, bin_scale, [&](uint64_t total) {
    const double wanted = static_cast<double>(rule.top_p) * static_cast<double>(total);
    return min(max(static_cast<uint64_t>(ceil(wanted)), uint64_t{1}), total);
  });
}

// The first id, of those that are kept, whose sum of weights up to it exceeds the draw. Each warp adds up a
// run of ids; then the run that has the id is divided over all threads.
__device__ int32_t find_drawn(Shared& sm, const Row& row, const SampleRule& rule, const Cut& cut) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const auto weight_of = [&](int32_t id) -> uint64_t {
    const float logit = __ldg(row.logits + id);
    if (!cut.keeps(rank_key(logit), id)) return 0;
    const float p = probability(row, logit);
    return p >= rule.min_p ? weight(p) : 0;
  };
  const int n_run = (row.n + kWarps - 1) / kWarps;
  uint64_t sum = 0;
#pragma unroll 4
  for (int id = warp * n_run + lane; id < min((warp + 1) * n_run, row.n); id += 32) sum += weight_of(id);
  sum = warp_sum_u64(sum);
  __syncthreads();
  if (lane == 0) sm.warp_sums[warp] = sum;
  __syncthreads();
  uint64_t total = 0;
  for (int w = 0; w < kWarps; ++w) total += sm.warp_sums[w];
  uint64_t left = min(static_cast<uint64_t>(rule.uniform * static_cast<double>(total)), total - 1);
  int run = 0;
  for (; left >= sm.warp_sums[run]; ++run) left -= sm.warp_sums[run];

  const int n_own = (n_run + kThreads - 1) / kThreads, end = min((run + 1) * n_run, row.n);
  const int first = min(run * n_run + static_cast<int>(threadIdx.x) * n_own, end),
            last = min(first + n_own, end);
  uint64_t own = 0;
  for (int id = first; id < last; ++id) own += weight_of(id);
  const uint64_t before = block_prefix(sm, own, total);
  if (before <= left && left < before + own) {
    left -= before;
    int id = first;
    for (uint64_t w = weight_of(id); left >= w; w = weight_of(++id)) left -= w;
    sm.drawn = id;
  }
  __syncthreads();
  return sm.drawn;
}

// The likeliest id, or the lowest one whose logit is not finite.
struct Best {
  int32_t id;
  bool is_finite;
};
__device__ __forceinline__ Found over_warp(Found found) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    found.best = max(found.best, __shfl_xor_sync(0xffffffffu, found.best, offset));
  found.bad = __reduce_min_sync(0xffffffffu, found.bad);
  return found;
}
__device__ Best find_best(Shared& sm, const Found* shares) {
  if (threadIdx.x < 32) {
    const Found found = over_warp(threadIdx.x < kShares ? shares[threadIdx.x] : Found{});
    if (threadIdx.x == 0) sm.best = found.best, sm.bad = found.bad;
  }
  __syncthreads();
  if (sm.bad != 0xffffffffu) return {static_cast<int32_t>(sm.bad), false};
  return {static_cast<int32_t>(~static_cast<uint32_t>(sm.best)), true};
}

// out[t, share] = the likeliest and the first that is not finite, of a share of the token's ids.
// Grid (shares, tokens). Bound by latency: one block would read the logits of a token in 20 us.
__global__ void __launch_bounds__(kShareThreads) find_best_kernel(const float* logits, int n, Found* out) {
  __shared__ uint64_t warp_best[kShareThreads / 32];
  __shared__ uint32_t warp_bad[kShareThreads / 32];
  let_next_start();
  wait_for_inputs();
  const float* row = logits + static_cast<int64_t>(blockIdx.y) * n;
  Found found;
#pragma unroll 8
  for (int id = static_cast<int>(blockIdx.x) * kShareThreads + static_cast<int>(threadIdx.x); id < n;
       id += kShares * kShareThreads) {
    const float logit = row[id];
    if (isfinite(logit))
      found.best = max(found.best, static_cast<uint64_t>(rank_key(logit)) << 32 | ~static_cast<uint32_t>(id));
    else
      found.bad = min(found.bad, static_cast<uint32_t>(id));
  }
  found = over_warp(found);
  if (threadIdx.x % 32 == 0) warp_best[threadIdx.x / 32] = found.best, warp_bad[threadIdx.x / 32] = found.bad;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < kShareThreads / 32; ++w)
    found.best = max(found.best, warp_best[w]), found.bad = min(found.bad, warp_bad[w]);
  out[blockIdx.y * kShares + blockIdx.x] = found;
}

// The logarithm of the sum of exp(logit - largest).
__device__ float log_sum_exp(const Row& row) {
  float sum = 0;
  visit_logits(row, [&](int32_t, float logit) { sum += expf(logit - row.largest); });
  return logf(block_sum(sum));
}

// The n_top likeliest are listed as they come and then put in order by counting the likelier ones of each.
__device__ void write_top(Shared& sm, const Row& row, float log_sum, int n_top, TokenLogprob* top) {
  const Cut cut = find_cut_of_count(sm, row, n_top);
  if (threadIdx.x == 0) sm.n_listed = 0;
  __syncthreads();
  visit_logits(row, [&](int32_t id, float logit) {
    if (cut.keeps(rank_key(logit), id)) sm.listed[atomicAdd(&sm.n_listed, 1)] = id;
  });
  __syncthreads();
  if (static_cast<int>(threadIdx.x) >= n_top) return;
  const int32_t id = sm.listed[threadIdx.x];
  const float logit = row.logits[id];
  const Cut own{rank_key(logit), id};
  int n_likelier = -1;  // all that this token as a cut would keep, without itself
  for (int i = 0; i < n_top; ++i) n_likelier += own.keeps(rank_key(row.logits[sm.listed[i]]), sm.listed[i]);
  top[n_likelier] = {id, (logit - row.largest) - log_sum};
}

// out = the id drawn by the rule, its log-probability and the likeliest ids' (see Sample in backend.h).
// A block of 1024 takes a token and reads its logits from L2: not at all for the likeliest, once for the sum,
// 4 to 6 times for each of top-k, top-p and the list of the likeliest, twice for the draw.
// Two 32-bit additions in shared memory make a 64-bit one; a linear first digit spreads them over the bins.
// Bound by how fast one SM reads L2, 4 bytes a logit and reading.
// Measured (H200): 129 280 logits: greedy 9 us with find_best_kernel (2026-11-23), top-p 168 us before it.
__global__ void __launch_bounds__(kThreads)
    sample_kernel(Sample op, Rules rules, const Found* shares, int64_t first_row) {
  __shared__ Shared sm;
  const int64_t t = first_row + blockIdx.x;
  const SampleRule& rule = rules.rule[blockIdx.x];
  Row row{op.logits + t * op.vocab_size, static_cast<int32_t>(op.vocab_size), 0, rule.temperature};
  const Best best = find_best(sm, shares + t * kShares);
  row.largest = row.logits[best.id];
  if (!best.is_finite) {
    if (threadIdx.x == 0) op.out[t] = {best.id, row.largest, 0};
    return;
  }
  const int32_t id =
      rule.temperature == 0 ? best.id : find_drawn(sm, row, rule, find_cut_of_rule(sm, row, rule));
  const float log_sum = op.n_top >= 0 ? log_sum_exp(row) : 0;
  if (threadIdx.x == 0) op.out[t] = {id, op.n_top >= 0 ? (row.logits[id] - row.largest) - log_sum : 0, 1};
  if (op.n_top > 0) write_top(sm, row, log_sum, static_cast<int>(op.n_top), op.top + t * op.n_top);
}

}  // namespace

void sample(const Sample& op, const Launch& launch) {
  if (op.n_tokens == 0) return;
  if (op.vocab_size < 1 || op.vocab_size > kMostTokens)
    fail(ErrorKind::internal,
         format("sample: %lld tokens to choose from, expected 1 to %lld",
                static_cast<long long>(op.vocab_size), static_cast<long long>(kMostTokens)));
  if (op.n_top > std::min(op.vocab_size, kMostTopLogprobs))
    fail(ErrorKind::internal,
         format("sample: the %lld likeliest of %lld tokens", static_cast<long long>(op.n_top),
                static_cast<long long>(op.vocab_size)));
  Found* shares = launch.workspace->take<Found>(static_cast<size_t>(op.n_tokens * kShares));
  launch_kernel("find_best_kernel", find_best_kernel,
                {dim3(kShares, static_cast<unsigned>(op.n_tokens)), kShareThreads}, launch, op.logits,
                static_cast<int>(op.vocab_size), shares);
  for (int64_t first = 0; first < op.n_tokens; first += kRowsOfALaunch) {
    const int64_t n = std::min<int64_t>(kRowsOfALaunch, op.n_tokens - first);
    Rules rules;
    std::copy_n(op.rules + first, n, rules.rule);
    sample_kernel<<<static_cast<unsigned>(n), kThreads, 0, launch.stream>>>(op, rules, shares, first);
    check_launch("sample_kernel");
  }
}

}  // namespace dsv32::cuda
