// Sparse MLA in prefill by Hopper's asynchronous products: a CTA takes 64 heads of a token.
//
// Its four groups of warps share a pipe of two stages of 64 rows and one block of weights, so that a block's
// scores hide behind the previous block's values. Fp16 gives queries and weights three bits more than bf16; a
// unit for each query (common.cuh) and a factor for all weights make up for its smaller range.
//
// Many tokens of one prompt select from the same rows: these are converted to fp16 once, before, if they are
// not too many for the scratch memory. The conversion is the same, so the bits are the same.
#include "cuda/mla_fill.cuh"
#include "cuda/wgmma.cuh"

namespace dsv32::cuda {
namespace {

struct Barriers {
  Pipe<2> ring;
  uint64_t weighed;  // a block's weights are there; they are used up when its stage is empty
};

// Values of the heads of a CTA.
struct Heads {
  float units[kHeads];                 // of the queries
  float factors[kHeads];               // of earlier sums, by the newest maximum
  float largest[kHeads], sum[kHeads];  // at the end: of all scores; of all weights
};

// The source of rows: the cache in one of its formats, or widen_rows_kernel's fp16 rows.
enum class Source { fp8, bf16, f16 };

constexpr int kSharedBytes = kHeads * kRowLines * kLine + 2 * kBlockBytes + kHeads * kLine +
                             static_cast<int>(sizeof(Heads) + sizeof(Barriers));
constexpr int kF16RowBytes = kRowLines * kLine;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr int kGroupColumns = kRank / 2;  // of the output, for each of the two groups with values
constexpr int kFillRegisters = 112, kScoreRegisters = 80,
              kValueRegisters = 160;  // 112 + 80 + 2 * 160 = 4 * 128, the CTA's at its start

// Named barriers: of the three groups that multiply, and of the two with values.
constexpr int kProductsBarrier = 1, kValuesBarrier = 2;

// All weights are multiplied by 2 to this power: with kSlack they reach 2^15 at most, and weights down to
// 2^-21 of the largest keep all their bits. The factor cancels when sums are divided by the weights' sum.
constexpr float kWeightPower = 7;

// The work of the group that computes scores. A thread keeps the same two heads.
DSV32_DEVICE void score_blocks(const Attend& op, const Share& share, const uint8_t* q, const uint8_t* stages,
                               uint8_t* p, Heads* heads, Barriers* barriers, int warp, int lane) {
  const int head = warp * 16 + lane / 4;
  const float scale = op.scale * 1.44269504f;
  const float scales[2] = {scale * heads->units[head], scale * heads->units[head + 8]};
  Running running;
  for (int block = share.first, turn = 0; block < share.n_blocks; block += share.step, ++turn) {
    barriers->ring.wait_full(turn);
    fence_async_proxy();
    __syncwarp();
    float s[8][4] = {};
    const uint64_t query = wgmma_operand(shared_address(q));
    const uint64_t key = wgmma_operand(shared_address(stages) + turn % 2 * kBlockBytes);
    wgmma_begin();
    DSV32_UNROLL for (int step = 0; step < kRowLines * 4; ++step)  // 16 values, two chunks
        wgmma<64>(&s[0][0], query + (step / 4 * kHeads * kLine + step % 4 * 32) / 16,
                  key + (step / 4 * kBlockRows * kLine + step % 4 * 32) / 16);
    wgmma_commit();
    wgmma_wait();

    const float2 largest = scale_scores(s, scales, block * kBlockRows, share.n, lane);
    float factors[2];
    grow(running, {largest.x, largest.y}, factors);
    uint32_t pairs[8][2];
    DSV32_UNROLL for (int h = 0; h < 2; ++h)
        weigh(s, h, running.largest[h] - kWeightPower, pairs, running.sum[h]);
    if (turn > 0) barriers->ring.wait_empty(turn + 1);
    DSV32_UNROLL for (int h = 0; h < 2; ++h) {
      DSV32_UNROLL for (int i = 0; i < 8; ++i) *
          reinterpret_cast<uint32_t*>(p + chunk_place(i, head + 8 * h, 0) + lane % 4 * 4) = pairs[i][h];
      if (lane % 4 == 0) heads->factors[head + 8 * h] = factors[h];
      if (block + share.step < share.n_blocks) continue;
      running.sum[h] = quad_sum(running.sum[h]);
      if (lane % 4 == 0)
        heads->sum[head + 8 * h] = running.sum[h], heads->largest[head + 8 * h] = running.largest[h];
    }
    fence_async_proxy();
    __syncwarp();
    if (lane == 0) arrive(&barriers->weighed);
  }
}

// The work of one of the two groups that add values: o[4 c + e], zero at first, is head lane / 4 + 8 (e / 2)
// of the warp's 16, column 8 c + 2 (lane % 4) + e % 2 of the group's.
DSV32_DEVICE void add_values(const Share& share, const uint8_t* stages, const uint8_t* p, const Heads* heads,
                             Barriers* barriers, int group, int head, int lane,
                             float (&o)[kGroupColumns / 2]) {
  for (int block = share.first, turn = 0; block < share.n_blocks; block += share.step, ++turn) {
    const uint32_t k = shared_address(stages) + turn % 2 * kBlockBytes;
    barriers->ring.wait_full(turn);
    wait_for_phase(&barriers->weighed, turn % 2);
    fence_async_proxy();
    const float factors[2] = {heads->factors[head], heads->factors[head + 8]};
    if (__any_sync(0xffffffffu, factors[0] != 1 || factors[1] != 1)) {
      DSV32_UNROLL for (int i = 0; i < kGroupColumns / 2; ++i) o[i] *= factors[i / 2 % 2];
    }
    const uint64_t weights = wgmma_operand(shared_address(p));
    const uint64_t values =
        wgmma_operand<kBlockRows * kLine>(k + group * (kGroupColumns / 64) * kBlockRows * kLine);
    wgmma_begin();
    DSV32_UNROLL for (int step = 0; step < kBlockRows / 16; ++step) {
      DSV32_UNROLL for (int half = 0; half < 2; ++half) wgmma<128, true>(
          o + 64 * half, weights + step * 2, values + (2 * half * kBlockRows + step * 16) * kLine / 16);
    }
    wgmma_commit();
    wgmma_wait();
    __syncwarp();
    if (lane == 0) arrive(&barriers->ring.empty[turn % 2]);
  }
}

DSV32_DEVICE void store_f32(const Attend& op, const Share& share, const Heads* heads, int group, int head_row,
                            const float (&o)[kGroupColumns / 2]) {
  DSV32_UNROLL for (int h = 0; h < 2; ++h) {
    const int row = head_row + 8 * h;
    const float sum = share.n > 0 ? heads->sum[row] : 0.0f;
    store_head<kGroupColumns / 2>(op, share.t, share.first_head + row, group * kGroupColumns, o, h,
                                  sum == 0 ? 1.0f : 1.0f / sum);
  }
}

// Stores sums as fp16, each head with its own unit, as round_activations() does. `rows` is the queries'
// memory, where rows lie until they are copied out. heads->units and heads->largest now hold the maxima of
// groups 0 and 1.
DSV32_DEVICE void store_f16(const Attend& op, const Plan& plan, const Share& share, uint8_t* rows,
                            Heads* heads, int group, int head_row, int lane, float (&o)[kGroupColumns / 2]) {
  constexpr int kPitch = 2 * kRank + 16;  // eight rows use eight different groups of banks
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t first_row = share.t * op.n_heads + share.first_head;
  DSV32_UNROLL for (int h = 0; h < 2; ++h) {
    const float sum = share.n > 0 ? heads->sum[head_row + 8 * h] : 0.0f;
    const float factor = sum == 0 ? 1.0f : 1.0f / sum;
    float largest = 0;
    DSV32_UNROLL for (int i = 0; i < kGroupColumns / 4; ++i) {
      float& value = o[i / 2 * 4 + 2 * h + i % 2];
      value *= factor;
      largest = fmaxf(largest, fabsf(value));
    }
    largest = quad_max(largest);
    if (lane % 4 == 0) (group ? heads->largest : heads->units)[head_row + 8 * h] = largest;
  }
  sync_at<2 * kGroupThreads>(kValuesBarrier);
  DSV32_UNROLL for (int h = 0; h < 2; ++h) {
    const int row = head_row + 8 * h;
    const float unit = plain_unit(fmaxf(heads->units[row], heads->largest[row]));
    const float inverse = inverse_of_power(unit);
    if (group == 0 && lane % 4 == 0 && share.first_head + row < op.n_heads)
      plan.rounded.units[first_row + row] = unit;
    uint8_t* to = rows + row * kPitch + (group * kGroupColumns + lane % 4 * 2) * 2;
    DSV32_UNROLL for (int c = 0; c < kGroupColumns / 8; ++c) * reinterpret_cast<__half2*>(to + c * 16) =
        __floats2half2_rn(o[4 * c + 2 * h] * inverse, o[4 * c + 2 * h + 1] * inverse);
  }
  fence_async_proxy();
  sync_at<2 * kGroupThreads>(kValuesBarrier);
  if (thread >= kHeads || share.first_head + thread >= op.n_heads) return;
  copy_out(plan.rounded.values + (first_row + thread) * kRank, rows + thread * kPitch, 2 * kRank);
  commit_copies_out();
  wait_until_read<0>();
}

#endif

// o_c = sum_j softmax(scale (q_c . c_j + q_pe . k_pe_j)) c_j over the selected rows j of one token.
// CTA: one token, 64 heads; warps 12-15 fill stages, 8-11 compute a block's scores and weights, 0-7 load the
// queries and then add values, 256 columns for each four warps, with sums in registers that the other warps
// gave up. Both products read the same latents, once as columns of K^T and once as rows of V. A sum is
// rescaled only when a maximum grows by 2^kSlack.
// Bound: a block of 64 heads and 64 rows takes 1152 + 1024 cycles of products, whose operands take 1920
// cycles of reading shared memory; but each stage is filled, scored, weighed and added in turn, and only two
// stages have room. Measured (H100, 2026-11-23): 2048 tokens, 128 heads, 2048 rows, widening included: fp8
// 505 TFLOP/s, bf16 509.
template <Source kSource>
__global__ void __launch_bounds__(4 * kGroupThreads, 1) mla_hopper_kernel(const Attend op, const Plan plan) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) uint8_t q[];     // [kRowLines][kHeads] lines
  uint8_t* stages = q + kHeads * kRowLines * kLine;  // [2][kRowLines][kBlockRows] lines
  uint8_t* p = stages + 2 * kBlockBytes;             // [kHeads] lines
  auto* heads = reinterpret_cast<Heads*>(p + kHeads * kLine);
  auto* barriers = reinterpret_cast<Barriers*>(heads + 1);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (threadIdx.x == 0) {
    barriers->ring.init(kSource == Source::f16 ? kGroupThreads : 4,
                        8);  // filling warps; warps with values
    init_barrier(&barriers->weighed, 4);
    publish_barriers();
  }
  let_next_start();
  wait_for_inputs();
  __syncthreads();
  const Share share = share_of(op, plan, kHeads);
  if (warp >= 12) {
    give_registers<kFillRegisters>();
    if constexpr (kSource == Source::f16)
      fill_f16(op, plan, share, stages, &barriers->ring, warp - 12, lane);
    else if constexpr (kSource == Source::fp8)
      fill_fp8(op, plan, share, stages, &barriers->ring, warp - 12, lane);
    else
      fill_bf16(op, plan, share, stages, &barriers->ring, warp - 12, lane);
  } else if (warp >= 8) {
    give_registers<kScoreRegisters>();
    sync_at<3 * kGroupThreads>(kProductsBarrier);  // queries are there
    score_blocks(op, share, q, stages, p, heads, barriers, warp - 8, lane);
  } else {
    take_registers<kValueRegisters>();
    load_queries_f16<4>(op, share.t, share.first_head, q, heads->units, warp * 8, warp * 8 + 8, lane);
    fence_async_proxy();
    sync_at<3 * kGroupThreads>(kProductsBarrier);
    const int group = warp / 4, head_row = warp % 4 * 16 + lane / 4;
    float o[kGroupColumns / 2] = {};
    add_values(share, stages, p, heads, barriers, group, head_row, lane, o);
    if (plan.rounded.values)
      store_f16(op, plan, share, q, heads, group, head_row, lane, o);
    else
      store_f32(op, share, heads, group, head_row, o);
  }
#else
  __trap();
#endif
}

