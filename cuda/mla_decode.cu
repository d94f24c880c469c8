// Sparse MLA of decode by Hopper's asynchronous products, in two kernels whose bits do not hang on how the
// work is cut: one makes weights of scores, the other adds values.
//
// A block's weights are relative to the block's own largest score, rounded up to a whole power of two, so
// that they know nothing of other blocks; brought to the largest score of all they are multiplied by a power
// of two. Then all rows are added in ascending order, in one chain an output. The first kernel may be cut by
// blocks, the second by columns: one token has CTAs for many multiprocessors, many tokens need no more than
// they have, and nothing is merged. Between them pass fp16 weights, as the threads that multiply hold them.
#include <cmath>

#include "cuda/mla_fill.cuh"

namespace dsv32::cuda {
namespace {

// Of a warp's 16 heads and a block: a thread's operands of the products with 16 rows each, and a line of what
// is known of its two heads (float4: their powers, the sums of their weights).
constexpr int kOperandLines = kBlockRows / 16, kWeightLines = kOperandLines + 1;

// Both kernels have groups of four warps that multiply, 64 heads each, and two that bring in.
constexpr int kFillWarps = 8;
constexpr int threads_of(int n_groups) { return n_groups * kGroupThreads + kFillWarps * 32; }

// How the first kernel divides its shared memory. Fp8 rows land as they are, two blocks ahead.
template <KvType kKv>
struct WeighSizes {
  static constexpr int kStages = kKv == KvType::fp8 ? 2 : 3;
  static constexpr int kBlocksAhead = kKv == KvType::fp8 ? 2 : 0;
  static constexpr int kLandingBytes = kBlocksAhead * kBlockRows * kRowBytes<kKv>;
  using Stages = Ring<kStages, true>;
  static constexpr int kBytes =
      kStages * kBlockBytes + kLandingBytes + static_cast<int>(2 * kHeads * sizeof(float) + sizeof(Stages));
};

// How the second kernel divides its shared memory: it adds kColumns columns of kGroups times 64 heads.
template <KvType kKv, int kGroups, int kColumns>
struct AddSizes {
  static constexpr int kStages = kColumns == 256 ? 3 : kColumns == 128 ? 4 : 8;  // of values as fp16
  static constexpr int kStageBytes = kBlockRows * kColumns * 2;
  // Rows as they lie in the cache: a lane copies and widens 16 values of kSteps rows of a block.
  static constexpr int kChunks = kColumns / 16, kSteps = kBlockRows * kChunks / kGroupThreads;
  static constexpr int kChunkCopies = kKv == KvType::fp8 ? 1 : 2;  // of 16 bytes
  static constexpr int kRowsAhead =
      (kColumns == 256 ? 2 : 4) / (kColumns == 64 ? 1 : kChunkCopies);              // blocks
  static constexpr int kLandingBytes = kSteps * kChunkCopies * kGroupThreads * 16;  // of one
  static constexpr int kFoundRows = 4 * kRowsAhead * kBlockRows;
  static constexpr int kWeightsAhead = kColumns == 256 ? 3 : kColumns == 128 ? 4 : 8;  // blocks
  static constexpr int kWeightBytes = kWeightLines * kGroups * kGroupThreads * 16;     // of one
  static constexpr int kBytes =
      kStages * kStageBytes + 2 * kRowsAhead * kLandingBytes + kWeightsAhead * kWeightBytes +
      kFoundRows * static_cast<int>(sizeof(FoundRow)) + static_cast<int>(sizeof(Ring<kStages>));
};

__host__ __device__ constexpr int64_t weights_of(int64_t n_head_warps) {
  return n_head_warps * kWeightLines * 32;
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// ---- instructions that C++ has no name for ----

#define DSV32_SUMS_8(o)                                                                       \
  "+f"(d[o]), "+f"(d[o + 1]), "+f"(d[o + 2]), "+f"(d[o + 3]), "+f"(d[o + 4]), "+f"(d[o + 5]), \
      "+f"(d[o + 6]), "+f"(d[o + 7])
// Starts d [64, 64] += a [64, 16] (in registers) b [16, 64]: rows of b lie side by side, not its columns.
__device__ __forceinline__ void wgmma_rows_64(float* d, const uint32_t (&a)[4], uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, {%32,%33,%34,%35}, %36, 1, 1, 1, 1;"
      : DSV32_SUMS_8(0), DSV32_SUMS_8(8), DSV32_SUMS_8(16), DSV32_SUMS_8(24)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
#undef DSV32_SUMS_8

// Among the warps that bring a group's queries in; those who only bring need not wait.
__device__ __forceinline__ void sync_queries(int group, int n_threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "r"(n_threads) : "memory");
}
__device__ __forceinline__ void tell_queries(int group, int n_threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(group + 1), "r"(n_threads) : "memory");
}

// ---- scores to weights ----

// The queries of the group's heads from `room` to registers, operands of the products with 16 values each.
__device__ __forceinline__ void take_queries(const uint8_t* room, int warp, int lane,
                                             uint32_t (&q)[kRowLines * 4][4]) {
  const int row = warp * 16 + lane / 8 % 2 * 8 + lane % 8;
#pragma unroll
  for (int step = 0; step < kRowLines * 4; ++step)
    load_matrices(q[step], shared_address(room) + chunk_place(2 * step + lane / 16, row, kHeads));
}

// Weights are 2^(score - power + kWeightPower): the largest of a block lies between 2^14 and 2^15, and those
// down to 2^-28 of it keep all their bits. It cancels where sums are divided by the weights' sum.
constexpr float kWeightPower = 15;

// A block's weights [64 heads, 64 rows] and their sums as rounded, so that they add up to one.
__device__ __forceinline__ void store_weights(const float (&s)[8][4], float2 largest, uint4* out, int lane) {
  const float power[2] = {ceilf(largest.x), ceilf(largest.y)};
  float sum[2] = {0, 0};
  uint32_t pairs[8][2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float zero = power[h] - kWeightPower;
      pairs[i][h] = pack_f16(exp2_fast(s[i][2 * h] - zero), exp2_fast(s[i][2 * h + 1] - zero));
      const float2 weights = unpack_f16(pairs[i][h]);
      sum[h] += weights.x + weights.y;
    }
    sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], 1);
    sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], 2);
  }
