// Exact top-k of each token's scores, of positions or of spans of them.
//
// One block takes a short row and holds all keys in registers (topk_keys.cuh). A cluster takes a longer row:
// each block lists the keys of its part above a bound and sends the list to all others. Then each block finds
// the threshold by itself and writes its own part's positions above it, in order; the blocks synchronise
// once. All compute the same bound, from the same sample of the whole row. If it leaves too few keys or too
// many, the blocks go through the row again, digit by digit (topk_keys.cuh): the result is exact for all
// scores, and counts are integers, so that the order of threads does not matter.

#include "cuda/topk_keys.cuh"

namespace dsv32::cuda {
namespace {

template <int kThreads>  // of a block, as many as fit with 64 registers per thread
constexpr int kMostKeys = kThreads == 1024 ? 8192 : 6144;
constexpr int kSampleVectors = 4;  // most of a thread; a vector is 4 neighbouring scores
constexpr int kSampleStep = 8;     // the sample has one key of this many, unless the row is too long
constexpr int kListHead = 4;       // words before a list's keys; the first is the number of keys
constexpr int kTooMany = 0x7fffffff;

// A block's dynamic shared memory: all blocks' lists, then the positions of its own list.
struct Lists {
  uint32_t* words;
  int n_room, n_blocks;

  __device__ uint32_t* of(int block) const { return words + block * (n_room + kListHead); }
  __device__ int32_t* positions() const { return reinterpret_cast<int32_t*>(of(n_blocks)); }
};

// Which keys of a row are sampled, and which of the sample's keys bound the row's topk-th, by a margin of six
// standard deviations of the sampled topk keys' number: a random sample is wrong in 1 of 10^9 cases.
struct Sampling {
  int n_vectors, step, n_whole;  // a thread's; every step-th vector is sampled; all threads'
  uint32_t need_low, need_high;

