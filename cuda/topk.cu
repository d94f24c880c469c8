// Exact top-k of each token's scores, by radix select on integer keys.
//
// Floats become 32-bit integers that sort alike. Three histograms (11, 11 and 10 bits) find the k-th largest
// key T exactly; then the positions with a key above T, and the lowest ones of those equal to it, are written
// in order. Counts are integers, so no order of arrival shows in the result. Of many rows each is one
// block's, which first lists what lies above a bound that a sample of the row gives; where the bound turns
// out not to leave enough or too much, the row is gone through as a whole.
#include <algorithm>
#include <cmath>

#include <cooperative_groups.h>

#include "cuda/common.cuh"
#include "cuda/kernels.h"

namespace dsv32::cuda {
namespace {

constexpr int kThreads = 1024, kWarps = kThreads / 32;
constexpr int kBins = 2048;
constexpr int kMostBlocks = 8;  // of a cluster that every device with clusters takes
constexpr int kBlockKeys =
    16 * 1024;  // of a row, per block, when there are many rows: 64 KiB, two blocks on an SM
constexpr int kLeastBlockKeys =
    4096;  // when there are few rows: below, the waits between the blocks cost more than they save

// Blocks of 1024 on one SM: those of Ada and of small Blackwells take 1536 threads, the others 2048.
#if __CUDA_ARCH__ == 890 || __CUDA_ARCH__ == 860 || __CUDA_ARCH__ >= 1200
constexpr int kBlocksOnSm = 1;
#else
constexpr int kBlocksOnSm = 2;
#endif

// As backend/cpu_attention.cpp: -0 equals 0, NaN ranks below everything.
__device__ __forceinline__ uint32_t rank_key(float score) {
  uint32_t bits = __float_as_uint(score);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0;
  if (bits == 0x80000000u) bits = 0;
  return (bits & 0x80000000u) ? ~bits : bits | 0x80000000u;
}

// The blocks that share a row: a cluster; one block where there are no clusters.
struct Team {
  int rank = 0, size = 1;