#pragma unroll
  for (int i = 0; i < kOperandLines; ++i)
    out[i * 32 + lane] = {pairs[2 * i][0], pairs[2 * i][1], pairs[2 * i + 1][0], pairs[2 * i + 1][1]};
  reinterpret_cast<float4*>(out)[kOperandLines * 32 + lane] = {power[0], power[1], sum[0], sum[1]};
}

// Brings the share's fp8 rows in by warps of kRows rows of a block each. Two blocks are under way while one
// is widened, and where rows and scales lie is looked up a block ahead of that. `meanwhile` is called while
// the first ones are under way.
template <int kRows, typename Stages, typename Meanwhile>
__device__ __forceinline__ void fill_landed(const Attend& op, const Plan& plan, const Share& share,
                                            uint8_t* stages, uint8_t* landing, Stages* ring, int warp,
                                            int lane, const Meanwhile& meanwhile) {
  constexpr int kSlotBytes = kBlockRows * kRowBytes<KvType::fp8>;
  const int64_t seq = op.step.seq[share.t];
  const int lane_row = warp * kRows + lane % kRows;
  const auto find = [&](int block) { return find_row(op, share.t, block * kBlockRows + lane_row, share.n); };
  const auto start = [&](const RowPlace& place, int turn) {
    start_rows<KvType::fp8, kRows>(plan.rows, place.id, landing + turn % 2 * kSlotBytes, warp * kRows, lane);
    commit_copies();
  };
  const auto scales_of = [&](const RowPlace& place) {
    return load_scales(op, plan.page_bytes, find_page(op, seq, place), place);
  };
  RowPlace place = find(share.first), next = find(share.first + share.step),
           after = find(share.first + 2 * share.step);
  start(place, 0), start(next, 1);
  uint32_t scales = scales_of(place), next_scales = scales_of(next);
  meanwhile();
  for (int block = share.first, turn = 0; block < share.n_blocks; block += share.step, ++turn) {
    if (lane < kRows) note_row(plan, share, block, lane_row, place, scales);
    const uint32_t after_scales = scales_of(after);
    const RowPlace last = find(block + 3 * share.step);
    const uint8_t* landed = landing + turn % 2 * kSlotBytes;
    uint8_t* k = stages + Stages::stage(turn) * kBlockBytes;
    wait_copies<1>();
    __syncwarp();
    wait_empty(ring, turn);
#pragma unroll
    for (int first = 0; first < kRows; first += 2) {
      uint4 codes[2];
#pragma unroll
      for (int i = 0; i < 2; ++i)
        codes[i] = *reinterpret_cast<const uint4*>(
            landed + (warp * kRows + first + i) * kRowBytes<KvType::fp8> + lane * 16);
#pragma unroll
      for (int i = 0; i < 2; ++i)
        store_fp8(codes[i], __shfl_sync(0xffffffffu, scales, first + i), k, warp * kRows + first + i, lane);
    }
#pragma unroll
    for (int i = 0; i < kRows; i += 4) {
      const int row = warp * kRows + i + lane / 8;
      *reinterpret_cast<uint4*>(k + chunk_place(kRank / 8 + lane % 8, row, kBlockRows)) = bf16_to_f16(
          *reinterpret_cast<const uint4*>(landed + row * kRowBytes<KvType::fp8> + kRank + lane % 8 * 16));
    }
    tell_full(&ring->full[Stages::stage(turn)], lane);
    start(after, turn);
    place = next, next = after, after = last, scales = next_scales, next_scales = after_scales;
  }
}

