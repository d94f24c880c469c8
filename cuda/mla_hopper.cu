// Sparse MLA by Hopper's asynchronous products: a CTA takes 64 heads of a token, and in decode one of
// kHopperSplits shares of its rows.
//
// One group of four warps brings rows in and makes them fp16, two groups multiply. They meet at two stages of
// 64 rows each, whose barriers tell when a stage is full and when it is empty again, so that gathering hides
// behind the products. Fp16 gives queries and weights three bits more than bf16 would; what it lacks in range
// is made up for by a unit for each query (f16.cuh) and a factor for all weights.
#include <cmath>

#include "cuda/f16.cuh"
#include "cuda/mla.cuh"

namespace dsv32::cuda {
namespace {

constexpr int kHeads = 64;
constexpr int kGroupThreads = 128;  // four warps, what a product takes

struct Barriers {
  uint64_t full[2], empty[2];
};

// What a CTA computes: of the token's n selected rows the blocks first, first + step, ... of 64.
struct Share {
  int64_t t;
  int first_head, n;
  int first, step, n_blocks;
};
constexpr int kSharedBytes = kHeads * kRowLines * kLine + 2 * kBlockBytes + kHeads * kLine + 3 * kHeads * 4 +
                             static_cast<int>(sizeof(Barriers));
constexpr int kSharedBytesWanted = kSharedBytes + 1024;  // the arrays start at a multiple of 1024

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr int kGroupColumns = kRank / 2;   // of the output, for each of the two groups that multiply
constexpr int kFillRows = kBlockRows / 4;  // rows of a block that one of the filling warps brings in
constexpr int kAtOnce = 8;                 // of these, rows that it has under way together
constexpr int kQueriesAtOnce = 4;          // of a multiplying warp's eight
constexpr int kFillRegisters = 136,
              kProductRegisters = 184;  // 136 + 2 * 184 = 3 * 168, what the CTA starts with

// ---- instructions that C++ has no name for ----

// Among the two groups that multiply.
__device__ __forceinline__ void sync_products() { asm volatile("bar.sync 1, 256;" ::: "memory"); }

// Sixteen bytes of a row that L2 keeps for other tokens and heads.
__device__ __forceinline__ uint4 load_chunk(const uint8_t* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

// The B operand [16 rows, 256 values], a row's values side by side. 64 values are a line; the next 64 begin a
// column of lines further, the next 8 rows 1024 bytes further.
__device__ __forceinline__ uint64_t value_operand(uint32_t address) {
  return uint64_t{(address & 0x3ffffu) >> 4} | uint64_t{kBlockRows * kLine >> 4} << 16 |
         uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
}

// ---- filling the stages ----

// Two e4m3 values as fp16, times their tile's scale.
__device__ __forceinline__ uint32_t e4m3_to_f16(uint32_t pair, __half2 scale) {
  const __half2 value =
      __hmul2(__half2(__nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(pair), __NV_E4M3)), scale);
  return *reinterpret_cast<const uint32_t*>(&value);
}

// Sixteen e4m3 values, chunk `lane` of a row, to two fp16 chunks; `scales` are the row's four. Exact while a
// tile's largest value is from 448 * 2^-16 to 448 * 2^7: smaller tiles err by 2^-25 at most, larger ones,
// which a normalised latent does not have, are taken for the largest that fp16 holds.
__device__ __forceinline__ void store_fp8(const uint4& codes, uint32_t scales, uint8_t* k, int row,
                                          int lane) {
  const uint32_t code = min(scales >> (lane / 8 * 8) & 0xffu, 127u + 7u);
  const __half2 scale = __float2half2_rn(from_ue8m0(static_cast<uint8_t>(code)));
  const uint32_t in[4] = {codes.x, codes.y, codes.z, codes.w};
  uint32_t out[8];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    out[2 * i] = e4m3_to_f16(in[i] & 0xffffu, scale);
    out[2 * i + 1] = e4m3_to_f16(in[i] >> 16, scale);
  }
  // Lanes 4..7 of each eight store their second half first: eight lanes then meet eight different groups of
  // banks.
  const uint4 low = {out[0], out[1], out[2], out[3]}, high = {out[4], out[5], out[6], out[7]};
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

// Rows first ... first + kAtOnce - 1 of the warp's 16, whose places lanes 0 ... 15 know.
__device__ __forceinline__ Arriving load_rows(const uint8_t* rows, int64_t id, int first, int lane) {
  constexpr int row_bytes = kRowBytes<KvType::fp8>;
  Arriving arriving;
#pragma unroll
  for (int i = 0; i < kAtOnce; ++i) {
    const int64_t row = __shfl_sync(0xffffffffu, id, first + i);
    arriving.latent[i] = load_chunk(rows + row * row_bytes + lane * 16);
  }
#pragma unroll
  for (int i = 0; i < kAtOnce / 4; ++i) {
    const int64_t row = __shfl_sync(0xffffffffu, id, first + 4 * i + lane / 8);
    arriving.rope[i] = load_chunk(rows + row * row_bytes + kRank + lane % 8 * 16);
  }
  return arriving;
}

__device__ __forceinline__ void store_rows(const Arriving& arriving, uint32_t scales, uint8_t* k, int warp,
                                           int first, int lane) {
  const int first_row = warp * kFillRows + first;
#pragma unroll
  for (int i = 0; i < kAtOnce; ++i)
    store_fp8(arriving.latent[i], __shfl_sync(0xffffffffu, scales, first + i), k, first_row + i, lane);
#pragma unroll
  for (int i = 0; i < kAtOnce / 4; ++i)
    *reinterpret_cast<uint4*>(k + chunk_place(kRank / 8 + lane % 8, first_row + 4 * i + lane / 8,
                                              kBlockRows)) = bf16_to_f16(arriving.rope[i]);
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
  Arriving arriving = load_rows(plan.rows, id_of(place), 0, lane);
  for (int block = share.first, turn = 0; block < share.n_blocks; block += share.step, ++turn) {
    uint8_t* k = stages + turn % 2 * kBlockBytes;
    const int32_t next_page = find_page(op, seq, next);
    const RowPlace after = find(block + 2 * share.step);
    uint32_t next_scales = 0;
    wait_for_phase(&barriers->empty[turn % 2], turn / 2 % 2 ^ 1);
#pragma unroll
    for (int first = 0; first < kFillRows; first += kAtOnce) {
      const bool is_last = first + kAtOnce == kFillRows;
      const Arriving following =
          load_rows(plan.rows, id_of(is_last ? next : place), is_last ? 0 : first + kAtOnce, lane);
      if (is_last) next_scales = load_scales(op, plan.page_bytes, next_page, next);
      store_rows(arriving, scales, k, warp, first, lane);
      arriving = following;
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

// ---- multiplying ----

// Eight values of a head's query, to an aligned place; zeros past the last chunk and head.
__device__ __forceinline__ void load_query_chunk(const Attend& op, int64_t t, int64_t head, int chunk,
                                                 float (&values)[8]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) values[i] = 0;
  if (head >= op.n_heads || chunk >= kRowLines * 8) return;
  if (chunk < kRank / 8) {
    const float* from = op.q_c + (t * op.n_heads + head) * kRank + chunk * 8;
    *reinterpret_cast<float4*>(values) = *reinterpret_cast<const float4*>(from);
    *reinterpret_cast<float4*>(values + 4) = *reinterpret_cast<const float4*>(from + 4);
  } else {
    const float* from = op.q_pe + t * op.q_pe_token_stride + head * op.q_pe_head_stride + (chunk * 8 - kRank);
#pragma unroll
    for (int i = 0; i < 8; ++i) values[i] = from[i];
  }
}

// The queries of the CTA's heads as fp16 [kHeads, kRank + kRope], each in units of its own, by eight warps of
// eight heads each; a lane has chunks lane, lane + 32 and lane + 64.
__device__ __forceinline__ void load_queries_f16(const Attend& op, int64_t t, int first_head, uint8_t* q,
                                                 float* units, int warp, int lane) {
  constexpr int n_chunks = (kRowLines * 8 + 31) / 32;
#pragma unroll 1
  for (int first = warp * 8; first < warp * 8 + 8; first += kQueriesAtOnce) {
    alignas(16) float values[kQueriesAtOnce][n_chunks][8];
#pragma unroll
    for (int h = 0; h < kQueriesAtOnce; ++h)
#pragma unroll
      for (int c = 0; c < n_chunks; ++c)
        load_query_chunk(op, t, first_head + first + h, lane + 32 * c, values[h][c]);
#pragma unroll
    for (int h = 0; h < kQueriesAtOnce; ++h) {
      float largest = 0;
#pragma unroll
      for (int c = 0; c < n_chunks; ++c)
#pragma unroll
        for (int i = 0; i < 8; ++i) largest = fmaxf(largest, fabsf(values[h][c][i]));
      const float unit = unit_of(warp_max(largest)), inverse = inverse_of_power(unit);
      if (lane == 0) units[first + h] = unit;
#pragma unroll
      for (int c = 0; c < n_chunks; ++c) {
        alignas(16) __half2 pairs[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)  // not saturating: a query that is infinite shall show
          pairs[i] = __floats2half2_rn(values[h][c][2 * i] * inverse, values[h][c][2 * i + 1] * inverse);
        if (lane + 32 * c < kRowLines * 8)
          *reinterpret_cast<uint4*>(q + chunk_place(lane + 32 * c, first + h, kHeads)) =
              *reinterpret_cast<const uint4*>(pairs);
      }
    }
  }
}

// What all weights are multiplied by, as a power of two: with kSlack they reach 2^15 at most, and weights
// down to 2^-21 of the largest keep all their bits. It cancels where sums are divided by the weights' sum.
constexpr float kWeightPower = 7;

// Weights 2^(score - largest + kWeightPower), as fp16 into p; summed as rounded, so that they add up to one.
__device__ __forceinline__ void store_weights_f16(const float (&s)[4][4], Running& running, uint8_t* p,
                                                  int head_row, int latent_row, int lane) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = head_row + lane / 4 + 8 * h;
    const float zero = running.largest[h] - kWeightPower;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t pair = pack_f16(exp2_fast(s[i][2 * h] - zero), exp2_fast(s[i][2 * h + 1] - zero));
      const float2 weights = unpack_f16(pair);
      running.sum[h] += weights.x + weights.y;
      *reinterpret_cast<uint32_t*>(p + chunk_place(latent_row / 8 + i, row, 0) + lane % 4 * 4) = pair;
    }
  }
}

// The part of one of the two groups that multiply. A thread has two heads, the same ones throughout.
__device__ __forceinline__ void multiply(const Attend& op, const Plan& plan, const Share& share, uint8_t* q,
                                         const uint8_t* stages, uint8_t* p, float* largest_of, float* units,
                                         Barriers* barriers, int warp, int lane) {
  const int group = warp / 4, head_row = warp % 4 * 16 + lane / 4;
  load_queries_f16(op, share.t, share.first_head, q, units, warp, lane);
  fence_async_proxy();
  sync_products();
  const float scale = op.scale * 1.44269504f;
  const float scales[2] = {scale * units[head_row], scale * units[head_row + 8]};

  Running running;
  float o[kGroupColumns / 2] = {};
  for (int block = share.first, turn = 0; block < share.n_blocks; block += share.step, ++turn) {
    const uint32_t k = shared_address(stages) + turn % 2 * kBlockBytes;
    wait_for_phase(&barriers->full[turn % 2], turn / 2 % 2);
    float s[4][4] = {};
    const uint64_t query = wgmma_operand(shared_address(q));
    const uint64_t key = wgmma_operand(k + group * (kBlockRows / 2) * kLine);
    wgmma_begin();
#pragma unroll
    for (int step = 0; step < kRowLines * 4; ++step)  // 16 values, two chunks
      wgmma<32>(&s[0][0], query + (step / 4 * kHeads * kLine + step % 4 * 32) / 16,
                key + (step / 4 * kBlockRows * kLine + step % 4 * 32) / 16);
    wgmma_commit();
    wgmma_wait();

#pragma unroll
    for (int i = 0; i < 16; ++i) s[i / 4][i % 4] *= scales[i / 2 % 2];
    const float2 largest =
        scale_scores<4>(s, 1.0f, block * kBlockRows + group * (kBlockRows / 2), share.n, lane);
    if (lane % 4 == 0) {
      largest_of[group * kHeads + head_row] = largest.x;
      largest_of[group * kHeads + head_row + 8] = largest.y;
    }
    sync_products();
    const float largest_here[2] = {fmaxf(largest_of[head_row], largest_of[kHeads + head_row]),
                                   fmaxf(largest_of[head_row + 8], largest_of[kHeads + head_row + 8])};
    float factors[2];
    const bool is_grown = grow(running, largest_here, factors);
    store_weights_f16(s, running, p, warp % 4 * 16, group * (kBlockRows / 2), lane);
    fence_async_proxy();
    if (__any_sync(0xffffffffu, is_grown)) {
#pragma unroll
      for (int i = 0; i < kGroupColumns / 2; ++i) o[i] *= factors[i / 2 % 2];
    }
    sync_products();  // all weights are there

    const uint64_t weights = wgmma_operand(shared_address(p));
    const uint64_t values = value_operand(k + group * (kGroupColumns / 64) * kBlockRows * kLine);
    wgmma_begin();
#pragma unroll
    for (int step = 0; step < kBlockRows / 16; ++step)
      wgmma_rows_256(o, weights + step * 2, values + step * 16 * kLine / 16);
    wgmma_commit();
    wgmma_wait();
    __syncwarp();
    if (lane == 0) arrive(&barriers->empty[turn % 2]);
  }

#pragma unroll
  for (int h = 0; h < 2; ++h) {
    running.sum[h] += __shfl_xor_sync(0xffffffffu, running.sum[h], 1);
    running.sum[h] += __shfl_xor_sync(0xffffffffu, running.sum[h], 2);
    if (lane % 4 == 0)
      largest_of[group * kHeads + head_row + 8 * h] = running.sum[h];  // no maximum is read any more
  }
  sync_products();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int64_t head = share.first_head + head_row + 8 * h;
    if (head >= op.n_heads) continue;
    const float sum = largest_of[head_row + 8 * h] + largest_of[kHeads + head_row + 8 * h];
    const float factor = plan.part || sum == 0 ? 1.0f : 1.0f / sum;
    const int64_t part = (share.t * plan.n_splits + share.first) * op.n_heads + head;
    float* out = (plan.part ? plan.part : op.o_c) + part * kRank + group * kGroupColumns + lane % 4 * 2;
    if (plan.part && group == 0 && lane % 4 == 0) plan.part_max_sum[part] = {running.largest[h], sum};
#pragma unroll
    for (int c = 0; c < kGroupColumns / 8; ++c)
      *reinterpret_cast<float2*>(out + c * 8) = {o[4 * c + 2 * h] * factor, o[4 * c + 2 * h + 1] * factor};
  }
}

