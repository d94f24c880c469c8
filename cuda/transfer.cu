// What moves between memories: rows and keys stored, the top-k buffer resolved, missing rows fetched.
//
// The policy is that of src/context/topk_buffer, on the same arrays, step for step.
#include "cuda/paged.cuh"
#include "cuda/kernels.h"

namespace dsv32::cuda {
namespace {

constexpr int kStoreThreads = 128;
constexpr int kResolveThreads = 1024;

// out[i] = bf16(x[i])
__device__ void store_bf16(const float* x, int64_t n, uint8_t* out) {
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
    reinterpret_cast<__nv_bfloat16*>(out)[i] = __float2bfloat16_rn(x[i]);
}

// x [n] as e4m3, a warp a tile in turn; the ue8m0 byte of each tile goes to scales[tile], as a byte or as f32.
template <typename Scale>
__device__ void store_e4m3(const float* x, int64_t n, uint8_t* values, Scale* scales) {
  const int64_t n_tiles = (n + kTileValues - 1) / kTileValues;
  for (int64_t tile = threadIdx.x / 32; tile < n_tiles; tile += blockDim.x / 32) {
    const int64_t begin = tile * kTileValues, end = min(begin + kTileValues, n);
    float amax = 0;
    for (int64_t i = begin + threadIdx.x % 32; i < end; i += 32) amax = fmaxf(amax, fabsf(x[i]));
    const uint8_t scale_bits = tile_scale(warp_max(amax));
    const float scale = from_ue8m0(scale_bits);
    for (int64_t i = begin + threadIdx.x % 32; i < end; i += 32) values[i] = to_e4m3(x[i] / scale);
    if (threadIdx.x % 32 != 0) continue;
    if constexpr (sizeof(Scale) == 1) scales[tile] = scale_bits;
    else scales[tile] = scale;
  }
}

// A row is put together in shared memory, then copied to each of its places by 16 bytes a thread.
__device__ void copy_row(const uint8_t* from, uint8_t* to, int64_t n_bytes) {
  if (n_bytes % 16 == 0)
    for (int64_t i = threadIdx.x; i < n_bytes / 16; i += blockDim.x)
      reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
  else
    for (int64_t i = threadIdx.x; i < n_bytes; i += blockDim.x) to[i] = from[i];
}

// The slot of the newest position: its own if it has one already, else the next victim's; it becomes the last to leave.
// (claim_newest of src/context/topk_buffer.) Called by all threads of the block.
__device__ int claim_newest_slot(const TopkBuffer& buffer, int pos) {
  __shared__ int place;
  if (threadIdx.x == 0) place = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < buffer.n_slots; i += blockDim.x)
    if (buffer.slot_pos[buffer.order[i]] == pos) place = i;  // at most one
  __syncthreads();
  const int at = place, slot = buffer.order[at];
  // order[at..] moves down by one; each thread reads a window of its stride before anyone writes it.
  for (int begin = at; begin + 1 < buffer.n_slots; begin += blockDim.x) {
    const int i = begin + static_cast<int>(threadIdx.x);
    const int next = i + 1 < buffer.n_slots ? buffer.order[i + 1] : -1;
    __syncthreads();
    if (i + 1 < buffer.n_slots) buffer.order[i] = next;
    __syncthreads();
  }
  if (threadIdx.x == 0) buffer.order[buffer.n_slots - 1] = slot, buffer.slot_pos[slot] = pos;
  __syncthreads();
  return slot;
}

// row(t) = (c as the layout says | k_pe), to the host pool, the resident pool or the newest token's slot; scales to the key page
// A block a token.
// The host pool is pinned memory that the kernel writes itself: 640 bytes over the link, nobody waits for them.
// Bound by latency in decode, by the link in prefill (640 bytes a token at about 50 GB/s).
__global__ void store_latents_kernel(StoreLatents op) {
  extern __shared__ __align__(16) uint8_t row[];
  const CacheView& cache = op.cache;
  const CacheLayout& layout = cache.layout;
  const int64_t t = blockIdx.x, seq = op.step.seq[t], pos = op.step.pos[t], rank = layout.kv_lora_rank;
  const float* c = op.c + t * rank;
  const float* k_pe = op.k_pe + t * op.k_pe_stride;
  if (layout.kv_type == KvType::f32) {
    for (int64_t i = threadIdx.x; i < rank; i += blockDim.x) reinterpret_cast<float*>(row)[i] = c[i];
    for (int64_t i = threadIdx.x; i < layout.qk_rope_head_dim; i += blockDim.x)
      reinterpret_cast<float*>(row)[rank + i] = k_pe[i];
  } else {
    uint8_t* scales = key_page(cache, layout.key_page_bytes(), seq, pos) + pos % kPageTokens * layout.scale_bytes();
    if (layout.kv_type == KvType::fp8) store_e4m3(c, rank, row, scales);
    else store_bf16(c, rank, row);
    store_bf16(k_pe, layout.qk_rope_head_dim, row + layout.latent_bytes());
  }
  __syncthreads();
  const int64_t row_bytes = layout.row_bytes(), row_id = paged_row(cache.row_pages, cache, seq, pos);
  copy_row(row, cache.rows + row_id * row_bytes, row_bytes);
  if (cache.slots) {
    const int64_t slot = cache.first_slots[seq] + claim_newest_slot(cache.buffers[seq], static_cast<int>(pos));
    copy_row(row, cache.slots + slot * row_bytes, row_bytes);
  } else if (cache.resident != cache.rows) {
    copy_row(row, cache.resident + paged_row(cache.resident_pages, cache, seq, pos) * row_bytes, row_bytes);
  }
}

// key(t) to its place in the key page, as e4m3 with f32 scales or as it is
// A block a token. Bound by latency.
__global__ void store_index_keys_kernel(StoreIndexKeys op) {
  const CacheLayout& layout = op.cache.layout;
  const int64_t t = blockIdx.x, pos = op.step.pos[t], entry = pos % kPageTokens, dim = layout.index_head_dim;
  uint8_t* page = key_page(op.cache, layout.key_page_bytes(), op.step.seq[t], pos);
  uint8_t* key = page + layout.keys_offset() + entry * layout.key_bytes();
  const float* k = op.k + t * dim;
  if (layout.kv_type == KvType::f32) {
    for (int64_t i = threadIdx.x; i < dim; i += blockDim.x) reinterpret_cast<float*>(key)[i] = k[i];
    return;
  }
  store_e4m3(k, dim, key,
             reinterpret_cast<float*>(page + layout.key_scales_offset() + entry * layout.key_scale_bytes()));
}

// row_ids = the selected rows' places in the resident pool
// A thread an entry of [n_tokens, topk]. Bound by bytes.
__global__ void locate_rows_kernel(Resolve op) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i >= op.step.n_tokens * op.topk) return;
  const int64_t t = i / op.topk;
  if (i % op.topk == 0) op.n_misses[t] = 0;
  if (i % op.topk < op.n_selected[t]) op.row_ids[i] = paged_row(op.cache.resident_pages, op.cache, op.step.seq[t], op.selected[i]);
}

