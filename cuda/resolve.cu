// Where each selected row is read from: the slot of its position, or one of the top-k buffer.
//
// The policy is that of src/context/topk_buffer, on the same arrays, step for step.
#include "cuda/kernels.h"
#include "cuda/paged.cuh"

namespace dsv32::cuda {
namespace {

// row_ids = the slots of the selected positions, where no sequence has a buffer
// A thread an entry of [n_tokens, topk]. Bound by bytes.
__global__ void locate_rows_kernel(Resolve op) {
  let_next_start();
  wait_for_inputs();
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i >= op.step.n_tokens * op.topk) return;
  const int64_t t = i / op.topk;
  if (i % op.topk == 0) op.n_misses[t] = 0;
  if (i % op.topk < op.n_selected[t])
    op.row_ids[i] = paged_row(op.cache.slot_pages, op.cache, op.step.seq[t], op.selected[i]);
}

constexpr int kThreads = 1024, kWarps = kThreads / 32;
constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kBatch = 9;          // loads of a lane in flight together: 8193 slots are nine of each lane
constexpr int kBuckets = 1 << 12;  // of positions
constexpr int kMostStaged = 3072;  // entries of a selection that fit in shared memory beside the buckets

// An ascending selection to look positions up in. ranges[b] is the entries of the positions p with p >> shift
// == b: of a scattered selection one or none; of a run 2^shift at most, which are searched by halves.
struct Selection {
  const int32_t* positions;
  int n;
  const int2* ranges;
  int last, shift;

  __device__ int find(int pos) const {  // the entry, or -1
    if (pos < 0 || pos > last) return -1;
    const int2 range = ranges[pos >> shift];
    int low = range.x, high = range.y;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (positions[middle] < pos)
        low = middle + 1;
      else
        high = middle;
    }
    return low < range.y && positions[low] == pos ? low : -1;
  }
};

// Called by all threads; `staged`, where there is one, gets the positions, and `ranges` what find() needs.
__device__ Selection make_selection(const int32_t* selected, int n, int32_t* staged, int2* ranges) {
  constexpr int kBucketBits = 12;
  static_assert(kBuckets == 1 << kBucketBits);
  const int last = n > 0 ? selected[n - 1] : 0, shift = max(0, 32 - __clz(last) - kBucketBits);
  if (staged)
    for (int i = threadIdx.x; i < n; i += kThreads) staged[i] = selected[i];
  for (int i = threadIdx.x; i < kBuckets; i += kThreads) ranges[i] = make_int2(0, 0);
  __syncthreads();
  const int32_t* positions = staged ? staged : selected;
  for (int i = threadIdx.x; i < n; i += kThreads) {
    const int bucket = positions[i] >> shift;
    if (i == 0 || positions[i - 1] >> shift != bucket) ranges[bucket].x = i;
    if (i + 1 == n || positions[i + 1] >> shift != bucket) ranges[bucket].y = i + 1;
  }
  __syncthreads();
  return {positions, n, ranges, last, shift};
}

// A warp's run of n entries; it takes them 32 at a time.
struct Share {
  int begin, end;
  __device__ explicit Share(int n) {
    const int n_each = (n + kThreads - 1) / kThreads * 32;
    begin = min(static_cast<int>(threadIdx.x / 32) * n_each, n), end = min(begin + n_each, n);
  }
};

// The sum of the counts of the warps before this one, and of all warps.
__device__ __forceinline__ int2 sum_counts(const int* counts) {
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int count = counts[lane];
  return make_int2(__reduce_add_sync(kAllLanes, lane < warp ? count : 0),
                   __reduce_add_sync(kAllLanes, count));
}

// A sequence's slots, as rows of cache.slots.
struct SlotRows {
  const int32_t* pages;  // the sequence's line of slot_pages
  __device__ __forceinline__ int64_t operator()(int slot) const {
    return static_cast<int64_t>(pages[slot / kPageTokens]) * kPageTokens + slot % kPageTokens;
  }
};

