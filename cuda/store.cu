// What a step remembers: latent rows to the host pool and to where they are read from, their scales and the
// index keys to the key pages.
//
// In a top-k buffer the newest row first takes a slot of its own: the policy is that of
// src/context/topk_buffer, on the same arrays, step for step.
#include "cuda/kernels.h"
#include "cuda/paged.cuh"

namespace dsv32::cuda {
namespace {

constexpr int kStoreThreads = 128;
constexpr int kClaimThreads = 1024;  // with a buffer: its arrays are gone through

// out[i] = bf16(x[i])
__device__ void store_bf16(const float* x, int64_t n, uint8_t* out) {
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
    reinterpret_cast<__nv_bfloat16*>(out)[i] = __float2bfloat16_rn(x[i]);
}

// x [n] as e4m3, a warp a tile in turn; the ue8m0 byte of each tile goes to scales[tile], as it is or as f32.
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
    if constexpr (sizeof(Scale) == 1)
      scales[tile] = scale_bits;
    else
      scales[tile] = scale;
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

// The slot of the newest position: its own if it has one already, else the next victim's; it becomes the last
// to leave. (claim_newest of src/context/topk_buffer.) Called by all threads of the block.
__device__ int claim_newest_slot(const TopkBuffer& buffer, int pos) {
  constexpr int kItems = 8;  // loads of a thread in flight together
  __shared__ int own_slot, place;
  if (threadIdx.x == 0) own_slot = kEmptySlot, place = 0;
  __syncthreads();
  const int n_slots = buffer.n_slots, n_threads = static_cast<int>(blockDim.x);
  int found = kEmptySlot;
#pragma unroll kItems
  for (int slot = threadIdx.x; slot < n_slots; slot += n_threads)
    if (buffer.slot_pos[slot] == pos) found = slot;
  if (found != kEmptySlot) own_slot = found;  // of one thread at most
  __syncthreads();
  if (own_slot != kEmptySlot)
    for (int i = threadIdx.x; i < n_slots; i += n_threads)
      if (buffer.order[i] == own_slot) place = i;
  __syncthreads();
  const int at = place, slot = buffer.order[at];
  // order[at + 1..] moves down by one. A window of it is read before any of its entries is written; the entry
  // before the window, which is written too, was read with the window before.
  for (int begin = at + 1; begin < n_slots; begin += kItems * n_threads) {
    int moved[kItems];
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
      const int i = begin + k * n_threads + static_cast<int>(threadIdx.x);
      moved[k] = i < n_slots ? buffer.order[i] : 0;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
      const int i = begin + k * n_threads + static_cast<int>(threadIdx.x);
      if (i < n_slots) buffer.order[i - 1] = moved[k];
    }
  }
  if (threadIdx.x == 0) buffer.order[n_slots - 1] = slot, buffer.slot_pos[slot] = pos;
  return slot;
}

// row(t) = (c as the layout says | k_pe), to the host pool and to its slot
// A block a token; a row's scales go to its key page.
// The host pool is pinned memory that the kernel writes itself, 640 bytes over the link: nobody waits for
// them. Bound by latency in decode, by the link in prefill (640 bytes a token at about 50 GB/s).
__global__ void __launch_bounds__(kClaimThreads) store_latents_kernel(StoreLatents op) {
  extern __shared__ __align__(16) uint8_t row[];
  let_next_start();
  wait_for_inputs();
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
    uint8_t* scales =
        key_page(cache, layout.key_page_bytes(), seq, pos) + pos % kPageTokens * layout.scale_bytes();
    if (layout.kv_type == KvType::fp8)
      store_e4m3(c, rank, row, scales);
    else
      store_bf16(c, rank, row);
    store_bf16(k_pe, layout.qk_rope_head_dim, row + layout.latent_bytes());
  }
  __syncthreads();
  const int64_t row_bytes = layout.row_bytes(), row_id = paged_row(cache.row_pages, cache, seq, pos);
  copy_row(row, cache.rows + row_id * row_bytes, row_bytes);
  if (cache.slots == cache.rows) return;
  const int64_t slot =
      has_buffer(cache, seq) ? claim_newest_slot(cache.buffers[seq], static_cast<int>(pos)) : pos;
  copy_row(row, cache.slots + paged_row(cache.slot_pages, cache, seq, slot) * row_bytes, row_bytes);
}

// key(t) to its place in the key page, as e4m3 with f32 scales or as it is
// A block a token. Bound by latency.
__global__ void store_index_keys_kernel(StoreIndexKeys op) {
  let_next_start();
  wait_for_inputs();
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

}  // namespace

void store_latents(const StoreLatents& op, const Launch& launch) {
  if (op.step.n_tokens == 0) return;
  const size_t row_bytes = static_cast<size_t>(op.cache.layout.row_bytes());
  if (row_bytes > 48 << 10) fail(ErrorKind::internal, "a latent row of more than 48 KiB");
  const int n_threads = op.cache.buffers ? kClaimThreads : kStoreThreads;
  launch_kernel("store_latents_kernel", store_latents_kernel,
                {static_cast<unsigned>(op.step.n_tokens), n_threads, row_bytes}, launch, op);
}

void store_index_keys(const StoreIndexKeys& op, const Launch& launch) {
  if (op.step.n_tokens == 0) return;
  launch_kernel("store_index_keys_kernel", store_index_keys_kernel,
                {static_cast<unsigned>(op.step.n_tokens), kStoreThreads}, launch, op);
}

}  // namespace dsv32::cuda
