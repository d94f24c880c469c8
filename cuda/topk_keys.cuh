// Keys in the registers of a block: their bounds, the need-th largest of them, and the keys above it in
// order; and a row of scores in memory, whose keys are read tile by tile.
//
// A key is an integer of the same order as its score; 0 means no key. Nothing is sorted: all keys are counted
// into bins between two bounds, and the keys of the bin with the need-th are compared with each other. Bounds
// need not be exact: keys beyond them count in the outer bins.
#pragma once

#include "cuda/common.cuh"

namespace dsv32::cuda {
namespace {

constexpr int kBins = 2048;
// Groups of threads, for an upper bound: so few that, with 2000 keys of a sample each, every group's highest
// is above the sample's 75th, whether scores are sorted or in random order.
constexpr int kGroups = 4;

struct Found {
  uint32_t bin, n_above, n;  // keys above the bin, keys in it
};

struct Shared {
  alignas(16) uint32_t counts[2][kBins];       // of the sample, later a bin's keys; of the candidates
  uint32_t warp_low[32], group_high[kGroups];  // lowest key of each warp; highest of every kGroups-th thread
  uint32_t warp_sums[2][32];                   // of alternate passes
  Found found[2];
  uint32_t n_compared, key, n_wanted;
  uint32_t n_above, n_ties;  // in this block's part
  uint64_t arrived;          // barrier of the other blocks' lists
};

// As backend/cpu_attention.cpp: -0 equals 0, NaN ranks below everything.
DSV32_DEVICE uint32_t rank_key(float score) {
  const float x = score + 0.0f;  // turns -0 into 0
  const uint32_t bits = __float_as_uint(x);
  return x != x ? 1 : bits ^ (static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000u);
}
DSV32_DEVICE float score_of(uint32_t key) {
  return __uint_as_float(key ^ (~static_cast<uint32_t>(static_cast<int32_t>(key) >> 31) | 0x80000000u));
}

// The sum of the first n_warps of the warps' numbers.
DSV32_DEVICE uint32_t sum_of_warps(const uint32_t* numbers, int n_warps) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  return __reduce_add_sync(0xffffffffu, lane < n_warps ? numbers[lane] : 0);
}

// Calls visit(i) for i < 4 n_vectors, at most kN.
template <int kN, typename Visit>
DSV32_DEVICE void visit_vectors(int n_vectors, const Visit& visit) {
  DSV32_UNROLL for (int v = 0; v < kN / 4; ++v) if (v < n_vectors) {
    DSV32_UNROLL for (int c = 0; c < 4; ++c) visit(4 * v + c);
  }
}

// From each thread's lowest and highest key, bounds of the block's: the lowest, and the least of kGroups
// groups' highest, so that a few outliers do not widen the bins (for need < 3 kGroups the highest).
// sm.group_high must be zero.
template <int kThreads>
DSV32_DEVICE void meet_bounds(Shared& sm, uint32_t& low, uint32_t& high, uint32_t need) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  low = __reduce_min_sync(0xffffffffu, low);
  if (lane == 0) sm.warp_low[warp] = low;
  DSV32_UNROLL for (int apart = 16; apart >= kGroups; apart /= 2) high =
      max(high, __shfl_xor_sync(0xffffffffu, high, apart));
  if (lane < kGroups) atomicMax(&sm.group_high[lane], high);
  __syncthreads();
  low = __reduce_min_sync(0xffffffffu, lane < kThreads / 32 ? sm.warp_low[lane] : 0xffffffffu);
  const uint32_t group_high = sm.group_high[lane % kGroups];
  high = need < 3 * kGroups ? __reduce_max_sync(0xffffffffu, group_high)
                            : __reduce_min_sync(0xffffffffu, group_high > 0 ? group_high : 0xffffffffu);
}

// Bins of equal score width between two keys. A key's bin is never below a lower key's bin, whatever the
// bounds: if their distance is 0 or no usable number, all keys are in one bin.
struct Bins {
  float first, per_score, per_bin;

