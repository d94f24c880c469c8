// Sparse MLA in decode by Hopper's asynchronous products, in two kernels: the first computes weights, the
// second adds values. Bits do not depend on how the work is divided.
//
// A block's weights are relative to its own power, its largest score rounded up; the second kernel scales
// them by a power of two to the largest power of all blocks. Each output is one chain over all rows in
// ascending order. So the first kernel may be divided by blocks and the second by columns, and nothing is
// merged.
#include "cuda/mla_fill.cuh"
#include "cuda/wgmma.cuh"

namespace dsv32::cuda {
namespace {

constexpr int kWeighGroups = 2;  // groups that multiply, of 64 heads each

// How the first kernel divides its shared memory. Fp8 rows land unchanged, two blocks ahead.
template <KvType kKv>
struct WeighSizes {
  static constexpr int kStages = kKv == KvType::fp8 ? 2 : 3;
  static constexpr int kBlocksAhead = kKv == KvType::fp8 ? 2 : 0;
  static constexpr int kLandingBytes = kBlocksAhead * kBlockRows * kRowBytes<kKv>;
  using Stages = Pipe<kStages, true>;
  static constexpr int kBytes =
      kStages * kBlockBytes + kLandingBytes + static_cast<int>(2 * kHeads * sizeof(float) + sizeof(Stages));
};
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr int kFirstGroupBarrier = 1;  // named barriers, one for each group

// Loads the queries of the group's heads from `room` to registers, as operands of products over 16 values
// each.
DSV32_DEVICE void take_queries(const uint8_t* room, int warp, int lane, uint32_t (&q)[kRowLines * 4][4]) {
  const int row = warp * 16 + lane / 8 % 2 * 8 + lane % 8;
  DSV32_UNROLL for (int step = 0; step < kRowLines * 4; ++step)
      load_matrices(q[step], shared_address(room) + chunk_place(2 * step + lane / 16, row, kHeads));
}

// Writes a block's weights [64 heads, 64 rows], their powers, and their sums as rounded.
DSV32_DEVICE void store_weights(const float (&s)[8][4], float2 largest, uint4* out, int lane) {
  const float power[2] = {ceilf(largest.x), ceilf(largest.y)};
  float sum[2] = {0, 0};
  uint32_t pairs[8][2];
  DSV32_UNROLL for (int h = 0; h < 2; ++h) {
    weigh(s, h, power[h] - kDecodePower, pairs, sum[h]);
    sum[h] = quad_sum(sum[h]);
  }
  DSV32_UNROLL for (int i = 0; i < kOperandLines; ++i)
      out[i * 32 + lane] = {pairs[2 * i][0], pairs[2 * i][1], pairs[2 * i + 1][0], pairs[2 * i + 1][1]};
  reinterpret_cast<float4*>(out)[kOperandLines * 32 + lane] = {power[0], power[1], sum[0], sum[1]};
}

// Fills stages with the share's fp8 rows; a warp has kRows rows of a block. Two blocks are under way while
// one is widened, and rows' slots and scales are looked up another block ahead.
template <int kRows, typename Stages>
DSV32_DEVICE void fill_landed(const Attend& op, const Plan& plan, const Share& share, uint8_t* stages,
                              uint8_t* landing, Stages* ring, int warp, int lane) {
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
  for (int block = share.first, turn = 0; block < share.n_blocks; block += share.step, ++turn) {
    if (lane < kRows) note_row(plan, share, block, lane_row, place, scales);
    const uint32_t after_scales = scales_of(after);
    const RowPlace last = find(block + 3 * share.step);
    const uint8_t* landed = landing + turn % 2 * kSlotBytes;
    uint8_t* k = stages + Stages::stage(turn) * kBlockBytes;
    wait_copies<1>();
    __syncwarp();
    ring->wait_empty(turn);
    DSV32_UNROLL for (int first = 0; first < kRows; first += 2) {
      uint4 codes[2];
      DSV32_UNROLL for (int i = 0; i < 2; ++i) codes[i] = *reinterpret_cast<const uint4*>(
          landed + (warp * kRows + first + i) * kRowBytes<KvType::fp8> + lane * 16);
      DSV32_UNROLL for (int i = 0; i < 2; ++i)
          store_fp8(codes[i], __shfl_sync(0xffffffffu, scales, first + i), k, warp * kRows + first + i, lane);
    }
    DSV32_UNROLL for (int i = 0; i < kRows; i += 4) {
      const int row = warp * kRows + i + lane / 8;
      *reinterpret_cast<uint4*>(k + chunk_place(kRank / 8 + lane % 8, row, kBlockRows)) = bf16_to_f16(
          *reinterpret_cast<const uint4*>(landed + row * kRowBytes<KvType::fp8> + kRank + lane % 8 * 16));
    }
    tell_full(&ring->full[Stages::stage(turn)], lane);
    start(after, turn);
    place = next, next = after, after = last, scales = next_scales, next_scales = after_scales;
  }
}

// The work of a group that computes scores. It owns the stages until it first marks them empty: it loads its
// queries through one of the last stages.
template <typename Stages>
DSV32_DEVICE void weigh_blocks(const Attend& op, const Plan& plan, const Share& share, uint8_t* stages,
                               float* units, Stages* ring, int group, int warp, int lane) {
  const int first_room = Stages::kSize - kWeighGroups;
  if (lane == 0)
    for (int i = 0; i < first_room; ++i) arrive(&ring->empty[i]);
  uint32_t q[kRowLines * 4][4];
  units += group * kHeads;
  uint8_t* room = stages + (first_room + group) * kBlockBytes;
  load_queries_f16<4>(op, share.t, share.first_head + group * kHeads, room, units, warp * 16, warp * 16 + 16,
                      lane);
  sync_at<kGroupThreads>(kFirstGroupBarrier + group);
  take_queries(room, warp, lane, q);
  __syncwarp();
  if (lane == 0)
    for (int i = first_room; i < Stages::kSize; ++i) arrive(&ring->empty[i]);
  const int head = warp * 16 + lane / 4;
  const float scale = op.scale * 1.44269504f;
  const float scales[2] = {scale * units[head], scale * units[head + 8]};
  const int head_warp = (share.first_head / kHeads + group) * 4 + warp;
  for (int block = share.first, turn = 0; block < share.n_blocks; block += share.step, ++turn) {
    ring->wait_full(turn);
    __syncwarp();
    float s[8][4] = {};
    const uint64_t key = wgmma_operand(shared_address(stages) + Stages::stage(turn) * kBlockBytes);
    wgmma_begin();
    DSV32_UNROLL for (int step = 0; step < kRowLines * 4; ++step)
        wgmma<64>(&s[0][0], q[step], key + (step / 4 * kBlockRows * kLine + step % 4 * 32) / 16);
    wgmma_commit();
    wgmma_wait();
    __syncwarp();
    if (lane == 0) arrive(&ring->empty[Stages::stage(turn)]);
    const float2 largest = scale_scores(s, scales, block * kBlockRows, share.n, lane);
    store_weights(s, largest,
                  plan.weights + (share.t * plan.n_most_blocks + block) * weights_of(plan.n_head_warps) +
                      weights_of(head_warp),
                  lane);
  }
}
#endif

// Weights of the selected rows j of a token for each head: 2^(scale log2(e) (q_c . c_j + q_pe . k_pe_j) -
// power) as fp16; a block's power is its largest score rounded up. CTA: one token, two times 64 heads, every
// n_splits-th block of 64 rows; the last eight warps fill stages and note rows' slots and scales, the others
// hold their heads' queries in registers and compute scores and weights. Bound: loading rows, which all 128
// heads share.
template <KvType kKv>
__global__ void __launch_bounds__(threads_of(kWeighGroups), 1)
    mla_weigh_kernel(const Attend op, const Plan plan) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Sizes = WeighSizes<kKv>;
  extern __shared__ __align__(1024) uint8_t stages[];        // [kStages][kRowLines][kBlockRows] lines
  uint8_t* landing = stages + Sizes::kStages * kBlockBytes;  // [kBlocksAhead][kBlockRows] rows
  auto* units = reinterpret_cast<float*>(landing + Sizes::kLandingBytes);  // [2 * kHeads]
  auto* ring = reinterpret_cast<typename Sizes::Stages*>(units + 2 * kHeads);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (threadIdx.x == 0) {
    ring->init(kFillWarps, 4 * kWeighGroups);
    publish_barriers();
  }
  let_next_start();
  wait_for_inputs();
  __syncthreads();
  const Share share = share_of(op, plan, kWeighGroups * kHeads);
  if (share.first >= share.n_blocks) return;
  if (warp >= 4 * kWeighGroups) {
    give_registers<48>();
    constexpr int kRows = kBlockRows / kFillWarps;
    const int fill = warp - 4 * kWeighGroups;
    if constexpr (kKv == KvType::fp8)
      fill_landed<kRows>(op, plan, share, stages, landing, ring, fill, lane);
    else
      fill_bf16<kRows>(op, plan, share, stages, ring, fill, lane);
  } else {
    take_registers<208>();
    weigh_blocks(op, plan, share, stages, units, ring, warp / 4, warp % 4, lane);
  }
#else
  __trap();
#endif
}

// How the second kernel divides its shared memory. A CTA adds kColumns columns of kGroups times 64 heads.
template <KvType kKv, int kGroups, int kColumns>
struct AddSizes {
  static constexpr int kStages = kColumns == 256 ? 3 : kColumns == 128 ? 4 : 8;  // fp16 values
  static constexpr int kStageBytes = kBlockRows * kColumns * 2;
  // Rows are copied in the cache's format: a lane copies and widens 16 values of each of kSteps rows of a
  // block.
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
      kFoundRows * static_cast<int>(sizeof(FoundRow)) + static_cast<int>(sizeof(Pipe<kStages>));
};
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// A thread's two heads over all blocks: the common power of the weights, and the weights' sum.
struct Totals {
  float power[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
};

// Each of the four lanes that have the same two heads takes every fourth block.
DSV32_DEVICE Totals total(const uint4* weights, int64_t n_block_weights, int n_blocks, int lane) {
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
  DSV32_UNROLL for (int h = 0; h < 2; ++h) {
    grow(h, quad_max(totals.power[h]));
    totals.sum[h] = quad_sum(totals.sum[h]);
  }
  return totals;
}

// Copies a thread's weights through its own places in shared memory.
template <int kAhead, int kLineThreads>
struct WeightCopies {
  const uint4* from;  // the thread's weights of block 0
  int64_t n_block_weights;
  uint32_t to;
  int n_blocks;

