// Keys in the registers of a block: bounds of them, the one in a given place, and those above it in order.
//
// A key is an integer that sorts as its score does; 0 is none. Nothing is sorted: all keys are counted into
// bins between two bounds, and those of the bin that has the place are compared with each other. Bounds need
// not be right: what lies past them counts in the outer bins.
#pragma once

#include "cuda/common.cuh"
#include "cuda/ptx.cuh"

namespace dsv32::cuda {
namespace {

constexpr int kBins = 2048;
// Of threads, for an upper bound: so few that of 2000 keys of a sample each, in any order, none has its
// highest below the 75th of all.
constexpr int kGroups = 4;

struct Found {
  uint32_t bin, n_above, n;  // above the bin, in it
};

struct Shared {
  alignas(16) uint32_t counts[2][kBins];       // of the sample, then the keys of a bin; of the candidates
  uint32_t warp_low[32], group_high[kGroups];  // of each warp's keys; of every kGroups-th thread's
  uint32_t warp_sums[2][32];                   // of one pass and of the next
  Found found[2];
  uint32_t n_compared, key, n_wanted;
  uint32_t n_above, n_ties;  // of this block's part
  uint64_t arrived;          // the other blocks' lists
};

// As backend/cpu_attention.cpp: -0 equals 0, NaN ranks below everything.
__device__ __forceinline__ uint32_t rank_key(float score) {
  const float x = score + 0.0f;  // of -0: 0
  const uint32_t bits = __float_as_uint(x);
  return x != x ? 1 : bits ^ (static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000u);
}
__device__ __forceinline__ float score_of(uint32_t key) {
  return __uint_as_float(key ^ (~static_cast<uint32_t>(static_cast<int32_t>(key) >> 31) | 0x80000000u));
}

// Of a number per warp, what the first n_warps have together.
__device__ __forceinline__ uint32_t sum_of_warps(const uint32_t* numbers, int n_warps) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  return __reduce_add_sync(0xffffffffu, lane < n_warps ? numbers[lane] : 0);
}

// Calls visit(i) for i of the first 4 n_vectors of kN.
template <int kN, typename Visit>
__device__ __forceinline__ void visit_vectors(int n_vectors, const Visit& visit) {
  DSV32_UNROLLED (int v = 0; v < kN / 4; ++v)
    if (v < n_vectors) {
      DSV32_UNROLLED (int c = 0; c < 4; ++c) visit(4 * v + c);
    }
}

// From each thread's lowest and highest key, bounds of the block's: the lowest and, for keys in the need-th
// place from above, the least of the highest of kGroups spread over the block, so that a few outliers do not
// widen the bins. sm.group_high is zero before.
template <int kThreads>
__device__ __forceinline__ void meet_bounds(Shared& sm, uint32_t& low, uint32_t& high, uint32_t need) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  low = __reduce_min_sync(0xffffffffu, low);
  if (lane == 0) sm.warp_low[warp] = low;
  DSV32_UNROLLED (int apart = 16; apart >= kGroups; apart /= 2)
    high = max(high, __shfl_xor_sync(0xffffffffu, high, apart));
  if (lane < kGroups) atomicMax(&sm.group_high[lane], high);
  __syncthreads();
  low = __reduce_min_sync(0xffffffffu, lane < kThreads / 32 ? sm.warp_low[lane] : 0xffffffffu);
  const uint32_t group_high = sm.group_high[lane % kGroups];
  high = need < 3 * kGroups ? __reduce_max_sync(0xffffffffu, group_high)
                            : __reduce_min_sync(0xffffffffu, group_high > 0 ? group_high : 0xffffffffu);
}

// Bins between two keys, even in the scores. A key's bin is never below that of a lower key, whatever the
// bounds: where there is nothing between them or no number for it, all are in one.
struct Bins {
  float first, per_score, per_bin;

  __device__ uint32_t of(uint32_t key) const {
    return min(__float2uint_rz((score_of(key) - first) * per_score), kBins - 1u);
  }
  __device__ uint32_t begin(uint32_t bin) const {  // about where it does; the first one anywhere
    return per_score > 0 ? rank_key(first + static_cast<float>(bin) * per_bin) : 1;
  }
};
__device__ __forceinline__ Bins make_bins(uint32_t low, uint32_t high) {
  const float first = score_of(low), width = score_of(high) - first, per_score = __fdividef(kBins, width);
  return {first, per_score > 0 && per_score < 1e30f ? per_score : 0, width * (1.0f / kBins)};
}

// Counts the keys from `low` on.
template <int kN>
__device__ __forceinline__ void count_keys(const uint32_t (&keys)[kN], int n_vectors, const Bins& bins,
                                           uint32_t low, uint32_t* counts) {
  const uint32_t first = opaque(shared_address(counts));
  visit_vectors<kN>(n_vectors, [&](int i) { count_shared_if(first + 4 * bins.of(keys[i]), keys[i] >= low); });
}