  __device__ uint32_t of(uint32_t key) const {
    return min(__float2uint_rz((score_of(key) - first) * per_score), kBins - 1u);
  }
  __device__ uint32_t begin(uint32_t bin) const {  // about the bin's lowest key; for a single bin 1
    return per_score > 0 ? rank_key(first + static_cast<float>(bin) * per_bin) : 1;
  }
};
DSV32_DEVICE Bins make_bins(uint32_t low, uint32_t high) {
  const float first = score_of(low), width = score_of(high) - first, per_score = __fdividef(kBins, width);
  return {first, per_score > 0 && per_score < 1e30f ? per_score : 0, width * (1.0f / kBins)};
}

// Counts the keys from `low` on into bins.
template <int kN>
DSV32_DEVICE void count_keys(const uint32_t (&keys)[kN], int n_vectors, const Bins& bins, uint32_t low,
                             uint32_t* counts) {
  const uint32_t first = opaque(shared_address(counts));
  visit_vectors<kN>(n_vectors, [&](int i) { count_shared_if(first + 4 * bins.of(keys[i]), keys[i] >= low); });
}

// sm.found[i] = the bin of the needs[i]-th largest key. Thread 0 has the highest bins.
template <int kThreads, int kNeeds>
DSV32_DEVICE void find_bins(Shared& sm, const uint32_t* counts, const uint32_t (&needs)[kNeeds]) {
  constexpr int kOwn = kBins / kThreads;
  struct alignas(4 * kOwn) Own {
    uint32_t of[kOwn];
  };
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const uint32_t lowest = kBins - kOwn * (threadIdx.x + 1);
  const Own own = *reinterpret_cast<const Own*>(counts + lowest);
  uint32_t sum = 0;
  DSV32_UNROLL for (int i = 0; i < kOwn; ++i) sum += own.of[i];
  uint32_t first = warp_prefix(sum);
  if (lane == 31) sm.warp_sums[0][warp] = first;
  __syncthreads();
  first += sum_of_warps(sm.warp_sums[0], warp) - sum;
  DSV32_UNROLL for (int n = 0; n < kNeeds; ++n) if (first < needs[n] && needs[n] <= first + sum) {
    uint32_t above = first;
    DSV32_UNROLL for (int i = kOwn - 1; i >= 0; --i) {
      if (above < needs[n] && needs[n] <= above + own.of[i]) sm.found[n] = {lowest + i, above, own.of[i]};
      above += own.of[i];
    }
  }
  __syncthreads();
}

// Sets sm.key to the need-th largest of n keys in shared memory, and sm.n_wanted to the number of equal keys
// among the `need` largest.
template <int kThreads>
DSV32_DEVICE void compare_keys(Shared& sm, const uint32_t* keys, uint32_t n, uint32_t need) {
  DSV32_NO_UNROLL for (uint32_t i = threadIdx.x; i < n; i += kThreads) {
    const uint32_t key = keys[i];
    uint32_t n_above = 0, n_ties = 0;
#pragma unroll 4
    for (uint32_t j = 0; j < n; ++j) n_above += keys[j] > key, n_ties += keys[j] == key;
    if (n_above < need && need <= n_above + n_ties) sm.key = key, sm.n_wanted = need - n_above;
  }
  __syncthreads();
}

