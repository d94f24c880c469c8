// Quest: the bounds of a span of rows, and the spans' scores. The formulas are those of
// backend/attention_ops.h (QuestScores) and of backend/cpu_quest.cpp, which the bounds equal to the bit.
#include "cuda/common.cuh"

namespace dsv32::cuda {
namespace {

constexpr int kBoundThreads = 256;

DSV32_DEVICE uint8_t* span_bounds(const CacheView& cache, int64_t seq, int64_t span) {
  return key_page(cache, seq, span * kSpanTokens) + cache.layout.bounds_offset() +
         span % (kPageTokens / kSpanTokens) * cache.layout.span_bytes();
}

// Value i of a row in the host pool. Past the caches: the row may be new.
DSV32_DEVICE float row_value(const CacheLayout& layout, const uint8_t* row, const uint8_t* scales,
                             int64_t i) {
  const int64_t rank = layout.kv_lora_rank;
  if (layout.kv_type == KvType::f32) return __ldcv(reinterpret_cast<const float*>(row) + i);
  if (layout.kv_type == KvType::fp8 && i < rank)
    return from_e4m3(__ldcv(row + i)) * from_ue8m0(__ldcg(scales + i / kTileValues));
  const int64_t at = layout.kv_type == KvType::fp8 ? rank + 2 * (i - rank) : 2 * i;
  return __uint_as_float(uint32_t{__ldcv(reinterpret_cast<const uint16_t*>(row + at))} << 16);
}

// The tile of value i: those of c come first.
DSV32_DEVICE int64_t tile_of(const CacheLayout& layout, int64_t i) {
  const int64_t rank = layout.kv_lora_rank;
  return i < rank ? i / kBoundTile : (rank + kBoundTile - 1) / kBoundTile + (i - rank) / kBoundTile;
}

// bounds = the largest and the smallest of each value of a span's rows, rounded to steps of a seventh of the
// largest magnitude of a tile, for the spans that the step's tokens complete.
// A block has a token; one in kSpanTokens has work. A thread takes every 256th value of all rows.
// Rows are read in the host pool, where all of them lie whatever is resident, 10 KB of a span over the link.
// Bound by the link's latency.
__global__ void __launch_bounds__(kBoundThreads) store_bounds_kernel(StepTokens step, CacheView cache) {
  extern __shared__ float bounds[];  // [2, row_values()] largest | smallest; [n_steps()] largest magnitudes
  const CacheLayout& layout = cache.layout;
  const int64_t t = blockIdx.x, pos = step.pos[t], seq = step.seq[t], n = layout.row_values();
  int* most = reinterpret_cast<int*>(bounds + 2 * n);  // their bits
  wait_for_inputs();
  if (pos % kSpanTokens != kSpanTokens - 1) return;
  for (int64_t tile = threadIdx.x; tile < layout.n_steps(); tile += kBoundThreads) most[tile] = 0;
  __syncthreads();
  const int64_t first = pos / kSpanTokens * kSpanTokens;
  const uint8_t* rows = cache.rows + paged_row(cache.pages, cache, seq, first) * layout.row_bytes();
  const uint8_t* scales = key_page(cache, seq, first) + first % kPageTokens * layout.scale_bytes();
  for (int64_t i = threadIdx.x; i < n; i += kBoundThreads) {
    float values[kSpanTokens];
    DSV32_UNROLL for (int r = 0; r < kSpanTokens; ++r) values[r] =
        row_value(layout, rows + r * layout.row_bytes(), scales + r * layout.scale_bytes(), i);
    float largest = values[0], smallest = values[0];
    DSV32_UNROLL for (const float value : values) largest = fmaxf(largest, value),
                                                  smallest = fminf(smallest, value);
    bounds[i] = largest, bounds[n + i] = smallest;
    atomicMax(&most[tile_of(layout, i)], __float_as_int(fmaxf(fabsf(largest), fabsf(smallest))));
  }
  __syncthreads();
  const auto code_of = [&](int64_t i) {
    const float magnitude = __int_as_float(most[tile_of(layout, i % n)]);
    const float inverse = magnitude > kLeastBound ? __fdiv_rn(kMostSteps, magnitude) : 0;
    return __float2int_rn(bounds[i] * inverse) + kZeroStep;
  };
  uint8_t* out = span_bounds(cache, seq, pos / kSpanTokens);
  for (int64_t i = threadIdx.x; i < n; i += kBoundThreads)
    out[i] = static_cast<uint8_t>(code_of(2 * i) + code_of(2 * i + 1) * 16);
  for (int64_t tile = threadIdx.x; tile < layout.n_steps(); tile += kBoundThreads)
    reinterpret_cast<float*>(out + layout.steps_offset())[tile] =
        __fdiv_rn(__int_as_float(most[tile]), kMostSteps);
}

constexpr int kBoundHeads = 32, kBoundWarps = 8, kWarpSpans = 16;
constexpr int kBlockSpans = kBoundWarps * kWarpSpans;

// Two neighbouring bounds, in steps, as bf16: exact.
DSV32_DEVICE uint32_t steps_to_bf16(uint32_t byte) {
  const uint32_t above_128 = 0x43004300u | (byte & 15) | (byte & 0xf0) << 12;
  return as_word(__hsub2(as_bfloat2(above_128), __float2bfloat162_rn(128 + kZeroStep)));
}

// A head's queries in shared memory; 16 bytes more make a warp's loads hit different banks.
DSV32_DEVICE int query_stride(int n) { return n + 8; }

// Loads a block's queries; zeros past the last head. A warp loads every eighth head, two values a lane.
DSV32_DEVICE void load_queries(const QuestScores& op, int64_t t, int64_t first_head, __nv_bfloat16* queries) {
  const int rank = static_cast<int>(op.cache.layout.kv_lora_rank),
            n = static_cast<int>(op.cache.layout.row_values());
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  DSV32_UNROLL for (int own = 0; own < kBoundHeads; own += kBoundWarps) {
    const int64_t h = first_head + own + warp;
    const float* latent = op.q_c + (t * op.n_heads + h) * rank;
    const float* rope = op.q_pe + t * op.q_pe_token_stride + h * op.q_pe_head_stride - rank;
    __nv_bfloat16* to = queries + (own + warp) * query_stride(n);
#pragma unroll 9
    for (int i = 2 * lane; i < n; i += 64) {
      float2 q = {0, 0};
      if (h < op.n_heads) q = i < rank ? float2{latent[i], latent[i + 1]} : float2{rope[i], rope[i + 1]};
      *reinterpret_cast<__nv_bfloat162*>(to + i) = __floats2bfloat162_rn(q.x, q.y);
    }
  }
}

// A lane's part of a tile of two spans' bounds: of each side 16 values of the spans lane / 4 and lane / 4 +
// 8, and the steps of the spans lane % 4 * 2 + e and those + 8, whose sums are the lane's.
struct BoundsOfTile {
  uint2 sides[2][2];  // spans, largest | smallest
  float steps[2][2];
};

// Where a warp's bounds lie: of the spans as in BoundsOfTile.
struct BoundsOfSpans {
  const uint8_t* values[2];
  const float* steps[2][2];