// An exclusive prefix sum of `flag` over the block's threads; `total` gets the sum. Called by all threads.
__device__ int block_rank(bool flag, int& total) {
  __shared__ int warp_counts[32];
  const unsigned ballot = __ballot_sync(0xffffffffu, flag);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  __syncthreads();
  if (lane == 0) warp_counts[warp] = __popc(ballot);
  __syncthreads();
  int before = 0;
  total = 0;
  for (int w = 0; w < static_cast<int>(blockDim.x) / 32; ++w) {
    if (w == warp) before = total;
    total += warp_counts[w];
  }
  return before + __popc(ballot & ((1u << lane) - 1));
}

// selected -> slots: hits stay, misses take the oldest stale slots; order becomes stale | loaded | hits (topk_buffer.h)
// A block a sequence's token; shared memory: a bit a selected entry that was found, and the new order's parts.
// Membership is a binary search in the ascending selection; ranks come from block-wide prefix sums, so that the new order keeps
// the old one within each part, exactly as the C++ policy does.
// Bound by latency: (n_slots + topk) / 1024 rounds of a few barriers.
__global__ void resolve_kernel(Resolve op, int32_t* scratch) {
  const int64_t t = blockIdx.x, seq = op.step.seq[t];
  const TopkBuffer buffer = op.cache.buffers[seq];
  const int32_t* selected = op.selected + t * op.topk;
  int64_t* row_ids = op.row_ids + t * op.topk;
  int32_t* misses = op.misses + t * op.topk;
  const int n_selected = op.n_selected[t], n_slots = buffer.n_slots;
  const int64_t first_slot = op.cache.first_slots[seq];
  int32_t* stale = scratch + t * 2 * n_slots;  // [n_slots] slots that hold nothing wanted, oldest first
  int32_t* hits = stale + n_slots;             // [n_slots] the others
  for (int i = threadIdx.x; i < n_selected; i += blockDim.x) row_ids[i] = -1;
  __syncthreads();
  int n_stale = 0, n_hits = 0;
  for (int begin = 0; begin < n_slots; begin += blockDim.x) {
    const int i = begin + static_cast<int>(threadIdx.x);
    const int slot = i < n_slots ? buffer.order[i] : 0;
    const int pos = i < n_slots ? buffer.slot_pos[slot] : kEmptySlot;
    int low = 0, high = n_selected;  // the first selected position not below pos
    while (low < high) {
      const int middle = (low + high) / 2;
      if (selected[middle] < pos) low = middle + 1;
      else high = middle;
    }
    const bool is_hit = i < n_slots && pos >= 0 && low < n_selected && selected[low] == pos;
    if (is_hit) row_ids[low] = first_slot + slot;
    int n_hits_here = 0, n_stale_here = 0;
    const int hit_rank = block_rank(is_hit, n_hits_here);
    const int stale_rank = block_rank(i < n_slots && !is_hit, n_stale_here);
    if (is_hit) hits[n_hits + hit_rank] = slot;
    else if (i < n_slots) stale[n_stale + stale_rank] = slot;
    n_hits += n_hits_here;
    n_stale += n_stale_here;
  }
  __syncthreads();
  int n_misses = 0;
  for (int begin = 0; begin < n_selected; begin += blockDim.x) {
    const int i = begin + static_cast<int>(threadIdx.x);
    const bool is_miss = i < n_selected && row_ids[i] < 0;
    int n_here = 0;
    const int rank = n_misses + block_rank(is_miss, n_here);
    if (is_miss) {
      const int slot = stale[rank];
      buffer.slot_pos[slot] = selected[i];
      row_ids[i] = first_slot + slot;
      misses[rank] = i;
    }
    n_misses += n_here;
  }
  const int n_left = n_stale - n_misses;
  for (int i = threadIdx.x; i < n_slots; i += blockDim.x)
    buffer.order[i] = i < n_left ? stale[n_misses + i] : i < n_stale ? stale[i - n_left] : hits[i - n_stale];
  if (threadIdx.x != 0) return;
  op.n_misses[t] = n_misses;
  atomicAdd(reinterpret_cast<unsigned long long*>(op.tally), static_cast<unsigned long long>(n_selected));
  atomicAdd(reinterpret_cast<unsigned long long*>(op.tally + 1), static_cast<unsigned long long>(n_misses));
}

