// Products of a prompt's experts on Hopper. They take two tiles of rows at a time: one of w1 and one of w3,
// or two of w2.
//
// A CTA makes 256 x 128 sums: two tiles of 128 rows by up to 128 tokens; or, double, two tiles of 64 rows by
// up to 256 tokens, so that each row is dequantised once. It makes one item after another. Four warps load
// and eight multiply. A multiplying warp dequantises its rows into registers, from which the tensor cores
// take operand A, while its earlier products run. One thread has both gate and up in registers, so y =
// silu(w1 x) * (w3 x) is rounded once.
//
// A thread has four neighbouring codes of every sixteen, but the tensor core takes them as columns 2 i, 2 i +
// 1, 2 i + 8 and 2 i + 9. So activations are stored in that order (turned_column).
#include "cuda/weight_tile.cuh"
#include "cuda/wgmma.cuh"

namespace dsv32::cuda {
namespace {

constexpr int kLoadThreads = 128, kThreads = kLoadThreads + kProductThreads;
constexpr int kMostStages = 5;  // of tokens

constexpr int kItemsAhead = 2;  // items whose ItemTokens have room

struct Barriers {
  Pipe<kMostStages> stages;
  uint64_t written[kItemsAhead];  // an item's sums are written: its ItemTokens are free
};

// Whether spans are whole pieces of 16 bytes.
template <TensorType kType>
constexpr bool kIsWhole = RawSpan<kType>::kRowBytes % 16 == 0;

// Two tiles of rows and one of tokens.
struct Item {
  TokenTile tile;
  int64_t first_row;
  int n_steps, n_walked;  // n_walked: n_steps rounded up to whole spans
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr int kItemSums = 128;    // of a thread
constexpr int kHalf = kStep / 2;  // columns that a warp dequantises at a time

// Offset at which load_span() put the span of a row: its address modulo 16, or 0 where has_pairs() requires
// whole pieces. span_at: the span's offset in the row.
template <TensorType kType>
DSV32_DEVICE uint32_t moved_by(uint32_t row_begin, uint32_t span_at) {
  return kIsWhole<kType> ? 0 : (row_begin + span_at) % 16;
}

// Makes the compiler keep x in a register instead of computing it again.
DSV32_DEVICE uint32_t keep(uint32_t x) {
  asm volatile("" : "+r"(x));
  return x;
}

// Scale and min of a group; for Q4_K and Q5_K in one read.
template <TensorType kType>
DSV32_DEVICE ScaleMin scale_of(const InBlock<kType>& at) {
  if constexpr (kType == TensorType::q4_k || kType == TensorType::q5_k)
    return k_scale(*reinterpret_cast<const uint4*>(at.block), at.i16);
  else
    return Codes<kType>::scale(at.block, at.i16);
}

#endif

// The products with weights of a type. Shared memory has stages of tokens, spans of weights, ItemTokens,
// barriers and the grid. A span is loaded with the tokens of its first step, when all but the last kStages -
// 1 steps before it are done.
template <TensorType kType, bool kDouble>
struct Pairs {
  using Raw = RawSpan<kType>;
  static constexpr int kItemTokens = kDouble ? 2 * kTileTokens : kTileTokens;
  static constexpr int kMiddle = kDouble ? kMiddleDoubleTokens : kMiddleTokens;
  static constexpr int kHalfRows = kDouble ? kTileRows / 2 : kTileRows;  // of each of the two tiles
  // Registers of loading and of multiplying warps. The first plus twice the second are 3 * 168, with which
  // the CTA starts.
  static constexpr int kLoadRegisters = kDouble ? 72 : 56;
  static constexpr int kProductRegisters = (3 * 168 - kLoadRegisters) / 2;

  // The tokens of an item, for storing its sums.
  struct ItemTokens {
    int64_t y[kItemTokens];
    float units[kItemTokens];
  };