#endif

// o_c = sum_j softmax(scale (q_c . c_j + q_pe . k_pe_j)) c_j over the selected rows j of one token; in decode
// the sums of a share of the rows, for mla_combine_kernel.
// CTA: one token, 64 heads, every n_splits-th block of 64 rows; warps 8-11 fill stages, 0-7 multiply: each
// half of them 32 rows of a block's
//   scores, then 256 columns of the values' sums, which stay in registers that the filling warps gave up.
// Both products read the same latents, rows as columns of K^T first and as rows of V then; weights pass
//   through shared memory, maxima too. Scores wait for nothing but the stage; a sum is rescaled only when a
//   maximum grows by 2^kSlack.
// Bound: a block of 64 heads and rows: 1152 + 1024 cycles of products at the full rate, but the scores read
//   1728 cycles' worth of shared memory, and scores, softmax and values follow one another.
// Measured (H100, 2026-11-23): 2048 tokens, 128 heads, 2048 rows: fp8 350 TFLOP/s, bf16 422.
template <KvType kKv>
__global__ void __launch_bounds__(3 * kGroupThreads, 1) mla_hopper_kernel(const Attend op, const Plan plan) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(128) uint8_t shared[];
  uint8_t* q = shared + (1024 - shared_address(shared) % 1024) % 1024;  // [kRowLines][kHeads] lines
  uint8_t* stages = q + kHeads * kRowLines * kLine;                     // [2][kRowLines][kBlockRows] lines
  uint8_t* p = stages + 2 * kBlockBytes;                                // [kHeads] lines
  float* largest_of = reinterpret_cast<float*>(p + kHeads * kLine);     // [2][kHeads]
  float* units = largest_of + 2 * kHeads;                               // [kHeads] of the queries
  Barriers* barriers = reinterpret_cast<Barriers*>(units + kHeads);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (threadIdx.x < 2) {
    init_barrier(&barriers->full[threadIdx.x], 4);   // the filling warps
    init_barrier(&barriers->empty[threadIdx.x], 8);  // the multiplying warps
  }
  let_next_start();
  wait_for_inputs();
  __syncthreads();
  Share share;
  share.t = blockIdx.x / plan.n_head_tiles / plan.n_splits;
  share.first_head = blockIdx.x % plan.n_head_tiles * kHeads;
  share.first = blockIdx.x / plan.n_head_tiles % plan.n_splits, share.step = plan.n_splits;
  share.n = op.n_selected[share.t], share.n_blocks = (share.n + kBlockRows - 1) / kBlockRows;
  if (plan.part && share.first >= share.n_blocks) return;  // the merge knows that this part is empty
  if (warp >= 8) {
    give_registers<kFillRegisters>();
    if constexpr (kKv == KvType::fp8)
      fill_fp8(op, plan, share, stages, barriers, warp - 8, lane);
    else
      fill_bf16(op, plan, share, stages, barriers, warp - 8, lane);
  } else {
    take_registers<kProductRegisters>();
    multiply(op, plan, share, q, stages, p, largest_of, units, barriers, warp, lane);
  }