  DSV32_DEVICE uint32_t place(int block, int line) const {
    return to + (block % kAhead * kWeightLines + line) * kLineThreads * 16;
  }
  DSV32_DEVICE void start(int block) const {
    if (block < n_blocks) {
      DSV32_UNROLL for (int line = 0; line < kWeightLines; ++line)
          copy_line_async(place(block, line), from + block * n_block_weights + line * 32);
    }
    commit_copies();
  }
};

// The block's operands, scaled to the common power.
template <typename Copies>
DSV32_DEVICE void take_weights(const Copies& copies, const Totals& totals, int block,
                               uint32_t (&a)[kOperandLines][4]) {
  const uint4 known = load_shared_u32x4(copies.place(block, kOperandLines));
  const __half2 factors[2] = {__float2half2_rn(exp2_fast(__uint_as_float(known.x) - totals.power[0])),
                              __float2half2_rn(exp2_fast(__uint_as_float(known.y) - totals.power[1]))};
  DSV32_UNROLL for (int line = 0; line < kOperandLines; ++line) {
    scale_weights(load_shared_u32x4(copies.place(block, line)), factors, a[line]);
  }
}

// o += weights times values: o[32 c + 4 j + e] is head lane / 4 + 8 (e / 2) of the warp's 16, column 64 c + 8
// j + 2 (lane % 4) + e % 2. Two sets of operands of kTogether blocks alternate: one is prepared while the
// other's products run.
template <int kColumns, int kTogether, int kAhead, typename Copies, typename ValueRing>
DSV32_DEVICE void add_blocks(const Copies& copies, const Totals& totals, const uint8_t* stages,
                             ValueRing* ring, int lane, float (&o)[kColumns / 2]) {
  static_assert(kTogether == 1 || ValueRing::kSize >= 4 * kTogether);  // the last few blocks free no stages
  uint32_t even[kTogether][kOperandLines][4], odd[kTogether][kOperandLines][4], last[1][kOperandLines][4];
  const auto add = [&]<int kBlocks>(int block, uint32_t(&weights)[kBlocks][kOperandLines][4]) {
    wait_copies<kAhead - kBlocks>();
    DSV32_UNROLL for (int i = 0; i < kBlocks; ++i) take_weights(copies, totals, block + i, weights[i]);
    DSV32_UNROLL for (int i = 0; i < kBlocks; ++i) copies.start(block + i + kAhead),
        ring->wait_full(block + i);
    __syncwarp();
    wgmma_begin();
    DSV32_UNROLL for (int i = 0; i < kBlocks; ++i) {
      const uint64_t values = wgmma_operand<kBlockRows * kLine>(
          shared_address(stages) + ValueRing::stage(block + i) * kBlockRows * kColumns * 2);
      DSV32_UNROLL for (int step = 0; step < kOperandLines; ++step) {
        DSV32_UNROLL for (int c = 0; c < kColumns / 64; ++c)
            wgmma<64, true>(o + 32 * c, weights[i][step], values + (c * kBlockRows + step * 16) * kLine / 16);
      }
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

// Fills stages with columns first_column ... of all rows as fp16, by groups of four warps; a warp has 16 rows
// of a block. Rows' places are copied kRowsAhead blocks before the rows, and rows kRowsAhead blocks before
// they are widened.
template <KvType kKv, typename Sizes, typename ValueRing>
DSV32_DEVICE void fill_values(const Plan& plan, const FoundRow* found, int n_blocks, int first_column,
                              uint8_t* stages, uint8_t* landing, FoundRow* table, ValueRing* ring, int group,
                              int warp, int lane) {
  constexpr int kAhead = Sizes::kRowsAhead, kCopies = Sizes::kChunkCopies, kStepRows = 32 / Sizes::kChunks;
  constexpr int kStepBytes = kCopies * 32 * 16;
  static_assert(kStepRows * Sizes::kSteps == kFillRows);
  constexpr int kTogether = Sizes::kSteps == 4 ? 4 : 2;  // steps whose values are loaded together
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
      ring->wait_empty(block);
      DSV32_UNROLL for (int first = 0; first < Sizes::kSteps; first += kTogether) {
        uint4 in[kTogether][kCopies];
        uint32_t scales[kTogether];
        DSV32_UNROLL for (int i = 0; i < kTogether; ++i) {
          for (int copy = 0; copy < kCopies; ++copy)
            in[i][copy] = *reinterpret_cast<const uint4*>(arrived + (first + i) * kStepBytes + copy * 512);
          scales[i] = taken[(first + i) * kStepRows + first_row].scales;
        }
        DSV32_UNROLL for (int i = 0; i < kTogether; ++i) {
          uint4 low, high;
          if constexpr (kKv == KvType::fp8)
            widen_fp8(in[i][0], scales[i], first_column / 16 + chunk, low, high);
          else
            low = bf16_to_f16(in[i][0]), high = bf16_to_f16(in[i][1]);
          store_chunks(low, high, values, kBlockRows, warp * kFillRows + (first + i) * kStepRows + first_row,
                       chunk);
        }
      }
      tell_full(&ring->full[ValueRing::stage(block)], lane);
    }
    if (tick >= kAhead && tick < n_own + kAhead) {
      const FoundRow* places = table + (tick + kAhead) % (2 * kAhead) * kFillRows + first_row;
      int32_t ids[Sizes::kSteps];
      DSV32_UNROLL for (int step = 0; step < Sizes::kSteps; ++step) ids[step] = places[step * kStepRows].id;
      DSV32_UNROLL for (int step = 0; step < Sizes::kSteps; ++step) {
        const uint8_t* from = rows + static_cast<int64_t>(max(ids[step], 0)) * kRowBytes<kKv>;
        DSV32_UNROLL for (int i = 0; i < kCopies; ++i) copy_line_async(
            shared_address(arrived + step * kStepBytes + i * 512), from + i * 16, ids[step] >= 0);
      }
    }
    __syncwarp();
    if (tick < n_own && lane < kFillRows)
      copy_small_async(shared_address(taken + lane), found + (2 * tick + group) * kBlockRows);
    commit_copies();
  }
}

#endif

// o_c = sum of weights times latents / sum of weights, with mla_weigh_kernel's weights. CTA: one token,
// kGroups times 64 heads, kColumns columns; the last eight warps load values, a group of four warps has the
// sums of 64 heads in registers. Bound: many tokens: the products; one token: loading weights, 256 KB per
// CTA.
template <KvType kKv, int kGroups, int kColumns>
__global__ void __launch_bounds__(threads_of(kGroups), 1) mla_add_kernel(const Attend op, const Plan plan) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Sizes = AddSizes<kKv, kGroups, kColumns>;
  extern __shared__ __align__(1024) uint8_t stages[];  // [kStages][kColumns / 64][kBlockRows] lines
  uint8_t* landing = stages + Sizes::kStages * Sizes::kStageBytes;            // [kRowsAhead][kLandingBytes]
  uint8_t* weights = landing + 2 * Sizes::kRowsAhead * Sizes::kLandingBytes;  // [kWeightsAhead][kWeightBytes]
  auto* table = reinterpret_cast<FoundRow*>(weights + Sizes::kWeightsAhead * Sizes::kWeightBytes);
  auto* ring = reinterpret_cast<Pipe<Sizes::kStages>*>(table + Sizes::kFoundRows);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (threadIdx.x == 0) {
    ring->init(4, 4 * kGroups);
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
  DSV32_UNROLL for (int block = 0; block < Sizes::kWeightsAhead; ++block) copies.start(block);
  const Totals totals = total(from, n_block_weights, n_blocks, lane);
  float o[kColumns / 2] = {};
  add_blocks<kColumns, kColumns == 64 ? 2 : 1, Sizes::kWeightsAhead>(copies, totals, stages, ring, lane, o);
  DSV32_UNROLL for (int h = 0; h < 2; ++h) {
    const int head = first_head + warp * 16 + lane / 4 + 8 * h;
    store_head<kColumns / 2>(op, t, head, first_column, o, h, n_blocks == 0 ? 0.0f : 1.0f / totals.sum[h]);
  }
#else
  __trap();
#endif
}
template <KvType kKv, int kGroups, int kColumns>
void launch_add(const Attend& op, Plan plan, const Launch& launch) {
  constexpr int kBytes = AddSizes<kKv, kGroups, kColumns>::kBytes;
  static_assert(kBytes <= kMostSharedBytes);
  plan.n_head_tiles = static_cast<int>(ceil_div(op.n_heads, kGroups * kHeads));
  const int64_t n_ctas = op.step.n_tokens * plan.n_head_tiles * (kRank / kColumns);
  launch_kernel(mla_add_kernel<kKv, kGroups, kColumns>, {n_ctas, threads_of(kGroups), kBytes}, launch, op,
                plan);
}

template <KvType kKv>
void attend_tokens(const Attend& op, Plan plan, const Launch& launch) {
  const int64_t n_single = op.step.n_tokens * ceil_div(op.n_heads, kHeads);
  const int64_t n_double = op.step.n_tokens * ceil_div(op.n_heads, 2 * kHeads);
  plan.n_head_tiles = static_cast<int>(ceil_div(op.n_heads, 2 * kHeads));
  plan.n_splits = choose_shares_of_rows(n_double, plan.n_most_blocks, launch.n_sms);
  constexpr int kBytes = WeighSizes<kKv>::kBytes;
  static_assert(kBytes <= kMostSharedBytes);
  launch_kernel(mla_weigh_kernel<kKv>, {n_double * plan.n_splits, threads_of(kWeighGroups), kBytes}, launch,
                op, plan);
  switch (choose_add_columns(n_single, n_double, launch.n_sms)) {
    case 64: launch_add<kKv, 1, 64>(op, plan, launch); break;
    case 128: launch_add<kKv, 2, 128>(op, plan, launch); break;
    default: launch_add<kKv, 2, 256>(op, plan, launch);
  }
}

}  // namespace

void attend_decode(const Attend& op, Plan plan, const Launch& launch) {
  plan.n_most_blocks = static_cast<int>(ceil_div(std::min(op.topk, op.step.max_pos + 1), kBlockRows));
  if (const int64_t n_heads =
          choose_few_heads(op.step.n_tokens, op.n_heads, plan.n_most_blocks * kBlockRows, launch.n_sms))
    return attend_few(op, plan, n_heads, launch);
  plan.n_head_warps = static_cast<int>(ceil_div(op.n_heads, 2 * kHeads)) * 8;
  const int64_t n_weights = plan.n_most_blocks * weights_of(plan.n_head_warps);
  const int64_t n_bytes_token = n_weights * static_cast<int64_t>(sizeof(uint4)) +
                                plan.n_most_blocks * kBlockRows * static_cast<int64_t>(sizeof(FoundRow));
  in_groups(op, n_bytes_token, launch, [&](const Attend& part, int64_t n_together, uint8_t* scratch) {
    plan.weights = reinterpret_cast<uint4*>(scratch);
    plan.found = reinterpret_cast<FoundRow*>(plan.weights + n_together * n_weights);
    with_kv(op, [&]<KvType kKv>() { attend_tokens<kKv>(part, plan, launch); });
  });
}

}  // namespace dsv32::cuda
