// Finds the last token of a row that a rule keeps, by histograms of integer weights. Integer sums are the
// same in every order, so no result depends on the order of threads or the number of blocks per row.
#pragma once

#include <cfloat>

#include "cuda/common.cuh"

namespace dsv32::cuda::sampling {

constexpr int kThreads = 512, kWarps = kThreads / 32;
constexpr int kTogether = 8;  // loads of a thread under way at once
constexpr int kBinBits = 11, kBins = 1 << kBinBits;
constexpr int kListRoom = 1024;  // most tokens of a bin that are compared with each other
constexpr int kIdBits = 22;
constexpr int64_t kMostTokens = 1 << kIdBits;
constexpr float kWidthOfBins = 28;      // below exp(-28) a weight is 0 (2^-40 = exp(-27.7))
constexpr float kLargestScale = 1e30f;  // finite, so that 0 * this is 0
constexpr float kLog2E = 1.44269504f;

// A token that may be the last kept one.
struct Candidate {
  uint64_t place;
  uint64_t amount;
};

// A bin of the team's histogram.
struct Bin {
  uint32_t digit;
  uint64_t before, total;  // amounts of the bins above it, and of all bins
};

struct __align__(16) Shared {
  uint32_t low[kBins], high[kBins];  // the histogram's 64-bit amounts, of the block's part of the row
  Candidate candidates[kListRoom];   // of the team; the same in all blocks
  uint64_t listed[kListRoom];        // places, of the block's part
  uint64_t warp_sums[kWarps], run_sums[kWarps];
  // Written by every block of the team to all blocks.
  uint64_t team_sums[kMostTeamBlocks];
  int32_t team_listed[kMostTeamBlocks];
  Bin bin;
  uint64_t cut;  // the cut's place

  int32_t n_listed;  // may exceed kListRoom
  int32_t drawn;
};
static_assert(kListRoom >= kMostTopLogprobs && sizeof(Shared) <= 48 << 10);

// The logits of one token of which only allowed ones are seen: the others are NaN, like ids past the end
// (visit_batches), so that no rule needs to know of masks.
struct AllowedLogits {
  const float* logits;
  const uint32_t* mask;  // null: all are allowed

  __device__ uint32_t word_of(int id) const { return mask[static_cast<unsigned>(id) / 32]; }
  __device__ static float seen(float logit, uint32_t word, int id) {
    return word >> (id % 32) & 1 ? logit : NAN;
  }
  __device__ float operator[](int id) const { return seen(logits[id], mask ? word_of(id) : ~0u, id); }
};

// The logits of one token and facts about them. Each block has consecutive ids, in the order of ranks.
// Logits: const float* or AllowedLogits; the facts are about those that are not NaN.
template <typename Logits>
struct Row {
  Logits logits;
  float largest, smallest;
  float scale;  // of logits: log2(e) / temperature
  Team team;
  int n;           // number of ids
  int first, end;  // the block's ids
};

// The last kept token. Tokens with a larger logit are kept, and those with this logit up to last_id; never
// NaN.
struct Cut {
  float logit = -INFINITY;
  int32_t last_id = INT32_MAX;