// The part of a group that makes scores. Stages are its own until it has said that they may be filled: the
// queries come in by the last ones.
template <int kGroups, typename Stages>
__device__ __forceinline__ void weigh_blocks(const Attend& op, const Plan& plan, const Share& share,
                                             uint8_t* stages, float* units, Stages* ring, int group, int warp,
                                             int lane) {
  const int first_room = Stages::kSize - kGroups;
  if (lane == 0)
    for (int i = 0; i < first_room; ++i) arrive(&ring->empty[i]);
  uint32_t q[kRowLines * 4][4];
  units += group * kHeads;
  uint8_t* room = stages + (first_room + group) * kBlockBytes;
  if constexpr (kGroups == 1) {
    load_queries_f16<8>(op, share.t, share.first_head, room, units, warp * 8, warp * 8 + 8, lane);
    sync_queries(group, threads_of(1));
  } else {
    load_queries_f16<4>(op, share.t, share.first_head + group * kHeads, room, units, warp * 16,
                        warp * 16 + 16, lane);
    sync_queries(group, kGroupThreads);
  }
  take_queries(room, warp, lane, q);
  __syncwarp();
  if (lane == 0)
    for (int i = first_room; i < Stages::kSize; ++i) arrive(&ring->empty[i]);
  const int head = warp * 16 + lane / 4;
  const float scale = op.scale * 1.44269504f;
  const float scales[2] = {scale * units[head], scale * units[head + 8]};
  const int head_warp = (share.first_head / kHeads + group) * 4 + warp;
  for (int block = share.first, turn = 0; block < share.n_blocks; block += share.step, ++turn) {
    wait_full(ring, turn);
    __syncwarp();
    float s[8][4] = {};
    const uint64_t key = wgmma_operand(shared_address(stages) + Stages::stage(turn) * kBlockBytes);
    wgmma_begin();
#pragma unroll
    for (int step = 0; step < kRowLines * 4; ++step)
      wgmma<64>(&s[0][0], q[step], key + (step / 4 * kBlockRows * kLine + step % 4 * 32) / 16);
    wgmma_commit();
    wgmma_wait();
    __syncwarp();
    if (lane == 0) arrive(&ring->empty[Stages::stage(turn)]);
#pragma unroll
    for (int i = 0; i < 32; ++i) s[i / 4][i % 4] *= scales[i / 2 % 2];
    const float2 largest = scale_scores<8>(s, 1.0f, block * kBlockRows, share.n, lane);
    store_weights(s, largest,
                  plan.weights + (share.t * plan.n_most_blocks + block) * weights_of(plan.n_head_warps) +
                      weights_of(head_warp),
                  lane);
  }
}