// Looks the warp's share of the slots up: row_ids of those that are hit, and tagged = order, with the
// complement of a slot that is hit. Returns the hits.
__device__ __forceinline__ int tag_slots(const TopkBuffer& buffer, const Selection& selection,
                                         const SlotRows& row_of, int64_t* row_ids, int32_t* tagged) {
  const Share slots(buffer.n_slots);
  const int lane = static_cast<int>(threadIdx.x % 32);
  int n_hits = 0;
  for (int base = slots.begin + lane; base - lane < slots.end; base += 32 * kBatch) {
    int slot[kBatch], pos[kBatch];
#pragma unroll
    for (int k = 0; k < kBatch; ++k) slot[k] = base + 32 * k < slots.end ? buffer.order[base + 32 * k] : -1;
#pragma unroll
    for (int k = 0; k < kBatch; ++k) pos[k] = slot[k] >= 0 ? buffer.slot_pos[slot[k]] : kEmptySlot;
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      const int entry = selection.find(pos[k]);
      if (entry >= 0) row_ids[entry] = row_of(slot[k]);
      if (base + 32 * k < slots.end) tagged[base + 32 * k] = entry >= 0 ? ~slot[k] : slot[k];
      n_hits += __popc(__ballot_sync(kAllLanes, entry >= 0));
    }
  }
  return n_hits;
}

// The new order, of the warp's share of the slots: stale, no victims [n_left] | victims [n_misses] | hits.
__device__ __forceinline__ void write_order(const TopkBuffer& buffer, const int32_t* tagged,
                                            int n_hits_before, int n_left, int n_misses, int32_t* victims) {
  const Share slots(buffer.n_slots);
  const int lane = static_cast<int>(threadIdx.x % 32);
  for (int base = slots.begin + lane; base - lane < slots.end; base += 32 * kBatch) {
    int tag[kBatch];
#pragma unroll
    for (int k = 0; k < kBatch; ++k) tag[k] = base + 32 * k < slots.end ? tagged[base + 32 * k] : 0;
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      const unsigned ballot = __ballot_sync(kAllLanes, tag[k] < 0);
      const int n_before = n_hits_before + __popc(ballot & ((1u << lane) - 1));
      const int n_stale_before = base + 32 * k - n_before;
      n_hits_before += __popc(ballot);
      if (base + 32 * k >= slots.end) continue;
      if (tag[k] < 0) {
        buffer.order[n_left + n_misses + n_before] = ~tag[k];
      } else if (n_stale_before < n_misses) {
        buffer.order[n_left + n_stale_before] = victims[n_stale_before] = tag[k];
      } else {
        buffer.order[n_stale_before - n_misses] = tag[k];
      }
    }
  }
}

// The entries of the warp's share of the selection that no slot has.
__device__ __forceinline__ int count_misses(const Selection& selection, const int64_t* row_ids) {
  const Share entries(selection.n);
  const int lane = static_cast<int>(threadIdx.x % 32);
  int n_misses = 0;
  for (int i = entries.begin + lane; i - lane < entries.end; i += 32)
    n_misses += __popc(__ballot_sync(kAllLanes, i < entries.end && row_ids[i] < 0));
  return n_misses;
}

// Each of them takes a victim.
__device__ __forceinline__ void place_misses(const TopkBuffer& buffer, const Selection& selection,
                                             const SlotRows& row_of, int n_before, const int32_t* victims,
                                             int64_t* row_ids, int32_t* misses) {
  const Share entries(selection.n);
  const int lane = static_cast<int>(threadIdx.x % 32);
  for (int i = entries.begin + lane; i - lane < entries.end; i += 32) {
    const bool is_miss = i < entries.end && row_ids[i] < 0;
    const unsigned ballot = __ballot_sync(kAllLanes, is_miss);
    if (is_miss) {
      const int rank = n_before + __popc(ballot & ((1u << lane) - 1)), slot = victims[rank];
      buffer.slot_pos[slot] = selection.positions[i];
      row_ids[i] = row_of(slot);
      misses[rank] = i;
    }
    n_before += __popc(ballot);
  }
}