  __device__ bool keeps(float other, int32_t id) const {
    return (other > logit) | ((other == logit) & (id <= last_id));
  }
};

// A finite float as an integer of the same order; -0 equals 0.
DSV32_DEVICE uint32_t rank_key(float logit) {
  const uint32_t bits = logit == 0 ? 0 : __float_as_uint(logit);
  return (bits & 0x80000000u) ? ~bits : bits | 0x80000000u;
}
DSV32_DEVICE float logit_of(uint32_t key) {
  return __uint_as_float((key & 0x80000000u) ? key ^ 0x80000000u : ~key);
}

// A token's place in the order of likelihood; the likeliest has the highest. High bits: the logit's key; low
// bits: the number of ids after its own.
DSV32_DEVICE uint64_t place_of(float logit, int32_t id) {
  return static_cast<uint64_t>(rank_key(logit)) << kIdBits | (static_cast<uint32_t>(kMostTokens) - 1 - id);
}
DSV32_DEVICE float logit_at(uint64_t place) { return logit_of(static_cast<uint32_t>(place >> kIdBits)); }
DSV32_DEVICE int32_t id_at(uint64_t place) {
  return static_cast<int32_t>(kMostTokens) - 1 - static_cast<int32_t>(place & (kMostTokens - 1));
}

template <typename Logits>
DSV32_DEVICE float probability(const Row<Logits>& row, float logit) {
  return exp2_fast((logit - row.largest) * row.scale);
}

// The sum over the threads before this one; `total` over all. All threads of the block call it.
__device__ inline uint64_t block_prefix(Shared& sm, uint64_t x, uint64_t& total) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const uint64_t sum = warp_prefix(x);
  __syncthreads();  // the previous call's sums are read
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

// The sum over the blocks before this one; `total` over all of the team. All threads of the team call it, and
// need a team barrier before the next call.
__device__ inline uint64_t team_prefix(Shared& sm, const Team& team, uint64_t own, uint64_t& total) {
  if (static_cast<int>(threadIdx.x) < team.size)
    *team.of(&sm.team_sums[team.rank], static_cast<int>(threadIdx.x)) = own;
  team.sync();
  uint64_t before = 0;
  total = 0;
  DSV32_NO_UNROLL for (int block = 0; block < team.size; ++block) {
    if (block == team.rank) before = total;
    total += sm.team_sums[block];
  }
  return before;
}

// batch[u] = the logit of id first + u * kStride; NaN past the end. All loads are under way at once.
template <int kStride, int kN>
DSV32_DEVICE void load_batch(const float* logits, int first, int end, float (&batch)[kN]) {
  DSV32_UNROLL for (int u = 0; u < kN; ++u) batch[u] =
      first + u * kStride < end ? logits[first + u * kStride] : NAN;
}
template <int kStride, int kN>
DSV32_DEVICE void load_batch(const AllowedLogits& allowed, int first, int end, float (&batch)[kN]) {
  uint32_t words[kN];
  DSV32_UNROLL for (int u = 0; u < kN; ++u) words[u] =
      allowed.mask && first + u * kStride < end ? allowed.word_of(first + u * kStride) : ~0u;
  load_batch<kStride>(allowed.logits, first, end, batch);
  DSV32_UNROLL for (int u = 0; u < kN; ++u) batch[u] =
      AllowedLogits::seen(batch[u], words[u], first + u * kStride);
}

// Calls visit(id, logits) with the kN logits of ids id, id + kStride, ..., from `first` on. Past the end they
// are NaN, which the visitors' comparisons exclude without extra branches.
template <int kN, int kStride, typename Logits, typename Visit>
DSV32_DEVICE void visit_batches(const Logits& logits, int first, int end, const Visit& visit) {
  DSV32_NO_UNROLL for (; first < end; first += kStride * kN) {
    float batch[kN];
    load_batch<kStride>(logits, first, end, batch);
    visit(first, batch);
  }
}

// Calls visit(id, logit) for ids first, first + kStride, ..., and with NaN for some past the end.
template <int kN, int kStride, typename Logits, typename Visit>
DSV32_DEVICE void visit_ids(const Logits& logits, int first, int end, const Visit& visit) {
  visit_batches<kN, kStride>(logits, first, end, [&](int id, const float(&batch)[kN]) {
    DSV32_UNROLL for (int u = 0; u < kN; ++u) visit(id + u * kStride, batch[u]);
  });
}

// Calls visit(id) for the tokens of the block with is_wanted(id, logit); they should be few.
template <typename Logits, typename IsWanted, typename Visit>
DSV32_DEVICE void visit_wanted(const Row<Logits>& row, const IsWanted& is_wanted, const Visit& visit) {
  constexpr int kN = 2 * kTogether;
  visit_batches<kN, kThreads>(row.logits, row.first + static_cast<int>(threadIdx.x), row.end,
                              [&](int first, const float(&logits)[kN]) {
                                uint32_t wanted = 0;
                                DSV32_UNROLL for (int u = 0; u < kN; ++u) wanted |=
                                    is_wanted(first + u * kThreads, logits[u]) ? 1u << u : 0u;
                                DSV32_NO_UNROLL for (; wanted; wanted &= wanted - 1)
                                    visit(first + (__ffs(static_cast<int>(wanted)) - 1) * kThreads);
                              });
}

// Called before the first use; find_bin() leaves the bins clear (from the block's next barrier on) and the
// list empty.
DSV32_DEVICE void clear_bins(Shared& sm) {
  for (int i = static_cast<int>(threadIdx.x); i < kBins; i += kThreads) sm.low[i] = 0, sm.high[i] = 0;
}

// *address += x if is_wanted, without a branch. Returns the old value, or 0 if not wanted.
DSV32_DEVICE uint32_t add_shared_if(uint32_t address, uint32_t x, bool is_wanted) {
  uint32_t old = 0;
  asm volatile(
      "{\n.reg .pred wanted;\nsetp.ne.b32 wanted, %3, 0;\n@wanted atom.shared.add.u32 %0, [%1], %2;\n}"
      : "+r"(old)
      : "r"(address), "r"(x), "r"(static_cast<int>(is_wanted))
      : "memory");
  return old;
}

// Adds the amounts (weights, or ones) of the block's tokens to bins digit_of(id, logit), if below kBins. A
// 64-bit addition has two halves: the thread that makes the low half wrap carries into the high half. A
// batch's low halves are under way together.
template <bool kWeighs, typename Logits, typename DigitOf>
DSV32_DEVICE void fill_bins(Shared& sm, const Row<Logits>& row, const DigitOf& digit_of) {
  const uint32_t bins = shared_address(sm.low), to_high = shared_address(sm.high) - bins;
  visit_batches<kTogether, kThreads>(
      row.logits, row.first + static_cast<int>(threadIdx.x), row.end,
      [&](int first, const float(&logits)[kTogether]) {
        uint32_t digits[kTogether], lows[kTogether], highs[kTogether];
        DSV32_UNROLL for (int u = 0; u < kTogether; ++u) {
          const uint64_t amount = kWeighs ? weight_of(probability(row, logits[u])) : 1;
          lows[u] = static_cast<uint32_t>(amount), highs[u] = static_cast<uint32_t>(amount >> 32);
          const uint32_t digit = digit_of(first + u * kThreads, logits[u]);
          digits[u] = amount ? digit : kBins;
        }
        if constexpr (kWeighs) {
          uint32_t olds[kTogether];
          DSV32_UNROLL for (int u = 0; u < kTogether; ++u) olds[u] =
              add_shared_if(bins + digits[u] * 4, lows[u], digits[u] < kBins);
          DSV32_UNROLL for (int u = 0; u < kTogether; ++u) {
            const uint32_t high = highs[u] + (olds[u] + lows[u] < olds[u] ? 1u : 0u);
            add_shared_if(bins + to_high + digits[u] * 4, high, (digits[u] < kBins) & (high != 0));
          }
        } else {
          DSV32_UNROLL for (int u = 0; u < kTogether; ++u)
              count_shared_if(bins + digits[u] * 4, digits[u] < kBins);
        }
      });
}

// Returns the bin at which the team's amounts, from the highest digit down, reach need_of(total); the same in
// all blocks. Each block adds up the team's amounts of its share of the bins; the first block has the highest
// bins.
template <typename NeedOf>
__device__ Bin find_bin(Shared& sm, const Team& team, const NeedOf& need_of) {
  team.sync();
  const int n_bins = kBins / team.size, n_own = (n_bins + kThreads - 1) / kThreads;
  const int own_first = static_cast<int>(threadIdx.x) * n_own;
  const int highest = kBins - 1 - team.rank * n_bins - own_first;
  const auto amount_of = [&](int bin) {
    uint64_t amount = 0;
    uint32_t low[kMostTeamBlocks], high[kMostTeamBlocks];
    DSV32_UNROLL for (int block = 0; block < kMostTeamBlocks; ++block) {
      low[block] = block < team.size ? *team.of(&sm.low[bin], block) : 0;
      high[block] = block < team.size ? *team.of(&sm.high[bin], block) : 0;
    }
    DSV32_UNROLL for (int block = 0; block < kMostTeamBlocks; ++block) amount +=
        static_cast<uint64_t>(high[block]) << 32 | low[block];
    return amount;
  };
  uint64_t own = 0, block_total, total;
  DSV32_NO_UNROLL for (int k = 0; k < n_own && own_first < n_bins; ++k) own += amount_of(highest - k);
  uint64_t before = block_prefix(sm, own, block_total);
  before += team_prefix(sm, team, block_total, total);
  const uint64_t need = need_of(total);
  if (threadIdx.x == 0) sm.n_listed = 0;
  if (before < need && need <= before + own) {
    int digit = highest;
    if (n_own > 1)
      DSV32_NO_UNROLL for (uint64_t amount; before + (amount = amount_of(digit)) < need; --digit) before +=
          amount;
    DSV32_NO_UNROLL for (int block = 0; block < team.size; ++block) *
        team.of(&sm.bin, block) = {static_cast<uint32_t>(digit), before, total};
  }
  team.sync();
  clear_bins(sm);  // all blocks have read the bins
  return sm.bin;
}

// Lists the block's tokens with is_listed(id, logit), few, with logits from `least` to `most`. Returns the
// team's number.
template <typename Logits, typename IsListed>
DSV32_DEVICE int list(Shared& sm, const Row<Logits>& row, float least, float most,
                      const IsListed& is_listed) {
  visit_wanted(
      row, [&](int32_t, float logit) { return (logit >= least) & (logit <= most); },
      [&](int32_t id) {
        const float logit = row.logits[id];
        if (!is_listed(id, logit)) return;
        const int at = atomicAdd(&sm.n_listed, 1);
        if (at < kListRoom) sm.listed[at] = place_of(logit, id);
      });
  __syncthreads();
  if (static_cast<int>(threadIdx.x) < row.team.size)
    *row.team.of(&sm.team_listed[row.team.rank], static_cast<int>(threadIdx.x)) = sm.n_listed;
  row.team.sync();
  int n = 0;
  DSV32_NO_UNROLL for (int block = 0; block < row.team.size; ++block) n += sm.team_listed[block];
  return n;
}

// The one of the team's n listed tokens at which their amounts, likeliest first, reach `need`. For each token
// a warp adds up the amounts of the likelier ones.
template <typename AmountOf>
__device__ Cut find_listed(Shared& sm, const Team& team, int n, uint64_t need, const AmountOf& amount_of) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  DSV32_NO_UNROLL for (int i = static_cast<int>(threadIdx.x); i < n; i += kThreads) {
    int block = 0, at = i;
    DSV32_NO_UNROLL for (; at >= sm.team_listed[block]; ++block) at -= sm.team_listed[block];
    const uint64_t place = *team.of(&sm.listed[at], block);
    sm.candidates[i] = {place, amount_of(logit_at(place))};
  }
  __syncthreads();
  DSV32_NO_UNROLL for (int i = team.rank * kWarps + warp; i < n; i += team.size * kWarps) {
    const Candidate own = sm.candidates[i];
    uint64_t before = 0;
#pragma unroll 2
    for (int j = lane; j < n; j += 32)
      if (sm.candidates[j].place > own.place) before += sm.candidates[j].amount;
    before = warp_sum(before);
    if (before < need && need <= before + own.amount && lane < team.size) *team.of(&sm.cut, lane) = own.place;
  }
  team.sync();
  return {logit_at(sm.cut), id_at(sm.cut)};
}

