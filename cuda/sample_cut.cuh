// Where a rule cuts the tokens of a row off: the last kept token, found digit by digit.
//
// Histograms of integer weights: sums of integers are the same in every order, so no result depends on which
// thread came first, nor on how many blocks share a row.
#pragma once

#include "backend/backend.h"
#include "cuda/common.cuh"
#include "cuda/ptx.cuh"
#include "cuda/team.cuh"

namespace dsv32::cuda::sampling {

constexpr int kThreads = 512, kWarps = kThreads / 32;
constexpr int kBins = 2048, kThreadBins = kBins / kThreads;
constexpr int kListRoom = 1024;           // ids of a bin that a block lists
constexpr int64_t kMostTokens = 1 << 22;  // ids have two digits of 11 bits
constexpr float kWidthOfBins = 28;        // below exp(-28) a weight is 0 (2^-40 = exp(-27.7))
constexpr float kLargestScale = 1e30f;    // 0 * it is 0 still
constexpr float kLog2E = 1.44269504f;

struct Shared {
  uint32_t low[kBins], high[kBins];  // the histogram's 64-bit amounts, of the block's share of the row
  uint64_t warp_sums[kWarps], run_sums[kWarps];
  uint64_t block_sum;
  uint64_t best;  // of all, as in Found
  uint32_t bad;
  // What find_bin and find_drawn leave for all threads.
  uint32_t digit;
  uint64_t before, amount, total;
  int32_t drawn;
  int32_t n_listed;
  int32_t listed[kListRoom];
};
static_assert(kListRoom >= kMostTopLogprobs);

// The logits of one token and what is known of them. Blocks have runs of the ids, in the order of their
// ranks.
struct Row {
  const float* logits;
  float largest;
  float scale;  // of a logit: log2(e) / temperature
  Team team;
  int first, end;  // of the block's ids
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
  return exp2_fast((logit - row.largest) * row.scale);
}
__device__ __forceinline__ uint64_t weight(float p) { return static_cast<uint64_t>(p * 0x1p40f); }

__device__ __forceinline__ uint64_t warp_sum_u64(uint64_t x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}

// The sum over the threads before this one; `total` over all. All threads of the block call it.
__device__ inline uint64_t block_prefix(Shared& sm, uint64_t x, uint64_t& total) {
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

// The sum over the blocks before this one; `total` over all of the team. All threads of the team call it.
__device__ inline uint64_t team_prefix(Shared& sm, const Team& team, uint64_t own, uint64_t& total) {
  if (threadIdx.x == 0) sm.block_sum = own;
  team.sync();
  uint64_t before = 0;
  total = 0;
  for (int block = 0; block < team.size; ++block) {
    if (block == team.rank) before = total;
    total += *team.of(&sm.block_sum, block);
  }
  team.sync();  // until all have read
  return before;
}

// Calls visit(id, logit) for every token of the block; several loads are on their way at once.
template <typename Visit>
__device__ __forceinline__ void visit_logits(const Row& row, const Visit& visit) {
  constexpr int kTogether = 8;
#pragma unroll 1
  for (int first = row.first + static_cast<int>(threadIdx.x); first < row.end;
       first += kThreads * kTogether) {
    float logits[kTogether];
#pragma unroll
    for (int u = 0; u < kTogether; ++u)
      logits[u] = first + u * kThreads < row.end ? row.logits[first + u * kThreads] : 0.0f;
#pragma unroll
    for (int u = 0; u < kTogether; ++u)
      if (first + u * kThreads < row.end) visit(first + u * kThreads, logits[u]);
  }
}

// Lists those tokens of the block of which is_listed(id, logit).
template <typename IsListed>
__device__ __forceinline__ void list(Shared& sm, const Row& row, const IsListed& is_listed) {
  if (threadIdx.x == 0) sm.n_listed = 0;
  __syncthreads();
  visit_logits(row, [&](int32_t id, float logit) {
    if (!is_listed(id, logit)) return;
    const int at = atomicAdd(&sm.n_listed, 1);
    if (at < kListRoom) sm.listed[at] = id;
  });
  __syncthreads();
}

// As visit_logits() for the tokens of which is_listed(id, logit), after list().
template <typename IsListed, typename Visit>
__device__ __forceinline__ void visit_listed(const Shared& sm, const Row& row, const IsListed& is_listed,
                                             const Visit& visit) {
  if (sm.n_listed <= kListRoom) {
    for (int i = static_cast<int>(threadIdx.x); i < sm.n_listed; i += kThreads)
      visit(sm.listed[i], row.logits[sm.listed[i]]);
  } else {
    visit_logits(row, [&](int32_t id, float logit) {
      if (is_listed(id, logit)) visit(id, logit);
    });
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

__device__ inline void clear_bins(Shared& sm, const Team& team) {
  team.sync();  // until all blocks have read them
  for (int i = static_cast<int>(threadIdx.x); i < kBins; i += kThreads) sm.low[i] = 0, sm.high[i] = 0;
  __syncthreads();
}

// The team's amounts of a thread's bins, the first thread's the highest.
__device__ __forceinline__ void add_up_bins(Shared& sm, const Team& team, int lowest,
                                            uint64_t (&amounts)[kThreadBins]) {
  static_assert(kThreadBins == 4);
#pragma unroll
  for (int block = 0; block < kMostTeamBlocks; ++block) {
    if (block >= team.size) break;
    const uint4 low = *reinterpret_cast<const uint4*>(team.of(sm.low, block) + lowest);
    const uint4 high = *reinterpret_cast<const uint4*>(team.of(sm.high, block) + lowest);
    amounts[0] += static_cast<uint64_t>(high.x) << 32 | low.x;
    amounts[1] += static_cast<uint64_t>(high.y) << 32 | low.y;
    amounts[2] += static_cast<uint64_t>(high.z) << 32 | low.z;
    amounts[3] += static_cast<uint64_t>(high.w) << 32 | low.w;
  }
}

// From the highest digit down, the one at which the team's amounts reach need_of(total): sm.digit, with
// sm.amount in it and sm.before above it. The same in all blocks.
template <typename NeedOf>
__device__ void find_bin(Shared& sm, const Team& team, const NeedOf& need_of) {
  team.sync();
  const int lowest = kBins - kThreadBins * (static_cast<int>(threadIdx.x) + 1);
  uint64_t amounts[kThreadBins] = {}, own = 0, total = 0;
  add_up_bins(sm, team, lowest, amounts);
#pragma unroll
  for (int k = 0; k < kThreadBins; ++k) own += amounts[k];
  uint64_t before = block_prefix(sm, own, total);
  const uint64_t need = need_of(total);
#pragma unroll
  for (int k = kThreadBins - 1; k >= 0; --k) {
    if (before < need && need <= before + amounts[k]) {
      sm.digit = static_cast<uint32_t>(lowest + k);
      sm.before = before, sm.amount = amounts[k], sm.total = total;
    }
    before += amounts[k];
  }
  __syncthreads();
}

// The cut at which the amounts of the tokens that `within` keeps, likeliest first, reach need_of(their
// total). Amounts are weights or, for counting, ones.
//
// The first digit is a bin on a linear scale, `bin_scale` a logit below the largest: a float's highest bits
// are the same for most logits, and all threads would add to the same few bins. Of the tokens in that bin,
// mostly few, the three digits of the key follow, and the two of the id where not all of the equal logits are
// needed.
template <bool kWeighs, typename NeedOf>
__device__ Cut find_cut(Shared& sm, const Row& row, const Cut& within, float bin_scale,
                        const NeedOf& need_of) {
  const auto amount_of = [&](float logit) -> uint64_t {
    if constexpr (kWeighs)
      return weight(probability(row, logit));
    else
      return 1;
  };
  const auto bin_of = [&](float logit) {
    return kBins - 1 - static_cast<uint32_t>(fminf((row.largest - logit) * bin_scale, kBins - 1.0f));
  };
  clear_bins(sm, row.team);
  visit_logits(row, [&](int32_t id, float logit) {
    if (!within.keeps(rank_key(logit), id)) return;
    const uint64_t amount = amount_of(logit);
    if (amount) add_amount(sm, bin_of(logit), amount);
  });
  find_bin(sm, row.team, need_of);
  uint64_t need = need_of(sm.total) - sm.before;
  const uint32_t bin = sm.digit;
  const auto is_in_bin = [&](int32_t id, float logit) {
    return bin_of(logit) == bin && within.keeps(rank_key(logit), id);
  };
  list(sm, row, is_in_bin);

  const auto narrow = [&](const auto& has_digit) {
    clear_bins(sm, row.team);
    visit_listed(sm, row, is_in_bin, [&](int32_t id, float logit) {
      uint32_t digit;
      if (!has_digit(id, rank_key(logit), &digit)) return;
      const uint64_t amount = amount_of(logit);
      if (amount) add_amount(sm, digit, amount);
    });
    find_bin(sm, row.team, [&](uint64_t) { return need; });
    need -= sm.before;
  };
  uint32_t key = 0;
#pragma unroll 1
  for (int shift = 21; shift >= 0; shift = shift == 21 ? 10 : shift - 10) {
    const int n_bits = shift == 0 ? 10 : 11;
    narrow([&](int32_t, uint32_t other, uint32_t* digit) {
      *digit = other >> shift & ((1u << n_bits) - 1);
      return (static_cast<uint64_t>(other) >> shift >> n_bits) == key;
    });
    key = key << n_bits | sm.digit;
  }
  if (need + amount_of(logit_of(key)) > sm.amount)
    return {key, within.key == key ? within.last_id : INT32_MAX};

  uint32_t id_prefix = 0;  // of the number of ids after it: lower ids come first
#pragma unroll 1
  for (int shift = 11; shift >= 0; shift -= 11) {
    narrow([&](int32_t id, uint32_t other, uint32_t* digit) {
      const uint32_t n_after = static_cast<uint32_t>(kMostTokens) - 1 - static_cast<uint32_t>(id);
      *digit = n_after >> shift & (kBins - 1);
      return other == key && n_after >> shift >> 11 == id_prefix;
    });
    id_prefix = id_prefix << 11 | sm.digit;
  }
  return {key, static_cast<int32_t>(static_cast<uint32_t>(kMostTokens) - 1 - id_prefix)};
}

__device__ inline Cut find_cut_of_count(Shared& sm, const Row& row, int64_t n_kept) {
  return find_cut<false>(sm, row, Cut{}, kBins / kWidthOfBins,
                         [&](uint64_t) { return static_cast<uint64_t>(n_kept); });
}

__device__ inline Cut find_cut_of_rule(Shared& sm, const Row& row, const SampleRule& rule, int64_t n_tokens) {
  Cut cut;
  if (rule.top_k > 0 && rule.top_k < n_tokens) cut = find_cut_of_count(sm, row, rule.top_k);
  if (!(rule.top_p < 1)) return cut;
  const float bin_scale = fminf(kBins / kWidthOfBins / rule.temperature, kLargestScale);
  return find_cut<true>(sm, row, cut, bin_scale, [&](uint64_t total) {
    const double wanted = static_cast<double>(rule.top_p) * static_cast<double>(total);
    return min(max(static_cast<uint64_t>(ceil(wanted)), uint64_t{1}), total);
  });
}

}  // namespace dsv32::cuda::sampling