  static constexpr int kStageBytes = kItemTokens * kStep * 2;
  static constexpr int kHalfBytes = kHalfRows * Raw::kPitch;
  static constexpr int kSpanBytes = 2 * kHalfBytes;  // of both tiles
  static constexpr int n_spans(int n_stages) { return 1 + (n_stages - 1 + Raw::kSteps - 1) / Raw::kSteps; }
  static constexpr int n_bytes(int n_stages) {
    return n_stages * kStageBytes + n_spans(n_stages) * kSpanBytes +
           static_cast<int>(2 * sizeof(ItemTokens) + sizeof(Barriers)) + 4 * kGridWords<kType>;
  }
  static constexpr int most_stages() {
    int n = kMostStages;
    while (n > (kDouble ? kMostStages - 2 : kMostStages - 1) && n_bytes(n) > kMostSharedBytes) --n;
    return n;
  }
  static constexpr int kStages = most_stages(), kSpans = n_spans(kStages);
  static constexpr int kBytes = n_bytes(kStages);
  static constexpr bool kFits = kBytes <= kMostSharedBytes;
  static_assert(kMiddle < kItemTokens && kLoadRegisters + 2 * kProductRegisters <= 3 * 168 &&
                kSpans <= kStages);

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  static DSV32_DEVICE Item item_of(const PairProduct& op, int n_row_tiles, int index) {
    constexpr int kSteps = Raw::kSteps;
    Item item;
    item.tile = op.product.tiles[index / n_row_tiles];
    item.first_row = int64_t{index % n_row_tiles} * (op.is_gated ? 1 : 2) * kHalfRows;
    item.n_steps = static_cast<int>((op.product.weight.n_cols + kStep - 1) / kStep);
    item.n_walked = (item.n_steps + kSteps - 1) / kSteps * kSteps;
    return item;
  }

  // The first row of tile `half` of an item.
  static DSV32_DEVICE const uint8_t* half_of(const PairProduct& op, const Item& item, int half) {
    return op.is_gated ? row_of(half ? op.up : op.product.weight, item.tile.mat, item.first_row)
                       : row_of(op.product.weight, item.tile.mat, item.first_row + half * kHalfRows);
  }

  static DSV32_DEVICE void find_item_tokens(const PairProduct& op, const Item& item, ItemTokens* out) {
    const Product& product = op.product;
    for (int i = static_cast<int>(threadIdx.x); i < item.tile.n; i += kLoadThreads) {
      const int64_t at = item.tile.first + i;
      const float unit = product.x_units[product.x_rows ? product.x_rows[at] : at];
      out->units[i] = unit;
      out->y[i] = (product.y_rows ? product.y_rows[at] : at) * product.y_stride;
      if (product.y_units && item.first_row == 0) {
        const float power = unit * kLargestInUnits;
        product.y_units[at] = power * power / kHiddenScale;
      }
    }
  }

  // What the loading warps do.
  static DSV32_DEVICE void load_items(const PairProduct& op, int n_row_tiles, int n_items, uint32_t stages,
                                      uint32_t raw, ItemTokens* item_tokens, Barriers* barriers) {
    constexpr int kTokensAtOnce = kLoadThreads / 8;  // eight threads copy 128 bytes of a token
    const Product& product = op.product;
    const int thread = static_cast<int>(threadIdx.x), piece = thread % 8;
    RingWalk walk, span_walk, item_walk;
    for (int index = static_cast<int>(blockIdx.x); index < n_items; index += static_cast<int>(gridDim.x)) {
      const Item item = item_of(op, n_row_tiles, index);
      wait_for_phase(&barriers->written[item_walk.stage], item_walk.parity ^ 1);
      find_item_tokens(op, item, item_tokens + item_walk.stage);
      item_walk.advance(kItemsAhead);
      const RowRun halves[2] = {{product.weight, half_of(op, item, 0)},
                                {product.weight, half_of(op, item, 1)}};
      const int n_rows =
          static_cast<int>(min(int64_t{2 * kTileRows}, product.weight.n_rows - item.first_row));
      uint32_t pieces[kItemTokens / kTokensAtOnce];  // of x: this thread's, for each of its tokens
      DSV32_UNROLL for (int i = 0; i < kItemTokens / kTokensAtOnce; ++i) {
        const int64_t at = item.tile.first + min(i * kTokensAtOnce + thread / 8, item.tile.n - 1);
        pieces[i] =
            static_cast<uint32_t>((product.x_rows ? product.x_rows[at] : at) * (product.x_columns / 8)) +
            piece;
      }
      for (int step = 0; step < item.n_walked; ++step, walk.advance(kStages)) {
        barriers->stages.wait_empty(walk);
        if (step % Raw::kSteps == 0) {
          const uint32_t to = raw + span_walk.stage * kSpanBytes;
          DSV32_UNROLL for (int half = 0; half < 2; ++half) load_span<kType, kIsWhole<kType>, kLoadThreads>(
              halves[half], min(op.is_gated ? n_rows : n_rows - half * kHalfRows, kHalfRows),
              step / Raw::kSteps, to + half * kHalfBytes, thread);
          span_walk.advance(kSpans);
        }
        if (step < item.n_steps) {
          const uint32_t to = stages + walk.stage * kStageBytes + tile_offset(thread / 8, piece * 16);
          const auto* x = reinterpret_cast<const uint4*>(product.x) + step * (kStep / 8);
          DSV32_UNROLL for (int i = 0; i < kItemTokens / kTokensAtOnce;
                            ++i) if (i * kTokensAtOnce + thread / 8 < item.tile.n)
              copy_async(to + i * kTokensAtOnce * 128, x + pieces[i], 16);
        }
        fill_stage(&barriers->stages.full[walk.stage]);
      }
    }
    wait_all_copies();
  }

