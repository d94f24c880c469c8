// A token's work beside products: storing its row and key, turning its queries, choosing its experts. Each
// runs as its own kernel (small_ops.cu) or in some blocks of a product's kernel (beside.cuh).
#pragma once

#include "cuda/common.cuh"

namespace dsv32::cuda {

// ---- storing a token's row and key, by blocks of kStoreThreads ----

// After norms, rotation and transform, latent rows go to the host pool and to their slots, their scales and
// the index keys to the key pages. A token has three blocks: for the latent, the index key and the queries'
// low rank. In a top-k buffer a token's row takes a slot, after those of the tokens of its sequence before
// it; resolve() records that (resolve.cu).

constexpr int kStoreThreads = 256;

__device__ inline void store_bf16(const float* x, int64_t n, uint8_t* out) {
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
    reinterpret_cast<__nv_bfloat16*>(out)[i] = __float2bfloat16_rn(x[i]);
}

// Stores x [n] as e4m3; warps take tiles in turn. Each tile's scale goes to scales[tile], as a ue8m0 byte or
// as f32.
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

// Copies a row from shared memory to one of its places, 16 bytes per thread.
__device__ inline void copy_row(const uint8_t* from, uint8_t* to, int64_t n_bytes) {
  if (n_bytes % 16 == 0)
    for (int64_t i = threadIdx.x; i < n_bytes / 16; i += blockDim.x)
      reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
  else
    for (int64_t i = threadIdx.x; i < n_bytes; i += blockDim.x) to[i] = from[i];
}

// The slot that a token's position claims in its sequence's buffer, after the sequence's tokens before it, as
// in claim_newest() of src/backend/topk_buffer. Called by all threads of the block, before the wait: it reads
// only the output of this layer's resolve() of the step before.
__device__ inline int find_newest_slot(const StepTokens& step, const CacheView& cache, int64_t t) {
  constexpr int kItems = 8;  // loads of a thread in flight together
  __shared__ int own_slots[kMostSequenceTokens];
  const int64_t seq = step.seq[t];
  const TopkBuffer buffer = cache.buffers[seq];
  const int n_before = SequenceTokens::of(cache, step.n_seqs, seq).n_before;
  const int first = step.pos[t] - n_before;  // the first position that claims
  int victims[kMostSequenceTokens], taken[kMostSequenceTokens];
  DSV32_UNROLL for (int j = 0; j < kMostSequenceTokens; ++j) victims[j] =
      j <= n_before ? __ldcg(buffer.order + j) : kEmptySlot;
  if (threadIdx.x < kMostSequenceTokens) own_slots[threadIdx.x] = kEmptySlot;
  __syncthreads();
#pragma unroll kItems
  for (int slot = threadIdx.x; slot < buffer.n_slots; slot += kStoreThreads) {
    const int j = __ldcg(buffer.slot_pos + slot) - first;
    if (0 <= j && j <= n_before) own_slots[j] = slot;
  }
  __syncthreads();
  DSV32_UNROLL for (int j = 0; j < kMostSequenceTokens; ++j) taken[j] = own_slots[j];
  claim_in_turn(n_before + 1, victims, taken);
  int slot = taken[0];
  DSV32_UNROLL for (int j = 1; j < kMostSequenceTokens; ++j) if (j == n_before) slot = taken[j];
  return slot;
}

// The sum of f(i) for i < n, returned to every thread.
template <typename F>
__device__ inline float sum_of(int64_t n, F f) {
  float sum = 0;
  for (int64_t i = threadIdx.x; i < n; i += kStoreThreads) sum += f(i);
  return block_sum(sum);
}

// factors[t] = 1 / sqrt(mean(x^2) + eps) of row t of x [kRows, n], rows `stride` apart; for every thread.
template <int kRows>
__device__ inline void rms_factors(const float* x, int64_t stride, int64_t n, float eps, float* factors) {
  float sums[kRows] = {};
#pragma unroll 6
  for (int64_t i = threadIdx.x; i < n; i += kStoreThreads) {
    DSV32_UNROLL for (int t = 0; t < kRows; ++t) {
      const float v = x[t * stride + i];
      sums[t] = fmaf(v, v, sums[t]);
    }
  }
  block_sums(sums);
  DSV32_UNROLL for (int t = 0; t < kRows; ++t) factors[t] =
      1.0f / sqrtf(sums[t] / static_cast<float>(n) + eps);
}
__device__ inline float rms_factor(const float* x, int64_t n, float eps) {
  float factor;
  rms_factors<1>(x, 0, n, eps, &factor);
  return factor;
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

// values [rank + rope] = (c, k_pe); also stores c in op.c and k_pe in op.kv.
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

// Stores the row in the host pool and in its slot, its scales in its key page. `row`: shared memory where the
// row is assembled.
__device__ inline void store_latent(const StoreTokens& op, int64_t t, int64_t slot, const float* values,
                                    uint8_t* row) {
  const CacheView& cache = op.cache;
  const CacheLayout& layout = cache.layout;
  const int64_t seq = op.step.seq[t], pos = op.step.pos[t], rank = layout.kv_lora_rank;
  if (layout.kv_type == KvType::f32) {
    for (int64_t i = threadIdx.x; i < rank + layout.qk_rope_head_dim; i += blockDim.x)
      reinterpret_cast<float*>(row)[i] = values[i];
  } else {
    uint8_t* scales = key_page(cache, seq, pos) + pos % kPageTokens * layout.scale_bytes();
    if (layout.kv_type == KvType::fp8)
      store_e4m3(values, rank, row, scales);
    else
      store_bf16(values, rank, row);
    store_bf16(values + rank, layout.qk_rope_head_dim, row + layout.latent_bytes());
  }
  __syncthreads();
  const int64_t row_bytes = layout.row_bytes(), row_id = paged_row(cache.pages, cache, seq, pos);
  if (cache.rows) copy_row(row, cache.rows + row_id * row_bytes, row_bytes);
  if (cache.slots == cache.rows) return;
  copy_row(row, cache.slots + paged_row(cache.slot_pages, cache, seq, slot) * row_bytes, row_bytes);
}

// k = rope(LayerNorm(k)); stores H k in its place in the key page, as e4m3 with f32 scales or as f32.
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
  hadamard(values, dim, threadIdx.x, blockDim.x, [] { __syncthreads(); });
  const int64_t entry = pos % kPageTokens;
  uint8_t* page = key_page(op.cache, op.step.seq[t], pos);
  uint8_t* key = page + layout.keys_offset() + entry * layout.key_bytes();
  if (layout.kv_type == KvType::f32)
    for (int64_t i = threadIdx.x; i < dim; i += blockDim.x) reinterpret_cast<float*>(key)[i] = values[i];
  else
    store_e4m3(
        values, dim, key,
        reinterpret_cast<float*>(page + layout.key_scales_offset() + entry * layout.key_scale_bytes()));
}

// A block's part of storing a token.
enum class StorePart { latent, low_rank, key };

// The division of a block's shared memory: values, a position's sines and cosines, a row.
struct StoreRoom {
  int n_values, n_turns, n_bytes;

