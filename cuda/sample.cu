// Draws tokens from logits: one kernel finds the likeliest of each share of a row, then a team of blocks
// draws; nothing is sorted. A rule keeps the first tokens in order of likelihood (equal logits: the lower id
// first), so it is a cut (sample_cut.cuh); the draw then adds the kept weights in the order of ids. A step
// with masks has kernels of its own, in which rules see allowed tokens alone; a step without has the same as
// ever.

#include "cuda/sample_cut.cuh"

namespace dsv32::cuda {
namespace sampling {
namespace {

constexpr int kBlocksOfAnSm = 2;
constexpr int kShares = 32, kShareThreads = 256;  // of a row, each a block of the first kernel
constexpr int kShareTogether = 16;                // loads of a thread
constexpr int kRulesOfALaunch = 120;              // a launch's arguments are 4 KB at most

struct Rules {
  SampleRule rule[kRulesOfALaunch];
};
static_assert(sizeof(Rules) <= 4096 - 128);  // the kernel has other arguments too

// Facts about a row from some of its ids.
struct Found {
  uint64_t best = 0;           // the place (place_of) of the likeliest id; 0: none
  uint32_t bad = 0xffffffffu;  // the lowest id whose logit is not finite
  float smallest = INFINITY;
};

// The first kept id at which the sum of kept weights exceeds the draw; -1 in blocks without it. Each warp
// adds up consecutive ids; then the ids of the warp with the drawn one are divided over all threads.
template <typename Logits>
__device__ int32_t find_drawn(Shared& sm, const Row<Logits>& row, const SampleRule& rule, const Cut& cut) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const auto weight = [&](int32_t id, float logit) -> uint64_t {
    const float p = probability(row, logit);
    return cut.keeps(logit, id) ? weight_of(rule, p) : 0;
  };
  const int n_run = (row.end - row.first + kWarps - 1) / kWarps, run_first = row.first + warp * n_run;
  uint64_t sum = 0;
  visit_ids<kTogether, 32>(row.logits, run_first + lane, min(run_first + n_run, row.end),
                           [&](int32_t id, float logit) { sum += weight(id, logit); });
  sum = warp_sum(sum);
  if (lane == 0) sm.run_sums[warp] = sum;
  __syncthreads();
  uint64_t own = 0, total;
  for (int w = 0; w < kWarps; ++w) own += sm.run_sums[w];
  const uint64_t others = team_prefix(sm, row.team, own, total);
  uint64_t left = rule.drawn_weight(total);
  if (left < others || others + own <= left) return -1;
  left -= others;
  int run = 0;
  for (; left >= sm.run_sums[run]; ++run) left -= sm.run_sums[run];