  // A multiplying warp's rows in eights: 0 and 1 are of one tile, 2 and 3 of the other; double: one eight of
  // each tile. Lane 4 g + i has codes of row g of each eight. Lane 8 e + r computes the scales of row r of
  // eight e for all lanes.
  struct WarpRows {
    static constexpr int kEights = kDouble ? 2 : 4;
    uint32_t begins[kEights];  // lowest bits of the addresses of the lane's rows
    uint32_t scale_begin;
    bool in_bands;
    uint32_t row, at, scale_at;  // in a tile; offsets in a span of both tiles
    uint32_t first_code, owner;  // owner: the lane with the scales of row g of eight 0
    static constexpr __device__ uint32_t half_of(uint32_t eight) { return kDouble ? eight : eight / 2; }
    static constexpr __device__ uint32_t row_of(uint32_t eight) { return kDouble ? 0 : eight % 2 * 8; }
  };

  static DSV32_DEVICE WarpRows warp_rows(const PairProduct& op, const Item& item) {
    const uint32_t lane = threadIdx.x % 32, warp = (threadIdx.x - kLoadThreads) / 32;
    const uint32_t first = warp * kHalfRows / 8, eight = lane / 8 % WarpRows::kEights,
                   scale_row = first + WarpRows::row_of(eight) + lane % 8;
    WarpRows rows;
    rows.row = first + lane / 4;
    rows.at = keep(rows.row * Raw::kPitch);
    rows.scale_at = keep(WarpRows::half_of(eight) * kHalfBytes + scale_row * Raw::kPitch);
    rows.first_code = keep(lane % 4 * 4), rows.owner = keep(lane / 4);
    const RowRun run(op.product.weight, nullptr);
    uint32_t begins[2];
    DSV32_UNROLL for (int half = 0; half < 2; ++half) begins[half] =
        static_cast<uint32_t>(reinterpret_cast<uintptr_t>(half_of(op, item, half)));
    DSV32_UNROLL for (int i = 0; i < WarpRows::kEights; ++i) rows.begins[i] =
        begins[WarpRows::half_of(i)] + run.row_offset(rows.row + WarpRows::row_of(i));
    rows.in_bands = run.in_bands;
    rows.scale_begin = begins[WarpRows::half_of(eight)] + run.row_offset(scale_row);
    return rows;
  }