  template <int kThreads>
  static __device__ Sampling plan(int n, int64_t topk) {
    Sampling s;
    const int n_sampled = max(1, n - 4), n_each = (n_sampled + 4 * kThreads - 1) / (4 * kThreads);
    s.n_vectors = min(kSampleVectors, (n_each + kSampleStep - 1) / kSampleStep);
    s.step = (n_each + s.n_vectors - 1) / s.n_vectors;
    s.n_whole = n_sampled / (4 * s.step);
    const float mean = static_cast<float>(topk) / static_cast<float>(s.step);
    const float root = sqrtf(36 + 4 * mean), low = (root + 6) / 2, high = (root - 6) / 2;
    s.need_low = static_cast<uint32_t>(low * low) + 1;
    s.need_high = max(1u, static_cast<uint32_t>(high * high));
    return s;
  }
  __device__ bool is_enough() const { return need_low <= static_cast<uint32_t>(4 * n_whole); }
};

// If there is nothing to choose, selects all positions and returns true. Writes n_selected in any case.
template <int kThreads>
__device__ bool select_all(const SelectTopk& op, const Team& team, int64_t t, int32_t pos) {
  const int32_t topk = static_cast<int32_t>(op.topk), n = pos + 1 - op.first, n_selected = min(topk, n);
  if (team.rank == 0 && threadIdx.x == 0) op.n_selected[t] = n_selected;
  if (op.scores && n > topk) return false;
  for (int i = team.rank * kThreads + static_cast<int>(threadIdx.x); i < n_selected;
       i += team.size * kThreads)
    op.selected[t * op.topk + i] = op.first + i;
  return true;
}

// Sets `low` and `high` to keys of the sample between which the row's topk-th key almost surely lies.
// sm.counts[0] must be zero.
template <int kThreads>
DSV32_DEVICE void bound_keys(Shared& sm, const Sampling& sampling, const float4 (&x)[kSampleVectors],
                             uint32_t& low, uint32_t& high) {
  uint32_t keys[4 * kSampleVectors], least = 0xffffffffu, most = 0;
  visit_vectors<4 * kSampleVectors>(sampling.n_vectors, [&](int i) {
    const bool is_there = i / 4 * kThreads + static_cast<int>(threadIdx.x) < sampling.n_whole;
    keys[i] = is_there ? rank_key((&x[i / 4].x)[i % 4]) : 0;
    least = min(least, is_there ? keys[i] : 0xffffffffu), most = max(most, keys[i]);
  });
  // If need_low threads or more have keys, need_low keys are not below the least of the threads' highest
  // keys.
  const auto n_threads = static_cast<uint32_t>(min(kThreads, sampling.n_whole));
  low = sampling.need_low > n_threads ? least : most > 0 ? most : 0xffffffffu, high = most;
  meet_bounds<kThreads>(sm, low, high, sampling.need_high);
  const Bins bins = make_bins(low, high);
  count_keys(keys, sampling.n_vectors, bins, low, sm.counts[0]);
  __syncthreads();
  find_bins<kThreads>(sm, sm.counts[0], {sampling.need_low, sampling.need_high});
  low = max(low, bins.begin(sm.found[0].bin)), high = max(low, bins.begin(sm.found[1].bin + 1));
}

// Lists the part's keys from `low` on, in order, and their positions in the row.
template <int kThreads>
DSV32_DEVICE void list_keys(Shared& sm, const Row& part, const Tile<kThreads>& tile, uint32_t low,
                            const Lists& lists, int rank) {
  uint32_t* list = lists.of(rank);
  const uint32_t keys_at = opaque(shared_address(list + kListHead));
  const uint32_t positions_at = opaque(shared_address(lists.positions()));
  uint32_t n_listed = 0, n_ties = 0;
  take_part(sm, part, tile, low - 1, 0, n_listed, n_ties,
            [&](uint32_t key, int i, uint32_t at, bool is_taken) {
              const bool is_listed = is_taken & (at < static_cast<uint32_t>(lists.n_room));
              store_shared_if(keys_at + 4 * at, key, is_listed);
              store_shared_if(positions_at + 4 * at, static_cast<uint32_t>(i), is_listed);
            });
  const uint32_t end = n_listed + threadIdx.x;
  if (end < (n_listed + 3) / 4 * 4 && n_listed < static_cast<uint32_t>(lists.n_room))
    list[kListHead + end] = 0;
  if (threadIdx.x == 0) list[0] = n_listed;
}

// Sends this block's list to the team's other blocks and waits for theirs. A cluster arrival is pending
// before and after: none may send before all have started, none may end before all have received.
DSV32_DEVICE void share_lists(Shared& sm, const Team& team, const Lists& lists) {
#if __CUDA_ARCH__ >= 900
  if (team.size > 1) {
    fence_async_proxy();
    __syncthreads();
    wait_for_cluster();
    if (static_cast<int>(threadIdx.x) < team.size - 1) {
      const int to = (team.rank + 1 + static_cast<int>(threadIdx.x)) & (team.size - 1);
      const uint32_t *list = lists.of(team.rank), n = min(list[0], static_cast<uint32_t>(lists.n_room));
      copy_to_block(to, list, (kListHead + (n + 3) / 4 * 4) * 4, &sm.arrived);
    }
    wait_for_phase(&sm.arrived, 0);
    arrive_at_cluster();
    return;
  }
#endif
  __syncthreads();
}

// A thread's keys among which the topk are found.
template <int kThreads>
struct Candidates {
  static constexpr int kVectors = kMostKeys<kThreads> / kThreads / 4;
  uint32_t keys[4 * kVectors];
  int own[kVectors];   // each vector's start in the row or in the block's own list; -1: another block's
  uint32_t low, high;  // bounds of all threads' keys
};

// Reads the thread's keys of all lists. Returns the number of vectors of each thread; 0 if the lists have too
// few keys or too many.
template <int kThreads>
DSV32_DEVICE int read_lists(const Team& team, const Lists& lists, uint32_t n_wanted,
                            Candidates<kThreads>& c) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint32_t n_list = lane < team.size ? lists.of(lane)[0] : 0;
  if (__any_sync(0xffffffffu, n_list > static_cast<uint32_t>(lists.n_room))) return 0;
  const uint32_t upto = warp_prefix((n_list + 3) / 4), before = upto - (n_list + 3) / 4;
  const uint32_t n_each = (__shfl_sync(0xffffffffu, upto, 31) + kThreads - 1) / kThreads;
  if (__reduce_add_sync(0xffffffffu, n_list) < n_wanted || n_each > c.kVectors) return 0;
  DSV32_UNROLL for (int v = 0; v < c.kVectors; ++v) {
    if (v >= static_cast<int>(n_each)) break;
    const uint32_t vector = threadIdx.x * n_each + v;
    int block = 0;
    DSV32_UNROLL for (int b = 1; b < kMostTeamBlocks; ++b) block +=
        b < team.size && vector >= __shfl_sync(0xffffffffu, before, b) ? 1 : 0;
    const uint32_t offset = 4 * (vector - __shfl_sync(0xffffffffu, before, block));
    const bool is_there = vector < __shfl_sync(0xffffffffu, upto, block);  // false: past the last list
    uint4 x = {};
    if (is_there) x = *reinterpret_cast<const uint4*>(lists.of(block) + kListHead + offset);
    c.keys[4 * v] = x.x, c.keys[4 * v + 1] = x.y, c.keys[4 * v + 2] = x.z, c.keys[4 * v + 3] = x.w;
    c.own[v] = is_there && block == team.rank ? static_cast<int>(offset) : -1;
  }
  return static_cast<int>(n_each);
}

// Reads the keys of a short row, and computes their bounds.
template <int kThreads>
DSV32_DEVICE int read_row(Shared& sm, const Row& row, uint32_t n_wanted, Candidates<kThreads>& c) {
  const int n_vectors = (row.end + 4 * kThreads - 1) / (4 * kThreads);
  float4 x[c.kVectors];
  DSV32_UNROLL for (int v = 0; v < c.kVectors; ++v) {
    c.own[v] = 4 * (static_cast<int>(threadIdx.x) * n_vectors + v);
    if (v < n_vectors) x[v] = row.load(c.own[v]);
  }
  c.low = 0xffffffffu, c.high = 0;
  DSV32_UNROLL for (int v = 0; v < c.kVectors; ++v) if (v < n_vectors)
      row.keys_of(x[v], c.own[v], c.keys + 4 * v);
  visit_vectors<4 * c.kVectors>(n_vectors, [&](int i) {
    c.low = min(c.low, c.keys[i] > 0 ? c.keys[i] : 0xffffffffu), c.high = max(c.high, c.keys[i]);
  });
  meet_bounds<kThreads>(sm, c.low, c.high, n_wanted);
  return n_vectors;
}

// Makes and reads the lists of a longer row; returns 0 if they have too few keys or too many. A cluster
// arrival is pending before and after.
template <int kThreads>
DSV32_DEVICE int read_long_row(Shared& sm, const Team& team, const Row& row, const Row& part,
                               const Sampling& sampling, const Lists& lists, uint32_t n_wanted,
                               Candidates<kThreads>& c) {
  float4 sample[kSampleVectors];
  DSV32_UNROLL for (int v = 0; v < kSampleVectors; ++v) {
    const int at = v * kThreads + static_cast<int>(threadIdx.x);
    if (at < sampling.n_whole)
      sample[v] = *reinterpret_cast<const float4*>(row.scores + 4 + at * 4 * sampling.step);
  }
  Tile<kThreads> tile;
  tile.load(part, part.begin / 4 * 4);
  bound_keys<kThreads>(sm, sampling, sample, c.low, c.high);
  list_keys(sm, part, tile, c.low, lists, team.rank);
  if (threadIdx.x == 0 && !sampling.is_enough()) lists.of(team.rank)[0] = kTooMany;
  share_lists(sm, team, lists);
  return read_lists<kThreads>(team, lists, n_wanted, c);
}

DSV32_DEVICE int4 positions_of(const Lists& lists, int own, bool is_short, int skip) {
  if (!is_short) return *reinterpret_cast<const int4*>(lists.positions() + max(own, 0));
  own -= skip;
  return {own, own + 1, own + 2, own + 3};
}

// Selects from a row of more than topk positions. A cluster arrival is pending before and after.
template <int kThreads>
DSV32_DEVICE void select_ranked(Shared& sm, const Team& team, const Row& row, const Sampling& sampling,
                                const Lists& lists, uint32_t n_wanted, int32_t* selected) {
  const bool is_short = row.end <= kMostKeys<kThreads>;
  if (is_short && team.rank > 0) return;
  const Team those = is_short ? Team(0, 1) : team;
  const Row part = row.part(those.rank, those.size);
  Candidates<kThreads> c;
  const int n_vectors = is_short ? read_row(sm, row, n_wanted, c)
                                 : read_long_row(sm, team, row, part, sampling, lists, n_wanted, c);
  if (n_vectors == 0 || !find_key<kThreads>(sm, c.keys, n_vectors, c.low, c.high, n_wanted)) {
    if (!is_short) wait_for_cluster();
    select_slowly<kThreads>(sm, those, part, n_wanted, selected);
    if (!is_short) arrive_at_cluster();
    return;
  }
  uint32_t n_above = 0, n_ties = 0;
  int4 at_vector;
  take_keys<kThreads>(sm.warp_sums[1], c.keys, n_vectors, sm.key, sm.n_wanted, n_above, n_ties,
                      [&](int i, uint32_t at, bool is_taken) {
                        const int own = c.own[i / 4];
                        if (i % 4 == 0) at_vector = positions_of(lists, own, is_short, row.skip);
                        if (is_taken && own >= 0) selected[at] = (&at_vector.x)[i % 4];
                      });
}

// selected = the positions s from first to pos with the topk largest scores (ties: the lower s), ascending. A
// cluster of 1 to 8 blocks takes a token; each block has a contiguous part of its row. Bound by the latency
// of a block's steps, which depend on each other; with many long rows by reading the scores.
template <int kThreads>
__global__ void __launch_bounds__(kThreads, 1024 / kThreads) select_topk_kernel(SelectTopk op, int n_room) {
  extern __shared__ __align__(16) uint32_t words[];
  __shared__ Shared sm;
  const Team team;
  for (int i = static_cast<int>(threadIdx.x); i < 2 * kBins; i += kThreads)
    sm.counts[i / kBins][i % kBins] = 0;
  if (threadIdx.x < kGroups) sm.group_high[threadIdx.x] = 0;
  if (threadIdx.x == 0) {
    sm.n_compared = 0;
#if __CUDA_ARCH__ >= 900
    if (team.size > 1) init_barrier(&sm.arrived, static_cast<uint32_t>(team.size) - 1), publish_barriers();
#endif
  }
  __syncthreads();
  arrive_at_cluster();
  const int64_t t = blockIdx.x / team.size;
  int32_t pos = op.step.pos[t];  // of spans the last before the token's own: it has no score
  if (op.n_together > 1) pos = pos / static_cast<int32_t>(op.n_together) - 1;
  const Sampling sampling = Sampling::plan<kThreads>(pos + 1, op.topk);
  wait_for_inputs();
  let_next_start();  // late: attention may read older queries before its wait
  if (!select_all<kThreads>(op, team, t, pos))
    select_ranked<kThreads>(sm, team, row_of(op.scores + t * op.scores_stride, op.first, pos + 1), sampling,
                            {words, n_room, team.size}, static_cast<uint32_t>(op.topk),
                            op.selected + t * op.topk);
  wait_for_cluster();
}

// Room for each of n_blocks lists.
template <typename Kernel>
int list_room(Kernel* kernel, int n_blocks) {
  const int n_words = most_shared_bytes(kernel) / 4;
  return std::min(topk_list_keys(n_blocks), (n_words - kListHead * n_blocks) / (n_blocks + 1) / 4 * 4);
}

template <int kThreads>
void launch_select(const SelectTopk& op, bool are_long, const Launch& launch) {
  const auto kernel = select_topk_kernel<kThreads>;
  const int n_blocks = are_long && card().has_clusters ? topk_blocks(op.step.n_tokens, launch.n_sms) : 1;
  const int n_room = are_long ? list_room(kernel, n_blocks) : 0;
  const int n_bytes = ((n_blocks + 1) * n_room + kListHead * n_blocks) * 4;
  launch_kernel(kernel, {op.step.n_tokens * n_blocks, kThreads, n_bytes, n_blocks}, launch, op, n_room);
}

// Selects of n_visible positions or spans, the most of a token.
void select_scored(const SelectTopk& op, int64_t n_visible, const Launch& launch) {
  const int64_t n_tokens = op.step.n_tokens;
  if (op.topk <= 0 || op.topk > INT32_MAX || n_visible > INT32_MAX / 2 ||
      n_tokens > INT32_MAX / kMostTeamBlocks)
    fail(ErrorKind::internal,
         format("select_topk: top-k %ld of %ld positions for %ld tokens", op.topk, n_visible, n_tokens));
  if (op.scores && op.scores_stride < n_visible && n_tokens > 1)
    fail(ErrorKind::internal,
         format("select_topk: rows of %ld scores for %ld positions", op.scores_stride, n_visible));
  const bool are_fours = (n_tokens == 1 || op.scores_stride % 4 == 0) && is_aligned(op.scores, 16);
  const bool are_long = op.scores && n_visible > op.topk && n_visible + (are_fours ? 0 : 3) > kMostKeys<1024>;
  (topk_threads(are_long, n_visible) == 512 ? launch_select<512> : launch_select<1024>)(op, are_long, launch);
}

constexpr int kExpandThreads = 256;

// selected[t] = the positions of the chosen spans and of the token's own up to pos, or all if they are at
// most topk. A block has a token. Bound by latency.
__global__ void __launch_bounds__(kExpandThreads)
    expand_spans_kernel(SelectTopk op, const int32_t* spans, int64_t n_spans) {
  const int64_t t = blockIdx.x, n_together = op.n_together;
  const int32_t pos = op.step.pos[t], newest = static_cast<int32_t>(pos / n_together);
  wait_for_inputs();
  let_next_start();  // late: attention may read older queries before its wait
  const bool are_all = pos < op.topk;
  const int64_t n_older = are_all ? newest * n_together : n_spans * n_together,
                n = n_older + pos % n_together + 1;
  for (int64_t i = threadIdx.x; i < n; i += kExpandThreads) {
    const int64_t span = i >= n_older ? newest
                         : are_all    ? i / n_together
                                      : spans[t * n_spans + i / n_together];
    op.selected[t * op.topk + i] = static_cast<int32_t>(span * n_together + i % n_together);
  }
  if (threadIdx.x == 0) op.n_selected[t] = static_cast<int32_t>(n);
}

// Selects the best spans, then lists their positions.
void select_spans(const SelectTopk& op, const Launch& launch) {
  SelectTopk spans = op;
  spans.topk = op.topk / op.n_together - 1;
  spans.selected = launch.workspace->take<int32_t>(op.step.n_tokens * spans.topk);
  spans.n_selected = launch.workspace->take<int32_t>(op.step.n_tokens);
  select_scored(spans, op.step.max_pos / op.n_together, launch);
  launch_kernel(expand_spans_kernel, {op.step.n_tokens, kExpandThreads}, launch, op, spans.selected,
                spans.topk);
}

}  // namespace

void select_topk(const SelectTopk& op, const Launch& launch) {
  if (op.step.n_tokens == 0) return;
  op.n_together > 1 ? select_spans(op, launch) : select_scored(op, op.step.max_pos + 1, launch);
}

}  // namespace dsv32::cuda
