// Sparse MLA, absorbed: all heads of a token attend to the same selected latent rows, which are keys and
// values.
//
// For V3.2's sizes (rank 512, rope 64) by tensor cores: a CTA takes one token and 16, 32 or 64 of its heads,
// copies the rows as bf16 into shared memory once for these heads, and goes through blocks of 64 rows with a
// running softmax. In decode kSplits CTAs share the blocks of a token, and mla_combine_kernel merges their
// parts; in prefill one CTA has all blocks. Hopper has its own kernels for prompts (mla_hopper.cu) and for
// decode of many heads (mla_decode.cu); mla_plain.cu takes other sizes and f32 rows. The heads of a CTA and
// the split of blocks depend only on the number of heads and the role: batches, buffers and full residency
// give the same bits.
#include "cuda/mla.cuh"

namespace dsv32::cuda {
namespace {

// ---- the two products ----

// s[i] = 16 heads (from head_row) x 8 latent rows (from latent_row + 8 i) of Q K^T.
template <int kTiles>
DSV32_DEVICE void multiply_queries(float (&s)[kTiles][4], const uint8_t* q, const uint8_t* k, int head_row,
                                   int latent_row, int lane) {
  const int matrix = lane / 8, r = lane % 8;
  const uint32_t a_at = shared_address(q) + (head_row + matrix % 2 * 8 + r) * kLine,
                 a_chunk = (matrix / 2) ^ r;
  const uint32_t b_at = shared_address(k) + (latent_row + r) * kLine, b_chunk = matrix ^ r;
#pragma unroll 3
  for (int column = 0; column < kRowLines; ++column) {
    DSV32_UNROLL for (int half = 0; half < 8; half += 4) {  // 32 values are four chunks
      uint32_t a0[4], a1[4], b[kTiles][4];
      load_matrices(a0, a_at + column * 16 * kTiles * kLine + (a_chunk ^ half) * 16);
      load_matrices(a1, a_at + column * 16 * kTiles * kLine + (a_chunk ^ (half + 2)) * 16);
      DSV32_UNROLL for (int i = 0; i < kTiles; ++i)
          load_matrices(b[i], b_at + (column * kBlockRows + i * 8) * kLine + (b_chunk ^ half) * 16);
      DSV32_UNROLL for (int i = 0; i < kTiles; ++i) multiply_bf16(s[i], a0, b[i][0], b[i][1]);
      DSV32_UNROLL for (int i = 0; i < kTiles; ++i) multiply_bf16(s[i], a1, b[i][2], b[i][3]);
    }
  }
}

// o[i][c] += 16 heads (from 16 i) x 8 columns (from 64 warp + 8 c) of P V; V: the rows' first kRank values.
template <int kTiles>
DSV32_DEVICE void add_values(float (&o)[kTiles][8][4], const uint8_t* p, const uint8_t* k, int warp,
                             int lane) {
  const int matrix = lane / 8, r = lane % 8;
  const uint32_t a_at = shared_address(p) + (matrix % 2 * 8 + r) * kLine, chunk = (matrix / 2) ^ r;
  const uint32_t b_at = shared_address(k) + (warp * kBlockRows + matrix % 2 * 8 + r) * kLine;
  DSV32_UNROLL for (int step = 0; step < kBlockRows / 16; ++step) {
    uint32_t a[kTiles][4];
    DSV32_UNROLL for (int i = 0; i < kTiles; ++i)
        load_matrices(a[i], a_at + i * 16 * kLine + (chunk ^ (2 * step)) * 16);
    DSV32_UNROLL for (int c = 0; c < 8; c += 2) {
      uint32_t b[4];
      load_transposed(b, b_at + step * 16 * kLine + (chunk ^ c) * 16);
      DSV32_UNROLL for (int i = 0; i < kTiles; ++i) {
        multiply_bf16(o[i][c], a[i], b[0], b[1]);
        multiply_bf16(o[i][c + 1], a[i], b[2], b[3]);
      }
    }
  }
}

constexpr int kWarpRows = kBlockRows / kWarps;      // rows of a block that one warp copies
constexpr int kStatBytes = (kWarps * 16 + 64) * 4;  // maxima and factors of heads

template <KvType kKv, int kTiles>
constexpr int shared_bytes(int n_stages) {
  const int n_tile_bytes =
      kKv == KvType::fp8 ? kBlockBytes + kBlockRows * kRowBytes<kKv> : n_stages * kBlockBytes;
  return 16 * kTiles * (kRowLines + 1) * kLine + n_tile_bytes + kStatBytes;
}

// Widens the warp's eight fp8 rows from the landing place to bf16; lane r has the scales of row r.
DSV32_DEVICE void expand_rows(const uint8_t* landing, uint8_t* k, uint32_t scales, int warp, int lane) {
  constexpr int row_bytes = kRowBytes<KvType::fp8>;
#pragma unroll 4
  for (int r = 0; r < kWarpRows; ++r) {
    const int row = warp * kWarpRows + r;
    const uint4 codes = *reinterpret_cast<const uint4*>(landing + row * row_bytes + lane * 16);
    expand_chunk(codes, __shfl_sync(0xffffffffu, scales, r), k, row, lane);
  }
  DSV32_UNROLL for (int i = 0; i < kWarpRows * 8 / 32; ++i) {  // k_pe is bf16 already
    const int row = warp * kWarpRows + i * 4 + lane / 8, chunk = lane % 8;
    *reinterpret_cast<uint4*>(k + chunk_place(kRank / 8 + chunk, row, kBlockRows)) =
        *reinterpret_cast<const uint4*>(landing + row * row_bytes + kRank + chunk * 16);
  }
}

// o_c = sum_j softmax(scale (q_c . c_j + q_pe . k_pe_j)) c_j over the selected rows j of one token.
// CTA: one token, 16 kTiles heads, every n_splits-th block of 64 rows; 8 warps. For scores a warp has 16
// heads x 8 kTiles rows; for values all heads x 64 columns, with sums in registers; weights pass through
// shared memory. cp.async gathers the next block's rows during the present block's work; rows are widened
// once for all heads. Sums are rescaled only when a maximum grows by 2^kSlack.
// Bound: prefill: reading shared memory (64 heads: 3500 of about 6000 cycles a block are the scores');
// decode: the latency of one block per CTA with 2048 rows. Measured (H200, 2026-11-21): one token, 128 heads,
// 2048 fp8 rows: 23.5 us with the merge.
template <KvType kKv, int kTiles>
__global__ void __launch_bounds__(kThreads, 1) mla_kernel(const Attend op, const Plan plan) {
  constexpr int kHeads = 16 * kTiles, kGroups = kWarps / kTiles;  // groups of warps that share 16 heads
  extern __shared__ __align__(128) uint8_t shared[];
  uint8_t* q = shared;                                               // [kHeads, kRank + kRope] bf16
  uint8_t* p = q + kHeads * kRowLines * kLine;                       // [kHeads, kBlockRows] bf16
  float* largest_of = reinterpret_cast<float*>(p + kHeads * kLine);  // [kGroups, kHeads]
  float* shrink = largest_of + kWarps * 16;                          // [kHeads]
  uint8_t* tiles = p + kHeads * kLine + kStatBytes;  // [1 or n_stages, kBlockRows, kRank + kRope] bf16
  uint8_t* landing = tiles + kBlockBytes;            // fp8 rows as copied

  let_next_start();
  wait_for_inputs();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int tile = blockIdx.x % plan.n_head_tiles, split = blockIdx.x / plan.n_head_tiles % plan.n_splits;
  const int64_t t = blockIdx.x / plan.n_head_tiles / plan.n_splits, seq = op.step.seq[t];
  const int n = op.n_selected[t], n_blocks = (n + kBlockRows - 1) / kBlockRows;
  if (plan.part && split >= n_blocks) return;  // the merge skips this part
  const int head_row = warp % kTiles * 16, group = warp / kTiles, latent_row = group * 8 * kTiles;
  const float scale = op.scale * 1.44269504f;

  const int first_row = warp * kWarpRows + lane % kWarpRows;  // the row of a block that this lane looks up
  RowPlace place = find_row(op, t, split * kBlockRows + first_row, n);
  start_rows<kKv, kWarpRows>(plan.rows, place.id, kKv == KvType::fp8 ? landing : tiles, warp * kWarpRows,
                             lane);
  int32_t page = kKv == KvType::fp8 ? find_page(op, seq, place) : 0;
  RowPlace next = find_row(op, t, (split + plan.n_splits) * kBlockRows + first_row, n);
  load_queries(op, t, tile * kHeads, kHeads, q);
  uint32_t scales = kKv == KvType::fp8 ? load_scales(op, plan.page_bytes, page, place) : 0;

  Running running;
  float o[kTiles][8][4] = {};
  int stage = 0;
  for (int block = split; block < n_blocks; block += plan.n_splits) {
    const bool is_last = block + plan.n_splits >= n_blocks;
    uint8_t* k = tiles + stage * kBlockBytes;
    wait_all_copies();
    __syncthreads();  // the rows are there, and all warps have read the previous block
    if constexpr (kKv == KvType::fp8) {
      expand_rows(landing, k, scales, warp, lane);
      __syncthreads();
    } else if (plan.n_stages == 2) {
      stage ^= 1;
    }
    const bool is_early = kKv == KvType::fp8 || plan.n_stages == 2;  // the next block's rows have room now
    if (!is_last && is_early) {
      start_rows<kKv, kWarpRows>(plan.rows, next.id,
                                 kKv == KvType::fp8 ? landing : tiles + stage * kBlockBytes, warp * kWarpRows,
                                 lane);
      place = next;
      if constexpr (kKv == KvType::fp8) page = find_page(op, seq, place);
      next = find_row(op, t, (block + 2 * plan.n_splits) * kBlockRows + first_row, n);
    }

    float s[kTiles][4] = {};
    multiply_queries<kTiles>(s, q, k, head_row, latent_row, lane);
    const float2 largest = scale_scores<kTiles>(s, scale, block * kBlockRows + latent_row, n, lane);
    if (lane % 4 == 0) {
      largest_of[group * kHeads + head_row + lane / 4] = largest.x;
      largest_of[group * kHeads + head_row + lane / 4 + 8] = largest.y;
    }
    __syncthreads();
    if constexpr (kKv == KvType::fp8)
      if (!is_last) scales = load_scales(op, plan.page_bytes, page, place);
    float largest_here[2], factors[2];
    DSV32_UNROLL for (int h = 0; h < 2; ++h) {
      const float* of_groups = largest_of + head_row + lane / 4 + 8 * h;
      largest_here[h] = of_groups[0];
      DSV32_UNROLL for (int g = 1; g < kGroups; ++g) largest_here[h] =
          fmaxf(largest_here[h], of_groups[g * kHeads]);
    }
    const bool is_grown = grow(running, largest_here, factors);
    if (group == 0 && lane % 4 == 0) {
      shrink[head_row + lane / 4] = factors[0];
      shrink[head_row + lane / 4 + 8] = factors[1];
    }
    store_weights<kTiles>(s, running, p, head_row, latent_row, lane);
    if (__syncthreads_or(is_grown)) {
      DSV32_UNROLL for (int i = 0; i < kTiles; ++i) {
        DSV32_UNROLL for (int h = 0; h < 2; ++h) {
          const float factor = shrink[i * 16 + lane / 4 + 8 * h];
          DSV32_UNROLL for (int c = 0; c < 8; ++c) o[i][c][2 * h] *= factor, o[i][c][2 * h + 1] *= factor;
        }
      }
    }
    add_values<kTiles>(o, p, k, warp, lane);
    if (!is_last && !is_early) {
      __syncthreads();
      start_rows<kKv, kWarpRows>(plan.rows, next.id, k, warp * kWarpRows, lane);
      next = find_row(op, t, (block + 2 * plan.n_splits) * kBlockRows + first_row, n);
    }
  }

  __syncthreads();  // from here shrink holds the maxima, and largest_of the sums
  DSV32_UNROLL for (int h = 0; h < 2; ++h) {
    const int row = head_row + lane / 4 + 8 * h;
    const float sum = quad_sum(running.sum[h]);
    if (lane % 4 == 0) largest_of[group * kHeads + row] = sum;
    if (lane % 4 == 0 && group == 0) shrink[row] = running.largest[h];
  }
  __syncthreads();
  DSV32_UNROLL for (int i = 0; i < kTiles; ++i) {
    DSV32_UNROLL for (int h = 0; h < 2; ++h) {
      const int row = i * 16 + lane / 4 + 8 * h, head = tile * kHeads + row;
      if (head >= op.n_heads) continue;
      float sum = largest_of[row];
      DSV32_UNROLL for (int g = 1; g < kGroups; ++g) sum += largest_of[g * kHeads + row];
      const int64_t part = (t * plan.n_splits + split) * op.n_heads + head;
      float* out = (plan.part ? plan.part : op.o_c) + part * kRank + warp * 64 + lane % 4 * 2;
      const float factor = plan.part || sum == 0 ? 1.0f : 1.0f / sum;
      store_head<32>(&o[i][0][0], h, factor, out);
      if (plan.part && warp == 0 && lane % 4 == 0) plan.part_max_sum[part] = {shrink[row], sum};
    }
  }
}

// o_c = sum_s 2^(m_s - m) part_s / sum_s 2^(m_s - m) sum_s over the parts s of one token and head, in
// ascending order. CTA: one token and head, 128 threads of four columns; the first warp computes the weights.
// Parts past n_selected are not written and not read. Bound by reading the parts from L2.
__global__ void __launch_bounds__(kRank / 4) mla_combine_kernel(const Attend op, const Plan plan) {
  __shared__ float weights[kSplits];
  let_next_start();
  wait_for_inputs();
  const int64_t t = blockIdx.x / op.n_heads, head = blockIdx.x % op.n_heads;
  const int n = min(plan.n_splits, (op.n_selected[t] + kBlockRows - 1) / kBlockRows);
  const int64_t first = t * plan.n_splits * op.n_heads + head;  // parts are n_heads apart
  if (threadIdx.x < 32) {
    float largest = -INFINITY, sum = 0;
    for (int s = threadIdx.x; s < n; s += 32)
      largest = fmaxf(largest, plan.part_max_sum[first + s * op.n_heads].x);
    largest = warp_max(largest);
    for (int s = threadIdx.x; s < n; s += 32) {
      const float2 max_sum = plan.part_max_sum[first + s * op.n_heads];
      weights[s] = exp2_fast(max_sum.x - largest);
      sum += weights[s] * max_sum.y;
    }
    sum = warp_sum(sum);
    for (int s = threadIdx.x; s < n; s += 32) weights[s] /= sum;
  }
  __syncthreads();
  float4 o = {0, 0, 0, 0};
#pragma unroll 8
  for (int s = 0; s < n; ++s) {
    const float4 part =
        reinterpret_cast<const float4*>(plan.part + (first + s * op.n_heads) * kRank)[threadIdx.x];
    const float weight = weights[s];
    o.x += weight * part.x, o.y += weight * part.y, o.z += weight * part.z, o.w += weight * part.w;
  }
  reinterpret_cast<float4*>(op.o_c + (t * op.n_heads + head) * kRank)[threadIdx.x] = o;
}

// ---- the launcher ----

// Attends by CTAs of kTiles times 16 heads. Returns false and does nothing if half as many tiles hold all
// heads or the device has too little shared memory.
template <KvType kKv, int kTiles>
bool attend_tiles(const Attend& op, Plan plan, const Launch& launch) {
  const int n_most_bytes = card().block_bytes;
  if (shared_bytes<kKv, kTiles>(1) > n_most_bytes || (kTiles > 1 && op.n_heads <= kTiles * 8)) return false;
  plan.n_head_tiles = static_cast<int>(ceil_div(op.n_heads, 16 * kTiles));
  plan.n_stages = shared_bytes<kKv, kTiles>(2) <= n_most_bytes ? 2 : 1;
  plan.n_splits = op.step.role == Role::decode ? kSplits : 1;
  const auto attend_all = [&](const Attend& part) {
    const int64_t n_ctas = part.step.n_tokens * plan.n_splits * plan.n_head_tiles;
    launch_kernel(mla_kernel<kKv, kTiles>, {n_ctas, kThreads, shared_bytes<kKv, kTiles>(plan.n_stages)},
                  launch, part, plan);
  };
  if (plan.n_splits == 1) {
    attend_all(op);
    return true;
  }
  const int64_t n_parts = kSplits * op.n_heads, n_bytes_part = kRank * sizeof(float) + sizeof(float2);
  in_groups(
      op, n_parts * n_bytes_part, launch, [&](const Attend& part, int64_t n_together, uint8_t* scratch) {
        plan.part = reinterpret_cast<float*>(scratch);
        plan.part_max_sum = reinterpret_cast<float2*>(plan.part + n_together * n_parts * kRank);
        attend_all(part);
        launch_kernel(mla_combine_kernel, {part.step.n_tokens * part.n_heads, kRank / 4}, launch, part, plan);
      });
  return true;
}

// Takes as many tiles as heads and shared memory allow: up to four in prefill, where each CTA loads queries,
// up to two in decode, so that one token has CTAs for all multiprocessors. False if the device has too little
// shared memory.
template <KvType kKv>
bool attend_generic(const Attend& op, const Plan& plan, const Launch& launch) {
  return (op.step.role != Role::decode && attend_tiles<kKv, 4>(op, plan, launch)) ||
         attend_tiles<kKv, 2>(op, plan, launch) || attend_tiles<kKv, 1>(op, plan, launch);
}

bool has_fast_shape(const Attend& op) {
  const CacheLayout& layout = op.cache.layout;
  return layout.kv_type != KvType::f32 && layout.kv_lora_rank == kRank && layout.qk_rope_head_dim == kRope &&
         is_aligned(op.cache.slots, 16) && is_aligned(op.q_c, 16) && is_aligned(op.o_c, 16) &&
         is_aligned(op.cache.key_pages, 16);
}

AttentionKernel kernel_of(const Attend& op) {
  return choose_attention(op.step.role == Role::decode, op.n_heads, has_fast_shape(op), card().family);
}

}  // namespace

bool attends_rounded(const Attend& op) { return kernel_of(op) == AttentionKernel::hopper_prompt; }

void attend(const Attend& op, const Launch& launch, bool is_rounded) {
  if (op.step.n_tokens == 0 || op.n_heads == 0) return;
  const CacheLayout& layout = op.cache.layout;
  if (op.step.n_tokens < 0 || op.n_heads < 0 || op.topk < 1 || op.topk > INT32_MAX / 2 ||
      layout.kv_lora_rank < 1 || op.step.n_tokens * op.n_heads > INT32_MAX)
    fail(ErrorKind::internal, format("attend: %ld tokens of %ld heads over %ld rows of rank %ld",
                                     op.step.n_tokens, op.n_heads, op.topk, layout.kv_lora_rank));
  if (!op.cache.slots) fail(ErrorKind::internal, "attend: the cache has no slots");
  Plan plan{};
  plan.rows = op.cache.slots;
  plan.page_bytes = layout.key_page_bytes();
  if (is_rounded) plan.rounded = rounded_rows_in(op.o_c, op.step.n_tokens * op.n_heads, kRank);
  bool is_done = true;
  switch (kernel_of(op)) {
    case AttentionKernel::plain: is_done = false; break;
    case AttentionKernel::generic:
      is_done = with_kv(op, [&]<KvType kKv>() { return attend_generic<kKv>(op, plan, launch); });
      break;
    case AttentionKernel::hopper_prompt: attend_hopper(op, plan, launch); break;
    case AttentionKernel::hopper_decode: attend_decode(op, plan, launch); break;
  }
  if (!is_done) attend_plain(op, launch);
}

}  // namespace dsv32::cuda