  // 32 columns of the warp's rows, from `column` of the span on, as operand A: a[tile][k] has 16 columns.
  static DSV32_DEVICE void widen_half(const uint8_t* raw, const WarpRows& rows, uint32_t span_at,
                                      uint32_t column, const uint32_t* grid,
                                      uint32_t (&a)[WarpRows::kEights / 2][2][4]) {
    const auto span_of = [&](int eight) {
      return raw + rows.at + moved_by<kType>(rows.begins[eight], span_at) +
             WarpRows::half_of(eight) * kHalfBytes + WarpRows::row_of(eight) * Raw::kPitch;
    };
    if constexpr (kIsFloat<kType>) {
      DSV32_UNROLL for (int i = 0; i < 2 * WarpRows::kEights; ++i) {
        const int tile = i / 4, k = i / 2 % 2, h = i % 2;
        const uint8_t* from = span_of(2 * tile + h) + 2 * (column + 16 * k + rows.first_code);
        DSV32_UNROLL for (int e = 0; e < 2; ++e) {
          const uint32_t pair = load_word<2>(from + 4 * e);
          a[tile][k][h + 2 * e] = kType == TensorType::f16 ? pair
                                                           : pack_f16(__uint_as_float(pair << 16),
                                                                      __uint_as_float(pair & 0xffff0000u));
        }
      }
    } else {
      using Format = Codes<kType>;
      constexpr int kGroups = Format::kGroup < kHalf ? 2 : 1;
      const uint8_t* scale_span = raw + rows.scale_at + moved_by<kType>(rows.scale_begin, span_at);
      float scales[kGroups], constants[kGroups];
      DSV32_UNROLL for (int group = 0; group < kGroups; ++group) {
        const ScaleMin s = scale_of<kType>(InBlock<kType>(scale_span, column + 16 * group));
        scales[group] = s.scale, constants[group] = widen_constant<kType>(s);
      }
      DSV32_UNROLL for (int i = 0; i < WarpRows::kEights; ++i) {
        const int tile = i / 2, h = i % 2;
        const uint32_t owner = rows.owner + 8 * i;
        const uint8_t* from = span_of(i);
        float scale = 0, constant = 0;
        DSV32_UNROLL for (int k = 0; k < 2; ++k) {
          if (k < kGroups) {
            scale = __shfl_sync(0xffffffffu, scales[k % kGroups], owner);
            constant = Format::kHasMin ? __shfl_sync(0xffffffffu, constants[k % kGroups], owner)
                                       : widen_constant<kType>({scale, 0.0f});
          }
          const InBlock<kType> at(from, column + 16 * k);
          uint32_t pairs[2];
          widen4<kType>(Format::codes4(at.block, at.i16, static_cast<int>(rows.first_code), grid), scale,
                        constant, pairs);
          a[tile][k][h] = pairs[0], a[tile][k][h + 2] = pairs[1];
        }
      }
    }
  }

  // The sums of the warp's rows of both tiles with the item's tokens: sums[64 tile + 4 j + e] is row 8 (e /
  // 2) + lane / 4 of its tile, token 8 j + 2 (lane % 4) + e % 2; double: sums[4 j + e] is of tile e / 2.
  template <int kTokens>
  static DSV32_DEVICE void multiply_item(const Item& item, const WarpRows& rows, uint32_t stages,
                                         const uint8_t* raw, const uint32_t* grid,
                                         Pipe<kMostStages>* barriers, RingWalk& walk, RingWalk& span_walk,
                                         float (&sums)[kItemSums]) {
    constexpr uint32_t kSteps = Raw::kSteps;
    constexpr int kTiles = kDouble ? 1 : 2;
    const bool tells = threadIdx.x % 32 == 0;
    uint32_t a[2][kTiles][2][4];
    DSV32_UNROLL for (int i = 0; i < kTiles * kTokens / 2; ++i)
        sums[i % (kTokens / 2) + i / (kTokens / 2) * (kItemSums / 2)] = 0;
    RingWalk done = walk;
    for (uint32_t step = 0; step < static_cast<uint32_t>(item.n_steps); ++step, walk.advance(kStages)) {
      const uint64_t tokens = wgmma_operand(stages + walk.stage * kStageBytes);
      const uint8_t* from = raw + span_walk.stage * kSpanBytes;
      const uint32_t span_at = span_offset<kType, Raw::kColumns>(rows.in_bands, step / kSteps);
      barriers->wait_full(walk);
      fence_async_proxy();
      __syncwarp();
      DSV32_UNROLL for (int half = 0; half < 2; ++half) {
        widen_half(from, rows, span_at, step % kSteps * kStep + half * kHalf, grid, a[half]);
        wgmma_begin();
        DSV32_UNROLL for (int k = 0; k < 2; ++k) {
          DSV32_UNROLL for (int tile = 0; tile < kTiles; ++tile)
              wgmma<kTokens>(sums + tile * (kItemSums / 2), a[half][tile][k], tokens + 2 * (2 * half + k));
        }
        wgmma_commit();
        wgmma_wait<1>();  // for the half before
        if (half == 0 && step > 0) {
          if (tells) arrive(&barriers->empty[done.stage]);
          done.advance(kStages);
        }
      }
      if (step % kSteps == kSteps - 1) span_walk.advance(kSpans);
    }
    wgmma_wait<0>();
    DSV32_UNROLL for (int i = 0; i < kTiles * kTokens / 2; ++i) asm volatile(
        "" : "+f"(sums[i % (kTokens / 2) + i / (kTokens / 2) * (kItemSums / 2)])::"memory");
    if (tells) arrive(&barriers->empty[done.stage]);
    for (int step = item.n_steps; step < item.n_walked; ++step, walk.advance(kStages)) {
      barriers->wait_full(walk);
      if (tells) arrive(&barriers->empty[walk.stage]);
      if (step == item.n_walked - 1) span_walk.advance(kSpans);
    }
  }

