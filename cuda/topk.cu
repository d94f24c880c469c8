// Exact top-k of each token's scores, by radix select on integer keys.
//
// Floats become 32-bit integers that sort alike. Three histograms (11, 11 and 10 bits) find the k-th largest
// key T exactly; then the positions with a key above T, and the lowest ones of those equal to it, are written
// in order. Counts are integers, so no order of arrival shows in the result. The blocks of a row first list
// what lies above a bound that a sample of the row gives, and one of them chooses among that; where the bound
// turns out not to leave enough or too much, they go through the row as a whole.
#include <algorithm>
#include <cmath>

#include "cuda/common.cuh"
#include "cuda/kernels.h"
#include "cuda/team.cuh"

namespace dsv32::cuda {
namespace {

constexpr int kThreads = 512, kWarps = kThreads / 32;
constexpr int kBins = 2048;
constexpr int kLeastBlockKeys =
    4096;  // of a row, per block: below, the waits between the blocks cost more than they save

// As backend/cpu_attention.cpp: -0 equals 0, NaN ranks below everything.
__device__ __forceinline__ uint32_t rank_key(float score) {
  uint32_t bits = __float_as_uint(score);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0;
  if (bits == 0x80000000u) bits = 0;
  return (bits & 0x80000000u) ? ~bits : bits | 0x80000000u;
}

// Calls visit(key) for keys first, first + step, ... below end, several of which are loaded at once.
template <typename KeyAt, typename Visit>
__device__ __forceinline__ void visit_keys(const KeyAt& key_at, int first, int step, int end,
                                           const Visit& visit) {
#pragma unroll 8
  for (int i = first; i < end; i += step) visit(key_at(i));
}

struct Shared {
  uint32_t counts[kBins];  // this block's histogram
  uint32_t totals[kBins];  // the team's
  uint32_t warp_sums[kWarps];
  uint32_t warp_above[kWarps], warp_ties[kWarps];  // of each warp's segment
  uint32_t block_counts[2];                        // above, ties; or how many the block has listed
  uint32_t bin, n_above_bin;
  uint32_t warp_found[2][kWarps];  // candidates of a tile, of one and of the next
};

__device__ __forceinline__ uint32_t warp_prefix(uint32_t x) {  // inclusive
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const uint32_t y = __shfl_up_sync(0xffffffffu, x, offset);
    if (static_cast<int>(threadIdx.x % 32) >= offset) x += y;
  }
  return x;
}

// What the warps before this one have together, of a number per warp. All of them may look at once.
__device__ uint32_t warps_before(const uint32_t* numbers) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  return __reduce_add_sync(0xffffffffu, lane < static_cast<int>(threadIdx.x) / 32 ? numbers[lane] : 0);
}

// The team's histogram: each block adds up its share of the bins and hands the sums to all.
__device__ const uint32_t* total_counts(Shared& sm, const Team& team) {
  team.sync();
  if (team.size == 1) return sm.counts;
  const int n_share = kBins / team.size;
  for (int i = static_cast<int>(threadIdx.x); i < n_share; i += kThreads) {
    const int bin = team.rank * n_share + i;
    uint32_t sum = 0;
#pragma unroll
    for (int block = 0; block < kMostTeamBlocks; ++block)
      if (block < team.size) sum += team.of(sm.counts, block)[bin];
#pragma unroll
    for (int block = 0; block < kMostTeamBlocks; ++block)
      if (block < team.size) team.of(sm.totals, block)[bin] = sum;
  }
  team.sync();
  return sm.totals;
}

// Sets sm.bin to the bin with the need-th largest key and sm.n_above_bin to the number of keys in higher
// bins. Each thread has kOwn bins, the first thread the highest.
__device__ void find_bin(Shared& sm, const uint32_t* totals, uint32_t need) {
  constexpr int kOwn = kBins / kThreads;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const uint32_t lowest = kBins - kOwn * (threadIdx.x + 1);
  uint32_t own[kOwn], sum = 0;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) own[i] = totals[lowest + i], sum += own[i];
  uint32_t before = warp_prefix(sum);
  if (lane == 31) sm.warp_sums[warp] = before;
  __syncthreads();
  before += warps_before(sm.warp_sums) - sum;
  if (before < need && need <= before + sum) {
    int i = kOwn - 1;
    for (; before + own[i] < need; --i) before += own[i];
    sm.bin = lowest + i, sm.n_above_bin = before;
  }
  __syncthreads();
}