// ---- weights times values ----

// Of a thread's two heads over all blocks: the power that weights are brought to, and their sum.
struct Totals {
  float power[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
};

// The four lanes that share two heads take every fourth block each.
__device__ __forceinline__ Totals total(const uint4* weights, int64_t n_block_weights, int n_blocks,
                                        int lane) {
  Totals totals;
  const auto grow = [&](int h, float power) {
    const float most = fmaxf(totals.power[h], power);
    totals.sum[h] *= exp2_fast(totals.power[h] - most);
    totals.power[h] = most;
    return most;
  };
#pragma unroll 8
  for (int block = lane % 4; block < n_blocks; block += 4) {
    const float4 known =
        reinterpret_cast<const float4*>(weights + block * n_block_weights)[kOperandLines * 32 + lane];
    totals.sum[0] += known.z * exp2_fast(known.x - grow(0, known.x));
    totals.sum[1] += known.w * exp2_fast(known.y - grow(1, known.y));
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float most = fmaxf(totals.power[h], __shfl_xor_sync(0xffffffffu, totals.power[h], 1));
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
    grow(h, most);
    totals.sum[h] += __shfl_xor_sync(0xffffffffu, totals.sum[h], 1);
    totals.sum[h] += __shfl_xor_sync(0xffffffffu, totals.sum[h], 2);
  }
  return totals;
}

// A thread's weights on their way through its own places in shared memory.
template <int kAhead, int kLineThreads>
struct WeightCopies {
  const uint4* from;  // of this thread in block 0
  int64_t n_block_weights;
  uint32_t to;
  int n_blocks;

  __device__ __forceinline__ uint32_t place(int block, int line) const {
    return to + (block % kAhead * kWeightLines + line) * kLineThreads * 16;
  }
  __device__ __forceinline__ void start(int block) const {
    if (block < n_blocks) {
#pragma unroll
      for (int line = 0; line < kWeightLines; ++line)
        copy_line_async(place(block, line), from + block * n_block_weights + line * 32);
    }
    commit_copies();
  }
};

__device__ __forceinline__ uint4 load_shared(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

// The block's operands at the power of all blocks.
template <typename Copies>
__device__ __forceinline__ void take_weights(const Copies& copies, const Totals& totals, int block,
                                             uint32_t (&a)[kOperandLines][4]) {
  const uint4 known = load_shared(copies.place(block, kOperandLines));
  const __half2 factors[2] = {__float2half2_rn(exp2_fast(__uint_as_float(known.x) - totals.power[0])),
                              __float2half2_rn(exp2_fast(__uint_as_float(known.y) - totals.power[1]))};
#pragma unroll
  for (int line = 0; line < kOperandLines; ++line) {
    const uint4 weights = load_shared(copies.place(block, line));
    const uint32_t from[4] = {weights.x, weights.y, weights.z, weights.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const __half2 product = __hmul2(*reinterpret_cast<const __half2*>(&from[i]), factors[i % 2]);
      a[line][i] = *reinterpret_cast<const uint32_t*>(&product);
    }
  }
}

// Weights by values into o: o[32 c + 4 j + e] is of head lane / 4 + 8 (e / 2) of the warp's 16, column
// 64 c + 8 j + 2 (lane % 4) + e % 2. Two sets of operands of kTogether blocks, since products are under way
// while the next ones' weights are made ready.
template <int kColumns, int kTogether, int kAhead, typename Copies, typename ValueRing>
__device__ __forceinline__ void add_blocks(const Copies& copies, const Totals& totals, const uint8_t* stages,
                                           ValueRing* ring, int lane, float (&o)[kColumns / 2]) {
  static_assert(kTogether == 1 || ValueRing::kSize >= 4 * kTogether);  // the last few blocks free no stages
  uint32_t even[kTogether][kOperandLines][4], odd[kTogether][kOperandLines][4], last[1][kOperandLines][4];
  const auto add = [&]<int kBlocks>(int block, uint32_t(&weights)[kBlocks][kOperandLines][4]) {
    wait_copies<kAhead - kBlocks>();
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) take_weights(copies, totals, block + i, weights[i]);
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) copies.start(block + i + kAhead), wait_full(ring, block + i);
    __syncwarp();
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      const uint64_t values =
          value_operand(shared_address(stages) + ValueRing::stage(block + i) * kBlockRows * kColumns * 2);
#pragma unroll
      for (int step = 0; step < kOperandLines; ++step)
#pragma unroll
        for (int c = 0; c < kColumns / 64; ++c)
          wgmma_rows_64(o + 32 * c, weights[i][step], values + (c * kBlockRows + step * 16) * kLine / 16);
    }
    wgmma_commit();
    wgmma_wait<1>();
    if constexpr (kBlocks == kTogether) {
      if (block > 0 && lane < kBlocks) arrive(&ring->empty[ValueRing::stage(block - kBlocks + lane)]);
    }
  };
  int block = 0;
  for (; block + 2 * kTogether <= copies.n_blocks; block += 2 * kTogether)
    add(block, even), add(block + kTogether, odd);
  wgmma_wait();
  for (; block < copies.n_blocks; ++block) add(block, last), wgmma_wait();
}