  // y = silu(gate) * up as fp16 in units of 4^e / kHiddenScale (gemm_tile.cuh, Output) and in turned order;
  // or both tiles' sums as f32.
  template <int kTokens>
  static DSV32_DEVICE void store_item(const PairProduct& op, const Item& item, uint32_t tile_row,
                                      const ItemTokens& tokens, const float (&sums)[kItemSums]) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int64_t row = item.first_row + tile_row;
    const auto n_left = static_cast<int>(min(op.product.weight.n_rows - row, int64_t{2 * kTileRows}));
    const auto each = [&](const auto& store) {
      DSV32_UNROLL for (int j = 0; j < kTokens / 4; ++j) {
        const int token = j / 2 * 8 + lane % 4 * 2 + j % 2;
        if (token >= item.tile.n) continue;
        DSV32_UNROLL for (int h = 0; h < (kDouble ? 1 : 2); ++h) {
          const int i = j / 2 * 4 + h * 2 + j % 2;
          store(tokens.y[token], tokens.units[token], h, sums[i], sums[i + (kDouble ? 2 : kItemSums / 2)]);
        }
      }
    };
    if (op.is_gated) {
      auto* y = static_cast<__half*>(op.product.y) + keep(static_cast<uint32_t>(turned_column(row)));
      float2 scales = {1.0f, 1.0f};
      if (op.product.scales) scales = reinterpret_cast<const float2*>(op.product.scales)[item.tile.mat];
      each([&](int64_t at, float unit, int h, float gate, float up) {
        const float gated =
            silu(gate * (unit * scales.x)) * (inverse_of_power(unit) * (kHiddenScale / kLargestInUnits));
        if (8 * h < n_left)
          y[at + turned_column(8 * h)] = to_f16(gated * (up * (scales.y * (1.0f / kLargestInUnits))));
      });
    } else {
      auto* y = static_cast<float*>(op.product.y) + row;
      each([&](int64_t at, float unit, int h, float first, float second) {
        if (8 * h < n_left) y[at + 8 * h] = first * unit;
        if (8 * h + kHalfRows < n_left) y[at + 8 * h + kHalfRows] = second * unit;
      });
    }
  }