  const int n_own = (n_run + kThreads - 1) / kThreads, end = min(row.first + (run + 1) * n_run, row.end);
  const int first = min(row.first + run * n_run + static_cast<int>(threadIdx.x) * n_own, end),
            last = min(first + n_own, end);
  own = 0;
  visit_ids<4, 1>(row.logits, first, last, [&](int32_t id, float logit) { own += weight(id, logit); });
  const uint64_t before = block_prefix(sm, own, total);
  if (before <= left && left < before + own) {
    left -= before;
    int id = first;
    for (uint64_t w; left >= (w = weight(id, row.logits[id])); ++id) left -= w;
    sm.drawn = id;
  }
  __syncthreads();
  return sm.drawn;
}

DSV32_DEVICE void add(Found& found, const Found& other) {
  found.best = max(found.best, other.best);
  found.bad = min(found.bad, other.bad);
  found.smallest = fminf(found.smallest, other.smallest);
}
DSV32_DEVICE Found over_warp(Found found) {
  DSV32_UNROLL for (int offset = 16; offset > 0; offset /= 2)
      add(found,
          {__shfl_xor_sync(0xffffffffu, found.best, offset), __shfl_xor_sync(0xffffffffu, found.bad, offset),
           __shfl_xor_sync(0xffffffffu, found.smallest, offset)});
  return found;
}

// A token's logits, without those that it may not draw if kIsMasked.
template <bool kIsMasked>
DSV32_DEVICE auto logits_of(const float* logits, const uint32_t* masks, int n, int t,
                            const SampleRule& rule) {
  logits += static_cast<int64_t>(t) * n;
  if constexpr (kIsMasked)
    return AllowedLogits{logits, rule.is_masked ? masks + t * n_mask_words(n) : nullptr};
  else
    return logits;
}

// out[t, share] = the facts about a share of the token's ids, if kIsMasked of those that it may draw, without
// `bad`; all_rules[t] = the token's rule, t from `first` on. Grid (shares, tokens). Bound by latency (a
// single block would read a token's logits in 20 us); with many tokens by reading the logits.
template <bool kIsMasked>
__global__ void __launch_bounds__(kShareThreads)
    find_best_kernel(const float* logits, const uint32_t* masks, int n, int first,
                     const __grid_constant__ Rules rules, Found* out, SampleRule* all_rules) {
  __shared__ Found of_warps[kShareThreads / 32];
  let_next_start();
  wait_for_inputs();
  const int t = first + static_cast<int>(blockIdx.y);
  int32_t best = -1;
  float largest = -INFINITY;
  Found found;
  visit_ids<kShareTogether, kShares * kShareThreads>(
      logits_of<kIsMasked>(logits, masks, n, t, rules.rule[blockIdx.y]),
      static_cast<int>(blockIdx.x * kShareThreads + threadIdx.x), n, [&](int32_t id, float logit) {
        if (!isfinite(logit) & (id < n)) found.bad = min(found.bad, static_cast<uint32_t>(id));
        if (logit > largest) best = id, largest = logit;  // the lowest id of equal logits
        found.smallest = fminf(found.smallest, logit);
      });
  if (best >= 0) found.best = place_of(largest, best);
  found = over_warp(found);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = found;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < kShareThreads / 32; ++w) add(found, of_warps[w]);
  out[t * kShares + static_cast<int>(blockIdx.x)] = found;
  if (blockIdx.x == 0) all_rules[t] = rules.rule[blockIdx.y];
}

// The logarithm of the sum of exp(logit - largest), added in units of 2^-40.
__device__ float log_sum_exp(Shared& sm, const Row<const float*>& row) {
  uint64_t sum = 0, own, total;
  visit_ids<kTogether, kThreads>(
      row.logits, row.first + static_cast<int>(threadIdx.x), row.end,
      [&](int32_t, float logit) { sum += weight_of(expf(fmaxf(logit - row.largest, -kWidthOfBins))); });
  block_prefix(sm, sum, own);
  team_prefix(sm, row.team, own, total);
  row.team.sync();
  return logf(static_cast<float>(total) * 0x1p-40f);
}

// Writes the n_top likeliest tokens in order. All blocks list them in the first block, in any order; that
// block counts for each token how many are likelier.
__device__ void write_top(Shared& sm, const Row<const float*>& row, float log_sum, int n_top,
                          TokenLogprob* top) {
  const Cut cut = find_cut_of_count(sm, row, n_top);
  if (threadIdx.x == 0) sm.n_listed = 0;
  row.team.sync();
  int32_t* n_listed = row.team.of(&sm.n_listed, 0);
  uint64_t* listed = row.team.of(sm.listed, 0);
  visit_wanted(
      row, [&](int32_t id, float logit) { return cut.keeps(logit, id); },
      [&](int32_t id) { listed[atomicAdd(n_listed, 1)] = place_of(row.logits[id], id); });
  row.team.sync();
  if (row.team.rank > 0 || static_cast<int>(threadIdx.x) >= n_top) return;
  const uint64_t place = sm.listed[threadIdx.x];
  int n_likelier = 0;
  for (int i = 0; i < n_top; ++i) n_likelier += sm.listed[i] > place;
  const int32_t id = id_at(place);
  top[n_likelier] = {id, (row.logits[id] - row.largest) - log_sum};
}

// out = the id drawn by the rule and its log-probability; top = the likeliest ids and theirs (see Sample in
// sampling.h). A team of 1 to 8 blocks takes a token; each block reads its consecutive logits from L2: not at
// all for the likeliest, once for the sum, twice for each of top-k, top-p and the list of the likeliest, once
// for the draw. Bound by some 40 instructions per logit for top-p, which add to shared memory once or twice,
// and some 25 for the draw; with few rows by the team's barriers and by latency. kIsMasked: after the shares
// of all tokens come those of their allowed ids.
template <bool kIsMasked>
__global__ void __launch_bounds__(kThreads, kBlocksOfAnSm)
    sample_kernel(Sample op, const SampleRule* rules, const Found* shares) {
  __shared__ Shared sm;
  let_next_start();
  const Team team;
  clear_bins(sm);
  team.sync();  // every block of the team has started
  wait_for_inputs();
  const int t = static_cast<int>(blockIdx.x) / team.size, n = static_cast<int>(op.vocab_size);
  static_assert(kShares == 32);
  const Found found = over_warp(shares[t * kShares + static_cast<int>(threadIdx.x) % 32]);
  const SampleRule rule = rules[t];
  const float* logits = op.logits + t * op.vocab_size;
  const bool is_first = team.rank == 0 && threadIdx.x == 0;
  if (found.bad != 0xffffffffu) {
    if (is_first) op.out[t] = {static_cast<int32_t>(found.bad), logits[found.bad], 0};
    return;
  }
  const int32_t best = id_at(found.best);
  const int n_part = (n + team.size - 1) / team.size;
  const Row row{logits,
                logits[best],
                found.smallest,
                fminf(kLog2E / rule.temperature, kLargestScale),
                team,
                n,
                min(team.rank * n_part, n),
                min((team.rank + 1) * n_part, n)};
  const float log_sum = op.n_top >= 0 ? log_sum_exp(sm, row) : 0;
  const auto write = [&](int32_t id) {
    op.out[t] = {id, op.n_top >= 0 ? (logits[id] - row.largest) - log_sum : 0, 1};
  };
  const auto draw = [&](const auto& seen, int32_t likeliest) {
    if (rule.temperature == 0) {
      if (is_first) write(likeliest);
      return;
    }
    const int32_t drawn = find_drawn(sm, seen, rule, find_cut_of_rule(sm, seen, rule, n));
    if (threadIdx.x == 0 && drawn >= 0) write(drawn);
  };
  if constexpr (kIsMasked) {
    const Found allowed = over_warp(shares[(op.n_tokens + t) * kShares + static_cast<int>(threadIdx.x) % 32]);
    const int32_t likeliest = id_at(allowed.best);
    draw(Row{logits_of<true>(op.logits, op.masks, n, t, rule), logits[likeliest], allowed.smallest, row.scale,
             team, n, row.first, row.end},
         likeliest);
  } else {
    draw(row, best);
  }
  if (op.n_top > 0) write_top(sm, row, log_sum, static_cast<int>(op.n_top), op.top + t * op.n_top);
  // The team has synchronised since the last access to another block's shared memory.
}

}  // namespace
}  // namespace sampling