// Brings columns first_column ... of all rows in as fp16, by four warps of 16 rows of a block each. Where
// rows lie comes kRowsAhead blocks before the rows, and these kRowsAhead blocks before they are widened.
template <KvType kKv, typename Sizes, typename ValueRing>
__device__ __forceinline__ void fill_values(const Plan& plan, const FoundRow* found, int n_blocks,
                                            int first_column, uint8_t* stages, uint8_t* landing,
                                            FoundRow* table, ValueRing* ring, int group, int warp, int lane) {
  constexpr int kAhead = Sizes::kRowsAhead, kCopies = Sizes::kChunkCopies, kStepRows = 32 / Sizes::kChunks;
  constexpr int kStepBytes = kCopies * 32 * 16;
  static_assert(kStepRows * Sizes::kSteps == kFillRows);
  constexpr int kTogether = Sizes::kSteps == 4 ? 4 : 2;  // steps whose values are loaded at once
  table += (group * 4 + warp) * 2 * kAhead * kFillRows;
  landing += (group * kAhead * 4 + warp) * Sizes::kSteps * kStepBytes + lane * 16;
  found += warp * kFillRows + lane;
  const int chunk = lane % Sizes::kChunks, first_row = lane / Sizes::kChunks;
  const uint8_t* rows = plan.rows + (first_column + 16 * chunk) * (kKv == KvType::fp8 ? 1 : 2);
  const int n_own = (n_blocks + 1 - group) / 2;
  for (int tick = 0; tick < n_own + 2 * kAhead; ++tick) {
    wait_copies<kAhead - 1>();
    __syncwarp();
    uint8_t* arrived = landing + tick % kAhead * Sizes::kLandingBytes;
    FoundRow* taken = table + tick % (2 * kAhead) * kFillRows;
    if (tick >= 2 * kAhead) {
      const int block = 2 * (tick - 2 * kAhead) + group;
      uint8_t* values = stages + ValueRing::stage(block) * Sizes::kStageBytes;
      wait_empty(ring, block);
#pragma unroll
      for (int first = 0; first < Sizes::kSteps; first += kTogether) {
        uint4 in[kTogether][kCopies];
        uint32_t scales[kTogether];
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          for (int copy = 0; copy < kCopies; ++copy)
            in[i][copy] = *reinterpret_cast<const uint4*>(arrived + (first + i) * kStepBytes + copy * 512);
          scales[i] = taken[(first + i) * kStepRows + first_row].scales;
        }
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          uint4 low, high;
          if constexpr (kKv == KvType::fp8)
            widen_fp8(in[i][0], scales[i], first_column / 16 + chunk, low, high);
          else
            low = bf16_to_f16(in[i][0]), high = bf16_to_f16(in[i][1]);
          store_wide(low, high, values, warp * kFillRows + (first + i) * kStepRows + first_row, chunk);
        }
      }
      tell_full(&ring->full[ValueRing::stage(block)], lane);
    }
    if (tick >= kAhead && tick < n_own + kAhead) {
      const FoundRow* places = table + (tick + kAhead) % (2 * kAhead) * kFillRows + first_row;
      int32_t ids[Sizes::kSteps];
#pragma unroll
      for (int step = 0; step < Sizes::kSteps; ++step) ids[step] = places[step * kStepRows].id;
#pragma unroll
      for (int step = 0; step < Sizes::kSteps; ++step) {
        const uint8_t* from = rows + static_cast<int64_t>(max(ids[step], 0)) * kRowBytes<kKv>;
#pragma unroll
        for (int i = 0; i < kCopies; ++i)
          copy_line_async(shared_address(arrived + step * kStepBytes + i * 512), from + i * 16,
                          ids[step] >= 0);
      }
    }
    __syncwarp();
    if (tick < n_own && lane < kFillRows)
      copy_small_async<8>(shared_address(taken + lane), found + (2 * tick + group) * kBlockRows);
    commit_copies();
  }
}