  __device__ Team() {
#if __CUDA_ARCH__ >= 900
    rank = static_cast<int>(cooperative_groups::this_cluster().block_rank());
    size = static_cast<int>(cooperative_groups::this_cluster().num_blocks());
#endif
  }
  // All threads of all blocks; shared memory written before is seen after, by every block.
  __device__ void sync() const {
#if __CUDA_ARCH__ >= 900
    if (size > 1) {
      cooperative_groups::this_cluster().sync();
      return;
    }
#endif
    __syncthreads();
  }
  // The same variable in the shared memory of block `of`.
  __device__ uint32_t* of(uint32_t* shared, int block) const {
#if __CUDA_ARCH__ >= 900
    if (size > 1) return cooperative_groups::this_cluster().map_shared_rank(shared, block);
#endif
    return shared;
  }
};

// One block's part of a row. The first n_cached keys are kept in shared memory (whole groups of 32, or all),
// the others are made again from the scores. Without scores all are there from the beginning.
struct Keys {
  const float* scores;
  uint32_t* cached;
  int n, n_cached;
};

// Calls visit(key) for keys first, first + step, ... below end. Two loops without a branch inside, so that
// several loads are on their way at once.
template <typename Visit>
__device__ __forceinline__ void visit_keys(const Keys& keys, int first, int step, int end,
                                           const Visit& visit) {
  const int cached_end = min(end, keys.n_cached);
  int i = first;
#pragma unroll 4
  for (; i < cached_end; i += step) visit(keys.cached[i]);
#pragma unroll 8
  for (; i < end; i += step) visit(rank_key(keys.scores[i]));
}

struct Shared {
  uint32_t counts[kBins];  // this block's histogram
  uint32_t totals[kBins];  // the team's
  uint32_t warp_sums[kWarps];
  uint32_t warp_above[kWarps], warp_ties[kWarps];  // of each warp's segment, then of all segments before it
  uint32_t block_counts[2];                        // above, ties
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

// The team's histogram: each block adds up its share of the bins and hands the sums to all.
__device__ const uint32_t* total_counts(Shared& sm, const Team& team) {
  team.sync();
  if (team.size == 1) return sm.counts;
  const int n_share = kBins / team.size;  // at most kThreads
  if (static_cast<int>(threadIdx.x) < n_share) {
    const int bin = team.rank * n_share + static_cast<int>(threadIdx.x);
    uint32_t sum = 0;
#pragma unroll
    for (int block = 0; block < kMostBlocks; ++block)
      if (block < team.size) sum += team.of(sm.counts, block)[bin];
#pragma unroll
    for (int block = 0; block < kMostBlocks; ++block)
      if (block < team.size) team.of(sm.totals, block)[bin] = sum;
  }
  team.sync();
  return sm.totals;
}

// Sets sm.bin to the bin with the need-th largest key and sm.n_above_bin to the number of keys in higher
// bins. Each thread has two bins, the first thread the highest.
__device__ void find_bin(Shared& sm, const uint32_t* totals, uint32_t need) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const uint32_t high = kBins - 1 - 2 * threadIdx.x;
  const uint32_t n_high = totals[high], n_low = totals[high - 1];
  uint32_t before = warp_prefix(n_high + n_low);
  if (lane == 31) sm.warp_sums[warp] = before;
  __syncthreads();
  if (warp == 0) {
    const uint32_t sum = sm.warp_sums[lane];
    sm.warp_sums[lane] = warp_prefix(sum) - sum;
  }
  __syncthreads();
  before += sm.warp_sums[warp] - (n_high + n_low);
  if (before < need && need <= before + n_high + n_low) {
    const bool is_high = need <= before + n_high;
    sm.bin = is_high ? high : high - 1;
    sm.n_above_bin = is_high ? before : before + n_high;
  }
  __syncthreads();
}

// The histogram of the highest 11 bits. This first reading of the scores leaves the keys in shared memory.
__device__ void count_first_digits(Shared& sm, const Keys& keys) {
#pragma unroll 8
  for (int i = static_cast<int>(threadIdx.x); i < keys.n; i += kThreads) {
    const uint32_t key = rank_key(keys.scores[i]);
    if (i < keys.n_cached) keys.cached[i] = key;
    atomicAdd(&sm.counts[key >> 21], 1u);
  }
}

// The need-th largest key of the team; `need` becomes how many of the keys equal to it are selected.
__device__ uint32_t find_threshold(Shared& sm, const Team& team, const Keys& keys, uint32_t& need) {
  uint32_t prefix = 0;  // the digits found so far
#pragma unroll 1
  for (int pass = 0; pass < 3; ++pass) {
    const int shift = pass == 0 ? 21 : pass == 1 ? 10 : 0, n_bits = pass == 2 ? 10 : 11;
    for (int i = static_cast<int>(threadIdx.x); i < kBins; i += kThreads) sm.counts[i] = 0;
    __syncthreads();
    if (pass == 0 && keys.scores) {
      count_first_digits(sm, keys);
    } else {
      const uint32_t mask = (1u << n_bits) - 1;
      visit_keys(keys, static_cast<int>(threadIdx.x), kThreads, keys.n, [&](uint32_t key) {
        const uint32_t digits = key >> shift;
        if (digits >> n_bits == prefix) atomicAdd(&sm.counts[digits & mask], 1u);
      });
    }
    find_bin(sm, total_counts(sm, team), need);
    prefix = prefix << n_bits | sm.bin;
    need -= sm.n_above_bin;
  }
  return prefix;
}

// Counts what lies above and at the threshold in each warp's segment [begin, end) of the block's part, then
// makes the counts sums over all segments before, those of the team's earlier blocks included.
__device__ void count_segments(Shared& sm, const Team& team, const Keys& keys, uint32_t threshold, int begin,
                               int end, uint32_t& n_above, uint32_t& n_ties) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  uint32_t above = 0, ties = 0;
  visit_keys(keys, begin + lane, 32, end, [&](uint32_t key) {
    above += key > threshold;
    ties += key == threshold;
  });
  above = __reduce_add_sync(0xffffffffu, above);
  ties = __reduce_add_sync(0xffffffffu, ties);
  if (lane == 0) sm.warp_above[warp] = above, sm.warp_ties[warp] = ties;
  __syncthreads();
  if (warp == 0) {
    above = sm.warp_above[lane], ties = sm.warp_ties[lane];
    const uint32_t above_to = warp_prefix(above), ties_to = warp_prefix(ties);
    sm.warp_above[lane] = above_to - above;
    sm.warp_ties[lane] = ties_to - ties;
    if (lane == 31) sm.block_counts[0] = above_to, sm.block_counts[1] = ties_to;
  }
  team.sync();
  n_above = sm.warp_above[warp], n_ties = sm.warp_ties[warp];
#pragma unroll
  for (int block = 0; block < kMostBlocks - 1; ++block)
    if (block < team.rank) {
      const uint32_t* counts = team.of(sm.block_counts, block);
      n_above += counts[0], n_ties += counts[1];
    }
}

// Writes the selected positions of a warp's segment in ascending order: position_of(i) of key i. n_above and
// n_ties: keys above and at the threshold before the segment; the first n_wanted ties of the row are
// selected.
template <typename PositionOf>
__device__ void write_segment(const Keys& keys, uint32_t threshold, uint32_t n_wanted, int begin, int end,
                              uint32_t n_above, uint32_t n_ties, const PositionOf& position_of,
                              int32_t* selected) {
  constexpr int kTogether = 4;  // groups of 32 whose keys are loaded at once
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint32_t lower_lanes = (1u << lane) - 1;
  uint32_t n_before = n_above + min(n_ties, n_wanted);
  const auto write = [&](int from, int to, const auto& key_at) {
#pragma unroll 1
    for (int first = from; first < to; first += 32 * kTogether) {
      uint32_t group[kTogether];
#pragma unroll
      for (int u = 0; u < kTogether; ++u) {
        const int i = first + 32 * u + lane;
        group[u] = i < to ? key_at(i) : 0;
      }
#pragma unroll
      for (int u = 0; u < kTogether; ++u) {
        const int i = first + 32 * u + lane;
        const bool is_above = i < to && group[u] > threshold, is_tie = i < to && group[u] == threshold;
        const uint32_t ties = __ballot_sync(0xffffffffu, is_tie);
        const bool is_selected = is_above || (is_tie && n_ties + __popc(ties & lower_lanes) < n_wanted);
        const uint32_t taken = __ballot_sync(0xffffffffu, is_selected);
        if (is_selected) selected[n_before + __popc(taken & lower_lanes)] = position_of(i);
        n_before += __popc(taken);
        n_ties += __popc(ties);
      }
    }
  };
  const int cached_end = max(begin, min(end, keys.n_cached));
  write(begin, cached_end, [&](int i) { return keys.cached[i]; });
  write(cached_end, end, [&](int i) { return rank_key(keys.scores[i]); });
}

// Selects the n_wanted largest keys of the team, of which this block has `keys`. n_part: what each block has
// at most, whole groups of kThreads keys, so that every warp's segment is whole groups of 32.
template <typename PositionOf>
__device__ void select_keys(Shared& sm, const Team& team, const Keys& keys, int n_part, uint32_t n_wanted,
                            const PositionOf& position_of, int32_t* selected) {
  const uint32_t threshold = find_threshold(sm, team, keys, n_wanted);
  const int n_segment = n_part / kWarps;
  const int begin = min(static_cast<int>(threadIdx.x) / 32 * n_segment, keys.n),
            end = min(begin + n_segment, keys.n);
  uint32_t n_above = 0, n_ties = 0;
  count_segments(sm, team, keys, threshold, begin, end, n_above, n_ties);
  write_segment(keys, threshold, n_wanted, begin, end, n_above, n_ties, position_of, selected);
}

__device__ __forceinline__ int whole_groups(int n) { return (n + kThreads - 1) / kThreads * kThreads; }

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

// selected = the positions s <= pos with the topk largest scores (ties: the lower s), ascending.
// A cluster of 1 to 8 blocks takes a token, each block a run of its row, each warp a run of the block's.
// Keys stay in shared memory as far as they fit, and histograms are added there: one reading of a row.
// Bound by reading the scores, 4 bytes each; with few rows by about ten waits of the cluster.
// Measured (H200, 2026-11-21): 2048 of 131 072: 25 us a token, 133 us for 128; of a million: 103 us.
__global__ void __launch_bounds__(kThreads, kBlocksOnSm)
    select_topk_kernel(SelectTopk op, int n_cached_most) {
  extern __shared__ uint32_t cached[];
  __shared__ Shared sm;
  let_next_start();
  wait_for_inputs();
  const Team team;
  const int64_t t = blockIdx.x / team.size;
  const int32_t n_visible = op.step.pos[t] + 1;
  if (select_all(op, team, t, n_visible)) return;
  const int n_part = whole_groups((n_visible + team.size - 1) / team.size);
  const int first_pos = min(team.rank * n_part, n_visible), n_own = min(n_part, n_visible - first_pos);
  const Keys keys{op.scores + t * op.scores_stride + first_pos, cached, n_own, min(n_own, n_cached_most)};
  select_keys(
      sm, team, keys, n_part, static_cast<uint32_t>(op.topk), [&](int j) { return first_pos + j; },
      op.selected + t * op.topk);
  team.sync();  // no block's shared memory goes while another reads its counts
}

// Of many rows: candidates and their positions, in shared memory one behind the other, and how they are
// found.
constexpr int kMostCandidates = 6144;
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

// Lists the keys of a row that are at least `bound`, in order, as far as there is room. Returns how many
// there are. A warp takes 32 kTileKeys neighbouring keys at a time.
__device__ uint32_t list_candidates(Shared& sm, const float* scores, int n, uint32_t bound, uint32_t* keys,
                                    int32_t* positions) {
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
    const uint32_t up_to = warp_prefix(sm.warp_found[turn][lane]);
    uint32_t at = n_found + __shfl_sync(0xffffffffu, up_to, warp) - n_warp;
    n_found += __shfl_sync(0xffffffffu, up_to, 31);
#pragma unroll
    for (int u = 0; u < kTileKeys; ++u) {
      const uint32_t own = at + __popc(found[u] & lower_lanes);
      if ((found[u] >> lane & 1) && own < kMostCandidates)
        keys[own] = rank_key(values[u]), positions[own] = first + 32 * u + lane;
      at += __popc(found[u]);
      values[u] = next[u];
    }
  }
  __syncthreads();
  return n_found;
}

