// How selected rows come into the stages of mla_hopper.cu, as fp16: four warps, 16 rows of a block each.
//
// fp8 and bf16 rows are widened on their way; rows that widen_rows_kernel has made fp16 ahead are copied, and
// the copies tell by themselves that they have come. The same conversion either way, so the same bits.
#pragma once

#include "cuda/mla.cuh"

namespace dsv32::cuda {

constexpr int kGroupThreads = 128;  // four warps, what a product takes

struct Barriers {
  uint64_t full[2], empty[2];  // of a stage
  uint64_t weighed;            // a block's weights are there; taken when its stage is empty
};

// What a CTA computes: of the token's n selected rows the blocks first, first + step, ... of 64.
struct Share {
  int64_t t;
  int first_head, n;
  int first, step, n_blocks;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr int kFillRows = kBlockRows / 4;  // rows of a block that one of the filling warps brings in
constexpr int kAtOnce = 8;                 // of these, rows that it has under way together

// Sixteen bytes of a row that L2 keeps for other tokens and heads.
__device__ __forceinline__ uint4 load_chunk(const uint8_t* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

// Two e4m3 values as fp16, times their tile's scale.
__device__ __forceinline__ uint32_t e4m3_to_f16(uint32_t pair, __half2 scale) {
  const __half2 value =
      __hmul2(__half2(__nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(pair), __NV_E4M3)), scale);
  return *reinterpret_cast<const uint32_t*>(&value);
}

// Sixteen e4m3 values, chunk `lane` of a row, as two fp16 chunks; `scales` are the row's four. Exact while a
// tile's largest value is from 448 * 2^-16 to 448 * 2^7: smaller tiles err by 2^-25 at most, larger ones,
// which a normalised latent does not have, are taken for the largest that fp16 holds.
__device__ __forceinline__ void widen_fp8(const uint4& codes, uint32_t scales, int lane, uint4& low,
                                          uint4& high) {
  const uint32_t code = min(scales >> (lane / 8 * 8) & 0xffu, 127u + 7u);
  const __half2 scale = __float2half2_rn(from_ue8m0(static_cast<uint8_t>(code)));
  const uint32_t in[4] = {codes.x, codes.y, codes.z, codes.w};
  uint32_t out[8];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    out[2 * i] = e4m3_to_f16(in[i] & 0xffffu, scale);
    out[2 * i + 1] = e4m3_to_f16(in[i] >> 16, scale);
  }
  low = {out[0], out[1], out[2], out[3]}, high = {out[4], out[5], out[6], out[7]};
}

__device__ __forceinline__ void store_fp8(const uint4& codes, uint32_t scales, uint8_t* k, int row,
                                          int lane) {
  uint4 low, high;
  widen_fp8(codes, scales, lane, low, high);
  // Lanes 4..7 of each eight store their second half first: eight lanes then meet eight different groups of
  // banks.
  const int odd = lane / 4 % 2;
  *reinterpret_cast<uint4*>(k + chunk_place(2 * lane + odd, row, kBlockRows)) = odd ? high : low;
  *reinterpret_cast<uint4*>(k + chunk_place(2 * lane + 1 - odd, row, kBlockRows)) = odd ? low : high;
}

// Eight bf16 values: exact from 2^-17 to 65504; smaller ones err by 2^-25 at most, larger ones become 65504.
__device__ __forceinline__ uint4 bf16_to_f16(const uint4& from) {
  const auto convert = [](uint32_t pair) {
    return pack_f16(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
  };
  return {convert(from.x), convert(from.y), convert(from.z), convert(from.w)};
}

// What a filling lane has under way of fp8 rows: its chunk of each, and a chunk of the k_pe of every fourth.
struct Arriving {
  uint4 latent[kAtOnce], rope[kAtOnce / 4];
};

// Asks for chunk i of the rows from `first` of the warp's 16 on, whose places lanes 0 ... 15 know.
__device__ __forceinline__ void load_latent(Arriving& arriving, int i, const uint8_t* rows, int64_t id,
                                            int first, int lane) {
  const int64_t row = __shfl_sync(0xffffffffu, id, first + i);
  arriving.latent[i] = load_chunk(rows + row * kRowBytes<KvType::fp8> + lane * 16);
}
__device__ __forceinline__ void load_rope(Arriving& arriving, int i, const uint8_t* rows, int64_t id,
                                          int first, int lane) {
  const int64_t row = __shfl_sync(0xffffffffu, id, first + 4 * i + lane / 8);
  arriving.rope[i] = load_chunk(rows + row * kRowBytes<KvType::fp8> + kRank + lane % 8 * 16);
}

// Widens what has arrived of the rows from `first` on, and asks for the rows from next_first on in its place.
__device__ __forceinline__ void exchange_rows(Arriving& arriving, uint32_t scales, uint8_t* k, int warp,
                                              int first, const uint8_t* rows, int64_t next_id, int next_first,
                                              int lane) {
  const int first_row = warp * kFillRows + first;
#pragma unroll
  for (int i = 0; i < kAtOnce; ++i) {
    store_fp8(arriving.latent[i], __shfl_sync(0xffffffffu, scales, first + i), k, first_row + i, lane);
    load_latent(arriving, i, rows, next_id, next_first, lane);
  }
#pragma unroll
  for (int i = 0; i < kAtOnce / 4; ++i) {
    *reinterpret_cast<uint4*>(k + chunk_place(kRank / 8 + lane % 8, first_row + 4 * i + lane / 8,
                                              kBlockRows)) = bf16_to_f16(arriving.rope[i]);
    load_rope(arriving, i, rows, next_id, next_first, lane);
  }
}

// What the lane wrote, the products of those who wait for the stage see.
__device__ __forceinline__ void tell_full(uint64_t* full, int lane) {
  fence_async_proxy();
  __syncwarp();
  if (lane == 0) arrive(full);
}

// fp8: kAtOnce rows are under way while those before are widened, across blocks too. A row's scales hang on
// its page, and that on its position: each link of that chain is loaded a step or a block ahead.
__device__ __forceinline__ void fill_fp8(const Attend& op, const Plan& plan, const Share& share,
                                         uint8_t* stages, Barriers* barriers, int warp, int lane) {
  const int64_t seq = op.step.seq[share.t];
  const int lane_row = warp * kFillRows + lane % kFillRows;
  const auto find = [&](int block) { return find_row(op, share.t, block * kBlockRows + lane_row, share.n); };
  RowPlace place = find(share.first), next = find(share.first + share.step);
  // What is taken for rows past the end: their weights are 0, but a row that nobody wrote might have NaN.
  const int64_t some_id = max(find_row(op, share.t, 0, share.n).id, int64_t{0});
  const auto id_of = [&](const RowPlace& of) { return of.id < 0 ? some_id : of.id; };
  uint32_t scales = load_scales(op, plan.page_bytes, find_page(op, seq, place), place);
  Arriving arriving;
#pragma unroll
  for (int i = 0; i < kAtOnce; ++i) load_latent(arriving, i, plan.rows, id_of(place), 0, lane);
#pragma unroll
  for (int i = 0; i < kAtOnce / 4; ++i) load_rope(arriving, i, plan.rows, id_of(place), 0, lane);
  for (int block = share.first, turn = 0; block < share.n_blocks; block += share.step, ++turn) {
    uint8_t* k = stages + turn % 2 * kBlockBytes;
    const int32_t next_page = find_page(op, seq, next);
    const RowPlace after = find(block + 2 * share.step);
    uint32_t next_scales = 0;
    wait_for_phase(&barriers->empty[turn % 2], turn / 2 % 2 ^ 1);
#pragma unroll
    for (int first = 0; first < kFillRows; first += kAtOnce) {
      const bool is_last = first + kAtOnce == kFillRows;
      if (is_last) next_scales = load_scales(op, plan.page_bytes, next_page, next);
      exchange_rows(arriving, scales, k, warp, first, plan.rows, id_of(is_last ? next : place),
                    is_last ? 0 : first + kAtOnce, lane);
    }
    tell_full(&barriers->full[turn % 2], lane);
    place = next, next = after, scales = next_scales;
  }
}

// The rows that start_rows() has brought, each chunk by the lane that copied it.
__device__ __forceinline__ void convert_rows(uint8_t* k, int first_row, int lane) {
#pragma unroll 1
  for (int i = 0; i < kFillRows; i += 4) {
    uint8_t* place = k + chunk_place(lane % 8, first_row + i + lane / 8, kBlockRows);
    uint4 chunks[kRowLines];
#pragma unroll
    for (int line = 0; line < kRowLines; ++line)
      chunks[line] = *reinterpret_cast<const uint4*>(place + line * kBlockRows * kLine);
#pragma unroll
    for (int line = 0; line < kRowLines; ++line)
      *reinterpret_cast<uint4*>(place + line * kBlockRows * kLine) = bf16_to_f16(chunks[line]);
  }
}

__device__ __forceinline__ void fill_bf16(const Attend& op, const Plan& plan, const Share& share,
                                          uint8_t* stages, Barriers* barriers, int warp, int lane) {
  const int lane_row = warp * kFillRows + lane % kFillRows;
  RowPlace place = find_row(op, share.t, share.first * kBlockRows + lane_row, share.n);
  for (int block = share.first, turn = 0; block < share.n_blocks; block += share.step, ++turn) {
    wait_for_phase(&barriers->empty[turn % 2], turn / 2 % 2 ^ 1);
    uint8_t* k = stages + turn % 2 * kBlockBytes;
    start_rows<KvType::bf16, kFillRows>(plan.rows, place.id, k, warp * kFillRows, lane);
    place = find_row(op, share.t, (block + share.step) * kBlockRows + lane_row, share.n);
    wait_all_copies();
    convert_rows(k, warp * kFillRows, lane);
    tell_full(&barriers->full[turn % 2], lane);
  }
}

// Rows that are fp16 already: copies tell by themselves that they have come.
__device__ __forceinline__ void fill_f16(const Attend& op, const Plan& plan, const Share& share,
                                         uint8_t* stages, Barriers* barriers, int warp, int lane) {
  const int lane_row = warp * kFillRows + lane % kFillRows;
  const auto find = [&](int block) -> int64_t {
    const int j = block * kBlockRows + lane_row;
    return j < share.n ? op.selected[share.t * op.topk + j] : -1;
  };
  int64_t pos = find(share.first);
  for (int block = share.first, turn = 0; block < share.n_blocks; block += share.step, ++turn) {
    const int64_t next = find(block + share.step);
    wait_for_phase(&barriers->empty[turn % 2], turn / 2 % 2 ^ 1);
    start_rows<KvType::bf16, kFillRows>(plan.wide_rows, pos, stages + turn % 2 * kBlockBytes,
                                        warp * kFillRows, lane);
    arrive_when_copied(&barriers->full[turn % 2]);
    pos = next;
  }
  wait_all_copies();
}

#endif

}  // namespace dsv32::cuda