#endif

// Weights of the selected rows j of a token for each head: 2^(scale log2(e) (q_c . c_j + q_pe . k_pe_j) -
// power) as fp16, a block's power being its largest score rounded up. CTA: one token, kGroups times 64 heads,
// every n_splits-th block of 64 rows; the last eight warps fill stages and note where rows lie, the others
// hold their heads' queries in registers and make the scores and weights. Bound: many tokens: bringing rows
// in, which all 128 heads share; one token: latency.
template <KvType kKv, int kGroups>
__global__ void __launch_bounds__(threads_of(kGroups), 1) mla_weigh_kernel(const Attend op, const Plan plan) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Sizes = WeighSizes<kKv>;
  extern __shared__ __align__(1024) uint8_t stages[];        // [kStages][kRowLines][kBlockRows] lines
  uint8_t* landing = stages + Sizes::kStages * kBlockBytes;  // [kBlocksAhead][kBlockRows] rows
  auto* units = reinterpret_cast<float*>(landing + Sizes::kLandingBytes);  // [2 * kHeads]
  auto* ring = reinterpret_cast<typename Sizes::Stages*>(units + 2 * kHeads);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (threadIdx.x == 0) {
    init_ring(ring, kFillWarps, 4 * kGroups);
    publish_barriers();
  }
  let_next_start();
  wait_for_inputs();
  __syncthreads();
  const Share share = share_of(op, plan, kGroups * kHeads);
  if (share.first >= share.n_blocks) return;
  if (warp >= 4 * kGroups) {
    give_registers<kGroups == 2 ? 48 : 136>();
    constexpr int kRows = kBlockRows / kFillWarps;
    const int fill = warp - 4 * kGroups;
    const auto load_queries = [&] {  // of a single group half of them
      if constexpr (kGroups == 1) {
        uint8_t* room = stages + (Sizes::kStages - 1) * kBlockBytes;
        load_queries_f16<4>(op, share.t, share.first_head, room, units, 32 + fill * 4, 36 + fill * 4, lane);
        tell_queries(0, threads_of(1));
      }
    };
    if constexpr (kKv == KvType::fp8) {
      fill_landed<kRows>(op, plan, share, stages, landing, ring, fill, lane, load_queries);
    } else {
      load_queries();
      fill_bf16<kRows>(op, plan, share, stages, ring, fill, lane);
    }
  } else {
    take_registers<kGroups == 2 ? 208 : 232>();
    weigh_blocks<kGroups>(op, plan, share, stages, units, ring, warp / 4, warp % 4, lane);
  }
#else
  __trap();
#endif
}