// The same of many rows: a block has a token.
// The bound is the n_above-th largest key of the sample, below which the topk-th key of the row lies as good
// as never. A row is read once, beside the sample's 1/8 of its sectors.
// Bound by reading the scores.
__global__ void __launch_bounds__(kThreads, kBlocksOnSm)
    select_topk_of_many_kernel(SelectTopk op, int sample_step, uint32_t n_above) {
  extern __shared__ uint32_t cached[];
  __shared__ Shared sm;
  let_next_start();
  wait_for_inputs();
  const Team team;
  const int64_t t = blockIdx.x;
  const int32_t n_visible = op.step.pos[t] + 1;
  if (select_all(op, team, t, n_visible)) return;
  const float* scores = op.scores + t * op.scores_stride;
  uint32_t* keys = cached;
  auto* positions = reinterpret_cast<int32_t*>(cached + kMostCandidates);
  uint32_t bound = 0;
  if (n_visible > kMostCandidates) {
    const int n_sample = take_sample(scores, n_visible, sample_step, cached);
    uint32_t need = n_above;
    if (n_above <= static_cast<uint32_t>(n_sample))
      bound = find_threshold(sm, team, {nullptr, cached, n_sample, n_sample}, need);
  }
  const uint32_t n = list_candidates(sm, scores, n_visible, bound, keys, positions);
  const auto n_wanted = static_cast<uint32_t>(op.topk);
  int32_t* selected = op.selected + t * op.topk;
  if (n_wanted <= n && n <= kMostCandidates)
    select_keys(
        sm, team, {nullptr, keys, static_cast<int>(n), static_cast<int>(n)}, whole_groups(n), n_wanted,
        [&](int i) { return positions[i]; }, selected);
  else
    select_keys(
        sm, team, {scores, nullptr, n_visible, 0}, whole_groups(n_visible), n_wanted, [](int i) { return i; },
        selected);
}

