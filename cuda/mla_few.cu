// Sparse MLA in decode on Hopper for few tokens: the same bits as mla_decode.cu, from two kernels with
// smaller CTAs.
//
// One token is bound by latency: a CTA waits for rows whose place a table says, for queries and for weights.
// So CTAs have 32 heads, or 64 for two to four tokens, and load all their inputs at once, and the second
// kernel has all its values in shared memory when the first is done. Each CTA fills a multiprocessor.
#include "cuda/mla_few_weigh.cuh"

namespace dsv32::cuda {
namespace {

constexpr int kAddThreads = kFewThreads + kGroupThreads;
template <int kFew>
constexpr int kFewSlots = kFew == 32 ? 18 : 8;  // of weights, a block each
constexpr int kValueLine = kFewColumns * 2;     // bytes
[[maybe_unused]] constexpr int kLookups = kFewBlocks * kBlockRows / kFewThreads;

// Shared memory of a CTA.
template <int kFew>
struct AddRoom {
  uint8_t values[kFewBlocks * kBlockRows * kValueLine];
  uint4 weights[kFewSlots<kFew>][kFewChunks<kFew>];
  FoundRow found[kFewBlocks * kBlockRows];
  float2 powers[kFewBlocks][kFew];  // and the weights' sums; later .x is the factor to the common power
  float totals[kFew];
  uint64_t full[kFewBlocks], empty[kFewBlocks], powers_full;  // each used once
};
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Named barriers. Ready: the warp that copies weights tells the filling warps that the room's barriers are
// initialised. Filling: of the filling warps.
constexpr int kReadyBarrier = 1, kFillingBarrier = 2;

// A row of 32 values is a line of 64 bytes. Chunk c of row r is at place c ^ (r / 2) % 4 (the "64-byte
// swizzle", in groups of eight rows).
DSV32_DEVICE int value_place(int row, int chunk) {
  return row * kValueLine + ((chunk ^ (row >> 1)) & 3) * 16;
}

// Stores the slots of a token's rows in `found`. `places` and `pages` are those of the thread's own rows.
template <KvType kKv>
DSV32_DEVICE void find_rows(const Attend& op, int64_t t, int64_t seq, int n, FoundRow* found,
                            RowPlace (&places)[kLookups], int32_t (&pages)[kLookups]) {
  DSV32_UNROLL for (int i = 0; i < kLookups; ++i) places[i] =
      load_row(op, t, static_cast<int>(threadIdx.x) + i * kFewThreads);
  DSV32_UNROLL for (int i = 0; i < kLookups; ++i) {
    const bool is_selected = static_cast<int>(threadIdx.x) + i * kFewThreads < n;
    pages[i] = kKv == KvType::fp8 ? find_key_page(op, seq, places[i], is_selected) : 0;
    places[i] = find_loaded_row(op, seq, places[i], is_selected);
  }
  DSV32_UNROLL for (int i = 0; i < kLookups; ++i) found[threadIdx.x + i * kFewThreads].id =
      static_cast<int32_t>(places[i].id);
}

// Stores the scales of the thread's own rows in `found`.
DSV32_DEVICE void note_scales(const uint32_t (&scales)[kLookups], FoundRow* found) {
  DSV32_UNROLL for (int i = 0; i < kLookups; ++i) found[threadIdx.x + i * kFewThreads].scales = scales[i];
  sync_at<kFewThreads>(kFillingBarrier);
}

// Loads 32 columns of a token's values, zeros past the last row: a thread loads 16 bytes of each of eight
// rows at once. Scales are loaded at the same time.
template <KvType kKv>
DSV32_DEVICE void load_values(const Attend& op, const Plan& plan, int first_column,
                              const RowPlace (&places)[kLookups], const int32_t (&pages)[kLookups],
                              FoundRow* found, uint8_t* values) {
  constexpr bool kIsFp8 = kKv == KvType::fp8;
  constexpr int kBytes = kIsFp8 ? 1 : 2;  // of a value
  constexpr int kRowThreads = kFewColumns * kBytes / 16, kTurnRows = kFewThreads / kRowThreads;
  constexpr int kTurns = kFewBlocks * kBlockRows / kTurnRows, kTogether = 8;
  static_assert(!kIsFp8 || kTurns == kTogether);
  const int part = threadIdx.x % kRowThreads, first_row = threadIdx.x / kRowThreads;
  const uint8_t* from = plan.rows + first_column * kBytes + part * 16;
  uint32_t scales[kLookups] = {};
  DSV32_UNROLL for (int i = 0; kIsFp8 && i < kLookups; ++i) scales[i] =
      load_row_scales(op, plan.page_bytes, pages[i], places[i]);
  DSV32_UNROLL for (int turn = 0; turn < kTurns; turn += kTogether) {
    uint4 in[kTogether];
    DSV32_UNROLL for (int i = 0; i < kTogether; ++i) {
      const int64_t id = found[first_row + (turn + i) * kTurnRows].id;
      in[i] = {0, 0, 0, 0};
      if (id >= 0) in[i] = __ldcg(reinterpret_cast<const uint4*>(from + id * kRowBytes<kKv>));
    }
    if (kIsFp8) note_scales(scales, found);
    DSV32_UNROLL for (int i = 0; i < kTogether; ++i) {
      const int row = first_row + (turn + i) * kTurnRows;
      const auto store = [&](int chunk, const uint4& to) {
        *reinterpret_cast<uint4*>(values + value_place(row, chunk)) = to;
      };
      if constexpr (kIsFp8) {
        uint4 low, high;
        widen_fp8(in[i], found[row].scales, first_column / 16 + part, low, high);
        store(2 * part, low), store(2 * part + 1, high);
      } else {
        store(part, bf16_to_f16(in[i]));
      }
    }
  }
  fence_async_proxy();
}

// Starts the copies of the first kernel's powers and weights, by one thread. Weights wait until a slot is
// free.
template <int kFew>
DSV32_DEVICE void load_weights(const Plan& plan, int64_t at, int n_blocks, AddRoom<kFew>& room) {
  constexpr int kSlots = kFewSlots<kFew>;
  const uint32_t n_power_bytes = n_blocks * kFew * sizeof(float2);
  arrive_expecting(&room.powers_full, n_power_bytes);
  copy_in(room.powers, plan.powers + at * kFew, n_power_bytes, &room.powers_full);
  for (int block = 0; block < n_blocks; ++block) {
    if (block >= kSlots) wait_for_phase(&room.empty[block - kSlots], 0);
    constexpr uint32_t kBytes = kFewChunks<kFew> * sizeof(uint4);
    arrive_expecting(&room.full[block], kBytes);
    copy_in(room.weights[block % kSlots], plan.weights + (at + block) * kFewChunks<kFew>, kBytes,
            &room.full[block]);
  }
}

// Computes over all blocks the common power of each head, each block's factor to it, and the weights' sum.
// Each of a head's four threads takes every fourth block.
template <int kFew>
DSV32_DEVICE void total_heads(int n_blocks, AddRoom<kFew>& room) {
  const int head = threadIdx.x / 4, quarter = threadIdx.x % 4;
  float2 known[kFewBlocks / 4];
  float power = -INFINITY, total = 0;
  wait_for_phase(&room.powers_full, 0);
  DSV32_UNROLL for (int i = 0; i < kFewBlocks / 4; ++i) {
    const int block = 4 * i + quarter;
    known[i] = block < n_blocks ? room.powers[block][head] : float2{-INFINITY, 0};
    power = fmaxf(power, known[i].x);
  }
  power = quad_max(power);
  DSV32_UNROLL for (int i = 0; i < kFewBlocks / 4; ++i) {
    const float factor = exp2_fast(known[i].x - power);
    total += known[i].y * factor;
    room.powers[4 * i + quarter][head].x = __uint_as_float(as_word(__float2half2_rn(factor)));
  }
  total = quad_sum(total);
  if (quarter == 0) room.totals[head] = total;
}

// Takes a block's operands of the warp's 16 heads, scaled to the common power, and frees the slot.
using Operands = uint32_t[kOperandLines][4];
template <int kFew>
DSV32_DEVICE void take_weights(AddRoom<kFew>& room, int block, int n_blocks, int head_warp, int lane,
                               Operands& a) {
  wait_for_phase(&room.full[block], 0);
  const float2* powers = room.powers[block] + head_warp * 16 + lane / 4;
  const __half2 factors[2] = {as_half2(load_shared_u32(shared_address(powers))),
                              as_half2(load_shared_u32(shared_address(powers + 8)))};
  const uint4* from = room.weights[block % kFewSlots<kFew>] + head_warp * kOperandLines * 32 + lane;
  DSV32_UNROLL for (int line = 0; line < kOperandLines; ++line) {
    scale_weights(load_shared_u32x4(shared_address(from + line * 32)), factors, a[line]);
  }
  __syncwarp();
  if (lane == 0 && block + kFewSlots<kFew> < n_blocks) arrive(&room.empty[block]);
}

// o = weights times values, all blocks in one chain: o[4 c + 2 h + e] is head lane / 4 + 8 h of the warp's
// 16, column 8 c + 2 (lane % 4) + e. A product has 64 heads: of 32, warps 2 and 3 repeat those of 0 and 1,
// unused. Two sets of operands of two blocks alternate: one is prepared while the other's products run.
template <int kFew>
DSV32_DEVICE void add_values(AddRoom<kFew>& room, int n_blocks, int warp, int lane, float (&o)[16]) {
  Operands even[2] = {}, odd[2] = {}, last[1] = {};
  const auto add = [&]<int kBlocks>(int block, Operands(&a)[kBlocks]) {
    DSV32_UNROLL for (int i = 0; i < kBlocks; ++i)
        take_weights(room, block + i, n_blocks, warp % (kFew / 16), lane, a[i]);
    __syncwarp();
    wgmma_begin();
    DSV32_UNROLL for (int i = 0; i < kBlocks; ++i) {
      const uint64_t values =
          wgmma_operand<16, kValueLine>(shared_address(room.values) + (block + i) * kBlockRows * kValueLine);
      DSV32_UNROLL for (int step = 0; step < kOperandLines; ++step)
          wgmma<32, true>(o, a[i][step], values + step * kValueLine);
    }
    wgmma_commit();
    wgmma_wait<1>();
  };
  int block = 0;
  for (; block + 4 <= n_blocks; block += 4) add(block, even), add(block + 2, odd);
  wgmma_wait();
  DSV32_NO_UNROLL for (; block < n_blocks; ++block) add(block, last), wgmma_wait();
}
#endif

// As mla_add_kernel: o_c = sum of weights times latents / sum of weights, with mla_few_weigh_kernel's
// weights. CTA: one token, kFew heads, 32 columns. While the first kernel runs, 16 warps load all values of
// the columns as fp16 (128 KB): the selection is complete already. Another warp copies the weights when the
// first kernel is done, one copy per block; then four of the 16 warps compute totals and add. Bound: the
// chain of 128 products of 16 rows and 32 columns.
template <KvType kKv, int kFew>
__global__ void __launch_bounds__(kAddThreads, 1) mla_few_add_kernel(const Attend op, const Plan plan) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) uint8_t few_room[];
  auto& room = *reinterpret_cast<AddRoom<kFew>*>(few_room);
  const int lane = threadIdx.x % 32, warp = uniform_warp();
  const int first_column = blockIdx.x % kFewParts * kFewColumns;
  const int tile = blockIdx.x / kFewParts % plan.n_head_tiles;
  const int64_t t = blockIdx.x / kFewParts / plan.n_head_tiles, seq = op.step.seq[t];
  let_next_start();
  const int n = __ldcg(op.n_selected + t);
  const int n_blocks = __shfl_sync(0xffffffffu, (n + kBlockRows - 1) / kBlockRows, 0);  // uniform
  if (warp >= kFewWarps) {
    give_registers<40>();
    if (warp > kFewWarps) return;
    if (lane == 0) {
      for (int i = 0; i < kFewBlocks; ++i) init_barrier(&room.full[i], 1), init_barrier(&room.empty[i], 4);
      init_barrier(&room.powers_full, 1);
      publish_barriers();
    }
    __syncwarp();
    arrive_at<kFewThreads + 32>(kReadyBarrier);
    wait_for_inputs();
    if (lane == 0 && n_blocks > 0)
      load_weights(plan, (t * plan.n_head_tiles + tile) * plan.n_most_blocks, n_blocks, room);
    return;
  }
  RowPlace places[kLookups];
  int32_t pages[kLookups];
  find_rows<kKv>(op, t, seq, n, room.found, places, pages);
  sync_at<kFewThreads + 32>(kReadyBarrier);
  load_values<kKv>(op, plan, first_column, places, pages, room.found, room.values);
  wait_for_inputs();
  if (warp < kFew * 4 / 32 && n_blocks > 0) total_heads(n_blocks, room);
  sync_at<kFewThreads>(kFillingBarrier);
  if (warp >= kGroupThreads / 32) return;
  take_registers<152>();
  float o[kFewColumns / 2] = {};
  add_values(room, n_blocks, warp, lane, o);
  if (warp >= kFew / 16) return;
  DSV32_UNROLL for (int h = 0; h < 2; ++h) {
    const int own = warp * 16 + lane / 4 + 8 * h;
    const float factor = n_blocks == 0 ? 0.0f : 1.0f / room.totals[own];
    store_head<kFewColumns / 2>(op, t, tile * kFew + own, first_column, o, h, factor);
  }
#else
  __trap();
#endif
}
static_assert(sizeof(AddRoom<32>) <= kMostSharedBytes && sizeof(AddRoom<64>) <= kMostSharedBytes);