// The cut at which the amounts (weights, or ones) of the tokens that `within` keeps, likeliest first, reach
// need_of(their total).
//
// The first bins divide linearly the range from the largest logit to the smallest, or to where weights are 0:
// most logits share a float's highest bits. A bin with more than kListRoom tokens is divided again, by
// places, until it has few.
template <bool kWeighs, typename Logits, typename NeedOf>
__device__ Cut find_cut(Shared& sm, const Row<Logits>& row, const Cut& within, const NeedOf& need_of) {
  const auto amount_of = [&](float logit) -> uint64_t {
    return kWeighs ? weight_of(probability(row, logit)) : 1;
  };
  // fabsf: the difference of two zeros could be -0.
  const float width =
      fminf(fabsf(row.largest - row.smallest), kWeighs ? kWidthOfBins * kLog2E / row.scale : FLT_MAX);
  const float bin_scale = fminf(kBins / width, kLargestScale);
  const auto bin_of = [&](float logit) {
    return kBins - 1 - static_cast<uint32_t>(fminf((row.largest - logit) * bin_scale, kBins - 1.0f));
  };
  fill_bins<kWeighs>(
      sm, row, [&](int32_t id, float logit) { return within.keeps(logit, id) ? bin_of(logit) : kBins; });
  Bin bin = find_bin(sm, row.team, need_of);
  const uint32_t first_digit = bin.digit;
  uint64_t need = need_of(bin.total) - bin.before;
  // The bin's tokens have places from `first` to `last`: on both sides the range is wider than any rounding
  // of bin_of().
  const float n_above = static_cast<float>(kBins - 1 - first_digit), slack = 1e-6f * fabsf(row.largest);
  const float most = fminf(row.largest, row.largest - n_above / bin_scale * (1 - 1e-6f) + slack);
  const float least = fmaxf(row.smallest, row.largest - (n_above + 1) / bin_scale * (1 + 1e-6f) - slack);
  uint64_t first = place_of(first_digit == 0 ? row.smallest : least, row.n - 1), last = place_of(most, 0);
  const auto is_in_bin = [&](int32_t id, float logit) {
    const uint64_t place = place_of(logit, id);
    return bin_of(logit) == first_digit && within.keeps(logit, id) && first <= place && place <= last;
  };
  int n_listed;
#pragma unroll 1
  while ((n_listed = list(sm, row, logit_at(first), logit_at(last), is_in_bin)) > kListRoom) {
    const int shift = max(64 - __clzll(static_cast<long long>(last - first)) - kBinBits, 0);
    fill_bins<kWeighs>(sm, row, [&](int32_t id, float logit) {
      return is_in_bin(id, logit) ? static_cast<uint32_t>((place_of(logit, id) - first) >> shift) : kBins;
    });
    bin = find_bin(sm, row.team, [&](uint64_t) { return need; });
    need -= bin.before;
    first += static_cast<uint64_t>(bin.digit) << shift;
    last = min(last, first + (uint64_t{1} << shift) - 1);
  }
  return find_listed(sm, row.team, n_listed, need, amount_of);
}

// Keeps all if there are not so many.
template <typename Logits>
__device__ inline Cut find_cut_of_count(Shared& sm, const Row<Logits>& row, int64_t n_kept) {
  return find_cut<false>(sm, row, Cut{},
                         [&](uint64_t total) { return min(static_cast<uint64_t>(n_kept), total); });
}

template <typename Logits>
__device__ inline Cut find_cut_of_rule(Shared& sm, const Row<Logits>& row, const SampleRule& rule,
                                       int64_t n_tokens) {
  Cut cut;
  if (rule.has_top_k(n_tokens)) cut = find_cut_of_count(sm, row, rule.top_k);
  if (!rule.has_top_p()) return cut;
  return find_cut<true>(sm, row, cut, [&](uint64_t total) { return rule.kept_weight(total); });
}

}  // namespace dsv32::cuda::sampling