// The same for the block's keys from `low` on; returns false and finds nothing if the bin has too many keys.
// sm.counts[1] and sm.n_compared must be zero.
template <int kThreads, int kN>
DSV32_DEVICE bool find_key(Shared& sm, const uint32_t (&keys)[kN], int n_vectors, uint32_t low, uint32_t high,
                           uint32_t need) {
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
// equal to it: calls emit(i, number taken before, whether it is taken) for each keys[i]. n_above and n_ties
// count the keys above and at the threshold before these; then with these.
template <int kThreads, int kN, typename Emit>
DSV32_DEVICE void take_keys(uint32_t* warp_sums, const uint32_t (&keys)[kN], int n_vectors,
                            uint32_t threshold, uint32_t n_wanted, uint32_t& n_above, uint32_t& n_ties,
                            const Emit& emit) {
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

// ---- rows in memory ----

constexpr int kTileKeys = 8;  // of a thread

// Scores [begin, end) of a row, counted from a 16-byte boundary: position 0 is at `skip`. Every thread loads
// the scores of a last partial vector of 4 to `tail`, so that no load has to wait for another.
struct Row {
  const float* scores;
  int begin, end, skip;
  float tail[3];

  __device__ float4 load(int i) const {  // scores i to i + 3; i is a multiple of 4
    float4 x = {};
    if (i + 3 < end) x = *reinterpret_cast<const float4*>(scores + i);
    return x;
  }
  __device__ uint32_t key_of(float x, int i) const {  // 0 outside begin to end
    return static_cast<uint32_t>(i - begin) < static_cast<uint32_t>(end - begin) ? rank_key(x) : 0;
  }
  __device__ void keys_of(const float4& x, int i, uint32_t* keys) const {
    const bool is_tail = i + 3 >= end;
    keys[0] = key_of(is_tail ? tail[0] : x.x, i), keys[1] = key_of(is_tail ? tail[1] : x.y, i + 1);
    keys[2] = key_of(is_tail ? tail[2] : x.z, i + 2), keys[3] = key_of(x.w, i + 3);
  }
  __device__ Row part(int rank, int n_parts) const {
    const int n = (end + 32 * n_parts - 1) / (32 * n_parts) * 32;
    Row p = *this;
    if (rank > 0) p.begin = min(rank * n, end);
    p.end = min((rank + 1) * n, end);
    return p;
  }
};
// The scores of positions [first, n).
DSV32_DEVICE Row row_of(const float* scores, int first, int n) {
  const int skip = static_cast<int>(reinterpret_cast<uintptr_t>(scores) / 4 % 4), end = skip + n;
  Row row = {scores - skip, skip + first, end, skip, {}};
  DSV32_UNROLL for (int c = 0; c < 3; ++c) if (end / 4 * 4 + c < end) row.tail[c] =
      row.scores[end / 4 * 4 + c];
  return row;
}

// A thread's neighbouring scores of a tile.
template <int kThreads>
struct Tile {
  float4 x[kTileKeys / 4];

  static __device__ int first(int begin) { return begin + static_cast<int>(threadIdx.x) * kTileKeys; }
  __device__ void load(const Row& row, int begin) {
    DSV32_UNROLL for (int v = 0; v < kTileKeys / 4; ++v) x[v] = row.load(first(begin) + 4 * v);
  }
  __device__ void keys_of(const Row& row, int begin, uint32_t (&keys)[kTileKeys]) const {
    DSV32_UNROLL for (int v = 0; v < kTileKeys / 4; ++v)
        row.keys_of(x[v], first(begin) + 4 * v, keys + 4 * v);
  }
};

// take_keys() for a whole part; `tile` is its first tile. Calls emit(key, position, number taken before,
// whether it is taken).
template <int kThreads, typename Emit>
DSV32_DEVICE void take_part(Shared& sm, const Row& part, Tile<kThreads> tile, uint32_t threshold,
                            uint32_t n_wanted, uint32_t& n_above, uint32_t& n_ties, const Emit& emit) {
  constexpr int kKeys = kThreads * kTileKeys;
  int turn = 0;
  DSV32_NO_UNROLL for (int begin = part.begin / 4 * 4; begin < part.end; begin += kKeys, turn ^= 1) {
    uint32_t keys[kTileKeys];
    tile.keys_of(part, begin, keys);
    if (begin + kKeys < part.end) tile.load(part, begin + kKeys);
    take_keys<kThreads>(sm.warp_sums[turn], keys, kTileKeys / 4, threshold, n_wanted, n_above, n_ties,
                        [&](int i, uint32_t at, bool is_taken) {
                          emit(keys[i], tile.first(begin) + i - part.skip, at, is_taken);
                        });
  }
}

// Adds the team's histograms into sm.counts[1] of every block; each block adds up a share of the bins.
template <int kThreads>
__device__ void add_counts(Shared& sm, const Team& team) {
  team.sync();
  const int n_share = kBins / team.size;
  DSV32_NO_UNROLL for (int i = static_cast<int>(threadIdx.x); i < n_share; i += kThreads) {
    const int bin = team.rank * n_share + i;
    uint32_t sum = 0;
    DSV32_NO_UNROLL for (int block = 0; block < team.size; ++block) sum += team.of(sm.counts[0], block)[bin];
    DSV32_NO_UNROLL for (int block = 0; block < team.size; ++block) team.of(sm.counts[1], block)[bin] = sum;
  }
  team.sync();
}

// Finds the need-th largest key of a row of any keys, by digits of 11, 11 and 10 bits, the highest first.
// Afterwards `need` is the number of keys equal to it that are among the largest.
template <int kThreads>
__device__ uint32_t find_slowly(Shared& sm, const Team& team, const Row& part, uint32_t& need) {
  uint32_t threshold = 0, known = 0;  // known: the bits found so far
  DSV32_NO_UNROLL for (int digit = 0; digit < 3; ++digit) {
    const int shift = digit == 0 ? 21 : digit == 1 ? 10 : 0;
    const uint32_t mask = digit == 2 ? 0x3ffu : 0x7ffu;
    DSV32_NO_UNROLL for (int i = static_cast<int>(threadIdx.x); i < kBins; i += kThreads) sm.counts[0][i] = 0;
    __syncthreads();
#pragma unroll 4
    for (int i = part.begin + static_cast<int>(threadIdx.x); i < part.end; i += kThreads) {
      const uint32_t key = rank_key(part.scores[i]);
      if ((key & known) == threshold) atomicAdd(&sm.counts[0][key >> shift & mask], 1u);
    }
    add_counts<kThreads>(sm, team);
    find_bins<kThreads>(sm, sm.counts[1], {need});
    threshold |= sm.found[0].bin << shift, known |= mask << shift;
    need -= sm.found[0].n_above;
  }
  return threshold;
}

// Selects from the team's keys, for any keys. No cluster arrival may be pending.
template <int kThreads>
__device__ __noinline__ void select_slowly(Shared& sm, const Team& team, const Row& part, uint32_t n_wanted,
                                           int32_t* selected) {
  const uint32_t threshold = find_slowly<kThreads>(sm, team, part, n_wanted);
  if (threadIdx.x == 0) sm.n_above = 0, sm.n_ties = 0;
  __syncthreads();
  uint32_t above = 0, ties = 0;
#pragma unroll 4
  for (int i = part.begin + static_cast<int>(threadIdx.x); i < part.end; i += kThreads) {
    const uint32_t key = rank_key(part.scores[i]);
    above += key > threshold, ties += key == threshold;
  }
  above = __reduce_add_sync(0xffffffffu, above), ties = __reduce_add_sync(0xffffffffu, ties);
  if (threadIdx.x % 32 == 0) atomicAdd(&sm.n_above, above), atomicAdd(&sm.n_ties, ties);
  team.sync();
  above = 0, ties = 0;
  DSV32_NO_UNROLL for (int block = 0; block < team.rank; ++block) above += *team.of(&sm.n_above, block),
      ties += *team.of(&sm.n_ties, block);
  Tile<kThreads> tile;
  tile.load(part, part.begin / 4 * 4);
  take_part(sm, part, tile, threshold, n_wanted, above, ties,
            [&](uint32_t, int i, uint32_t at, bool is_taken) {
              if (is_taken) selected[at] = i;
            });
  team.sync();  // no block ends while another reads its counts
}

}  // namespace
}  // namespace dsv32::cuda