// sm.found[i] = the bin of the needs[i]-th largest key. The first thread has the highest bins.
template <int kThreads, int kNeeds>
__device__ __forceinline__ void find_bins(Shared& sm, const uint32_t* counts,
                                          const uint32_t (&needs)[kNeeds]) {
  constexpr int kOwn = kBins / kThreads;
  struct alignas(4 * kOwn) Own {
    uint32_t of[kOwn];
  };
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const uint32_t lowest = kBins - kOwn * (threadIdx.x + 1);
  const Own own = *reinterpret_cast<const Own*>(counts + lowest);
  uint32_t sum = 0;
  DSV32_UNROLLED (int i = 0; i < kOwn; ++i) sum += own.of[i];
  uint32_t first = warp_prefix(sum);
  if (lane == 31) sm.warp_sums[0][warp] = first;
  __syncthreads();
  first += sum_of_warps(sm.warp_sums[0], warp) - sum;
  DSV32_UNROLLED (int n = 0; n < kNeeds; ++n)
    if (first < needs[n] && needs[n] <= first + sum) {
      uint32_t above = first;
      DSV32_UNROLLED (int i = kOwn - 1; i >= 0; --i) {
        if (above < needs[n] && needs[n] <= above + own.of[i]) sm.found[n] = {lowest + i, above, own.of[i]};
        above += own.of[i];
      }
    }
  __syncthreads();
}

// Sets sm.key to the need-th largest of n keys in shared memory, sm.n_wanted to how many of those that equal
// it are among the largest.
template <int kThreads>
__device__ __forceinline__ void compare_keys(Shared& sm, const uint32_t* keys, uint32_t n, uint32_t need) {
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < n; i += kThreads) {
    const uint32_t key = keys[i];
    uint32_t n_above = 0, n_ties = 0;
#pragma unroll 4
    for (uint32_t j = 0; j < n; ++j) n_above += keys[j] > key, n_ties += keys[j] == key;
    if (n_above < need && need <= n_above + n_ties) sm.key = key, sm.n_wanted = need - n_above;
  }
  __syncthreads();
}

// The same of the block's keys from `low` on; false, and nothing is found, where a bin has too many.
// sm.counts[1] and sm.n_compared are zero before.
template <int kThreads, int kN>
__device__ __forceinline__ bool find_key(Shared& sm, const uint32_t (&keys)[kN], int n_vectors, uint32_t low,
                                         uint32_t high, uint32_t need) {
  const Bins bins = make_bins(low, high);
  count_keys(keys, n_vectors, bins, low, sm.counts[1]);
  __syncthreads();
  find_bins<kThreads>(sm, sm.counts[1], {need});
  const Found found = sm.found[0];
  if (found.n > kBins) return false;
  visit_vectors<kN>(n_vectors, [&](int i) {
    if ((keys[i] >= low) & (bins.of(keys[i]) == found.bin))
      sm.counts[0][atomicAdd(&sm.n_compared, 1u)] = keys[i];
  });
  __syncthreads();
  compare_keys<kThreads>(sm, sm.counts[0], found.n, need - found.n_above);
  return true;
}

// Takes, in the order of the threads and of their keys, the keys above the threshold and the first n_wanted
// that equal it: emit(i, how many are taken before, whether) for each keys[i]. n_above and n_ties: keys above
// and at the threshold before all these; then with these.
template <int kThreads, int kN, typename Emit>
__device__ __forceinline__ void take_keys(uint32_t* warp_sums, const uint32_t (&keys)[kN], int n_vectors,
                                          uint32_t threshold, uint32_t n_wanted, uint32_t& n_above,
                                          uint32_t& n_ties, const Emit& emit) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  uint32_t sum = 0;  // ties count in the upper half
  visit_vectors<kN>(n_vectors, [&](int i) {
    sum += keys[i] > threshold;
    if (n_wanted > 0) sum += keys[i] == threshold ? 0x10000u : 0;
  });
  const uint32_t upto = warp_prefix(sum);
  if (threadIdx.x % 32 == 31) warp_sums[warp] = upto;
  __syncthreads();
  const uint32_t before = sum_of_warps(warp_sums, warp) + upto - sum,
                 all = sum_of_warps(warp_sums, kThreads / 32);
  uint32_t ties = n_ties + (before >> 16), at = n_above + (before & 0xffffu) + min(ties, n_wanted);
  n_above += all & 0xffffu, n_ties += all >> 16;
  visit_vectors<kN>(n_vectors, [&](int i) {
    const bool is_tie = n_wanted > 0 && keys[i] == threshold;
    const bool is_taken = keys[i] > threshold || (is_tie && ties < n_wanted);
    emit(i, at, is_taken);
    at += is_taken, ties += is_tie;
  });
}

}  // namespace
}  // namespace dsv32::cuda