  DSV32_DEVICE BoundsOfSpans(const QuestScores& op, int64_t seq, int64_t first, int64_t n_spans, int lane) {
    const auto find = [&](int64_t span) {
      return span_bounds(op.cache, seq, min(first + span, n_spans - 1));
    };
    DSV32_UNROLL for (int s = 0; s < 2; ++s) {
      values[s] = find(lane / 4 + 8 * s);
      DSV32_UNROLL for (int e = 0; e < 2; ++e) steps[s][e] =
          reinterpret_cast<const float*>(find(8 * s + lane % 4 * 2 + e) + op.cache.layout.steps_offset());
    }
  }
  // own: the first of the lane's 16 values; is_there: whether they are in the tile.
  DSV32_DEVICE BoundsOfTile load(int tile, int own, bool is_there, int n) const {
    BoundsOfTile bounds = {};
    DSV32_UNROLL for (int s = 0; s < 2; ++s) {
      DSV32_UNROLL for (int side = 0; side < 2; ++side) if (is_there) bounds.sides[s][side] =
          *reinterpret_cast<const uint2*>(values[s] + (side * n + own) / 2);
      DSV32_UNROLL for (int e = 0; e < 2; ++e) bounds.steps[s][e] = steps[s][e][tile];
    }
    return bounds;
  }
};

// sums [2 x 16 heads, 2 x 8 spans] = products of a tile of queries and bounds, in steps. Value 16 (lane % 4)
// + 4 j + i of the tile is in product j of the lane: whole words of queries and bytes of bounds.
DSV32_DEVICE void multiply_tile(const __nv_bfloat16* queries, int n, int own, bool is_there,
                                const uint2 (&sides)[2][2], int lane, float (&sums)[2][2][4]) {
  uint4 q[4][2] = {};  // of head lane / 4 + 8 i: 16 values
  DSV32_UNROLL for (int i = 0; i < 4; ++i) {
    const auto* from = reinterpret_cast<const uint4*>(queries + (lane / 4 + 8 * i) * query_stride(n) + own);
    if (is_there) q[i][0] = from[0], q[i][1] = from[1];
  }
  DSV32_UNROLL for (int j = 0; j < 4; ++j) {
    uint32_t words[4][2];  // a head's values 4 j ... 4 j + 3
    DSV32_UNROLL for (int i = 0; i < 4; ++i) {
      const uint4& half = q[i][j / 2];
      words[i][0] = j % 2 ? half.z : half.x, words[i][1] = j % 2 ? half.w : half.y;
    }
    DSV32_UNROLL for (int side = 0; side < 2; ++side) {
      DSV32_UNROLL for (int m = 0; m < 2; ++m) {
        uint32_t a[4];
        DSV32_UNROLL for (int i = 0; i < 4; ++i) {
          const __nv_bfloat162 x = as_bfloat2(words[2 * m + i % 2][i / 2]), zero = __float2bfloat162_rn(0);
          a[i] = as_word(side == 0 ? __hmax2(x, zero) : __hmin2(x, zero));
        }
        DSV32_UNROLL for (int s = 0; s < 2; ++s) {
          const uint32_t half = (j < 2 ? sides[s][side].x : sides[s][side].y) >> j % 2 * 16;
          multiply_bf16(sums[m][s], a, steps_to_bf16(half & 255), steps_to_bf16(half >> 8 & 255));
        }
      }
    }
  }
}

// bounds[t, h, p] = scale * (q+ . largest[p] + q- . smallest[p]), q+ and q- the positive and the negative
// part. A block has a token, 32 heads and 128 spans; a warp multiplies 32 heads by 16 spans. Queries lie in
// shared memory as bf16; steps are decoded to bf16 in registers. A tile is loaded while the one before is
// multiplied. Bound by latency: 30 us at 32K and 32 at 128K (H100, 2026-11-27), where decoding takes about
// 240 instructions for 64 values of 32 heads and 16 spans.
__global__ void __launch_bounds__(32 * kBoundWarps, 2) bound_spans_kernel(QuestScores op) {
  extern __shared__ __align__(16) uint8_t room[];
  auto* queries = reinterpret_cast<__nv_bfloat16*>(room);
  const CacheLayout& layout = op.cache.layout;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int n = static_cast<int>(layout.row_values()), rank = static_cast<int>(layout.kv_lora_rank),
            n_tiles = static_cast<int>(layout.n_steps());
  const int n_latent_tiles = (rank + int{kBoundTile} - 1) / int{kBoundTile};
  wait_for_inputs();
  const int64_t t = blockIdx.z, n_spans = op.step.pos[t] / kSpanTokens, seq = op.step.seq[t];
  const int64_t first_head = int64_t{blockIdx.y} * kBoundHeads,
                first_span = int64_t{blockIdx.x} * kBlockSpans, first = first_span + warp * kWarpSpans;
  if (first_span >= n_spans) return;
  const BoundsOfSpans bounds(op, seq, first, n_spans, lane);
  const auto first_of = [&](int tile) {
    return tile < n_latent_tiles ? tile * int{kBoundTile} : rank + (tile - n_latent_tiles) * int{kBoundTile};
  };
  const auto own_of = [&](int tile) { return first_of(tile) + lane % 4 * 16; };
  const auto is_there = [&](int tile) { return own_of(tile) < (tile < n_latent_tiles ? rank : n); };
  const auto load = [&](int tile) { return bounds.load(tile, own_of(tile), is_there(tile), n); };
  BoundsOfTile next = load(0);
  load_queries(op, t, first_head, queries);
  __syncthreads();
  float totals[2][2][4] = {};
  DSV32_NO_UNROLL for (int tile = 0; tile < n_tiles; ++tile) {
    const BoundsOfTile here = next;
    next = load(min(tile + 1, n_tiles - 1));
    float sums[2][2][4] = {};
    multiply_tile(queries, n, own_of(tile), is_there(tile), here.sides, lane, sums);
    DSV32_UNROLL for (int s = 0; s < 2; ++s) {
      DSV32_UNROLL for (int e = 0; e < 2; ++e) {
        DSV32_UNROLL for (int i = 0; i < 4; ++i) totals[i / 2][s][i % 2 * 2 + e] +=
            sums[i / 2][s][i % 2 * 2 + e] * here.steps[s][e];
      }
    }
  }
  DSV32_UNROLL for (int s = 0; s < 2; ++s) {
    DSV32_UNROLL for (int e = 0; e < 2; ++e) {
      const int64_t span = first + 8 * s + lane % 4 * 2 + e;
      DSV32_UNROLL for (int i = 0; i < 4; ++i) {
        const int64_t h = first_head + lane / 4 + 8 * i;
        if (h < op.n_heads && span < n_spans)
          op.bounds[(t * op.n_heads + h) * op.scores_stride + span] =
              op.scale * totals[i / 2][s][i % 2 * 2 + e];
      }
    }
  }
}

constexpr int kShareThreads = 512;

// shares[t, h] = (the largest bound, 1 / sum over p of e^(bound - largest)). A block has a token and a head.
// Bound by latency, and at 128K by 4 MB of bounds in L2.
__global__ void __launch_bounds__(kShareThreads) head_shares_kernel(QuestScores op, float2* shares) {
  __shared__ float partial[kShareThreads / 32];
  const int64_t t = blockIdx.y, h = blockIdx.x, n_spans = op.step.pos[t] / kSpanTokens;
  wait_for_inputs();
  const float* bounds = op.bounds + (t * op.n_heads + h) * op.scores_stride;
  float largest = -INFINITY;
  for (int64_t p = threadIdx.x; p < n_spans; p += kShareThreads) largest = fmaxf(largest, bounds[p]);
  largest = warp_max(largest);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = largest;
  __syncthreads();
  DSV32_UNROLL for (const float of : partial) largest = fmaxf(largest, of);
  float sum = 0;
  for (int64_t p = threadIdx.x; p < n_spans; p += kShareThreads) sum += expf(bounds[p] - largest);
  sum = block_sum(sum);
  if (threadIdx.x == 0) shares[t * op.n_heads + h] = {largest, 1.0f / sum};
}

constexpr int kSumSpans = 32, kSumParts = 8;  // of a block: spans, and parts of the heads

// scores[t, p] = sum over h of e^(bound - largest) / sum. A block has a token and 32 spans; each of 8 warps
// adds every eighth head, then the warps' sums are added in order.
__global__ void __launch_bounds__(kSumSpans* kSumParts)
    sum_shares_kernel(QuestScores op, const float2* shares) {
  __shared__ float sums[kSumParts][kSumSpans];
  const int lane = static_cast<int>(threadIdx.x) % kSumSpans,
            part = static_cast<int>(threadIdx.x) / kSumSpans;
  const int64_t t = blockIdx.y, span = int64_t{blockIdx.x} * kSumSpans + lane;
  const bool is_there = span < op.step.pos[t] / kSpanTokens;
  wait_for_inputs();
  float sum = 0;
#pragma unroll 8
  for (int64_t h = part; h < op.n_heads; h += kSumParts) {
    const float2 share = shares[t * op.n_heads + h];
    if (is_there) sum += expf(op.bounds[(t * op.n_heads + h) * op.scores_stride + span] - share.x) * share.y;
  }
  sums[part][lane] = sum;
  __syncthreads();
  if (part > 0 || !is_there) return;
  sum = 0;
  DSV32_UNROLL for (int p = 0; p < kSumParts; ++p) sum += sums[p][lane];
  op.scores[t * op.scores_stride + span] = sum;
}

}  // namespace

void store_bounds(const StepTokens& step, const CacheView& cache, const Launch& launch) {
  const CacheLayout& layout = cache.layout;
  if (step.n_tokens == 0) return;
  if (layout.kv_lora_rank % 16 != 0 || layout.qk_rope_head_dim % 16 != 0)
    fail(ErrorKind::usage, "--select quest: on a GPU the latent's sizes must be multiples of 16");
  launch_kernel(store_bounds_kernel,
                {step.n_tokens, kBoundThreads, (2 * layout.row_values() + layout.n_steps()) * 4}, launch,
                step, cache);
}

void quest_scores(const QuestScores& op, const Launch& launch) {
  const int64_t n_tokens = op.step.n_tokens, n_spans = op.step.max_pos / kSpanTokens;
  if (n_tokens == 0 || n_spans == 0) return;
  if (op.scores_stride < n_spans || n_tokens > 65535)
    fail(ErrorKind::internal, format("quest_scores: rows of %ld scores for %ld spans, %ld tokens",
                                     op.scores_stride, n_spans, n_tokens));
  auto* shares = launch.workspace->take<float2>(n_tokens * op.n_heads);
  const int64_t n_query_bytes = kBoundHeads * (op.cache.layout.row_values() + 8) * 2;
  launch_kernel(
      bound_spans_kernel,
      {{ceil_div(n_spans, int64_t{kBlockSpans}), ceil_div(op.n_heads, int64_t{kBoundHeads}), n_tokens},
       32 * kBoundWarps,
       n_query_bytes},
      launch, op);
  launch_kernel(head_shares_kernel, {{op.n_heads, n_tokens}, kShareThreads}, launch, op, shares);
  launch_kernel(sum_shares_kernel, {{ceil_div(n_spans, int64_t{kSumSpans}), n_tokens}, kSumSpans * kSumParts},
                launch, op, shares);
}

}  // namespace dsv32::cuda