void sample(const Sample& op, const Launch& launch) {
  using namespace sampling;
  if (op.n_tokens == 0) return;
  if (op.vocab_size < 1 || op.vocab_size > kMostTokens)
    fail(ErrorKind::internal,
         format("sample: %ld tokens to choose from, expected 1 to %ld", op.vocab_size, kMostTokens));
  if (op.n_top > std::min(op.vocab_size, kMostTopLogprobs))
    fail(ErrorKind::internal, format("sample: the %ld likeliest of %ld tokens", op.n_top, op.vocab_size));
  const bool draws =
      op.n_top >= 0 || std::any_of(op.rules, op.rules + op.n_tokens,
                                   [](const SampleRule& rule) { return rule.temperature != 0; });
  const int n_blocks =
      card().has_clusters && draws ? sample_blocks(op.n_tokens, op.vocab_size, launch.n_sms) : 1;
  Found* shares = launch.workspace->take<Found>(op.n_tokens * kShares * (op.masks ? 2 : 1));
  SampleRule* all_rules = launch.workspace->take<SampleRule>(op.n_tokens);
  for (int64_t first = 0; first < op.n_tokens; first += kRulesOfALaunch) {
    const int64_t n = std::min<int64_t>(kRulesOfALaunch, op.n_tokens - first);
    Rules rules;
    std::copy_n(op.rules + first, n, rules.rule);
    const auto find_best = [&](auto kernel, Found* out) {
      launch_kernel(kernel, {{kShares, n}, kShareThreads}, launch, op.logits, op.masks, op.vocab_size, first,
                    rules, out, all_rules);
    };
    find_best(find_best_kernel<false>, shares);
    if (op.masks) find_best(find_best_kernel<true>, shares + op.n_tokens * kShares);
  }
  launch_kernel(op.masks ? sample_kernel<true> : sample_kernel<false>,
                {op.n_tokens * n_blocks, kThreads, 0, n_blocks}, launch, op, all_rules, shares);
}

}  // namespace dsv32::cuda