constexpr int kDigits = 3;  // of a key: 11, 11 and 10 bits

// The n_digits highest digits of the need-th largest of the team's keys, of which this block has n, and zeros
// below them; `need` becomes how many of the keys that begin so are selected.
template <typename KeyAt>
__device__ uint32_t find_threshold(Shared& sm, const Team& team, const KeyAt& key_at, int n, int n_digits,
                                   uint32_t& need) {
  uint32_t threshold = 0, known = 0;  // bits that are found
#pragma unroll 1
  for (int digit = 0; digit < n_digits; ++digit) {
    const int shift = digit == 0 ? 21 : digit == 1 ? 10 : 0;
    const uint32_t mask = digit == 2 ? 0x3ffu : 0x7ffu;
    for (int i = static_cast<int>(threadIdx.x); i < kBins; i += kThreads) sm.counts[i] = 0;
    __syncthreads();
    visit_keys(key_at, static_cast<int>(threadIdx.x), kThreads, n, [&](uint32_t key) {
      if ((key & known) == threshold) atomicAdd(&sm.counts[key >> shift & mask], 1u);
    });
    find_bin(sm, total_counts(sm, team), need);
    threshold |= sm.bin << shift, known |= mask << shift;
    need -= sm.n_above_bin;
  }
  return threshold;
}

// Counts what lies above and at the threshold in each warp's segment [begin, end) of the block's part, then
// makes the counts sums over all segments before, those of the team's earlier blocks included.
template <typename KeyAt>
__device__ void count_segments(Shared& sm, const Team& team, const KeyAt& key_at, uint32_t threshold,
                               int begin, int end, uint32_t& n_above, uint32_t& n_ties) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  uint32_t above = 0, ties = 0;
  visit_keys(key_at, begin + lane, 32, end, [&](uint32_t key) {
    above += key > threshold;
    ties += key == threshold;
  });
  above = __reduce_add_sync(0xffffffffu, above);
  ties = __reduce_add_sync(0xffffffffu, ties);
  if (lane == 0) sm.warp_above[warp] = above, sm.warp_ties[warp] = ties;
  __syncthreads();
  n_above = warps_before(sm.warp_above), n_ties = warps_before(sm.warp_ties);
  if (threadIdx.x == kThreads - 1) sm.block_counts[0] = n_above + above, sm.block_counts[1] = n_ties + ties;
  if (team.size == 1) return;
  team.sync();
#pragma unroll
  for (int block = 0; block < kMostTeamBlocks - 1; ++block)
    if (block < team.rank) {
      const uint32_t* counts = team.of(sm.block_counts, block);
      n_above += counts[0], n_ties += counts[1];
    }
}

// Writes the selected positions of a warp's segment in ascending order: position_of(i) of key i. n_above and
// n_ties: keys above and at the threshold before the segment; the first n_wanted ties of the row are
// selected.
template <typename KeyAt, typename PositionOf>
__device__ void write_segment(const KeyAt& key_at, uint32_t threshold, uint32_t n_wanted, int begin, int end,
                              uint32_t n_above, uint32_t n_ties, const PositionOf& position_of,
                              int32_t* selected) {
  constexpr int kTogether = 4;  // groups of 32 whose keys are loaded at once
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint32_t lower_lanes = (1u << lane) - 1;
  uint32_t n_before = n_above + min(n_ties, n_wanted);
#pragma unroll 1
  for (int first = begin; first < end; first += 32 * kTogether) {
    uint32_t group[kTogether];
#pragma unroll
    for (int u = 0; u < kTogether; ++u) {
      const int i = first + 32 * u + lane;
      group[u] = i < end ? key_at(i) : 0;
    }
#pragma unroll
    for (int u = 0; u < kTogether; ++u) {
      const int i = first + 32 * u + lane;
      const bool is_above = i < end && group[u] > threshold, is_tie = i < end && group[u] == threshold;
      const uint32_t ties = __ballot_sync(0xffffffffu, is_tie);
      const bool is_selected = is_above || (is_tie && n_ties + __popc(ties & lower_lanes) < n_wanted);
      const uint32_t taken = __ballot_sync(0xffffffffu, is_selected);
      if (is_selected) selected[n_before + __popc(taken & lower_lanes)] = position_of(i);
      n_before += __popc(taken);
      n_ties += __popc(ties);
    }
  }
}

