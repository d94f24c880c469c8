// The second kernel of decode's attention for few tokens: weights times values (mla_few.cu).
#pragma once

#include <cmath>

#include "cuda/mla_few.cuh"

namespace dsv32::cuda {
namespace {

constexpr int kFewSlots = 16;  // for blocks of weights
constexpr int kAddWarps = 4, kScaleWarps = kFewWarps - kAddWarps;
constexpr int kValueLine = kFewColumns * 2;  // bytes
constexpr int kLookups = kFewBlocks * kBlockRows / kFewThreads;

// Shared memory of a CTA.
struct AddRoom {
  uint8_t values[kFewBlocks * kBlockRows * kValueLine];
  uint4 weights[kFewSlots][kFewChunks];  // at the power of all blocks
  FoundRow found[kFewBlocks * kBlockRows];
  __half2 factors[kFewBlocks][kFewHeads];  // what a block's weights are worth by it, twice
  float totals[kFewHeads];
  uint64_t full[kFewBlocks], empty[kFewBlocks];  // each used once
};
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Starts d [64, 32] += a [64, 16] b [16, 32]: rows of b lie side by side, not its columns.
__device__ __forceinline__ void wgmma_rows_32(float (&d)[16], uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, %16, %17, 1, 1, 1, 0, 1;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
      : "l"(a), "l"(b));
}

// A row of 32 values is a line of 64 bytes, whose four chunks are exchanged by the row's number over two
// modulo 4 (the "64-byte swizzle", in groups of eight rows).
__device__ __forceinline__ int value_place(int row, int chunk) {
  return row * kValueLine + ((chunk ^ (row >> 1)) & 3) * 16;
}
// The operand [16 rows, 32 values] from a multiple of 16 rows on.
__device__ __forceinline__ uint64_t few_value_operand(uint32_t address) {
  return uint64_t{(address & 0x3ffffu) >> 4} | uint64_t{1} << 16 | uint64_t{8 * kValueLine >> 4} << 32 |
         uint64_t{2} << 62;
}

// Where a token's rows lie, to room.found. Returns what is known of the thread's own.
__device__ __forceinline__ void find_rows(const Attend& op, int64_t t, int64_t seq, int n, AddRoom& room,
                                          RowPlace (&places)[kLookups]) {
#pragma unroll
  for (int i = 0; i < kLookups; ++i)
    places[i] = ask_row(op, t, static_cast<int>(threadIdx.x) + i * kFewThreads);
#pragma unroll
  for (int i = 0; i < kLookups; ++i)
    places[i] = find_asked_row(op, seq, places[i], static_cast<int>(threadIdx.x) + i * kFewThreads < n);
#pragma unroll
  for (int i = 0; i < kLookups; ++i)
    room.found[threadIdx.x + i * kFewThreads].id = static_cast<int32_t>(places[i].id);
}

// Brings a token's values of 32 columns in, zeros past the last row: a thread 16 bytes of a row at a time, to
// where it widens them. Scales come meanwhile.
template <KvType kKv>
__device__ __forceinline__ void load_values(const Attend& op, const Plan& plan, int64_t seq, int first_column,
                                            const RowPlace (&places)[kLookups], AddRoom& room) {
  constexpr int kBytes = kKv == KvType::fp8 ? 1 : 2;  // of a value
  constexpr int kRowThreads = kFewColumns * kBytes / 16, kTurnRows = kFewThreads / kRowThreads;
  constexpr int kTurns = kFewBlocks * kBlockRows / kTurnRows;
  const int part = threadIdx.x % kRowThreads, first_row = threadIdx.x / kRowThreads;
  const uint8_t* from = plan.rows + first_column * kBytes + part * 16;
  const auto place = [&](int row, int half) {
    return room.values + value_place(row, kKv == KvType::fp8 ? 2 * part + half : part);
  };
#pragma unroll 4
  for (int turn = 0; turn < kTurns; ++turn) {
    const int row = first_row + turn * kTurnRows;
    const int64_t id = room.found[row].id;
    copy_line_async(shared_address(place(row, 0)), from + (id < 0 ? 0 : id * kRowBytes<kKv>), id >= 0);
  }
  if constexpr (kKv == KvType::fp8) {
    int32_t pages[kLookups];
    uint32_t scales[kLookups];
#pragma unroll
    for (int i = 0; i < kLookups; ++i) pages[i] = find_page(op, seq, places[i]);
#pragma unroll
    for (int i = 0; i < kLookups; ++i) scales[i] = ask_scales(op, plan.page_bytes, pages[i], places[i]);
#pragma unroll
    for (int i = 0; i < kLookups; ++i) room.found[threadIdx.x + i * kFewThreads].scales = scales[i];
    __syncthreads();
  }
  wait_all_copies();
#pragma unroll 2
  for (int turn = 0; turn < kTurns; ++turn) {
    const int row = first_row + turn * kTurnRows;
    const uint4 in = *reinterpret_cast<const uint4*>(place(row, 0));
    uint4 low, high;
    if constexpr (kKv == KvType::fp8) {
      widen_fp8(in, room.found[row].scales, first_column / 16 + part, low, high);
      *reinterpret_cast<uint4*>(place(row, 1)) = high;
    } else {
      low = bf16_to_f16(in);
    }
    *reinterpret_cast<uint4*>(place(row, 0)) = low;
  }
  fence_async_proxy();
}

// Over all blocks, four threads a head, every fourth block each: the power, what each block is worth by it,
// and the weights' sum.
__device__ __forceinline__ void total_heads(const float2* powers, int n_blocks, AddRoom& room) {
  const int head = threadIdx.x / 4, quarter = threadIdx.x % 4;
  float2 known[kFewBlocks / 4];
  float power = -INFINITY, total = 0;
#pragma unroll
  for (int i = 0; i < kFewBlocks / 4; ++i) {
    const int block = 4 * i + quarter;
    known[i] = block < n_blocks ? __ldcg(powers + block * kFewHeads + head) : float2{-INFINITY, 0};
  }
#pragma unroll
  for (int i = 0; i < kFewBlocks / 4; ++i) power = fmaxf(power, known[i].x);
  power = fmaxf(power, __shfl_xor_sync(0xffffffffu, power, 1));
  power = fmaxf(power, __shfl_xor_sync(0xffffffffu, power, 2));
#pragma unroll
  for (int i = 0; i < kFewBlocks / 4; ++i) {
    const float factor = exp2_fast(known[i].x - power);
    total += known[i].y * factor;
    room.factors[4 * i + quarter][head] = __float2half2_rn(factor);
  }
  total += __shfl_xor_sync(0xffffffffu, total, 1);
  total += __shfl_xor_sync(0xffffffffu, total, 2);
  if (quarter == 0) room.totals[head] = total;
}

// A lane's part of a block's weights: of every fourth head a chunk.
using Chunks = uint4[kFewChunks / 32];
__device__ __forceinline__ void load_chunks(const uint4* weights, int block, int n_blocks, int lane,
                                            Chunks& chunks) {
#pragma unroll
  for (int i = 0; i < kFewChunks / 32; ++i)
    if (block < n_blocks) chunks[i] = __ldcg(weights + block * kFewChunks + i * 32 + lane);
}

// Brings weights to the power of all blocks, a warp every kScaleWarps-th block, of which it has the first.
__device__ __forceinline__ void scale_weights(const uint4* weights, int n_blocks, AddRoom& room, int warp,
                                              int lane, Chunks& chunks) {
#pragma unroll 1
  for (int block = warp; block < n_blocks; block += kScaleWarps) {
    if (block >= kFewSlots) wait_for_phase(&room.empty[block - kFewSlots], 0);
#pragma unroll
    for (int i = 0; i < kFewChunks / 32; ++i) {
      const __half2 factor = room.factors[block][4 * i + lane / 8];
      auto* pairs = reinterpret_cast<__half2*>(&chunks[i]);
#pragma unroll
      for (int k = 0; k < 4; ++k) pairs[k] = __hmul2(pairs[k], factor);
      room.weights[block % kFewSlots][i * 32 + lane] = chunks[i];
    }
    tell_full(&room.full[block], lane);
    load_chunks(weights, block + kScaleWarps, n_blocks, lane, chunks);
  }
}

// Weights by values, all blocks in one chain: o[4 c + 2 h + e] is of head lane / 4 + 8 h of the warp's 16,
// column 8 c + 2 (lane % 4) + e. Products are of 64 heads: the last 32 are whatever lies behind, and are not
// used.
__device__ __forceinline__ void add_values(AddRoom& room, int n_blocks, int lane, float (&o)[16]) {
  const uint64_t all_weights = wgmma_operand(shared_address(room.weights));
  const uint64_t all_values = few_value_operand(shared_address(room.values));
#pragma unroll 1
  for (int block = 0; block < n_blocks; ++block) {
    const uint64_t weights = all_weights + block % kFewSlots * kFewChunks;
    const uint64_t values = all_values + block * kBlockRows * kValueLine / 16;
    wait_for_phase(&room.full[block], 0);
    wgmma_begin();
#pragma unroll
    for (int step = 0; step < kBlockRows / 16; ++step)
      wgmma_rows_32(o, weights + step * 2, values + step * kValueLine);
    wgmma_commit();
    wgmma_wait<1>();
    if (block > 0 && lane == 0) arrive(&room.empty[block - 1]);
  }
  wgmma_wait();
}

__device__ __forceinline__ void store_sums(const Attend& op, const AddRoom& room, int64_t t, int first_head,
                                           int first_column, int n_blocks, int warp, int lane,
                                           const float (&o)[16]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int own = warp * 16 + lane / 4 + 8 * h;
    if (first_head + own >= op.n_heads) continue;
    const float factor = n_blocks == 0 ? 0.0f : 1.0f / room.totals[own];
    float* out = op.o_c + (t * op.n_heads + first_head + own) * kRank + first_column + lane % 4 * 2;
#pragma unroll
    for (int c = 0; c < kFewColumns / 8; ++c)
      *reinterpret_cast<float2*>(out + c * 8) = {o[4 * c + 2 * h] * factor, o[4 * c + 2 * h + 1] * factor};
  }
}
#endif

