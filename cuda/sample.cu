// Draws tokens from logits: the likeliest of each share of a row, then a team of blocks per token, nothing
// sorted.
//
// What a rule keeps is a beginning of the tokens in order of likelihood (equal logits: the lower id first),
// so it is a cut (sample_cut.cuh); the draw then adds the kept weights in the order of ids.
#include <algorithm>

#include "cuda/common.cuh"
#include "cuda/kernels.h"
#include "cuda/sample_cut.cuh"

namespace dsv32::cuda {
namespace sampling {
namespace {

constexpr int kBlocksOfAnSm = 2;
constexpr int kShares = 32, kShareThreads = 256;  // of a row, whose likeliest is found first
constexpr int kFewRows = 64, kMostRows = 1000;    // of a launch: rules are its arguments, of 32 KB at most

template <int kRows>
struct Rules {
  SampleRule rule[kRows];
};

// What is known of a token's likeliest id from some of its ids.
struct Found {
  uint64_t best = 0;           // key, then the complement of the id
  uint32_t bad = 0xffffffffu;  // the lowest id whose logit is not finite
};

// The first id, of those that are kept, whose sum of weights up to it exceeds the draw; -1 in the blocks that
// do not have it. Each warp adds up a run of ids; then the run that has the id is divided over all threads.
__device__ int32_t find_drawn(Shared& sm, const Row& row, const SampleRule& rule, const Cut& cut) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const auto weight_of = [&](int32_t id) -> uint64_t {
    const float logit = row.logits[id];
    if (!cut.keeps(rank_key(logit), id)) return 0;
    const float p = probability(row, logit);
    return p >= rule.min_p ? weight(p) : 0;
  };
  const int n_run = (row.end - row.first + kWarps - 1) / kWarps;
  uint64_t sum = 0;
#pragma unroll 8
  for (int id = row.first + warp * n_run + lane; id < min(row.first + (warp + 1) * n_run, row.end); id += 32)
    sum += weight_of(id);
  sum = warp_sum_u64(sum);
  if (lane == 0) sm.run_sums[warp] = sum;
  __syncthreads();
  uint64_t own = 0, total;
  for (int w = 0; w < kWarps; ++w) own += sm.run_sums[w];
  const uint64_t others = team_prefix(sm, row.team, own, total);
  uint64_t left = min(static_cast<uint64_t>(rule.uniform * static_cast<double>(total)), total - 1);
  if (left < others || others + own <= left) return -1;
  left -= others;
  int run = 0;
  for (; left >= sm.run_sums[run]; ++run) left -= sm.run_sums[run];