#else
  __trap();
#endif
}

template <KvType kKv>
void launch_hopper(const Attend& op, const Plan& plan, const Launch& launch) {
  static DeviceOnce once;
  if (once.is_first())
    CUDA_CHECK(cudaFuncSetAttribute(mla_hopper_kernel<kKv>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    kSharedBytesWanted));
  const auto n_ctas = static_cast<unsigned>(op.step.n_tokens * plan.n_splits * plan.n_head_tiles);
  launch_kernel("mla_hopper_kernel", mla_hopper_kernel<kKv>,
                {n_ctas, 3 * kGroupThreads, static_cast<size_t>(kSharedBytesWanted)}, launch, op, plan);
}

}  // namespace

// Hopper's products exist in code built for this very chip alone.
bool has_hopper_kernel() {
  cudaFuncAttributes attributes{};
  CUDA_CHECK(cudaFuncGetAttributes(&attributes, mla_hopper_kernel<KvType::fp8>));
  return attributes.binaryVersion == 90 && attributes.ptxVersion == 90;
}

void attend_hopper(const Attend& op, const Plan& plan, const Launch& launch) {
  if (op.cache.layout.kv_type == KvType::fp8)
    launch_hopper<KvType::fp8>(op, plan, launch);
  else
    launch_hopper<KvType::bf16>(op, plan, launch);
}

}  // namespace dsv32::cuda
