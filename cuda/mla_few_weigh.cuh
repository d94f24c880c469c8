// Decode's attention for few tokens (mla_few.cu): how work is divided, the places of the selected rows, and
// the first kernel, which turns scores into fp16 weights.
#pragma once

#include "cuda/mla_fill.cuh"
#include "cuda/wgmma.cuh"

namespace dsv32::cuda {
namespace {

constexpr int kFewBlocks = 32;  // of a token's rows, at most
constexpr int kFewWarps = 16, kFewThreads = 32 * kFewWarps;
constexpr int kFewColumns = 32;  // of a CTA of the second kernel
constexpr int kFewParts = kRank / kFewColumns;
static_assert(kFewParts == 16 && kFewBlocks * kBlockRows == 2048);  // choose_few_heads()

// A CTA has kFew heads: 32 or 64. Their weights of a block pass to the second kernel as operands in its
// threads' order: kOperandLines lines for each 16 heads, and in a line one chunk for each lane.
template <int kFew>
constexpr int kFewChunks = kFew / 16 * kOperandLines * 32;

// Loads entry j of a token's selection, without waiting for the number of selected rows.
DSV32_DEVICE RowPlace load_row(const Attend& op, int64_t t, int j) {
  if (j >= op.topk) return {-1, 0};
  const int64_t at = t * op.topk + j;
  return {op.row_ids ? __ldcg(op.row_ids + at) : 0, __ldcg(op.selected + at)};
}

// The place of a row that load_row() loaded. Its loads depend on no branch, so that several are under way
// together.
DSV32_DEVICE RowPlace find_loaded_row(const Attend& op, int64_t seq, const RowPlace& asked,
                                      bool is_selected) {
  constexpr int kRows = kPageTokens;
  const int32_t pos = is_selected ? asked.pos : 0;
  int64_t page = 0;
  if (!op.row_ids) page = __ldcg(op.cache.slot_pages + seq * op.cache.max_pages + pos / kRows);
  return {!is_selected ? -1 : op.row_ids ? asked.id : page * kRows + pos % kRows, pos};
}

// The key page of such a row; past the end, position 0's page.
DSV32_DEVICE int32_t find_key_page(const Attend& op, int64_t seq, const RowPlace& asked, bool is_selected) {
  const int32_t pos = is_selected ? asked.pos : 0;
  return __ldcg(op.cache.pages + seq * op.cache.max_pages + pos / int{kPageTokens});
}

// The four scales of an fp8 row; all 1 for rows past the end.
DSV32_DEVICE uint32_t load_row_scales(const Attend& op, int64_t page_bytes, int32_t page,
                                      const RowPlace& place) {
  if (place.id < 0) return 0x7f7f7f7fu;
  const uint8_t* scales = op.cache.key_pages + page * page_bytes + place.pos % int{kPageTokens} * 4;
  return __ldcg(reinterpret_cast<const uint32_t*>(scales));
}

// ---- the first kernel ----

constexpr int kWeighBlocks = 2;                                    // of a CTA
constexpr int kWeighRows = kWeighBlocks * kBlockRows / kFewWarps;  // of a warp

// Shared memory of a CTA.
template <int kFew>
struct WeighRoom {
  uint8_t keys[kWeighBlocks][kBlockBytes];    // [kRowLines][kBlockRows] lines; later a line of weights a head
  uint8_t queries[kRowLines * kFew * kLine];  // [kRowLines][kFew] lines
  float largest[kWeighBlocks][kFew][4];       // score in each warp's rows
  float units[kFew];                          // of the queries
};
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Stores four transposed matrices of 8 x 8 halves; addresses as in load_matrices().
DSV32_DEVICE void store_transposed(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(a),
               "r"(b), "r"(c), "r"(d)
               : "memory");
}
constexpr int kFirstBlockBarrier = 1;  // named barriers: one for the four warps of each block's scores

// A lane's part of a head's query: chunks `lane` and lane + 32 (eight values each) of q_c, and two values of
// q_pe.
struct Query {
  float4 latent[4];
  float rope[2];
};
DSV32_DEVICE Query load_query(const Attend& op, int64_t t, int64_t head, int lane) {
  Query q = {};
  if (head >= op.n_heads) return q;
  const auto* from = reinterpret_cast<const float4*>(op.q_c + (t * op.n_heads + head) * kRank) + 2 * lane;
  q.latent[0] = __ldcg(from), q.latent[1] = __ldcg(from + 1);
  q.latent[2] = __ldcg(from + 64), q.latent[3] = __ldcg(from + 65);
  const float* rope = op.q_pe + t * op.q_pe_token_stride + head * op.q_pe_head_stride + 2 * lane;
  q.rope[0] = __ldcg(rope), q.rope[1] = __ldcg(rope + 1);
  return q;
}

// Stores the query as fp16 with its own unit, as load_queries_f16() does.
template <int kFew>
DSV32_DEVICE void store_query(const Query& q, WeighRoom<kFew>& room, int row, int lane) {
  float largest = fmaxf(fabsf(q.rope[0]), fabsf(q.rope[1]));
  DSV32_UNROLL for (const float4& of : q.latent) largest =
      fmaxf(fmaxf(fmaxf(largest, fabsf(of.x)), fmaxf(fabsf(of.y), fabsf(of.z))), fabsf(of.w));
  const float unit = unit_of(warp_max(largest)), inverse = inverse_of_power(unit);
  if (lane == 0) room.units[row] = unit;
  const auto pack = [&](float low, float high) {  // not saturating: an infinite query must stay visible
    return as_word(__floats2half2_rn(low * inverse, high * inverse));
  };
  DSV32_UNROLL for (int c = 0; c < 2; ++c) {
    const float4 low = q.latent[2 * c], high = q.latent[2 * c + 1];
    *reinterpret_cast<uint4*>(room.queries + chunk_place(lane + 32 * c, row, kFew)) = {
        pack(low.x, low.y), pack(low.z, low.w), pack(high.x, high.y), pack(high.z, high.w)};
  }
  *reinterpret_cast<uint32_t*>(room.queries + chunk_place(kRank / 8 + lane / 4, row, kFew) + lane % 4 * 4) =
      pack(q.rope[0], q.rope[1]);
}

static_assert(kWeighRows == kAtOnce);

// Starts loading a warp's rows, zeros past the last; lane r has the id of row first_row + r. bf16 rows are
// copied directly to `to`.
template <KvType kKv>
DSV32_DEVICE void load_keys(const uint8_t* rows, int32_t id, Arriving& keys, uint8_t* to, int first_row,
                            int lane) {
  if constexpr (kKv == KvType::bf16) {
    start_rows<kKv, kWeighRows>(rows, id, to, first_row, lane);
  } else {
    const auto ask = [&](int r, int offset) {
      const int64_t row = __shfl_sync(0xffffffffu, id, r);
      if (row < 0) return uint4{0, 0, 0, 0};
      return __ldcg(reinterpret_cast<const uint4*>(rows + row * kRowBytes<kKv> + offset));
    };
    DSV32_UNROLL for (int i = 0; i < kWeighRows; ++i) keys.latent[i] = ask(i, lane * 16);
    DSV32_UNROLL for (int i = 0; i < kWeighRows / 4; ++i) keys.rope[i] =
        ask(4 * i + lane / 8, kRank + lane % 8 * 16);
  }
}

// Stores the loaded rows as fp16; lane r has the scales of row first_row + r.
template <KvType kKv>
DSV32_DEVICE void store_keys(const Arriving& keys, uint32_t scales, uint8_t* to, int first_row, int lane) {
  if constexpr (kKv == KvType::bf16) {
    wait_all_copies();
    convert_rows<kWeighRows>(to, first_row, lane);
  } else {
    DSV32_UNROLL for (int i = 0; i < kWeighRows; ++i)
        store_fp8(keys.latent[i], __shfl_sync(0xffffffffu, scales, i), to, first_row + i, lane);
    DSV32_UNROLL for (int i = 0; i < kWeighRows / 4; ++i) *
        reinterpret_cast<uint4*>(to + chunk_place(kRank / 8 + lane % 8, first_row + 4 * i + lane / 8,
                                                  kBlockRows)) = bf16_to_f16(keys.rope[i]);
  }
}

// Scores [64 rows, kFew heads] of a block: a thread's s[4 j + 2 h + e] is row lane / 4 + 8 h of the warp's
// 16, head 8 j + 2 (lane % 4) + e.
template <int kFew>
using Scores = float[kFew / 2];

template <int kFew>
DSV32_DEVICE void multiply_keys(const WeighRoom<kFew>& room, int group, Scores<kFew>& s) {
  const uint64_t keys = wgmma_operand(shared_address(room.keys) + group * kBlockBytes);
  const uint64_t queries = wgmma_operand(shared_address(room.queries));
  wgmma_begin();
  DSV32_UNROLL for (int step = 0; step < kRowLines * 4; ++step)  // 16 values, two chunks
      wgmma<kFew>(s, keys + step / 4 * (kBlockRows * kLine / 16) + step % 4 * 2,
                  queries + step / 4 * (kFew * kLine / 16) + step % 4 * 2);
  wgmma_commit();
  wgmma_wait();
}

// Converts scores to base 2, and those of rows from n on to -infinity. Stores each head's largest in the
// warp's rows.
template <int kFew>
DSV32_DEVICE void note_largest(Scores<kFew>& s, float scale, int first_row, int n, WeighRoom<kFew>& room,
                               int group, int warp, int lane) {
  constexpr int kKept = kFew / 32;  // heads of a lane
  const int row = first_row + warp * 16 + lane / 4;
  float most[kFew / 4];
  DSV32_UNROLL for (int i = 0; i < kFew / 4; ++i) {
    const float unit = scale * room.units[i / 2 * 8 + lane % 4 * 2 + i % 2];
    float &low = s[i / 2 * 4 + i % 2], &high = s[i / 2 * 4 + 2 + i % 2];
    low = row < n ? low * unit : -INFINITY;
    high = row + 8 < n ? high * unit : -INFINITY;
    most[i] = fmaxf(low, high);
  }
  // Eight lanes have the same heads. In each of three rounds a lane keeps half of its heads: the last are
  // those from kKept * (lane / 4) on.
  DSV32_UNROLL for (int n_kept = 4 * kKept; n_kept >= kKept; n_kept /= 2) {
    const int other = 4 * n_kept / kKept;
    const bool is_upper = (lane & other) != 0;
    DSV32_UNROLL for (int i = 0; i < n_kept; ++i) {
      const float given = is_upper ? most[i] : most[i + n_kept], kept = is_upper ? most[i + n_kept] : most[i];
      most[i] = fmaxf(kept, __shfl_xor_sync(0xffffffffu, given, other));
    }
  }
  DSV32_UNROLL for (int i = 0; i < kKept; ++i) {
    const int number = lane / 4 * kKept + i;
    room.largest[group][number / 2 * 8 + lane % 4 * 2 + number % 2][warp] = most[i];
  }
}

// The block's largest score of a head, rounded up.
template <int kFew>
DSV32_DEVICE float power_of(const WeighRoom<kFew>& room, int group, int head) {
  const float4 of = *reinterpret_cast<const float4*>(room.largest[group][head]);
  return ceilf(fmaxf(fmaxf(of.x, of.y), fmaxf(of.z, of.w)));
}

// Converts scores to weights and stores them, a line for each head, where the block's keys were.
template <int kFew>
DSV32_DEVICE void turn_weights(const Scores<kFew>& s, WeighRoom<kFew>& room, int group, int warp, int lane) {
  uint32_t pairs[kFew / 8][2];
  DSV32_UNROLL for (int j = 0; j < kFew / 8; ++j) {
    const int head = 8 * j + 2 * (lane % 4);
    const float zeros[2] = {power_of(room, group, head) - kDecodePower,
                            power_of(room, group, head + 1) - kDecodePower};
    DSV32_UNROLL for (int h = 0; h < 2; ++h) pairs[j][h] =
        pack_f16(exp2_fast(s[4 * j + 2 * h] - zeros[0]), exp2_fast(s[4 * j + 2 * h + 1] - zeros[1]));
  }
  DSV32_UNROLL for (int j = 0; j < kFew / 8; j += 2)
      store_transposed(shared_address(room.keys[group]) +
                           chunk_place(2 * warp + lane / 8 % 2, 8 * (j + lane / 16) + lane % 8, 0),
                       pairs[j][0], pairs[j][1], pairs[j + 1][0], pairs[j + 1][1]);
}

// A warp writes the weights of 16 heads and a block as operand lines, their powers and the rounded weights'
// sums, added in store_weights()'s order. at: the block's number over all tokens and head tiles.
template <int kFew>
DSV32_DEVICE void store_lines(const WeighRoom<kFew>& room, const Plan& plan, int64_t at, int group, int warp,
                              int lane) {
  uint4* out = plan.weights + at * kFewChunks<kFew> + warp * kOperandLines * 32 + lane;
  uint32_t lines[kOperandLines][4];
  DSV32_UNROLL for (int line = 0; line < kOperandLines; ++line) load_matrices(
      lines[line], shared_address(room.keys[group]) +
                       chunk_place(2 * line + lane / 16, 16 * warp + lane / 8 % 2 * 8 + lane % 8, 0));
  float sum[2] = {0, 0};
  DSV32_UNROLL for (int line = 0; line < kOperandLines; ++line) {
    out[line * 32] = {lines[line][0], lines[line][1], lines[line][2], lines[line][3]};
    DSV32_UNROLL for (int i = 0; i < 4; ++i) {
      const float2 pair = unpack_f16(lines[line][i]);
      sum[i % 2] += pair.x + pair.y;
    }
  }
  sum[0] = quad_sum(sum[0]), sum[1] = quad_sum(sum[1]);
  const int h = lane % 4, head = 16 * warp + lane / 4 + 8 * h;
  if (h < 2) plan.powers[at * kFew + head] = {power_of(room, group, head), h ? sum[1] : sum[0]};
}
#endif

// As mla_weigh_kernel: weights 2^(scale log2(e) (q_c . c_j + q_pe . k_pe_j) - power) of the selected rows j.
// CTA: one token, kFew heads, two blocks of 64 rows. Each of 16 warps loads eight rows and kFew / 16 queries;
// then four warps per block multiply rows (M) by heads (N), so that no product is padded, and transpose the
// weights: the second kernel has heads as M. The second kernel may start when the selection is complete.
// Older queries are read before the wait. Bound: one token has 64 CTAs; each loads 84 KB of rows (fp8) and 74
// KB of queries, 2500 cycles at a multiprocessor's 64 bytes per cycle.
template <KvType kKv, int kFew>
__global__ void __launch_bounds__(kFewThreads, 1) mla_few_weigh_kernel(const Attend op, const Plan plan) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) uint8_t few_room[];
  auto& room = *reinterpret_cast<WeighRoom<kFew>*>(few_room);
  constexpr int kQueries = kFew / kFewWarps;  // of a warp
  const int lane = threadIdx.x % 32, warp = uniform_warp();
  const int n_shares = (plan.n_most_blocks + kWeighBlocks - 1) / kWeighBlocks;
  const int tile = blockIdx.x % plan.n_head_tiles;
  const int first_block = blockIdx.x / plan.n_head_tiles % n_shares * kWeighBlocks;
  const int64_t t = blockIdx.x / plan.n_head_tiles / n_shares, seq = op.step.seq[t];
  if (!op.are_queries_older) wait_for_inputs();
  Query queries[kQueries];
  DSV32_UNROLL for (int i = 0; i < kQueries; ++i) queries[i] =
      load_query(op, t, tile * kFew + warp * kQueries + i, lane);
  if (op.are_queries_older) wait_for_inputs();
  let_next_start();
  const int n = __ldcg(op.n_selected + t);
  uint8_t* keys = room.keys[warp * kWeighRows / kBlockRows];
  const int first_row = warp * kWeighRows % kBlockRows;
  const int j = first_block * kBlockRows + warp * kWeighRows + lane % kWeighRows;
  const RowPlace loaded = load_row(op, t, j);
  if (first_block * kBlockRows >= n) return;
  const int32_t page = kKv == KvType::fp8 ? find_key_page(op, seq, loaded, j < n) : 0;
  const RowPlace place = find_loaded_row(op, seq, loaded, j < n);
  Arriving arriving;
  load_keys<kKv>(plan.rows, static_cast<int32_t>(place.id), arriving, keys, first_row, lane);
  const uint32_t scales = kKv == KvType::fp8 ? load_row_scales(op, plan.page_bytes, page, place) : 0;
  DSV32_UNROLL for (int i = 0; i < kQueries; ++i) store_query(queries[i], room, warp * kQueries + i, lane);
  store_keys<kKv>(arriving, scales, keys, first_row, lane);
  fence_async_proxy();
  __syncthreads();

  const int group = warp / 4, block = first_block + group;
  if (group >= kWeighBlocks || block * kBlockRows >= n) return;
  Scores<kFew> s = {};
  multiply_keys(room, group, s);
  note_largest(s, op.scale * 1.44269504f, block * kBlockRows, n, room, group, warp % 4, lane);
  sync_at<kGroupThreads>(kFirstBlockBarrier + group);
  turn_weights(s, room, group, warp % 4, lane);
  sync_at<kGroupThreads>(kFirstBlockBarrier + group);
  if (warp % 4 >= kFew / 16) return;
  store_lines(room, plan, (t * plan.n_head_tiles + tile) * plan.n_most_blocks + block, group, warp % 4, lane);
#else
  __trap();
#endif
}
static_assert(sizeof(WeighRoom<64>) <= kMostSharedBytes);

}  // namespace
}  // namespace dsv32::cuda