template <int kFew>
void attend_in_groups(const Attend& op, Plan plan, const Launch& launch) {
  plan.n_head_tiles = static_cast<int>(ceil_div(op.n_heads, kFew));
  const int64_t n_blocks = int64_t{plan.n_head_tiles} * plan.n_most_blocks;  // of a token
  constexpr int64_t kBytes = kFewChunks<kFew> * sizeof(uint4) + kFew * sizeof(float2);
  in_groups(op, n_blocks * kBytes, launch, [&](const Attend& part, int64_t n_together, uint8_t* scratch) {
    plan.weights = reinterpret_cast<uint4*>(scratch);
    plan.powers = reinterpret_cast<float2*>(plan.weights + n_together * n_blocks * kFewChunks<kFew>);
    const int64_t n_tiles = part.step.n_tokens * plan.n_head_tiles,
                  n_shares = ceil_div(plan.n_most_blocks, kWeighBlocks);
    with_kv(op, [&]<KvType kKv>() {
      launch_kernel(mla_few_weigh_kernel<kKv, kFew>,
                    {n_tiles * n_shares, kFewThreads, sizeof(WeighRoom<kFew>)}, launch, part, plan);
      launch_kernel(mla_few_add_kernel<kKv, kFew>, {n_tiles * kFewParts, kAddThreads, sizeof(AddRoom<kFew>)},
                    launch, part, plan);
    });
  });
}

}  // namespace

void attend_few(const Attend& op, const Plan& plan, int64_t n_heads, const Launch& launch) {
  if (n_heads == 32) return attend_in_groups<32>(op, plan, launch);
  attend_in_groups<64>(op, plan, launch);
}

}  // namespace dsv32::cuda