  // Throws Error{internal} where rows are too large.
  static StoreRoom of(const CacheLayout& layout) {
    // The row is aligned to 16 bytes.
    const int64_t n_most =
        std::max<int64_t>(layout.kv_lora_rank + layout.qk_rope_head_dim, layout.index_head_dim);
    const int64_t n_values = ceil_div(n_most, 4) * 4;
    const int64_t n_turns = ceil_div(layout.qk_rope_head_dim / 2, 2) * 2;
    const int64_t n_bytes = n_values * 4 + n_turns * 8 + layout.row_bytes();
    if (n_bytes > 48 << 10) fail(ErrorKind::internal, "a latent row of more than 24 KiB");
    return {static_cast<int>(n_values), static_cast<int>(n_turns), static_cast<int>(n_bytes)};
  }
};

__device__ inline void prefetch_norm(const StoreTokens& op, StorePart part) {
  const float* const weights[] = {op.kv_norm, op.q_norm, op.k_norm};
  const int64_t n[] = {op.cache.layout.kv_lora_rank, op.q_lora_rank, op.cache.layout.index_head_dim};
  const int64_t i = int64_t{threadIdx.x} * 32;
  if (i < n[static_cast<int>(part)]) prefetch_constant(weights[static_cast<int>(part)] + i);
}

// Computes and stores one part of token t, by a block of kStoreThreads. Calls wait_for_inputs().
__device__ inline void store_part(const StoreTokens& op, const StoreRoom& room, int64_t t, StorePart part,
                                  uint8_t* shared) {
  float* values = reinterpret_cast<float*>(shared);
  auto* turns = reinterpret_cast<float2*>(values + room.n_values);
  make_turns(op, t, turns);
  prefetch_norm(op, part);
  int64_t slot = op.step.pos[t];
  if (part == StorePart::latent && op.cache.slots != op.cache.rows && op.cache.buffers &&
      op.cache.buffers[op.step.seq[t]].n_slots > 0)  // without a buffer a row's slot is its position
    slot = find_newest_slot(op.step, op.cache, t);
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

// ---- turning a token's queries, by blocks of kTurnThreads ----

// Heads of q are rotated; index heads are rotated, multiplied by the Hadamard matrix and rounded
// (TurnQueries).

// A block has kTurnHeads heads of q, or kIndexHeads index heads, a warp each.
constexpr int kTurnThreads = 256, kTurnHeads = 32, kIndexHeads = kTurnThreads / 32;

// The blocks of a token: those of q, then those of index heads.
struct TurnBlocks {
  int n_heads, n_index_heads;

  explicit TurnBlocks(const TurnQueries& op)
      : n_heads(static_cast<int>(ceil_div(op.n_heads, kTurnHeads))),
        n_index_heads(op.index_q ? static_cast<int>(ceil_div(op.n_index_heads, kIndexHeads)) : 0) {}
  TurnBlocks() : n_heads(0), n_index_heads(0) {}
  __host__ __device__ int n() const { return n_heads + n_index_heads; }
};

// Shared memory of a block of index heads.
inline size_t turn_bytes(const TurnQueries& op) {
  return op.index_q ? static_cast<size_t>(kIndexHeads * op.index_dim) * sizeof(float) : 0;
}

// (a, b) -> (a cos - b sin, a sin + b cos) at angle pos * frequency, rounded to f32 as in model.py, with
// full-range sincosf, since angles reach a million radians. If the block's size is a multiple of n_pairs, a
// thread keeps one pair, and so one sine and cosine, for all its heads.
__device__ inline void turn_heads(const TurnQueries& op, int64_t t, int64_t first_head) {
  const int64_t n_pairs = op.rope_dim / 2, n_heads = min(op.n_heads - first_head, int64_t{kTurnHeads});
  const float pos = static_cast<float>(__ldcg(op.step.pos + t));
  int64_t known_pair = threadIdx.x % n_pairs;
  float sine, cosine;
  sincosf(__fmul_rn(pos, op.frequencies[known_pair]), &sine, &cosine);
  wait_for_inputs();
  float* q = op.q + (t * op.n_heads + first_head) * op.head_dim + (op.head_dim - op.rope_dim);
  for (int64_t i = threadIdx.x; i < n_pairs * n_heads; i += blockDim.x) {
    const int64_t pair = i % n_pairs;
    float* x = q + i / n_pairs * op.head_dim + 2 * pair;
    if (pair != known_pair) sincosf(__fmul_rn(pos, op.frequencies[pair]), &sine, &cosine), known_pair = pair;
    const float a = x[0], b = x[1];
    x[0] = a * cosine - b * sine;
    x[1] = a * sine + b * cosine;
  }
}

__device__ inline void turn_index_head(const TurnQueries& op, int64_t t, int64_t head, float* x) {
  const int64_t dim = op.index_dim, n_pairs = op.rope_dim / 2, row = t * op.n_index_heads + head,
                n_tiles = CacheLayout::tiles(dim);
  const int lane = threadIdx.x % 32;
  const float pos = static_cast<float>(op.step.pos[t]);
  float* q = op.index_q + row * dim;
  for (int64_t i = lane; i < dim; i += 32) x[i] = q[i];
  __syncwarp();
  for (int64_t i = lane; i < n_pairs; i += 32) {
    float sine, cosine;
    sincosf(__fmul_rn(pos, op.frequencies[i]), &sine, &cosine);
    const float a = x[i], b = x[i + n_pairs];
    q[i] = x[i] = a * cosine - b * sine;
    q[i + n_pairs] = x[i + n_pairs] = a * sine + b * cosine;
  }
  hadamard(x, dim, lane, 32, [] { __syncwarp(); });
  if (op.turned)
    for (int64_t i = lane; i < dim; i += 32) op.turned[row * dim + i] = x[i];
  if (!op.turned_fp8) return;
  for (int64_t tile = 0; tile < n_tiles; ++tile) {
    const int64_t begin = tile * kTileValues, end = min(begin + kTileValues, dim);
    float amax = 0;
    for (int64_t i = begin + lane; i < end; i += 32) amax = fmaxf(amax, fabsf(x[i]));
    const float scale = from_ue8m0(tile_scale(warp_max(amax)));
    for (int64_t i = begin + lane; i < end; i += 32) op.turned_fp8[row * dim + i] = to_e4m3(x[i] / scale);
    if (lane == 0) op.turned_scales[row * n_tiles + tile] = scale;
  }
}

// Does the work of one block of token t. shared: turn_bytes(). Calls wait_for_inputs().
__device__ inline void turn_block(const TurnQueries& op, const TurnBlocks& blocks, int64_t t, int block,
                                  float* shared) {
  if (block < blocks.n_heads) return turn_heads(op, t, int64_t{block} * kTurnHeads);
  wait_for_inputs();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t head = int64_t{block - blocks.n_heads} * kIndexHeads + warp;
  if (head < op.n_index_heads) turn_index_head(op, t, head, shared + warp * op.index_dim);
}

// ---- the router's choice of a token's experts, by the threads of a block ----

// Bytes of shared memory of choose_experts().
inline size_t route_bytes(const RouteExperts& op) {
  return static_cast<size_t>(3 * op.n_experts + op.n_groups * (op.n_activated + 3) + op.n_activated) *
         sizeof(float);
}

// The number of a shared array's n values that are larger than value i, or equal to it and before it.
__device__ inline int rank_of(const float* values, int n, int i) {
  const float value = values[i];
  int rank = 0;
#pragma unroll 8
  for (int j = 0; j < n; ++j) rank += values[j] > value || (values[j] == value && j < i);
  return rank;
}

// p = sigmoid(logits); s = p + bias. Chosen are the groups with the largest sum of their two best s, and in
// these groups the experts with the largest s, ties to the lower index; weight = p / sum of p * route_scale
// (model.py, Gate). One block per token. An expert's rank counts the better experts of its own group, and
// those among the n_activated best of each other group. NaN in s becomes -infinity, as on the CPU. The chosen
// experts are written in ascending order; the sum of p runs in the order of choice. Logits are read past L1:
// other blocks of the same kernel may have written them. Bound by latency.
__device__ inline void choose_experts(const RouteExperts& op, int64_t token, float* shared) {
  const int n = static_cast<int>(op.n_experts), n_groups = static_cast<int>(op.n_groups),
            n_activated = static_cast<int>(op.n_activated), group_size = n / n_groups,
            n_best = min(n_activated, group_size);
  float *p = shared, *s = p + n, *best = s + n;             // best [n_groups, n_activated] of each group's s
  float* top = best + n_groups * n_activated;               // [n_groups, 2]
  int* place = reinterpret_cast<int*>(top + 2 * n_groups);  // of each expert in its group
  int *is_kept = place + n, *chosen = is_kept + n_groups;
  const float* logits = op.logits + token * n;
  for (int e = threadIdx.x; e < n; e += blockDim.x) {
    p[e] = 1.0f / (1.0f + expf(-__ldcg(logits + e)));
    const float score = op.bias ? p[e] + op.bias[e] : p[e];
    s[e] = isnan(score) ? -INFINITY : score;
  }
  __syncthreads();
  for (int e = threadIdx.x; e < n; e += blockDim.x) {
    const int group = e / group_size, first = group * group_size;
    place[e] = rank_of(s + first, group_size, e - first);
    if (place[e] < 2) top[2 * group + place[e]] = s[e];
    if (place[e] < n_best) best[group * n_activated + place[e]] = s[e];
  }
  __syncthreads();
  const auto score_of = [&](int group) { return top[2 * group] + (group_size > 1 ? top[2 * group + 1] : 0); };
  for (int g = threadIdx.x; g < n_groups; g += blockDim.x) {
    const float score = score_of(g);
    int rank = 0;
    for (int h = 0; h < n_groups; ++h) rank += score_of(h) > score || (score_of(h) == score && h < g);
    is_kept[g] = n_groups == 1 || rank < op.n_limited_groups;
  }
  __syncthreads();
  for (int e = threadIdx.x; e < n; e += blockDim.x) {
    const int group = e / group_size;
    int rank = place[e];
    if (rank >= n_best || !is_kept[group]) continue;
    for (int h = 0; h < n_groups; ++h) {
      if (h == group || !is_kept[h]) continue;
#pragma unroll 8
      for (int k = 0; k < n_best; ++k) {
        const float other = best[h * n_activated + k];
        rank += other > s[e] || (other == s[e] && h < group);
      }
    }
    if (rank < n_activated) chosen[rank] = e;
  }
  __syncthreads();
  float sum = 0;
  for (int k = 0; k < n_activated; ++k) sum += p[chosen[k]];
  for (int k = threadIdx.x; k < n_activated; k += blockDim.x) {
    int rank = 0;
    for (int i = 0; i < n_activated; ++i) rank += chosen[i] < chosen[k];
    op.experts[token * n_activated + rank] = chosen[k];
    float weight = p[chosen[k]] / (op.normalize ? sum : 1.0f) * op.route_scale;
    if (op.scales) weight *= op.scales[chosen[k]];
    op.weights[token * n_activated + rank] = weight;
  }
}

}  // namespace dsv32::cuda
