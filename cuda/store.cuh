// What a step keeps of each token, by blocks of kStoreThreads: latent rows to the host pool and to where they
// are read from, their scales and the index keys to the key pages; with the norms, the rotation and the
// transform before. The latent, the index key and the queries' low rank are three blocks of a token. In a
// top-k buffer the newest row takes a slot of its own; resolve() writes down that it has (resolve.cu).
#pragma once

#include "cuda/common.cuh"

namespace dsv32::cuda {

constexpr int kStoreThreads = 256;

// out[i] = bf16(x[i])
__device__ inline void store_bf16(const float* x, int64_t n, uint8_t* out) {
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
    reinterpret_cast<__nv_bfloat16*>(out)[i] = __float2bfloat16_rn(x[i]);
}

// x [n] as e4m3, a warp a tile in turn; the ue8m0 byte of each tile goes to scales[tile], as it is or as f32.
template <typename Scale>
__device__ inline void store_e4m3(const float* x, int64_t n, uint8_t* values, Scale* scales) {
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
__device__ inline void copy_row(const uint8_t* from, uint8_t* to, int64_t n_bytes) {
  if (n_bytes % 16 == 0)
    for (int64_t i = threadIdx.x; i < n_bytes / 16; i += blockDim.x)
      reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
  else
    for (int64_t i = threadIdx.x; i < n_bytes; i += blockDim.x) to[i] = from[i];
}

// The slot of the newest position: its own if it has one already, else the next victim's, as claim_newest()
// of src/context/topk_buffer has it. Called by all threads of the block; reads what this layer's resolve() of
// the step before wrote, so before the wait.
__device__ inline int find_newest_slot(const TopkBuffer& buffer, int pos) {
  constexpr int kItems = 8;  // loads of a thread in flight together
  __shared__ int own_slot;
  if (threadIdx.x == 0) own_slot = __ldcg(buffer.order);
  __syncthreads();
  int found = kEmptySlot;
#pragma unroll kItems
  for (int slot = threadIdx.x; slot < buffer.n_slots; slot += kStoreThreads)
    if (__ldcg(buffer.slot_pos + slot) == pos) found = slot;
  if (found != kEmptySlot) own_slot = found;  // of one thread at most
  __syncthreads();
  return own_slot;
}

// The sum of f(i) for i < n, for every thread.
template <typename F>
__device__ inline float sum_of(int64_t n, F f) {
  float sum = 0;
  for (int64_t i = threadIdx.x; i < n; i += kStoreThreads) sum += f(i);
  return block_sum(sum);
}

// 1 / the root of the mean square of x [n], for every thread.
__device__ inline float rms_factor(const float* x, int64_t n, float eps) {
  const float squares = sum_of(n, [&](int64_t i) { return x[i] * x[i]; });
  return 1.0f / sqrtf(squares / static_cast<float>(n) + eps);
}

// The sine and cosine of each pair of a token's rotation.
__device__ inline void make_turns(const StoreTokens& op, int64_t t, float2* turns) {
  const float pos = static_cast<float>(op.step.pos[t]);
  for (int64_t i = threadIdx.x; i < op.cache.layout.qk_rope_head_dim / 2; i += blockDim.x)
    sincosf(__fmul_rn(pos, op.frequencies[i]), &turns[i].x, &turns[i].y);
}

// Turns value i * pair_step of a head in shared memory and its partner `apart` further, for each pair i.
__device__ inline void rotate(float* x, int64_t n_pairs, int pair_step, int64_t apart, const float2* turns) {
  for (int64_t i = threadIdx.x; i < n_pairs; i += blockDim.x) {
    const auto [sine, cosine] = turns[i];
    float* pair = x + i * pair_step;
    const float a = pair[0], b = pair[apart];
    pair[0] = a * cosine - b * sine;
    pair[apart] = a * sine + b * cosine;
  }
}

// values [rank + rope] = (c, k_pe), also to memory.
__device__ inline void make_latent(const StoreTokens& op, int64_t t, float* values, const float2* turns) {
  const int64_t rank = op.cache.layout.kv_lora_rank, rope = op.cache.layout.qk_rope_head_dim;
  float* kv = op.kv + t * (rank + rope);
  for (int64_t i = threadIdx.x; i < rank + rope; i += blockDim.x) values[i] = kv[i];
  __syncthreads();
  const float factor = rms_factor(values, rank, op.norm_eps);
  for (int64_t i = threadIdx.x; i < rank; i += blockDim.x)
    op.c[t * rank + i] = values[i] = values[i] * factor * op.kv_norm[i];
  rotate(values + rank, rope / 2, 2, 1, turns);
  __syncthreads();
  for (int64_t i = threadIdx.x; i < rope; i += blockDim.x) kv[rank + i] = values[rank + i];
}

// The row to the host pool and to its slot, its scales to its key page. `row`: put together there.
__device__ inline void store_latent(const StoreTokens& op, int64_t t, int64_t slot, const float* values,
                                    uint8_t* row) {
  const CacheView& cache = op.cache;
  const CacheLayout& layout = cache.layout;
  const int64_t seq = op.step.seq[t], pos = op.step.pos[t], rank = layout.kv_lora_rank;
  if (layout.kv_type == KvType::f32) {
    for (int64_t i = threadIdx.x; i < rank + layout.qk_rope_head_dim; i += blockDim.x)
      reinterpret_cast<float*>(row)[i] = values[i];
  } else {
    uint8_t* scales =
        key_page(cache, layout.key_page_bytes(), seq, pos) + pos % kPageTokens * layout.scale_bytes();
    if (layout.kv_type == KvType::fp8)
      store_e4m3(values, rank, row, scales);
    else
      store_bf16(values, rank, row);
    store_bf16(values + rank, layout.qk_rope_head_dim, row + layout.latent_bytes());
  }
  __syncthreads();
  const int64_t row_bytes = layout.row_bytes(), row_id = paged_row(cache.row_pages, cache, seq, pos);
  copy_row(row, cache.rows + row_id * row_bytes, row_bytes);
  if (cache.slots == cache.rows) return;
  copy_row(row, cache.slots + paged_row(cache.slot_pages, cache, seq, slot) * row_bytes, row_bytes);
}

// k = rope(LayerNorm(k)); H k to its place in the key page, as e4m3 with f32 scales or as it is.
__device__ inline void store_key(const StoreTokens& op, int64_t t, float* values, const float2* turns) {
  const CacheLayout& layout = op.cache.layout;
  const int64_t dim = layout.index_head_dim, rope = layout.qk_rope_head_dim, pos = op.step.pos[t];
  float* k = op.k + t * dim;
  for (int64_t i = threadIdx.x; i < dim; i += blockDim.x) values[i] = k[i];
  __syncthreads();
  const float mean = sum_of(dim, [&](int64_t i) { return values[i]; }) / static_cast<float>(dim);
  const float squares = sum_of(dim, [&](int64_t i) { return (values[i] - mean) * (values[i] - mean); });
  const float factor = 1.0f / sqrtf(squares / static_cast<float>(dim) + op.k_norm_eps);
  for (int64_t i = threadIdx.x; i < dim; i += blockDim.x)
    values[i] = (values[i] - mean) * factor * op.k_norm[i] + op.k_norm_bias[i];
  __syncthreads();
  rotate(values, rope / 2, 1, rope / 2, turns);
  __syncthreads();
  for (int64_t i = threadIdx.x; i < dim; i += blockDim.x) k[i] = values[i];
  hadamard_stages(values, dim, threadIdx.x, blockDim.x, [] { __syncthreads(); });
  const float norm = 1.0f / sqrtf(static_cast<float>(dim));
  for (int64_t i = threadIdx.x; i < dim; i += blockDim.x) values[i] *= norm;
  __syncthreads();
  const int64_t entry = pos % kPageTokens;
  uint8_t* page = key_page(op.cache, layout.key_page_bytes(), op.step.seq[t], pos);
  uint8_t* key = page + layout.keys_offset() + entry * layout.key_bytes();
  if (layout.kv_type == KvType::f32)
    for (int64_t i = threadIdx.x; i < dim; i += blockDim.x) reinterpret_cast<float*>(key)[i] = values[i];
  else
    store_e4m3(
        values, dim, key,
        reinterpret_cast<float*>(page + layout.key_scales_offset() + entry * layout.key_scale_bytes()));
}

// What a block does for a token.
enum class StorePart { latent, low_rank, key };

// How a block's shared memory is divided: values, the sines and cosines of a position, a row.
struct StoreRoom {
  int n_values, n_turns, n_bytes;

  // Throws Error{internal} where rows are too large.
  static StoreRoom of(const CacheLayout& layout) {
    // The row begins where 16 bytes may be read at a time.
    const int64_t n_most =
        std::max<int64_t>(layout.kv_lora_rank + layout.qk_rope_head_dim, layout.index_head_dim);
    const int64_t n_values = ceil_div(n_most, 4) * 4;
    const int64_t n_turns = ceil_div(layout.qk_rope_head_dim / 2, 2) * 2;
    const int64_t n_bytes = n_values * 4 + n_turns * 8 + layout.row_bytes();
    if (n_bytes > 48 << 10) fail(ErrorKind::internal, "a latent row of more than 24 KiB");
    return {static_cast<int>(n_values), static_cast<int>(n_turns), static_cast<int>(n_bytes)};
  }
};

// The weights of the block's norm, to be near when its values come.
__device__ inline void prefetch_norm(const StoreTokens& op, StorePart part) {
  const float* const weights[] = {op.kv_norm, op.q_norm, op.k_norm};
  const int64_t n[] = {op.cache.layout.kv_lora_rank, op.q_lora_rank, op.cache.layout.index_head_dim};
  const int64_t i = int64_t{threadIdx.x} * 32;
  if (i < n[static_cast<int>(part)]) prefetch_constant(weights[static_cast<int>(part)] + i);
}

// A part of what is kept of token t, by a block of kStoreThreads, which waits for its inputs here.
__device__ inline void store_part(const StoreTokens& op, const StoreRoom& room, int64_t t, StorePart part,
                                  uint8_t* shared) {
  float* values = reinterpret_cast<float*>(shared);
  auto* turns = reinterpret_cast<float2*>(values + room.n_values);
  make_turns(op, t, turns);
  prefetch_norm(op, part);
  int64_t slot = op.step.pos[t];
  if (part == StorePart::latent && op.cache.slots != op.cache.rows && has_buffer(op.cache, op.step.seq[t]))
    slot = find_newest_slot(op.cache.buffers[op.step.seq[t]], static_cast<int>(slot));
  wait_for_inputs();
  if (part == StorePart::latent) {
    make_latent(op, t, values, turns);
    store_latent(op, t, slot, values, reinterpret_cast<uint8_t*>(turns + room.n_turns));
  } else if (part == StorePart::low_rank) {
    float* x = op.qr + t * op.q_lora_rank;
    const float factor = rms_factor(x, op.q_lora_rank, op.norm_eps);
    for (int64_t i = threadIdx.x; i < op.q_lora_rank; i += blockDim.x) x[i] = x[i] * factor * op.q_norm[i];
  } else {
    store_key(op, t, values, turns);
  }
}

}  // namespace dsv32::cuda
