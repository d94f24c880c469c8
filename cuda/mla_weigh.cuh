// The first kernel of decode's attention on Hopper (mla_decode.cu): scores and fp16 weights of blocks of 64
// rows.
#pragma once

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

// Writes a block's weights [64 heads, 64 rows], their powers, and their sums as rounded, so that normalised
// they add up to one.
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
    DSV32_UNROLL for (int i = 0; i < 32; ++i) s[i / 4][i % 4] *= scales[i / 2 % 2];
    const float2 largest = scale_scores<8>(s, 1.0f, block * kBlockRows, share.n, lane);
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

}  // namespace
}  // namespace dsv32::cuda