int most_shared_bytes() {
  int device = 0, n_bytes = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&n_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  return n_bytes;
}

// A row's sample has room where the candidates will be. Of a random one the bound is far enough from topk in
// 1 case of 10^9: six deviations of how many of the topk are in it.
void select_of_many(const SelectTopk& op, const Launch& launch) {
  const int64_t n_visible = op.step.max_pos + 1;
  const int64_t step = std::max<int64_t>(kSampleStep, ceil_div(n_visible, 2 * kMostCandidates));
  const double root = (6 + std::sqrt(36 + 4 * static_cast<double>(op.topk) / static_cast<double>(step))) / 2;
  constexpr size_t kBytes = 2 * kMostCandidates * sizeof(uint32_t);
  CUDA_CHECK(cudaFuncSetAttribute(select_topk_of_many_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(kBytes)));
  launch_kernel("select_topk_of_many_kernel", select_topk_of_many_kernel,
                {static_cast<unsigned>(op.step.n_tokens), kThreads, kBytes}, launch, op,
                static_cast<int>(step), static_cast<uint32_t>(root * root) + 1);
}

// How many blocks share a row: enough that its keys fit, more when few rows would leave the device idle.
int blocks_per_row(int64_t n_tokens, int64_t n_visible, int n_sms) {
  const int64_t n_keys = n_tokens * kMostBlocks <= n_sms ? kLeastBlockKeys : kBlockKeys;
  int n = 1;
  while (n < kMostBlocks && n * n_keys < n_visible) n *= 2;
  return n;
}

}  // namespace