__device__ __forceinline__ int whole_groups(int n) { return (n + kThreads - 1) / kThreads * kThreads; }

// Selects the n_wanted largest keys of the team, of which this block has n.
template <typename KeyAt, typename PositionOf>
__device__ void select_keys(Shared& sm, const Team& team, const KeyAt& key_at, int n, uint32_t n_wanted,
                            const PositionOf& position_of, int32_t* selected) {
  const uint32_t threshold = find_threshold(sm, team, key_at, n, kDigits, n_wanted);
  const int n_segment = whole_groups(n) / kWarps;
  const int begin = min(static_cast<int>(threadIdx.x) / 32 * n_segment, n), end = min(begin + n_segment, n);
  uint32_t n_above = 0, n_ties = 0;
  count_segments(sm, team, key_at, threshold, begin, end, n_above, n_ties);
  write_segment(key_at, threshold, n_wanted, begin, end, n_above, n_ties, position_of, selected);
}

// Where there is nothing to choose: true, and all visible positions are selected. Also counts them.
__device__ bool select_all(const SelectTopk& op, const Team& team, int64_t t, int32_t n_visible) {
  const int32_t topk = static_cast<int32_t>(op.topk), n_selected = min(topk, n_visible);
  if (team.rank == 0 && threadIdx.x == 0) op.n_selected[t] = n_selected;
  if (op.scores && n_visible > topk) return false;
  for (int i = team.rank * kThreads + static_cast<int>(threadIdx.x); i < n_selected;
       i += team.size * kThreads)
    op.selected[t * op.topk + i] = i;
  return true;
}

constexpr int kTileKeys = 8;     // of a thread
constexpr int kSampleRun = 4;    // neighbours in the sample
constexpr int kSampleStep = 16;  // one key of so many is in it, of a row that is not too long

// The sampled keys of a row's n: kSampleRun of each kSampleRun * step. Returns how many there are.
__device__ int take_sample(const float* scores, int n, int step, uint32_t* keys) {
  const int n_sample = n / (kSampleRun * step) * kSampleRun;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < n_sample; i += kThreads)
    keys[i] = rank_key(scores[i / kSampleRun * (kSampleRun * step) + i % kSampleRun]);
  __syncthreads();
  return n_sample;
}

// Lists the keys of n scores that are at least `bound`, in order, as far as there is room for n_room, and
// where they are. Returns how many there are. A warp takes 32 kTileKeys neighbouring keys at a time.
__device__ uint32_t list_candidates(Shared& sm, const float* scores, int n, uint32_t bound, uint32_t* keys,
                                    int32_t* positions, uint32_t n_room) {
  constexpr int kWarpKeys = 32 * kTileKeys;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const uint32_t lower_lanes = (1u << lane) - 1;
  const auto load = [&](int first, float(&values)[kTileKeys]) {
#pragma unroll
    for (int u = 0; u < kTileKeys; ++u) {
      const int i = first + 32 * u + lane;
      values[u] = i < n ? scores[i] : 0.0f;
    }
  };
  float values[kTileKeys], next[kTileKeys];
  uint32_t n_found = 0;
  int first = warp * kWarpKeys, turn = 0;
  load(first, values);
  for (int begin = 0; begin < n; begin += kWarps * kWarpKeys, first += kWarps * kWarpKeys, turn ^= 1) {
    load(first + kWarps * kWarpKeys, next);
    uint32_t found[kTileKeys], n_warp = 0;
#pragma unroll
    for (int u = 0; u < kTileKeys; ++u) {
      found[u] = __ballot_sync(0xffffffffu, first + 32 * u + lane < n && rank_key(values[u]) >= bound);
      n_warp += __popc(found[u]);
    }
    if (lane == 0) sm.warp_found[turn][warp] = n_warp;
    __syncthreads();
    uint32_t at = n_found + warps_before(sm.warp_found[turn]);
    n_found += __reduce_add_sync(0xffffffffu, lane < kWarps ? sm.warp_found[turn][lane] : 0);
#pragma unroll
    for (int u = 0; u < kTileKeys; ++u) {
      const uint32_t own = at + __popc(found[u] & lower_lanes);
      if ((found[u] >> lane & 1) && own < n_room)
        keys[own] = rank_key(values[u]), positions[own] = first + 32 * u + lane;
      at += __popc(found[u]);
      values[u] = next[u];
    }
  }
  __syncthreads();
  return n_found;
}