// o_c = the sum of weights times latents over the weights' sum, of what mla_weigh_kernel has left.
// CTA: one token, kGroups times 64 heads, kColumns of the columns; the last eight warps bring values in, a
// group of four warps has the sums of 64 heads in registers. Bound: many tokens: the products; one token:
// bringing weights in, 256 KB a CTA.
template <KvType kKv, int kGroups, int kColumns>
__global__ void __launch_bounds__(threads_of(kGroups), 1) mla_add_kernel(const Attend op, const Plan plan) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Sizes = AddSizes<kKv, kGroups, kColumns>;
  extern __shared__ __align__(1024) uint8_t stages[];  // [kStages][kColumns / 64][kBlockRows] lines
  uint8_t* landing = stages + Sizes::kStages * Sizes::kStageBytes;            // [kRowsAhead][kLandingBytes]
  uint8_t* weights = landing + 2 * Sizes::kRowsAhead * Sizes::kLandingBytes;  // [kWeightsAhead][kWeightBytes]
  auto* table = reinterpret_cast<FoundRow*>(weights + Sizes::kWeightsAhead * Sizes::kWeightBytes);
  auto* ring = reinterpret_cast<Ring<Sizes::kStages>*>(table + Sizes::kFoundRows);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (threadIdx.x == 0) {
    init_ring(ring, 4, 4 * kGroups);
    publish_barriers();
  }
  let_next_start();
  wait_for_inputs();
  __syncthreads();
  constexpr int kParts = kRank / kColumns;
  const int first_column = blockIdx.x % kParts * kColumns;
  const int first_head = blockIdx.x / kParts % plan.n_head_tiles * kGroups * kHeads;
  const int64_t t = blockIdx.x / kParts / plan.n_head_tiles;
  const int n_blocks = (op.n_selected[t] + kBlockRows - 1) / kBlockRows;
  if (warp >= 4 * kGroups) {
    give_registers<kColumns == 256 ? 64 : kColumns == 128 ? 88 : 136>();
    const int fill = warp - 4 * kGroups;
    fill_values<kKv, Sizes>(plan, plan.found + t * plan.n_most_blocks * kBlockRows, n_blocks, first_column,
                            stages, landing, table, ring, fill / 4, fill % 4, lane);
    return;
  }
  take_registers<kColumns == 256 ? 192 : kColumns == 128 ? 168 : 232>();
  const int64_t n_block_weights = weights_of(plan.n_head_warps);
  const uint4* from =
      plan.weights + t * plan.n_most_blocks * n_block_weights + weights_of(first_head / 16 + warp);
  const WeightCopies<Sizes::kWeightsAhead, kGroups * kGroupThreads> copies{
      from + lane, n_block_weights, shared_address(weights) + threadIdx.x * 16, n_blocks};
#pragma unroll
  for (int block = 0; block < Sizes::kWeightsAhead; ++block) copies.start(block);
  const Totals totals = total(from, n_block_weights, n_blocks, lane);
  float o[kColumns / 2] = {};
  add_blocks<kColumns, kColumns == 64 ? 2 : 1, Sizes::kWeightsAhead>(copies, totals, stages, ring, lane, o);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int64_t head = first_head + warp * 16 + lane / 4 + 8 * h;
    if (head >= op.n_heads) continue;
    const float factor = n_blocks == 0 ? 0.0f : 1.0f / totals.sum[h];
    float* out = op.o_c + (t * op.n_heads + head) * kRank + first_column + lane % 4 * 2;
#pragma unroll
    for (int c = 0; c < kColumns / 8; ++c)
      *reinterpret_cast<float2*>(out + c * 8) = {o[4 * c + 2 * h] * factor, o[4 * c + 2 * h + 1] * factor};
  }
#else
  __trap();
#endif
}

// ---- the launchers ----

template <KvType kKv, int kGroups>
void launch_weigh(const Attend& op, Plan plan, const Launch& launch) {
  constexpr int n_bytes = WeighSizes<kKv>::kBytes;
  static_assert(n_bytes <= 227 * 1024);
  static DeviceOnce once;
  if (once.is_first())
    CUDA_CHECK(cudaFuncSetAttribute(mla_weigh_kernel<kKv, kGroups>,
                                    cudaFuncAttributeMaxDynamicSharedMemorySize, n_bytes));
  const auto n_ctas = static_cast<unsigned>(op.step.n_tokens * plan.n_splits * plan.n_head_tiles);
  launch_kernel("mla_weigh_kernel", mla_weigh_kernel<kKv, kGroups>,
                {n_ctas, threads_of(kGroups), static_cast<size_t>(n_bytes)}, launch, op, plan);
}