// selected -> slots: hits stay, misses take the oldest stale slots; order becomes stale | loaded | hits
// A block a token, which is a sequence; of a buffer each warp has a run of the slots in order, then one of
// the selection; a resident sequence's rows are where their positions are. Every slot's position is looked up
// once, through buckets in shared memory. The hits before a slot give its place in the new order: each part
// keeps the former order (topk_buffer.h). What no slot has is missing. Bound by latency: some ten loads one
// after the other. Measured (H200, 2026-11-21): 2048 rows in 4097 slots, 0 to 1981 missing: 8 to 11 us.
__global__ void __launch_bounds__(kThreads) resolve_kernel(Resolve op, int32_t* scratch) {
  extern __shared__ int32_t staged[];  // [topk] where that fits
  __shared__ int2 ranges[kBuckets];
  __shared__ int hit_counts[kWarps], miss_counts[kWarps];
  static_assert(kWarps == 32);  // sum_counts
  let_next_start();
  wait_for_inputs();
  const int64_t t = blockIdx.x, seq = op.step.seq[t];
  const TopkBuffer buffer = op.cache.buffers[seq];
  const SlotRows row_of{op.cache.slot_pages + seq * op.cache.max_pages};
  int64_t* row_ids = op.row_ids + t * op.topk;
  const int n_selected = op.n_selected[t];
  if (buffer.n_slots == 0) {
    for (int i = threadIdx.x; i < n_selected; i += kThreads)
      row_ids[i] = row_of(op.selected[t * op.topk + i]);
    if (threadIdx.x == 0) op.n_misses[t] = 0;
    return;
  }
  int32_t* tagged = scratch + t * (op.cache.most_slots + op.topk);  // [most_slots]
  int32_t* victims = tagged + op.cache.most_slots;                  // [n_misses] slots that the misses take
  for (int i = threadIdx.x; i < n_selected; i += kThreads) row_ids[i] = -1;
  const Selection selection = make_selection(op.selected + t * op.topk, n_selected,
                                             op.topk <= kMostStaged ? staged : nullptr, ranges);

  const int n_hits = tag_slots(buffer, selection, row_of, row_ids, tagged);
  if (threadIdx.x % 32 == 0) hit_counts[threadIdx.x / 32] = n_hits;
  __syncthreads();  // also: order has been read, and may be written
  const int2 hits = sum_counts(hit_counts);
  const int n_misses = n_selected - hits.y;
  write_order(buffer, tagged, hits.x, buffer.n_slots - n_selected, n_misses, victims);
  const int n_missing = count_misses(selection, row_ids);
  if (threadIdx.x % 32 == 0) miss_counts[threadIdx.x / 32] = n_missing;
  __syncthreads();
  place_misses(buffer, selection, row_of, sum_counts(miss_counts).x, victims, row_ids,
               op.misses + t * op.topk);

  if (threadIdx.x != 0) return;
  op.n_misses[t] = n_misses;
  atomicAdd(reinterpret_cast<unsigned long long*>(op.tally), static_cast<unsigned long long>(n_selected));
  atomicAdd(reinterpret_cast<unsigned long long*>(op.tally + 1), static_cast<unsigned long long>(n_misses));
}

}  // namespace

void resolve(const Resolve& op, const Launch& launch) {
  const int64_t n_tokens = op.step.n_tokens;
  if (n_tokens == 0) return;
  if (!op.cache.buffers) {
    constexpr int kLocateThreads = 256;
    const auto n_blocks = static_cast<unsigned>(ceil_div(n_tokens * op.topk, kLocateThreads));
    launch_kernel("locate_rows_kernel", locate_rows_kernel, {n_blocks, kLocateThreads}, launch, op);
    return;
  }
  int32_t* scratch =
      launch.workspace->take<int32_t>(static_cast<size_t>(n_tokens * (op.cache.most_slots + op.topk)));
  const size_t n_bytes = op.topk <= kMostStaged ? static_cast<size_t>(op.topk) * sizeof(int32_t) : 0;
  launch_kernel("resolve_kernel", resolve_kernel, {static_cast<unsigned>(n_tokens), kThreads, n_bytes},
                launch, op, scratch);
}

}  // namespace dsv32::cuda