// Brings the candidates of all blocks of a row together, in order, where the first block has its own; `first`
// is where this block's part of the row begins. Returns how many they are; 0 when they are not enough or a
// block has no room for them, and nothing is brought then.
__device__ uint32_t gather(Shared& sm, const Team& team, uint32_t n, uint32_t n_wanted, uint32_t* keys,
                           int32_t* positions, int first, uint32_t n_room) {
  if (threadIdx.x == 0) sm.block_counts[0] = n;
  team.sync();
  uint32_t before = 0, total = 0;
#pragma unroll
  for (int block = 0; block < kMostTeamBlocks; ++block)
    if (block < team.size) {
      if (block == team.rank) before = total;
      total += team.of(sm.block_counts, block)[0];
    }
  if (total < n_wanted || total > n_room) total = 0;
  if (team.rank > 0 && total > 0) {
    uint32_t* to_keys = team.of(keys, 0) + before;
    uint32_t* to_positions = team.of(reinterpret_cast<uint32_t*>(positions), 0) + before;
    for (uint32_t i = threadIdx.x; i < n; i += kThreads)
      to_keys[i] = keys[i], to_positions[i] = static_cast<uint32_t>(first + positions[i]);
  }
  team.sync();
  return total;
}

// How a row is gone through.
struct Search {
  int sample_step;
  uint32_t n_above;  // the bound is this one of the sample's keys
  uint32_t n_room;   // for candidates
};

// selected = the positions s <= pos with the topk largest scores (ties: the lower s), ascending.
// A cluster of 1 to 8 blocks takes a token, each block a run of its row. The bound is the n_above-th largest
// key of a sample, below which the topk-th key of the row lies as good as never; each block finds it by
// itself, so that blocks meet twice only. A row is read once, beside the sample's 1/8 of its sectors. Bound
// by reading the scores, 4 bytes each; with few rows by what a block does one after the other.
// Measured (H100, 2026-11-23): 2048 of 131 072: 24 us a token, 7 of them the launch, 40 us for 64 and 61 for
// 128; of a million: 60 us.
__global__ void __launch_bounds__(kThreads, 2) select_topk_kernel(SelectTopk op, Search search) {
  extern __shared__ uint32_t keys[];
  __shared__ Shared sm;
  let_next_start();
  wait_for_inputs();
  const Team team, alone(0, 1);
  const int64_t t = blockIdx.x / team.size;
  const int32_t n_visible = op.step.pos[t] + 1;
  if (select_all(op, team, t, n_visible)) return;
  const float* scores = op.scores + t * op.scores_stride;
  uint32_t bound = 0;
  if (n_visible > static_cast<int32_t>(search.n_room)) {
    const int n_sample = take_sample(scores, n_visible, search.sample_step, keys);
    uint32_t need = search.n_above;
    if (need <= static_cast<uint32_t>(n_sample))
      bound = find_threshold(
          sm, alone, [&](int i) { return keys[i]; }, n_sample, kDigits - 1, need);
  }
  const int n_part = whole_groups((n_visible + team.size - 1) / team.size);
  const int first = min(team.rank * n_part, n_visible), n_own = min(n_part, n_visible - first);
  scores += first;
  auto* positions = reinterpret_cast<int32_t*>(keys + search.n_room);
  const uint32_t n_listed = list_candidates(sm, scores, n_own, bound, keys, positions, search.n_room);
  const auto n_wanted = static_cast<uint32_t>(op.topk);
  const uint32_t n = gather(sm, team, n_listed, n_wanted, keys, positions, first, search.n_room);
  int32_t* selected = op.selected + t * op.topk;
  if (n > 0) {
    if (team.rank > 0) return;
    select_keys(
        sm, alone, [&](int i) { return keys[i]; }, static_cast<int>(n), n_wanted,
        [&](int i) { return positions[i]; }, selected);
    return;
  }
  select_keys(
      sm, team, [&](int i) { return rank_key(scores[i]); }, n_own, n_wanted, [&](int i) { return first + i; },
      selected);
  team.sync();  // no block's shared memory goes while another reads its counts
}