template <KvType kKv, int kGroups, int kColumns>
void launch_add(const Attend& op, Plan plan, const Launch& launch) {
  constexpr int n_bytes = AddSizes<kKv, kGroups, kColumns>::kBytes;
  static_assert(n_bytes <= 227 * 1024);
  static DeviceOnce once;
  if (once.is_first())
    CUDA_CHECK(cudaFuncSetAttribute(mla_add_kernel<kKv, kGroups, kColumns>,
                                    cudaFuncAttributeMaxDynamicSharedMemorySize, n_bytes));
  plan.n_head_tiles = static_cast<int>(ceil_div(op.n_heads, kGroups * kHeads));
  const auto n_ctas = static_cast<unsigned>(op.step.n_tokens * plan.n_head_tiles * (kRank / kColumns));
  launch_kernel("mla_add_kernel", mla_add_kernel<kKv, kGroups, kColumns>,
                {n_ctas, threads_of(kGroups), static_cast<size_t>(n_bytes)}, launch, op, plan);
}

// CTAs that share a token's blocks: what takes the shortest, where a CTA begins as long as two blocks take.
int choose_splits(int64_t n_ctas, int64_t n_blocks, int n_sms) {
  int best = 1;
  int64_t least = INT64_MAX;
  for (int n = 1; n <= n_blocks; n *= 2) {
    const int64_t time = ceil_div(n * n_ctas, n_sms) * (ceil_div(n_blocks, n) + 2);
    if (time < least) least = time, best = n;
  }
  return best;
}

// As many CTAs as there are multiprocessors: of 64 heads each while these suffice, else of 128, which share
// what is brought in.
template <KvType kKv>
void attend_tokens(const Attend& op, Plan plan, const Launch& launch) {
  const int64_t n_single = op.step.n_tokens * ceil_div(op.n_heads, kHeads);
  const int64_t n_double = op.step.n_tokens * ceil_div(op.n_heads, 2 * kHeads);
  constexpr int kFewColumns = 64;
  if (n_single * std::max(plan.n_most_blocks, kRank / kFewColumns) <= launch.n_sms) {
    plan.n_head_tiles = static_cast<int>(ceil_div(op.n_heads, kHeads)), plan.n_splits = plan.n_most_blocks;
    launch_weigh<kKv, 1>(op, plan, launch);
  } else {
    plan.n_head_tiles = static_cast<int>(ceil_div(op.n_heads, 2 * kHeads));
    plan.n_splits = choose_splits(n_double, plan.n_most_blocks, launch.n_sms);
    launch_weigh<kKv, 2>(op, plan, launch);
  }
  if (n_single * (kRank / kFewColumns) <= launch.n_sms)
    launch_add<kKv, 1, kFewColumns>(op, plan, launch);
  else if (n_double * (kRank / 128) <= launch.n_sms)
    launch_add<kKv, 2, 128>(op, plan, launch);
  else
    launch_add<kKv, 2, 256>(op, plan, launch);
}

}  // namespace

void attend_decode(const Attend& op, Plan plan, const Launch& launch) {
  plan.n_most_blocks = static_cast<int>(ceil_div(std::min(op.topk, op.step.max_pos + 1), kBlockRows));
  plan.n_head_warps = static_cast<int>(ceil_div(op.n_heads, 2 * kHeads)) * 8;
  const int64_t n_weights = plan.n_most_blocks * weights_of(plan.n_head_warps);
  const int64_t n_bytes_token = n_weights * static_cast<int64_t>(sizeof(uint4)) +
                                plan.n_most_blocks * kBlockRows * static_cast<int64_t>(sizeof(FoundRow));
  in_groups(op, n_bytes_token, launch, [&](const Attend& part, int64_t n_together, uint8_t* scratch) {
    plan.weights = reinterpret_cast<uint4*>(scratch);
    plan.found = reinterpret_cast<FoundRow*>(plan.weights + n_together * n_weights);
    if (op.cache.layout.kv_type == KvType::fp8)
      attend_tokens<KvType::fp8>(part, plan, launch);
    else
      attend_tokens<KvType::bf16>(part, plan, launch);
  });
}

}  // namespace dsv32::cuda