// slot = host row, for every miss
// Warps over all blocks take misses in turn: one warp a row, 16 bytes a lane.
// Loads bypass L1 (the host's rows are read once); a 640-byte row is five whole 128-byte lines of the link.
// Bound by the link: about 50 GB/s, see reference figures of hardware; a few rows by its latency.
__global__ void fetch_latents_kernel(FetchLatents op) {
  const CacheView& cache = op.cache;
  const int64_t row_bytes = cache.layout.row_bytes();
  const int64_t t = blockIdx.y, seq = op.step.seq[t];
  const int warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32, n_warps = gridDim.x * blockDim.x / 32;
  const int lane = threadIdx.x % 32, n_misses = op.n_misses[t];
  for (int m = warp; m < n_misses; m += n_warps) {
    const int64_t i = t * op.topk + op.misses[t * op.topk + m];
    const uint8_t* from = cache.rows + paged_row(cache.row_pages, cache, seq, op.selected[i]) * row_bytes;
    uint8_t* to = cache.slots + op.row_ids[i] * row_bytes;
    if (row_bytes % 16 == 0)
      for (int64_t b = lane * 16; b < row_bytes; b += 32 * 16)
        *reinterpret_cast<uint4*>(to + b) = load_streaming(from + b);
    else
      for (int64_t b = lane; b < row_bytes; b += 32) to[b] = from[b];
  }
}

}  // namespace

void store_latents(const StoreLatents& op, const Launch& launch) {
  if (op.step.n_tokens == 0) return;
  const size_t row_bytes = static_cast<size_t>(op.cache.layout.row_bytes());
  if (row_bytes > 48 << 10) fail(ErrorKind::internal, "a latent row of more than 48 KiB");
  store_latents_kernel<<<static_cast<unsigned>(op.step.n_tokens), kStoreThreads, row_bytes, launch.stream>>>(op);
  check_launch("store_latents_kernel");
}

void store_index_keys(const StoreIndexKeys& op, const Launch& launch) {
  if (op.step.n_tokens == 0) return;
  store_index_keys_kernel<<<static_cast<unsigned>(op.step.n_tokens), kStoreThreads, 0, launch.stream>>>(op);
  check_launch("store_index_keys_kernel");
}

void resolve(const Resolve& op, const Launch& launch) {
  if (op.step.n_tokens == 0) return;
  if (!op.cache.slots) {
    constexpr int kThreads = 256;
    const auto n_blocks = static_cast<unsigned>(ceil_div(op.step.n_tokens * op.topk, kThreads));
    locate_rows_kernel<<<n_blocks, kThreads, 0, launch.stream>>>(op);
    check_launch("locate_rows_kernel");
    return;
  }
  int32_t* scratch = launch.workspace->take<int32_t>(static_cast<size_t>(op.step.n_tokens * 2 * op.cache.n_slots));
  resolve_kernel<<<static_cast<unsigned>(op.step.n_tokens), kResolveThreads, 0, launch.stream>>>(op, scratch);
  check_launch("resolve_kernel");
}

void fetch_latents(const FetchLatents& op, const Launch& launch) {
  if (op.step.n_tokens == 0) return;
  constexpr int kThreads = 1024;
  const auto n_blocks = static_cast<unsigned>(ceil_div(64, op.step.n_tokens));
  fetch_latents_kernel<<<dim3(n_blocks, static_cast<unsigned>(op.step.n_tokens)), kThreads, 0, launch.stream>>>(op);
  check_launch("fetch_latents_kernel");
}

}  // namespace dsv32::cuda