// Row pos of `out` = the latent and k_pe of that position as fp16, for a step of one sequence. One warp per
// row: a lane converts 16 e4m3 values or two chunks of eight bf16 values; lanes 0-7 also convert a chunk of
// k_pe each. Rows are in order of position. Bound by bytes: 656 (bf16: 1152) read and 1152 written per row.
constexpr int kWidenThreads = 256;
template <KvType kKv>
__global__ void __launch_bounds__(kWidenThreads)
    widen_rows_kernel(const Attend op, const Plan plan, int64_t n_rows, uint8_t* out) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  let_next_start();
  wait_for_inputs();
  const int lane = threadIdx.x % 32;
  const int64_t pos = (int64_t{blockIdx.x} * kWidenThreads + threadIdx.x) / 32;
  if (pos >= n_rows) return;
  const RowPlace place = {paged_row(op.cache.slot_pages, op.cache, 0, pos), static_cast<int32_t>(pos)};
  const uint8_t* from = plan.rows + place.id * kRowBytes<kKv>;
  auto* to = reinterpret_cast<uint4*>(out + pos * kF16RowBytes);
  uint4 low, high;
  if constexpr (kKv == KvType::fp8) {
    const uint32_t scales = load_scales(op, plan.page_bytes, find_page(op, 0, place), place);
    widen_fp8(load_streaming(from + 16 * lane), scales, lane, low, high);
  } else {
    low = bf16_to_f16(load_streaming(from + 32 * lane));
    high = bf16_to_f16(load_streaming(from + 32 * lane + 16));
  }
  to[2 * lane] = low, to[2 * lane + 1] = high;
  constexpr int rope = kRowBytes<kKv> - 2 * kRope;
  if (lane < 8) to[kRank / 8 + lane] = bf16_to_f16(load_streaming(from + rope + 16 * lane));