// How many blocks share a row: as many as there are multiprocessors for.
int blocks_per_row(int64_t n_tokens, int64_t n_visible, int n_sms) {
  int n = 1;
  while (n < kMostTeamBlocks && n * kLeastBlockKeys < n_visible && 2 * n_tokens * n <= n_sms) n *= 2;
  return n;
}

// n_most_room: candidates that a block has room for. Of a random sample the bound is far enough from topk in
// 1 case of 10^9: six deviations of how many of the topk are in it.
Search plan_search(int64_t topk, int64_t n_visible, bool is_few, int64_t n_most_room) {
  constexpr int64_t kRoom = 6144;  // leaves room for two blocks on an SM
  const int64_t n_room = is_few || n_visible > (int64_t{1} << 19) ? std::min(2 * kRoom, n_most_room) : kRoom;
  const int64_t step =
      std::max<int64_t>(is_few ? 2 * kSampleStep : kSampleStep, ceil_div(n_visible, 2 * kRoom));
  const double root = (6 + std::sqrt(36 + 4 * static_cast<double>(topk) / static_cast<double>(step))) / 2;
  return {static_cast<int>(step), static_cast<uint32_t>(root * root) + 1, static_cast<uint32_t>(n_room)};
}

int most_shared_bytes() {
  int device = 0, n_bytes = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&n_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  return n_bytes;
}

}  // namespace

void select_topk(const SelectTopk& op, const Launch& launch) {
  const int64_t n_tokens = op.step.n_tokens, n_visible = op.step.max_pos + 1;
  if (n_tokens == 0) return;
  if (op.topk <= 0 || op.topk > INT32_MAX || n_visible > INT32_MAX / 2 ||
      n_tokens > INT32_MAX / kMostTeamBlocks)
    fail(ErrorKind::internal,
         format("select_topk: top-k %lld of %lld positions for %lld tokens", static_cast<long long>(op.topk),
                static_cast<long long>(n_visible), static_cast<long long>(n_tokens)));
  if (op.scores && op.scores_stride < n_visible && n_tokens > 1)
    fail(ErrorKind::internal,
         format("select_topk: rows of %lld scores for %lld positions",
                static_cast<long long>(op.scores_stride), static_cast<long long>(n_visible)));
  const cudaFuncAttributes attributes = attributes_of(select_topk_kernel);
  const bool is_ranked = op.scores && n_visible > op.topk;
  const int n_blocks =
      knows_teams(attributes) && is_ranked ? blocks_per_row(n_tokens, n_visible, launch.n_sms) : 1;
  const int64_t n_most_room = (most_shared_bytes() - static_cast<int64_t>(attributes.sharedSizeBytes)) / 8;
  const Search search = plan_search(op.topk, n_visible, n_tokens * n_blocks <= launch.n_sms, n_most_room);
  const size_t n_bytes = is_ranked ? 2 * search.n_room * sizeof(uint32_t) : 0;
  CUDA_CHECK(cudaFuncSetAttribute(select_topk_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(n_bytes)));
  launch_kernel(
      "select_topk_kernel", select_topk_kernel,
      {static_cast<unsigned>(n_tokens * n_blocks), kThreads, n_bytes, static_cast<unsigned>(n_blocks)},
      launch, op, search);
}

}  // namespace dsv32::cuda
