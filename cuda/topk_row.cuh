// A row of scores in memory: its keys, those above a threshold taken in order tile by tile (take_keys), and a
// selection for rows that no bound fits: it finds the topk-th key digit by digit, by three histograms of all
// the blocks' keys, and is slow.
#pragma once

#include "cuda/team.cuh"
#include "cuda/topk_keys.cuh"

namespace dsv32::cuda {
namespace {

constexpr int kTileKeys = 8;  // of a thread

// Scores of a row, begin to end, from where memory is aligned to 16 bytes: the row itself begins at `skip`.
// Every thread loads the scores of a last vector of 4 that is not whole, so that no load has to wait for
// another.
struct Row {
  const float* scores;
  int begin, end, skip;
  float tail[3];

  __device__ float4 load(int i) const {  // i to i + 3, a multiple of 4
    float4 x = {};
    if (i + 3 < end) x = *reinterpret_cast<const float4*>(scores + i);
    return x;
  }
  __device__ uint32_t key_of(float x, int i) const {  // before the begin and past the end none
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
__device__ __forceinline__ Row row_of(const float* scores, int n) {
  const int skip = static_cast<int>(reinterpret_cast<uintptr_t>(scores) / 4 % 4), end = skip + n;
  Row row = {scores - skip, skip, end, skip, {}};
  DSV32_UNROLLED (int c = 0; c < 3; ++c)
    if (end / 4 * 4 + c < end) row.tail[c] = row.scores[end / 4 * 4 + c];
  return row;
}

// A thread's neighbouring keys of a tile, as they come.
template <int kThreads>
struct Tile {
  float4 x[kTileKeys / 4];

  static __device__ int first(int begin) { return begin + static_cast<int>(threadIdx.x) * kTileKeys; }
  __device__ void load(const Row& row, int begin) {
    DSV32_UNROLLED (int v = 0; v < kTileKeys / 4; ++v) x[v] = row.load(first(begin) + 4 * v);
  }
  __device__ void keys_of(const Row& row, int begin, uint32_t (&keys)[kTileKeys]) const {
    DSV32_UNROLLED (int v = 0; v < kTileKeys / 4; ++v) row.keys_of(x[v], first(begin) + 4 * v, keys + 4 * v);
  }
};

// take_keys() of a whole part, of which `tile` is the first tile: emit(key, its position, how many are taken
// before, whether it is).
template <int kThreads, typename Emit>
__device__ __forceinline__ void take_part(Shared& sm, const Row& part, Tile<kThreads> tile,
                                          uint32_t threshold, uint32_t n_wanted, uint32_t& n_above,
                                          uint32_t& n_ties, const Emit& emit) {
  constexpr int kKeys = kThreads * kTileKeys;
  int turn = 0;
#pragma unroll 1
  for (int begin = part.begin / 4 * 4; begin < part.end; begin += kKeys, turn ^= 1) {
    uint32_t keys[kTileKeys];
    tile.keys_of(part, begin, keys);
    if (begin + kKeys < part.end) tile.load(part, begin + kKeys);
    take_keys<kThreads>(sm.warp_sums[turn], keys, kTileKeys / 4, threshold, n_wanted, n_above, n_ties,
                        [&](int i, uint32_t at, bool is_taken) {
                          emit(keys[i], tile.first(begin) + i - part.skip, at, is_taken);
                        });
  }
}

// The team's histogram, in sm.counts[1] of every block: each adds up its share of the bins for all.
template <int kThreads>
__device__ void add_counts(Shared& sm, const Team& team) {
  team.sync();
  const int n_share = kBins / team.size;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < n_share; i += kThreads) {
    const int bin = team.rank * n_share + i;
    uint32_t sum = 0;
#pragma unroll 1
    for (int block = 0; block < team.size; ++block) sum += team.of(sm.counts[0], block)[bin];
#pragma unroll 1
    for (int block = 0; block < team.size; ++block) team.of(sm.counts[1], block)[bin] = sum;
  }
  team.sync();
}

// The topk-th largest key of a row, whatever its keys: digits of 11, 11 and 10 bits, the highest first.
template <int kThreads>
__device__ uint32_t find_slowly(Shared& sm, const Team& team, const Row& part, uint32_t& need) {
  uint32_t threshold = 0, known = 0;  // bits that are found
#pragma unroll 1
  for (int digit = 0; digit < 3; ++digit) {
    const int shift = digit == 0 ? 21 : digit == 1 ? 10 : 0;
    const uint32_t mask = digit == 2 ? 0x3ffu : 0x7ffu;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < kBins; i += kThreads) sm.counts[0][i] = 0;
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

// Selects of the team's keys whatever they are. No arrival of the cluster is open.
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
#pragma unroll 1
  for (int block = 0; block < team.rank; ++block)
    above += *team.of(&sm.n_above, block), ties += *team.of(&sm.n_ties, block);
  Tile<kThreads> tile;
  tile.load(part, part.begin / 4 * 4);
  take_part(sm, part, tile, threshold, n_wanted, above, ties,
            [&](uint32_t, int i, uint32_t at, bool is_taken) {
              if (is_taken) selected[at] = i;
            });
  team.sync();  // no block's shared memory goes while another reads its counts
}

}  // namespace
}  // namespace dsv32::cuda