  const int n_own = (n_run + kThreads - 1) / kThreads, end = min(row.first + (run + 1) * n_run, row.end);
  const int first = min(row.first + run * n_run + static_cast<int>(threadIdx.x) * n_own, end),
            last = min(first + n_own, end);
  own = 0;
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

// The logarithm of the sum of exp(logit - largest), in units of 2^-40.
__device__ float log_sum_exp(Shared& sm, const Row& row) {
  uint64_t sum = 0, own, total;
  visit_logits(row, [&](int32_t, float logit) { sum += weight(expf(logit - row.largest)); });
  block_prefix(sm, sum, own);
  team_prefix(sm, row.team, own, total);
  return logf(static_cast<float>(total) * 0x1p-40f);
}

// The n_top likeliest are listed in the first block as they come, which puts them in order by counting the
// likelier ones of each.
__device__ void write_top(Shared& sm, const Row& row, float log_sum, int n_top, TokenLogprob* top) {
  const Cut cut = find_cut_of_count(sm, row, n_top);
  if (threadIdx.x == 0) sm.n_listed = 0;
  row.team.sync();
  int32_t* n_listed = row.team.of(&sm.n_listed, 0);
  int32_t* listed = row.team.of(sm.listed, 0);
  visit_logits(row, [&](int32_t id, float logit) {
    if (cut.keeps(rank_key(logit), id)) listed[atomicAdd(n_listed, 1)] = id;
  });
  row.team.sync();
  if (row.team.rank > 0 || static_cast<int>(threadIdx.x) >= n_top) return;
  const int32_t id = sm.listed[threadIdx.x];
  const float logit = row.logits[id];
  const Cut own{rank_key(logit), id};
  int n_likelier = -1;  // all that this token as a cut would keep, without itself
  for (int i = 0; i < n_top; ++i) n_likelier += own.keeps(rank_key(row.logits[sm.listed[i]]), sm.listed[i]);
  top[n_likelier] = {id, (logit - row.largest) - log_sum};
}

// out = the id drawn by the rule, its log-probability and the likeliest ids' (see Sample in backend.h).
// A team of 1 to 8 blocks takes a token, each a run of its logits, which it reads from L2: not at all for the
// likeliest, once for the sum, twice for each of top-k, top-p and the list of the likeliest, once for the
// draw. Two 32-bit additions in shared memory make a 64-bit one; a linear first digit spreads them over the
// bins. Bound by the some 60 instructions of a weight, twice a logit; with few rows by the team's meetings.
// Measured (H200, 2026-11-24): of 129 280 logits, top-p 0.95: 64 us a token, 133 for 64, 380 for 333;
// greedy 13.
template <int kRows>
__global__ void __launch_bounds__(kThreads, kBlocksOfAnSm)
    sample_kernel(Sample op, const __grid_constant__ Rules<kRows> rules, const Found* shares,
                  int64_t first_row) {
  __shared__ __align__(16) Shared sm;
  let_next_start();
  wait_for_inputs();
  const Team team;
  const int at = static_cast<int>(blockIdx.x) / team.size, n = static_cast<int>(op.vocab_size);
  const int64_t t = first_row + at;
  const SampleRule& rule = rules.rule[at];
  const int n_part = (n + team.size - 1) / team.size;
  const float scale = fminf(kLog2E / rule.temperature, kLargestScale);
  Row row{op.logits + t * op.vocab_size,   0, scale, team, min(team.rank * n_part, n),
          min((team.rank + 1) * n_part, n)};
  const Best best = find_best(sm, shares + t * kShares);
  row.largest = row.logits[best.id];
  const bool is_first = team.rank == 0 && threadIdx.x == 0;
  if (!best.is_finite) {
    if (is_first) op.out[t] = {best.id, row.largest, 0};
    return;
  }
  const float log_sum = op.n_top >= 0 ? log_sum_exp(sm, row) : 0;
  const auto write = [&](int32_t id) {
    op.out[t] = {id, op.n_top >= 0 ? (row.logits[id] - row.largest) - log_sum : 0, 1};
  };
  if (rule.temperature == 0) {
    if (is_first) write(best.id);
  } else {
    const int32_t drawn = find_drawn(sm, row, rule, find_cut_of_rule(sm, row, rule, n));
    if (threadIdx.x == 0 && drawn >= 0) write(drawn);
  }
  if (op.n_top > 0) write_top(sm, row, log_sum, static_cast<int>(op.n_top), op.top + t * op.n_top);
  team.sync();  // no block's shared memory goes while another reads it
}

// Blocks that share a row: as many as there is room for.
unsigned blocks_per_row(int64_t n_rows, int n_sms) {
  unsigned n = 1;
  while (n < kMostTeamBlocks && 2 * n * n_rows <= kBlocksOfAnSm * n_sms) n *= 2;
  return n;
}

template <int kRows>
void sample_rows(const Sample& op, const Found* shares, int64_t first, int64_t n, const Launch& launch) {
  const auto kernel = sample_kernel<kRows>;
  Rules<kRows> rules;
  std::copy_n(op.rules + first, n, rules.rule);
  const unsigned n_blocks = knows_teams(attributes_of(kernel)) ? blocks_per_row(n, launch.n_sms) : 1;
  launch_kernel("sample_kernel", kernel, {static_cast<unsigned>(n) * n_blocks, kThreads, 0, n_blocks}, launch,
                op, rules, shares, first);
}

}  // namespace
}  // namespace sampling

void sample(const Sample& op, const Launch& launch) {
  using namespace sampling;
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
  if (op.n_tokens <= kFewRows) return sample_rows<kFewRows>(op, shares, 0, op.n_tokens, launch);
  for (int64_t first = 0; first < op.n_tokens; first += kMostRows)
    sample_rows<kMostRows>(op, shares, first, std::min<int64_t>(kMostRows, op.n_tokens - first), launch);
}

}  // namespace dsv32::cuda