#endif
}

template <Source kSource>
void launch_hopper(const Attend& op, const Plan& plan, const Launch& launch) {
  launch_kernel(mla_hopper_kernel<kSource>,
                {op.step.n_tokens * plan.n_head_tiles, 4 * kGroupThreads, kSharedBytes}, launch, op, plan);
}

}  // namespace

void attend_hopper(const Attend& op, Plan plan, const Launch& launch) {
  plan.n_head_tiles = static_cast<int>(ceil_div(op.n_heads, kHeads)), plan.n_splits = 1;
  // Rows are converted before if they belong to one sequence and lie in the slots of their positions.
  const int64_t n_rows = op.step.max_pos + 1;
  const bool widens = op.step.n_seqs == 1 && !op.row_ids && widens_rows(n_rows, op.step.n_tokens);
  with_kv(op, [&]<KvType kKv>() {
    if (!widens) return launch_hopper < kKv == KvType::fp8 ? Source::fp8 : Source::bf16 > (op, plan, launch);
    auto* rows = launch.workspace->take<uint8_t>(n_rows * kF16RowBytes);
    launch_kernel(widen_rows_kernel<kKv>, {ceil_div(n_rows * 32, kWidenThreads), kWidenThreads}, launch, op,
                  plan, n_rows, rows);
    plan.f16_rows = rows;
    launch_hopper<Source::f16>(op, plan, launch);
  });
}

}  // namespace dsv32::cuda