// As mla_add_kernel: o_c = the sum of weights times latents over the weights' sum, of what
// mla_few_weigh_kernel has left. CTA: one token, 32 heads, 32 columns. What is selected was there before the
// kernel ahead let this one start: meanwhile 16 warps bring all values of the columns in, as fp16 (128 KB).
// Then four warps make totals and add; the others bring weights in, 4 KB a block, and to one power. Bound:
// the chain of 128 products of 16 rows, one after the other, of 32 columns each.
template <KvType kKv>
__global__ void __launch_bounds__(kFewThreads, 1) mla_few_add_kernel(const Attend op, const Plan plan) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) uint8_t few_room[];
  auto& room = *reinterpret_cast<AddRoom*>(few_room);
  const int lane = threadIdx.x % 32, warp = uniform_warp();
  if (threadIdx.x < kFewBlocks) {
    init_barrier(&room.full[threadIdx.x], 1), init_barrier(&room.empty[threadIdx.x], kAddWarps);
    publish_barriers();
  }
  const int first_column = blockIdx.x % kFewParts * kFewColumns;
  const int tile = blockIdx.x / kFewParts % plan.n_head_tiles;
  const int64_t t = blockIdx.x / kFewParts / plan.n_head_tiles, seq = op.step.seq[t];
  let_next_start();
  const int n = __ldcg(op.n_selected + t);
  RowPlace places[kLookups];
  find_rows(op, t, seq, n, room, places);
  __syncthreads();
  load_values<kKv>(op, plan, seq, first_column, places, room);
  wait_for_inputs();
  const int n_blocks = __shfl_sync(0xffffffffu, (n + kBlockRows - 1) / kBlockRows, 0);  // uniform
  const int64_t at = (t * plan.n_head_tiles + tile) * plan.n_most_blocks;
  const uint4* weights = plan.weights + at * kFewChunks;
  Chunks chunks;
  if (warp >= kAddWarps)
    load_chunks(weights, warp - kAddWarps, n_blocks, lane, chunks);
  else
    total_heads(plan.powers + at * kFewHeads, n_blocks, room);
  __syncthreads();
  if (warp >= kAddWarps) return scale_weights(weights, n_blocks, room, warp - kAddWarps, lane, chunks);
  float o[kFewColumns / 2] = {};
  add_values(room, n_blocks, lane, o);
  if (warp < kFewHeads / 16) store_sums(op, room, t, tile * kFewHeads, first_column, n_blocks, warp, lane, o);
#else
  __trap();
#endif
}

template <KvType kKv>
void launch_few_add(const Attend& op, const Plan& plan, const Launch& launch) {
  constexpr size_t n_bytes = sizeof(AddRoom);
  static_assert(n_bytes <= 227 * 1024);
  static DeviceOnce once;
  if (once.is_first())
    CUDA_CHECK(
        cudaFuncSetAttribute(mla_few_add_kernel<kKv>, cudaFuncAttributeMaxDynamicSharedMemorySize, n_bytes));
  const auto n_ctas = static_cast<unsigned>(op.step.n_tokens * plan.n_head_tiles * kFewParts);
  launch_kernel("mla_few_add_kernel", mla_few_add_kernel<kKv>, {n_ctas, kFewThreads, n_bytes}, launch, op,
                plan);
}

}  // namespace
}  // namespace dsv32::cuda
