// Loads queries and selected rows into the shared memory of Hopper's kernels as fp16. The multiplying warps
// load queries; four warps fill a pipe with rows, 16 rows of a block each. fp8 and bf16 rows are converted on
// their way; rows that widen_rows_kernel converted before are copied. Both conversions give the same bits.
#pragma once

#include "cuda/mla.cuh"

namespace dsv32::cuda {

constexpr int kGroupThreads = 128;  // four warps: one product's threads
constexpr int kHeads = 64;          // of one product

// A CTA's work: blocks first, first + step, ... of 64 of the token's n selected rows, from head first_head
// on.
struct Share {
  int64_t t;
  int first_head, n;
  int first, step, n_blocks;
};

// CTAs are numbered by token, then by split, then by tile of n_heads heads.
DSV32_DEVICE Share share_of(const Attend& op, const Plan& plan, int n_heads) {
  Share share;
  share.t = blockIdx.x / plan.n_head_tiles / plan.n_splits;
  share.first_head = blockIdx.x % plan.n_head_tiles * n_heads;
  share.first = blockIdx.x / plan.n_head_tiles % plan.n_splits, share.step = plan.n_splits;
  share.n = op.n_selected[share.t], share.n_blocks = (share.n + kBlockRows - 1) / kBlockRows;
  return share;
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr int kFillRows = kBlockRows / 4;  // rows of a block that one filling warp loads
constexpr int kAtOnce = 8;                 // of these rows, how many it loads at once

// ---- weights ----

// A block's weights 2^(score - zero) of head h (of the thread's two), as pairs of fp16. `sum` adds them as
// rounded, so that normalised they add up to one.
DSV32_DEVICE void weigh(const float (&s)[8][4], int h, float zero, uint32_t (&pairs)[8][2], float& sum) {
  DSV32_UNROLL for (int i = 0; i < 8; ++i) {
    pairs[i][h] = pack_f16(exp2_fast(s[i][2 * h] - zero), exp2_fast(s[i][2 * h + 1] - zero));
    const float2 weights = unpack_f16(pairs[i][h]);
    sum += weights.x + weights.y;
  }
}

// An operand's weights times the factors of the thread's two heads.
DSV32_DEVICE void scale_weights(const uint4& weights, const __half2 (&factors)[2], uint32_t (&a)[4]) {
  const uint32_t from[4] = {weights.x, weights.y, weights.z, weights.w};
  DSV32_UNROLL for (int i = 0; i < 4; ++i) a[i] = as_word(__hmul2(as_half2(from[i]), factors[i % 2]));
}

// ---- queries ----

// A warp loads the queries of heads first_head + begin ... first_head + end - 1 as fp16 into q [kHeads, kRank
// + kRope], each with its own unit, kQueries at once; a lane has chunks `lane`, lane + 32 and lane + 64.
template <int kQueries>
DSV32_DEVICE void load_queries_f16(const Attend& op, int64_t t, int first_head, uint8_t* q, float* units,
                                   int begin, int end, int lane) {
  constexpr int n_chunks = (kRowLines * 8 + 31) / 32;
  DSV32_NO_UNROLL for (int first = begin; first < end; first += kQueries) {
    alignas(16) float values[kQueries][n_chunks][8] = {};
    DSV32_UNROLL for (int h = 0; h < kQueries; ++h) {
      DSV32_UNROLL for (int c = 0; c < n_chunks; ++c)
          load_query_chunk(op, t, first_head + first + h, lane + 32 * c, values[h][c]);
    }
    DSV32_UNROLL for (int h = 0; h < kQueries; ++h) {
      float largest = 0;
      DSV32_UNROLL for (int c = 0; c < n_chunks; ++c) {
        DSV32_UNROLL for (int i = 0; i < 8; ++i) largest = fmaxf(largest, fabsf(values[h][c][i]));
      }
      const float unit = unit_of(warp_max(largest)), inverse = inverse_of_power(unit);
      if (lane == 0) units[first + h] = unit;
      DSV32_UNROLL for (int c = 0; c < n_chunks; ++c) {
        alignas(16) __half2 pairs[4];
        DSV32_UNROLL for (int i = 0; i < 4; ++i)  // not saturating: an infinite query must stay visible
            pairs[i] = __floats2half2_rn(values[h][c][2 * i] * inverse, values[h][c][2 * i + 1] * inverse);
        if (lane + 32 * c < kRowLines * 8)
          *reinterpret_cast<uint4*>(q + chunk_place(lane + 32 * c, first + h, kHeads)) =
              *reinterpret_cast<const uint4*>(pairs);
      }
    }
  }
}

// ---- rows ----

// Loads sixteen bytes of a row; L2 keeps them for other tokens and heads.
DSV32_DEVICE uint4 load_chunk(const uint8_t* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

// Two e4m3 values as fp16, times their tile's scale.
DSV32_DEVICE uint32_t e4m3_to_f16(uint32_t pair, __half2 scale) {
  return as_word(__hmul2(
      __half2(__nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(pair), __NV_E4M3)), scale));
}

// Sixteen e4m3 values, chunk `lane` of a row, as two fp16 chunks; `scales` are the row's four. Exact if the
// tile's largest value lies between 448 * 2^-16 and 448 * 2^7. Smaller tiles err by 2^-25 at most; larger
// ones saturate, but normalised latents have none.
DSV32_DEVICE void widen_fp8(const uint4& codes, uint32_t scales, int lane, uint4& low, uint4& high) {
  const uint32_t code = min(scales >> (lane / 8 * 8) & 0xffu, 127u + 7u);
  const __half2 scale = __float2half2_rn(from_ue8m0(static_cast<uint8_t>(code)));
  const uint32_t in[4] = {codes.x, codes.y, codes.z, codes.w};
  uint32_t out[8];
  DSV32_UNROLL for (int i = 0; i < 4; ++i) {
    out[2 * i] = e4m3_to_f16(in[i] & 0xffffu, scale);
    out[2 * i + 1] = e4m3_to_f16(in[i] >> 16, scale);
  }
  low = {out[0], out[1], out[2], out[3]}, high = {out[4], out[5], out[6], out[7]};
}

DSV32_DEVICE void store_fp8(const uint4& codes, uint32_t scales, uint8_t* k, int row, int lane) {
  uint4 low, high;
  widen_fp8(codes, scales, lane, low, high);
  store_chunks(low, high, k, kBlockRows, row, lane);
}

// Eight bf16 values: exact from 2^-17 to 65504; smaller values err by 2^-25 at most, larger ones become
// 65504.
DSV32_DEVICE uint4 bf16_to_f16(const uint4& from) {
  const auto convert = [](uint32_t pair) {
    return pack_f16(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
  };
  return {convert(from.x), convert(from.y), convert(from.z), convert(from.w)};
}

// A filling lane's loads of fp8 rows under way: its chunk of each row, and a chunk of k_pe of every fourth
// row.
struct Arriving {
  uint4 latent[kAtOnce], rope[kAtOnce / 4];
};

// Starts load i of the rows from `first` (of the warp's 16) on; lanes 0 ... 15 have the rows' ids.
DSV32_DEVICE void load_latent(Arriving& arriving, int i, const uint8_t* rows, int64_t id, int first,
                              int lane) {
  const int64_t row = __shfl_sync(0xffffffffu, id, first + i);
  arriving.latent[i] = load_chunk(rows + row * kRowBytes<KvType::fp8> + lane * 16);
}
DSV32_DEVICE void load_rope(Arriving& arriving, int i, const uint8_t* rows, int64_t id, int first, int lane) {
  const int64_t row = __shfl_sync(0xffffffffu, id, first + 4 * i + lane / 8);
  arriving.rope[i] = load_chunk(rows + row * kRowBytes<KvType::fp8> + kRank + lane % 8 * 16);
}

// Stores the arrived rows from `first` on as fp16, and starts loading the rows from next_first on instead.
DSV32_DEVICE void exchange_rows(Arriving& arriving, uint32_t scales, uint8_t* k, int warp, int first,
                                const uint8_t* rows, int64_t next_id, int next_first, int lane) {
  const int first_row = warp * kFillRows + first;
  DSV32_UNROLL for (int i = 0; i < kAtOnce; ++i) {
    store_fp8(arriving.latent[i], __shfl_sync(0xffffffffu, scales, first + i), k, first_row + i, lane);
    load_latent(arriving, i, rows, next_id, next_first, lane);
  }
  DSV32_UNROLL for (int i = 0; i < kAtOnce / 4; ++i) {
    *reinterpret_cast<uint4*>(k + chunk_place(kRank / 8 + lane % 8, first_row + 4 * i + lane / 8,
                                              kBlockRows)) = bf16_to_f16(arriving.rope[i]);
    load_rope(arriving, i, rows, next_id, next_first, lane);
  }
}

// Marks a stage as full for one warp: products after the wait for the stage see the warp's stores.
DSV32_DEVICE void tell_full(uint64_t* full, int lane) {
  fence_async_proxy();
  __syncwarp();
  if (lane == 0) arrive(full);
}

// Notes a row's slot and scales for the kernel that adds values (mla_decode.cu).
DSV32_DEVICE void note_row(const Plan& plan, const Share& share, int block, int row, const RowPlace& place,
                           uint32_t scales) {
  if (plan.found)
    plan.found[(share.t * plan.n_most_blocks + block) * kBlockRows + row] = {static_cast<int32_t>(place.id),
                                                                             scales};
}

// fp8: kAtOnce rows are under way while the previous ones are widened, also across blocks. A row's scales
// depend on its page, the page on its position: each is loaded a step or a block ahead.
template <typename Ring>
DSV32_DEVICE void fill_fp8(const Attend& op, const Plan& plan, const Share& share, uint8_t* stages,
                           Ring* ring, int warp, int lane) {
  const int64_t seq = op.step.seq[share.t];
  const int lane_row = warp * kFillRows + lane % kFillRows;
  const auto find = [&](int block) { return find_row(op, share.t, block * kBlockRows + lane_row, share.n); };
  RowPlace place = find(share.first), next = find(share.first + share.step);
  // Replaces rows past the end: their weights are 0, but an unwritten row might hold NaN.
  const int64_t some_id = max(find_row(op, share.t, 0, share.n).id, int64_t{0});
  const auto id_of = [&](const RowPlace& of) { return of.id < 0 ? some_id : of.id; };
  uint32_t scales = load_scales(op, plan.page_bytes, find_page(op, seq, place), place);
  Arriving arriving;
  DSV32_UNROLL for (int i = 0; i < kAtOnce; ++i) load_latent(arriving, i, plan.rows, id_of(place), 0, lane);
  DSV32_UNROLL for (int i = 0; i < kAtOnce / 4; ++i) load_rope(arriving, i, plan.rows, id_of(place), 0, lane);
  for (int block = share.first, turn = 0; block < share.n_blocks; block += share.step, ++turn) {
    uint8_t* k = stages + Ring::stage(turn) * kBlockBytes;
    const int32_t next_page = find_page(op, seq, next);
    const RowPlace after = find(block + 2 * share.step);
    uint32_t next_scales = 0;
    ring->wait_empty(turn);
    DSV32_UNROLL for (int first = 0; first < kFillRows; first += kAtOnce) {
      const bool is_last = first + kAtOnce == kFillRows;
      if (is_last) next_scales = load_scales(op, plan.page_bytes, next_page, next);
      exchange_rows(arriving, scales, k, warp, first, plan.rows, id_of(is_last ? next : place),
                    is_last ? 0 : first + kAtOnce, lane);
    }
    tell_full(&ring->full[Ring::stage(turn)], lane);
    place = next, next = after, scales = next_scales;
  }
}

// Converts the rows that start_rows() copied; each lane converts the chunks that it copied.
template <int kRows>
DSV32_DEVICE void convert_rows(uint8_t* k, int first_row, int lane) {
  DSV32_NO_UNROLL for (int i = 0; i < kRows; i += 4) {
    uint8_t* place = k + chunk_place(lane % 8, first_row + i + lane / 8, kBlockRows);
    DSV32_UNROLL for (int first = 0; first < kRowLines; first += 3) {
      uint4 chunks[3];
      DSV32_UNROLL for (int line = 0; line < 3; ++line) chunks[line] =
          *reinterpret_cast<const uint4*>(place + (first + line) * kBlockRows * kLine);
      DSV32_UNROLL for (int line = 0; line < 3; ++line) *
          reinterpret_cast<uint4*>(place + (first + line) * kBlockRows * kLine) = bf16_to_f16(chunks[line]);
    }
  }
}

template <int kRows = kFillRows, typename Ring>
DSV32_DEVICE void fill_bf16(const Attend& op, const Plan& plan, const Share& share, uint8_t* stages,
                            Ring* ring, int warp, int lane) {
  const int lane_row = warp * kRows + lane % kRows;
  RowPlace place = find_row(op, share.t, share.first * kBlockRows + lane_row, share.n);
  for (int block = share.first, turn = 0; block < share.n_blocks; block += share.step, ++turn) {
    ring->wait_empty(turn);
    uint8_t* k = stages + Ring::stage(turn) * kBlockBytes;
    start_rows<KvType::bf16, kRows>(plan.rows, place.id, k, warp * kRows, lane);
    if (lane < kRows) note_row(plan, share, block, lane_row, place, 0);
    place = find_row(op, share.t, (block + share.step) * kBlockRows + lane_row, share.n);
    wait_all_copies();
    convert_rows<kRows>(k, warp * kRows, lane);
    tell_full(&ring->full[Ring::stage(turn)], lane);
  }
}

// Rows that are fp16 already: the copies themselves arrive at the barrier.
template <typename Ring>
DSV32_DEVICE void fill_f16(const Attend& op, const Plan& plan, const Share& share, uint8_t* stages,
                           Ring* ring, int warp, int lane) {
  const int lane_row = warp * kFillRows + lane % kFillRows;
  const auto find = [&](int block) -> int64_t {
    const int j = block * kBlockRows + lane_row;
    return j < share.n ? op.selected[share.t * op.topk + j] : -1;
  };
  int64_t pos = find(share.first);
  for (int block = share.first, turn = 0; block < share.n_blocks; block += share.step, ++turn) {
    const int64_t next = find(block + share.step);
    ring->wait_empty(turn);
    start_rows<KvType::bf16, kFillRows>(plan.f16_rows, pos, stages + Ring::stage(turn) * kBlockBytes,
                                        warp * kFillRows, lane);
    arrive_when_copied(&ring->full[Ring::stage(turn)]);
    pos = next;
  }
  wait_all_copies();
}

#endif

// ---- data between decode's two kernels (mla_decode.cu) ----

// Weights are 2^(score - power + kDecodePower): a block's largest lies between 2^14 and 2^15, and weights
// down to 2^-28 of it keep all their bits. The factor cancels when sums are divided by the weights' sum.
constexpr float kDecodePower = 15;

// For a warp's 16 heads and a block, a thread has kOperandLines operands, each of the product with 16 rows,
// and one more line (float4): its two heads' powers and the sums of their weights.
constexpr int kOperandLines = kBlockRows / 16, kWeightLines = kOperandLines + 1;

// The kernels for many tokens have groups of four multiplying warps, 64 heads each, and kFillWarps filling
// warps.
constexpr int kFillWarps = 8;
constexpr int threads_of(int n_groups) { return n_groups * kGroupThreads + kFillWarps * 32; }

constexpr int64_t weights_of(int64_t n_head_warps) { return n_head_warps * kWeightLines * 32; }

}  // namespace dsv32::cuda