void select_topk(const SelectTopk& op, const Launch& launch) {
  const int64_t n_tokens = op.step.n_tokens, n_visible = op.step.max_pos + 1;
  if (n_tokens == 0) return;
  if (op.topk <= 0 || op.topk > INT32_MAX || n_visible > INT32_MAX / 2 || n_tokens > INT32_MAX / kMostBlocks)
    fail(ErrorKind::internal,
         format("select_topk: top-k %lld of %lld positions for %lld tokens", static_cast<long long>(op.topk),
                static_cast<long long>(n_visible), static_cast<long long>(n_tokens)));
  if (op.scores && op.scores_stride < n_visible && n_tokens > 1)
    fail(ErrorKind::internal,
         format("select_topk: rows of %lld scores for %lld positions",
                static_cast<long long>(op.scores_stride), static_cast<long long>(n_visible)));
  if (n_tokens * 2 > launch.n_sms) return select_of_many(op, launch);
  cudaFuncAttributes attributes{};
  CUDA_CHECK(cudaFuncGetAttributes(&attributes, select_topk_kernel));
  const bool has_clusters = attributes.ptxVersion >= 90;
  const bool is_ranked = op.scores && n_visible > op.topk;
  const int n_blocks = has_clusters && is_ranked ? blocks_per_row(n_tokens, n_visible, launch.n_sms) : 1;
  const int64_t n_part = ceil_div(ceil_div(n_visible, n_blocks), kThreads) * kThreads;
  const int64_t n_most =
      (most_shared_bytes() - static_cast<int64_t>(attributes.sharedSizeBytes)) / 4 / 32 * 32;
  const int n_cached = is_ranked ? static_cast<int>(std::min(n_part, n_most)) : 0;
  CUDA_CHECK(cudaFuncSetAttribute(select_topk_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(n_most) * 4));
  launch_kernel("select_topk_kernel", select_topk_kernel,
                {static_cast<unsigned>(n_tokens * n_blocks), kThreads, static_cast<size_t>(n_cached) * 4,
                 static_cast<unsigned>(n_blocks)},
                launch, op, n_cached);
}

}  // namespace dsv32::cuda