  // What the multiplying warps do.
  static DSV32_DEVICE void multiply_items(const PairProduct& op, int n_row_tiles, int n_items,
                                          uint32_t stages, const uint8_t* raw, const ItemTokens* item_tokens,
                                          const uint32_t* grid, Barriers* barriers) {
    RingWalk walk, span_walk, item_walk;
    for (int index = static_cast<int>(blockIdx.x); index < n_items; index += static_cast<int>(gridDim.x)) {
      const Item item = item_of(op, n_row_tiles, index);
      const WarpRows rows = warp_rows(op, item);
      // Three widths are what the assembler finds registers for: 32 tokens take as long as 64.
      with_tokens<64, kMiddle, kItemTokens>(item.tile.n, [&]<int kTokens>() {
        float sums[kItemSums];
        multiply_item<kTokens>(item, rows, stages, raw, grid, &barriers->stages, walk, span_walk, sums);
        store_item<kTokens>(op, item, rows.row, item_tokens[item_walk.stage], sums);
      });
      __syncwarp();
      if (threadIdx.x % 32 == 0) arrive(&barriers->written[item_walk.stage]);
      item_walk.advance(kItemsAhead);
    }
  }

#endif
};

// y[use, r] = sum over c of f16(W[r, c]) * x[use, c], or silu of that times the same of a second matrix; f32
// sums in ascending c, sixteen at a time.
// A CTA makes every gridDim.x-th item, up to 128 tokens x 2 tiles of 128 rows, or 256 x 2 of 64: warps 0-3
// load, 4-11 multiply, each 16 (8) rows of both tiles. Up to five stages of 64 columns of tokens, and as many
// spans of weights as these need; a warp dequantises 32 columns while its products with the 32 before run.
// With few tokens bound by dequantising: 64 columns take some 560 cycles of integer instructions, and 8
// cycles of products per token; also by the loading warps' work per copy. Measured (H100, 2026-11-23): 256
// experts, 2048 and 8192 tokens: Q4_K 296 and 383 TFLOP/s, Q6_K 189 and 299.
template <TensorType kType, bool kDouble>
__global__ void __launch_bounds__(kThreads, 1) multiply_pairs_kernel(const PairProduct op, int n_row_tiles) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) uint8_t shared[];
  using P = Pairs<kType, kDouble>;
  uint8_t* raw = shared + P::kStages * P::kStageBytes;  // [kSpans][2] spans, after the tokens [kStages]
  auto* item_tokens =
      reinterpret_cast<typename P::ItemTokens*>(raw + P::kSpans * P::kSpanBytes);  // [kItemsAhead]
  auto* barriers = reinterpret_cast<Barriers*>(item_tokens + 2);
  auto* grid = reinterpret_cast<uint32_t*>(barriers + 1);
  const int n_items = *op.product.n_tiles * n_row_tiles;
  fill_grid<kType>(grid);
  if (threadIdx.x < 2) init_barrier(&barriers->written[threadIdx.x], kProductThreads / 32);
  init_stages(&barriers->stages, kLoadThreads);
  __syncthreads();
  if (threadIdx.x < kLoadThreads) {
    give_registers<P::kLoadRegisters>();
    P::load_items(op, n_row_tiles, n_items, shared_address(shared), shared_address(raw), item_tokens,
                  barriers);
  } else {
    take_registers<P::kProductRegisters>();
    P::multiply_items(op, n_row_tiles, n_items, shared_address(shared), raw, item_tokens, grid, barriers);
  }
#else
  __trap();
#endif
}

template <TensorType kType, bool kDouble>
void start(const PairProduct& op, const Launch& launch) {
  if constexpr (Pairs<kType, kDouble>::kFits) {
    const int64_t n_row_tiles =
        ceil_div(op.product.weight.n_rows, (op.is_gated ? 1 : 2) * Pairs<kType, kDouble>::kHalfRows);
    const int64_t n_ctas = std::min<int64_t>(n_row_tiles * op.product.max_tiles, launch.n_sms);
    launch_plain(multiply_pairs_kernel<kType, kDouble>, {n_ctas, kThreads, Pairs<kType, kDouble>::kBytes},
                 launch, op, n_row_tiles);
  }
}

}  // namespace

bool has_pairs(const WeightMatrix& weight) {
  bool fits = false;
  with_type(weight.type, [&]<TensorType kType>() {
    const bool is_whole = reinterpret_cast<uintptr_t>(weight.data) % 16 + weight.row_bytes % 16 == 0 &&
                          (weight.n_mats == 1 || weight.mat_bytes % 16 == 0);
    fits = Pairs<kType, false>::kFits && Pairs<kType, true>::kFits && (!kIsWhole<kType> || is_whole);
  });
  return fits && card().family == KernelFamily::hopper;
}

void multiply_pairs(const PairProduct& op, const Launch& launch) {
  with_type(op.product.weight.type, [&]<TensorType kType>() {
    op.is_double ? start<kType, true>(op, launch) : start<kType, false>(op, launch);
  });
}

}  // namespace dsv32::cuda
