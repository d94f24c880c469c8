// Multiplies weight rows by 17 to 80 vectors on Hopper, with the same bits as decode_columns.cu.
//
// A product of four warps (wgmma) adds as a product of one warp does: 16 columns at a time into f32. Which 16
// is free, so x lies in shared memory in the order in which a lane decodes weights (column_of), and weights
// come from registers, as in decode_steps.cuh. While the tensor cores work, the warps decode the next piece.
//
// A block has 64 rows; of a gated product 32 rows of W0 and the same 32 of W1. Its two groups of four warps
// divide the units in halves as sum_units() does: the first group has the first half.
#include "cuda/decode_wide.cuh"
#include "cuda/wgmma.cuh"

namespace dsv32::cuda {
namespace decode {
namespace {

// Stores a lane's part of a column's step. values: where its piece's operands begin; at: where the step does.
template <TensorType kType, int kN>
DSV32_DEVICE void store_halves(const RoundedX& own, int lane, int c, uint8_t* values, uint8_t* at) {
  using Step = WideStep<kType, kN>;
  const int i = lane % 4;
  DSV32_UNROLL for (int k = 0; k < 4; ++k) *
      reinterpret_cast<uint32_t*>(values + k / 2 * Step::kOperand + Step::word_at(c, i, k % 2)) =
      own.words[k];
  if (lane == 0) *reinterpret_cast<float*>(at + Step::kUnits + 4 * c) = own.unit;
  if constexpr (kIsK45<kType>) {
    if (!stores_group_sum(lane)) return;
    DSV32_UNROLL for (int k = 0; k < 2; ++k) *
        reinterpret_cast<__half*>(at + Step::kSums + Step::word_at(c, i, k) + lane / 4 / kGroupPieces * 2) =
        own.sum[k];
  }
}
template <TensorType kType, int kN>
DSV32_DEVICE void store_integers(const IntegerPiece& own, int piece, int i, int c, uint8_t* values,
                                 uint8_t* at) {
  using Step = WideStep<kType, kN>;
  DSV32_UNROLL for (int k = 0; k < 4; ++k) *
      reinterpret_cast<uint32_t*>(values + Step::word_at(2 * c + k / 2, i, k % 2)) = own.bytes[k / 2][k % 2];
  if (piece == 0 && i == 0) *reinterpret_cast<float*>(at + Step::kUnits + 4 * c) = own.unit;
  DSV32_UNROLL for (int part = 0; part < 2; ++part) {
    if constexpr (kType == TensorType::q2_k) {
      if (piece % 2) continue;
      uint8_t* sums = at + Step::kSums + piece / 2;
      sums[Step::word_at(2 * c + part, i, 0)] = static_cast<uint8_t>(own.sums[part] >> 4);
      sums[Step::word_at(2 * c + part, i, 1)] = static_cast<uint8_t>(own.sums[part] & 15);
    } else if (kType == TensorType::q3_k && piece == 0 && i == 0) {
      *reinterpret_cast<int*>(at + Step::kBegins + 8 * c + 4 * part) = -128 * own.sums[part];
    }
  }
}

// Rounds x. A team of lanes makes a step of a column; grid: teams. Layout: WideX. Bound by bytes:
// 1024 read and some 550 written per step of 256.
template <TensorType kType, int kN>
__global__ void make_wide_kernel(const __grid_constant__ DecodeRows rows, const WideX to, bool is_x_aligned) {
  using X = Record<kType>;
  using Step = WideStep<kType, kN>;
  let_next_start();
  wait_for_inputs();
  const int64_t team = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / X::kLanes;
  const int column = static_cast<int>(team / to.n_steps), step = static_cast<int>(team % to.n_steps);
  const int lane = threadIdx.x % X::kLanes, piece = lane / 4, i = lane % 4;
  const int problem = column / rows.n_tokens, token = column % rows.n_tokens;
  const bool is_there = column < to.n_columns;
  const float* x = rows.x + problem * rows.x_problem_stride + token * rows.x_token_stride;
  float4 v[2];
  load_x8<kHalvesApart<kType>>(x, step * Steps<kType>::kCols + column_of<kType>(piece, i),
                               is_there ? rows.n_cols : 0, is_x_aligned, v);
  const int c = token % to.n_chunk;
  const int64_t chunk = int64_t{problem} * to.n_chunks + token / to.n_chunk;
  uint8_t* at = to.steps + (chunk * to.n_steps + step) * Step::kBytes;
  uint8_t* values = at + 2 * place_of_piece<kType>(piece) * Step::kOperand;
  if constexpr (kIsInteger<kType>) {
    const IntegerPiece own = round_to_integers<kType>(v);
    if (is_there) store_integers<kType, kN>(own, piece, i, c, values, at);
  } else {
    const RoundedX own = round_x<kType>(v);
    if (is_there) store_halves<kType, kN>(own, lane, c, values, at);
  }
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr int kLoadRegisters = 88, kProductRegisters = 208;  // 128 * 88 + 256 * 208 = 384 * 168

// Sums that products have written are read after this.
template <int n>
DSV32_DEVICE void take_sums(float (&sums)[n]) {
  DSV32_UNROLL for (int k = 0; k < n; ++k) asm volatile("" : "+f"(sums[k])::"memory");
}

// Adds the products of a step, as add_step() does, for kN columns and 16 rows of each of four warps. next:
// the lane's rows g and g + 8 of this step; load_next() replaces them by those of the next step while the
// last products run.
template <TensorType kType, int kN, typename LoadNext>
DSV32_DEVICE void add_wide_step(float (&sums)[kN / 2], LaneRow<kType> (&next)[2], XStages<kType, kN>& x,
                                const uint32_t* grid, const LoadNext& load_next) {
  using X = Record<kType>;
  using Step = WideStep<kType, kN>;
  using Row = LaneRow<kType>;
  const int i = static_cast<int>(threadIdx.x) % 4;
  constexpr int kEach = Step::kPartPieces;
  const Row row[2] = {next[0], next[1]};
  float c[2][kN / 2];
  uint32_t stage = 0, first = 0;
  DSV32_UNROLL for (int k = 0; k < X::kPieces; ++k) {
    const int p = piece_at<kType>(k);
    uint4 a[2];
    DSV32_UNROLL for (int r = 0; r < 2; ++r) a[r] = row[r].piece(p, grid);
    if (k > 0 && k % kEach == 0) {
      wgmma_wait<0>();  // for all pieces of the first part
      x.release();
    }
    if (k % kEach == 0) stage = x.wait(), first = plain_operand(stage);
    constexpr uint32_t kNext = Step::kOperand >> 4;
    const uint32_t b = first + 2 * (k % kEach) * kNext;
    wgmma_begin();
    wgmma<kN>(c[0], {a[0].x, a[1].x, a[0].y, a[1].y}, whole_plain_operand(b), k > 0);
    wgmma<kN>(c[1], {a[0].z, a[1].z, a[0].w, a[1].w}, whole_plain_operand(b + kNext), k > 0);
    wgmma_commit();
    wgmma_wait<1>();
  }
  load_next();
  wgmma_wait<0>();
  take_sums(c[0]), take_sums(c[1]);
  DSV32_UNROLL for (int k = 0; k < kN / 2; ++k) c[0][k] += c[1][k];
  if constexpr (kIsK45<kType>) {
    const uint32_t b = first + (Step::kSums - Step::kFirst >> 4);
    wgmma_begin();
    // The same mins times the sums, and times the sums' rounding errors.
    wgmma<kN>(c[1], {row[0].mins, row[1].mins, row[0].mins, row[1].mins}, whole_plain_operand(b), false);
    wgmma_commit();
  }
  if constexpr (Row::kHasD) {
    DSV32_UNROLL for (int k = 0; k < kN / 2; ++k) c[0][k] *= row[k / 2 % 2].d;
  }
  if constexpr (kIsK45<kType>) {
    wgmma_wait<0>();
    take_sums(c[1]);
    DSV32_UNROLL for (int k = 0; k < kN / 2; ++k) c[0][k] = fmaf(-row[k / 2 % 2].dmin, c[1][k], c[0][k]);
  }
  const uint32_t units = stage + Step::kUnits - Step::kFirst + 8 * i;
  DSV32_UNROLL for (int n = 0; n < kN / 8; ++n) {
    const uint2 unit = load_shared_u32x2(units + 32 * n);
    DSV32_UNROLL for (int e = 0; e < 4; ++e) sums[4 * n + e] =
        fmaf(c[0][4 * n + e], __uint_as_float(e % 2 ? unit.y : unit.x), sums[4 * n + e]);
  }
  x.release();
}

template <int n>
DSV32_DEVICE void take_sums(int (&sums)[n]) {
  DSV32_UNROLL for (int k = 0; k < n; ++k) asm volatile("" : "+r"(sums[k])::"memory");
}

// Adds values [four tokens][row] in units of x to the sums. units: shared address of the lane's first unit.
template <int kN, typename Value>
DSV32_DEVICE void add_in_units(float (&sums)[kN / 2], uint32_t units, const Value& value) {
  DSV32_UNROLL for (int k = 0; k < kN / 2; ++k) {
    const float unit = __uint_as_float(load_shared_u32(units + 16 * (k / 2)));
    float& to = sums[k / 4 * 4 + k % 2 * 2 + k / 2 % 2];
    to = fmaf(value(k), unit, to);
  }
}

// The same as add_integer_step() does: of the sums of eight tokens a lane has those of tokens i and i + 4.
template <TensorType kType, int kN, typename LoadNext>
DSV32_DEVICE void add_wide_step(float (&sums)[kN / 2], IntegerRow<kType> (&next)[2], XStages<kType, kN>& x,
                                const uint32_t*, const LoadNext& load_next) {
  using Step = WideStep<kType, kN>;
  constexpr bool kHasMins = kType == TensorType::q2_k;
  constexpr int kEach = Step::kPartPieces;
  const int i = static_cast<int>(threadIdx.x) % 4;
  const IntegerRow<kType> row[2] = {next[0], next[1]};
  int c[kN];  // [four tokens][row][high, low]
  uint32_t stage = 0, first = 0;
  DSV32_UNROLL for (int p = 0; p < Record<kType>::kPieces; ++p) {
    uint32_t a[4];
    DSV32_UNROLL for (int e = 0; e < 4; ++e) a[e] = row[e % 2].products(p / 2, p % 2 * 2 + e / 2);
    if (p > 0 && p % kEach == 0) {
      wgmma_wait<0>();  // for all pieces of the first part
      x.release();
    }
    if (p % kEach == 0) stage = x.wait(), first = plain_operand(stage);
    wgmma_begin();
    wgmma_bytes<2 * kN>(c, a, whole_plain_operand(first + p % kEach * (2 * Step::kOperand >> 4)), p > 0);
    wgmma_commit();
    wgmma_wait<1>();
  }
  load_next();
  wgmma_wait<0>();
  take_sums(c);
  float values[kN / 2];  // [four tokens][row]
  [[maybe_unused]] const uint32_t begins = stage + Step::kBegins - Step::kFirst + 8 * i;
  DSV32_UNROLL for (int k = 0; k < kN / 2; ++k) {
    if constexpr (!kHasMins) {
      const uint2 begin = load_shared_u32x2(begins + 32 * (k / 2));
      c[2 * k] += static_cast<int>(begin.x), c[2 * k + 1] += static_cast<int>(begin.y);
    }
    values[k] = static_cast<float>(joined(c[2 * k], c[2 * k + 1]));
  }
  // Not c again: nvcc 13.0 takes what is made of c before and after a product for the same.
  [[maybe_unused]] int least[kN];
  if constexpr (kHasMins) {
    uint32_t a[4];
    IntegerRow<kType>::mins(row, a);
    wgmma_begin();
    wgmma_bytes<2 * kN>(least, a, whole_plain_operand(first + (Step::kSums - Step::kFirst >> 4)), false);
    wgmma_commit();
    wgmma_wait<0>();
    take_sums(least);
  }
  add_in_units<kN>(sums, stage + Step::kUnits - Step::kFirst + 4 * i, [&](int k) {
    float min_sum = 0;
    if constexpr (kHasMins) min_sum = static_cast<float>(joined(least[2 * k], least[2 * k + 1]));
    return row[k % 2].value_of(values[k], min_sum);
  });
  x.release();
}

// The same for nibbles. Up to 32 tokens the sums of a group are multiplied by its scale while the next
// group's products run; more leave no registers for two groups.
template <TensorType kType, int kN, typename LoadNext>
requires kHasNibbles<kType> DSV32_DEVICE void add_wide_step(float (&sums)[kN / 2],
                                                            IntegerRow<kType> (&next)[2],
                                                            XStages<kType, kN>& x, const uint32_t*,
                                                            const LoadNext& load_next) {
  using Step = WideStep<kType, kN>;
  using Row = IntegerRow<kType>;
  constexpr int kPieces = Record<kType>::kPieces, kEach = Step::kPartPieces;
  constexpr bool kRunsAhead = kN <= 32;
  const int i = static_cast<int>(threadIdx.x) % 4;
  const Row row[2] = {next[0], next[1]};
  // [piece][four tokens][row][high, low]. No two products share them: nvcc 13.0 takes what is made of sums
  // before and after a product for the same.
  int c[kPieces][kN];
  typename Row::Total total[kN / 2];  // [four tokens][row]
  const auto add = [&](int p) {
    take_sums(c[p]);
    const typename Row::Scale scale[2] = {row[0].scale(p), row[1].scale(p)};
    DSV32_UNROLL for (int k = 0; k < kN / 2; ++k) total[k].add(scale[k % 2], c[p][2 * k], c[p][2 * k + 1]);
  };
  uint32_t stage = 0;
  DSV32_UNROLL for (int p = 0; p < kPieces; ++p) {
    uint2 codes[2][Row::kTerms];
    DSV32_UNROLL for (int r = 0; r < 2; ++r) row[r].signed8(p, codes[r]);
    if (p > 0 && !kRunsAhead) {
      wgmma_wait<0>();
      add(p - 1);
    }
    if (p % kEach == 0) {
      if (p > 0) x.release();
      stage = x.wait();
    }
    const uint32_t b = plain_operand(stage) + p % kEach * (2 * Step::kOperand >> 4);
    wgmma_begin();
    DSV32_UNROLL for (int t = 0; t < Row::kTerms; ++t) wgmma_signed_bytes<2 * kN>(
        c[p], {codes[0][t].x, codes[1][t].x, codes[0][t].y, codes[1][t].y}, whole_plain_operand(b), t > 0);
    wgmma_commit();
    if (p > 0 && kRunsAhead) {
      wgmma_wait<1>();
      add(p - 1);
    }
  }
  wgmma_wait<0>();
  add(kPieces - 1);
  float values[kN / 2];
  DSV32_UNROLL for (int k = 0; k < kN / 2; ++k) values[k] = row[k % 2].value_of(total[k]);
  load_next();
  add_in_units<kN>(sums, stage + Step::kUnits - Step::kFirst + 4 * i, [&](int k) { return values[k]; });
  x.release();
}

constexpr int kProductsBarrier = 1;  // named barrier of the warps that multiply

// Calls work(sum, k) for a thread's sums in a slot [rows of the block, kN + 2]; k: the sum's number.
template <TensorType kType, int kN, typename Work>
DSV32_DEVICE void with_own_sums(float* slot, const Work& work) {
  constexpr int kRowSums = kN + 2;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32 % kHalfWarps;
  float* own = slot + (warp * kBandTile + lane / 4) * kRowSums;
  DSV32_UNROLL for (int k = 0; k < kN / 2; ++k)
      work(own[k / 2 % 2 * 8 * kRowSums + k / 4 * 8 + token_of_sum<kType>(lane % 4, k)], k);
}

// Writes y of the block's rows of an item.
template <int kN>
DSV32_DEVICE void finish_item(const DecodeRows& rows, const WideX& x, const WideCut& cut,
                              const BlockItem& item, const float* sums) {
  constexpr int kRowSums = kN + 2;
  int first_row;
  const DecodeRows::Matrix& matrix = matrix_of_group(rows, cut, item.group, &first_row);
  const int log_rows = cut.is_gated ? kLogBlockRows - 1 : kLogBlockRows;
  const int n_rows = 1 << log_rows, first_token = item.chunk * x.n_chunk;
  const int n_tokens = min(x.n_chunk, rows.n_tokens - first_token);
  for (int k = static_cast<int>(threadIdx.x) - kLoadThreads; k < n_rows * n_tokens; k += kThreads) {
    const int c = k >> log_rows, r = k & (n_rows - 1), row = first_row + r;
    if (row >= matrix.n_rows) continue;
    const float* own = sums + r * kRowSums + c;
    if (cut.is_gated) {
      const float totals[2] = {own[0], own[n_rows * kRowSums]};
      finish_row<2>(rows, matrix, totals, item.problem, first_token + c, row);
    } else {
      const float totals[1] = {own[0]};
      finish_row<1>(rows, matrix, totals, item.problem, first_token + c, row);
    }
  }
}

// What a multiplying warp does. The first half stores its sums in shared memory; the second half adds its own
// to them, and both to the sums of the parts before.
template <TensorType kType, int kN>
DSV32_DEVICE void multiply_half(const DecodeRows& rows, const Layout& layout, const WideX& x,
                                const WideCut& cut, XStages<kType, kN> x_stages, int half,
                                const uint8_t* weight_ring, float* slots, const uint32_t* grid) {
  using Step = Steps<kType>;
  constexpr int kSlotSums = kBlockRows * (kN + 2);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = uniform_warp() % kHalfWarps;
  const Lane<kType> quarter(lane % 4);
  float* totals = layout.n_split > 1 ? slots + kSlotSums : slots;
  RingBarriers* barriers = x_stages.barriers;
  RingWalk walk;
  weight_ring += warp * kWarpStage<kType>;
  wait_for_inputs();
  for (int item_at = blockIdx.x; item_at < cut.n_items; item_at += gridDim.x) {
    const BlockItem item(x, cut, item_at);
    for (int part = 0; part < layout.n_split; ++part) {
      const StepShare share(layout, part);
      const Half own(layout, share, half);
      StepPlace at = place_tile<kType>(rows, cut, item, warp, own.begin);
      LaneRowOf<kType> lane_rows[2];
      const auto load_rows = [&](const RingWalk& from) {
        barriers->weights.wait_full(from);
        const uint8_t* rows_at[2];
        find_step<kType>(rows, at, lane, weight_ring + from.stage * kWeightStage<kType>, rows_at);
        DSV32_UNROLL for (int r = 0; r < 2; ++r) lane_rows[r].load(rows_at[r], quarter);
        at.row += step_apart<kType>(rows);
      };
      if (own.begin < own.end) load_rows(walk);
      float half_sums[kN / 2] = {};
      for (int unit = own.first_unit, step = own.begin; unit < own.end_unit; ++unit) {
        float sums[kN / 2] = {};
        for (const int end = share.begin_of(layout, unit + 1); step < end; ++step) {
          RingWalk next = walk;
          next.advance(kWeightStages);
          add_wide_step<kType, kN>(sums, lane_rows, x_stages, grid, [&] {
            if (step + 1 < own.end) load_rows(next);
          });
          if (lane == 0) arrive(&barriers->weights.empty[walk.stage]);
          walk = next;
        }
        DSV32_UNROLL for (int k = 0; k < kN / 2; ++k) half_sums[k] += sums[k];
      }
      if (half == 0) with_own_sums<kType, kN>(slots, [&](float& to, int k) { to = half_sums[k]; });
      sync_at<kThreads>(kProductsBarrier);
      if (half == 1) {
        const float* first = slots;
        with_own_sums<kType, kN>(totals, [&](float& to, int k) {
          const float both = first[&to - totals] + half_sums[k];
          to = part ? to + both : both;
        });
      }
      sync_at<kThreads>(kProductsBarrier);
    }
    finish_item<kN>(rows, x, cut, item, totals);
    sync_at<kThreads>(kProductsBarrier);  // until all sums are read
  }
}

#endif

// y as in decode_rows_kernel, for chunks of up to kN tokens.
// Blocks are persistent over items. Warps 0 to 3 load weights and x, warps 4 to 7 multiply the first half of
// the units, 8 to 11 the second, each its own 16 rows.
// Layout: head of this file; rings of x of both halves, rings of their weights, then the sums.
// Instructions (some 480 per warp and step of 256 columns, half of the issue slots), products (40 % of the
// tensor cores) and copies overlap; without any arithmetic 42 of the 50 us of 64 tokens remain. Measured
// (H100, 2026-11-25): Q4_K 7168 x 16384 of 32, 33, 64, 80 and 128 tokens 39, 45, 50, 67 and 90 us, the last
// 333 TFLOP/s where fp16 products of prompts reach 673. 80 columns spill registers and leave room for three
// halves of a step of x instead of four; decoding the weights twice would cost more.
template <TensorType kType, int kN>
__global__ void __launch_bounds__(kAllThreads, 1)
    decode_wide_kernel(const __grid_constant__ DecodeRows rows, const __grid_constant__ Layout layout,
                       const __grid_constant__ WideX x, const __grid_constant__ WideCut cut) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ uint32_t grid[kGridWords<kType> + 1];
  __shared__ RingBarriers barriers[kHalves];
  const int warp = uniform_warp();
  let_next_start();
  fill_grid<kType>(grid);
  if (threadIdx.x < kHalves) barriers[threadIdx.x].init();
  __syncthreads();
  const int x_bytes = cut.n_x_stages * WideStep<kType, kN>::kStage;
  constexpr int kWeightBytes = kWeightStages * kWeightStage<kType>;
  uint8_t* weights = shared + kHalves * x_bytes;
  if (warp < kLoadWarps) {
    give_registers<kLoadRegisters>();
    const int half = warp / (kLoadWarps / kHalves), first_tile = warp % (kLoadWarps / kHalves) * 2;
    Loader<kType, kN> load{rows,
                           layout,
                           x,
                           cut,
                           shared + half * x_bytes,
                           shared_address(weights) + half * kWeightBytes + first_tile * kWarpStage<kType>,
                           &barriers[half],
                           first_tile,
                           {},
                           {},
                           {}};
    load.run(half);
  } else {
    take_registers<kProductRegisters>();
    const int half = (warp - kLoadWarps) / kHalfWarps;
    multiply_half<kType, kN>(rows, layout, x, cut,
                             {shared_address(shared) + half * x_bytes, &barriers[half], cut.n_x_stages, {}},
                             half, weights + half * kWeightBytes,
                             reinterpret_cast<float*>(weights + kHalves * kWeightBytes), grid);
  }
#else
  __trap();
#endif
}

// Returns false, and launches nothing, if a block's shared memory is too small.
template <TensorType kType, int kN>
bool launch_wide(DecodeRows rows, const Layout& layout, bool is_gated, int n_chunk, const Launch& launch) {
  using X = Record<kType>;
  using Step = WideStep<kType, kN>;
  const auto kernel = decode_wide_kernel<kType, kN>;
  WideCut cut{};
  cut.is_gated = is_gated;
  cut.n_groups = number_groups(rows, is_gated ? kHalfWarps / 2 : kHalfWarps);
  const int n_chunks = ceil_div(rows.n_tokens, n_chunk);
  cut.n_items = rows.n_problems * n_chunks * cut.n_groups;

  const int n_beside = kHalves * kWeightStages * kWeightStage<kType> +
                       (layout.n_split > 1 ? 2 : 1) * kBlockRows * (kN + 2) * static_cast<int>(sizeof(float));
  const int room = most_shared_bytes(kernel) - n_beside;
  cut.n_x_stages = std::min(room / (kHalves * Step::kStage), kMostXStages);
  if (cut.n_x_stages < 2) return false;

  const int n_columns = rows.n_problems / rows.x_sharing * rows.n_tokens;
  const WideX x = {launch.workspace->take<uint8_t>(int64_t{rows.n_problems} / rows.x_sharing * n_chunks *
                                                   layout.n_steps * Step::kBytes),
                   n_columns, n_chunk, n_chunks, layout.n_steps};
  const int64_t n_steps = int64_t{n_columns} * layout.n_steps;
  launch_kernel(make_wide_kernel<kLikeX<kType>, kN>, {ceil_div(n_steps, kThreads / X::kLanes), kThreads},
                launch, rows, x, layout.is_x_aligned);
  const int n_bytes = kHalves * cut.n_x_stages * Step::kStage + n_beside;
  launch_kernel(kernel, {std::min(cut.n_items, launch.n_sms), kAllThreads, n_bytes}, launch, rows, layout, x,
                cut);
  return true;
}

// Calls work.operator()<width>(); choose.h lists the widths of each type.
template <TensorType kType, typename Work>
void with_width(int width, const Work& work) {
  const auto try_width = [&]<int kN>() {
    if constexpr (has_width(kType, kN))
      if (width == kN) return work.template operator()<kN>(), true;
    return false;
  };
  if (try_width.template operator()<32>() || try_width.template operator()<40>() ||
      try_width.template operator()<48>() || try_width.template operator()<64>() ||
      try_width.template operator()<80>())
    return;
  fail(ErrorKind::internal, format("products of %d tokens with %s weights", width, type_name(kType)));
}

}  // namespace

void multiply_wide(const DecodeRows& rows, bool is_gated, const DecodeChoice& choice, TensorType type,
                   const Launch& launch) {
  bool is_done = false;
  with_type(type, [&]<TensorType kType>() {
    if constexpr (!kIsFloat<kType>)
      with_width<kType>(choice.width, [&]<int kN>() {
        is_done = launch_wide<kType, kN>(rows, layout_of<kType>(rows, is_gated ? 2 : 1), is_gated,
                                         choice.n_together, launch);
      });
  });
  if (!is_done) multiply_columns(rows, {}, is_gated, equal_share(rows.n_tokens, kMostTogether), type, launch);
}

}  // namespace decode
}  // namespace dsv32::cuda
