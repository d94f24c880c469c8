// Products of the experts of a prompt on Hopper: two tiles of rows at a time, w1's and w3's, or two of w2.
//
// Eight warps dequantise and eight multiply. They meet at two stages, each 64 columns of the two tiles of
// weights and of the tokens' tile, whose barriers tell when a stage is full and when it is empty again. So
// dequantising, which every weight needs once for 128 tokens, hides behind the products, and gate and up meet
// where their sums are: y = silu(w1 x) * (w3 x) is rounded once.
#include "cuda/gemm_hopper.cuh"
#include "cuda/weight_tile.cuh"

namespace dsv32::cuda {
namespace {

constexpr int kFillThreads = 2 * kTileThreads, kThreads = kFillThreads + kProductThreads;
constexpr int kStages = 2;
constexpr int kSumPitch = kTileRows * 4 + 16, kHalfPitch = kTileRows * 2 + 16;  // of a token; banks differ

using Barriers = StageBarriers<kStages>;

// What a CTA keeps in shared memory. Tokens are asked for a step ahead where there is room for a third tile
// of them.
template <TensorType kType>
struct PairStaging {
  static constexpr int kRawBytes = 2 * RawSpan<kType>::kBytes;  // of one tile: two spans
  static constexpr int n_bytes(int n_token_stages) {
    return (2 * kStages + n_token_stages) * kTileBytes + 2 * kRawBytes + static_cast<int>(sizeof(TokenRows)) +
           static_cast<int>(sizeof(Barriers)) + 4 * kGridWords<kType>;
  }
  static constexpr int kAhead = n_bytes(kStages + 1) <= kMostSharedBytes ? 1 : 0;
  static constexpr int kTokenStages = kStages + kAhead;
  static constexpr int kBytes = n_bytes(kTokenStages);
  static constexpr bool kFits = kBytes <= kMostSharedBytes;
};

static_assert(kTileTokens * kSumPitch <= 3 * kStages * kTileBytes);

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr int kFillRegisters = 88,
              kProductRegisters = 168;  // 2 * (88 + 168) = 4 * 128, what the CTA starts with

// Among the four warps that fill a tile.
__device__ __forceinline__ void sync_tile(int half) {
  asm volatile("bar.sync %0, %1;" ::"r"(2 + half), "n"(kTileThreads) : "memory");
}

// The part of the warps that dequantise: thread i < 128 fills row i of the first tile, the others of the
// second. The tokens' tile is brought by all.
template <TensorType kType>
__device__ __forceinline__ void fill_stages(const PairProduct& op, const Place& place,
                                            const TokenRows& token_rows, uint8_t* stages, uint8_t* raw,
                                            const uint32_t* grid, Barriers* barriers) {
  using Raw = RawSpan<kType>;
  using S = PairStaging<kType>;
  const int half = static_cast<int>(threadIdx.x) / kTileThreads,
            row = static_cast<int>(threadIdx.x) % kTileThreads;
  const WeightMatrix& weight = half && op.is_gated ? op.up : op.product.weight;
  const int64_t first_row = place.first_row + (op.is_gated ? 0 : half * kTileRows);
  const int n_rows = static_cast<int>(min(int64_t{kTileRows}, weight.n_rows - first_row));  // may be below 0
  const uint8_t* first = row_of(weight, place.tile.mat, first_row);
  const uint8_t* row_begin = first + row * weight.row_bytes;
  const int n_spans = (place.n_steps + Raw::kSteps - 1) / Raw::kSteps;
  raw += half * S::kRawBytes;
  const auto load_raw = [&](int span) {
    load_span<kType>(first, weight.row_bytes, n_rows, span, shared_address(raw) + span % 2 * Raw::kBytes,
                     row);
  };
  const uint32_t tokens = shared_address(stages) + 2 * kStages * kTileBytes;
  const auto load_tokens = [&](int step) {
    if (step < place.n_steps)
      load_activations<kFillThreads>(op.product, token_rows, place.tile.n, step,
                                     tokens + step % S::kTokenStages * kTileBytes);
    commit_copies();
  };
  load_raw(0);
  commit_copies();
  if constexpr (S::kAhead == 1) load_tokens(0);
  for (int step = 0; step < place.n_steps; ++step) {
    const int stage = step % kStages, span = step / Raw::kSteps;
    const bool begins_span = step % Raw::kSteps == 0, follows_begin = (step - 1) % Raw::kSteps == 0;
    if (begins_span) {  // its bytes are there, and nobody reads the span before
      wait_copies<0>();
      sync_tile(half);
    }
    wait_for_phase(&barriers->empty[stage], step / kStages % 2 ^ 1);
    load_tokens(step + S::kAhead);
    if (begins_span) {
      if (span + 1 < n_spans) load_raw(span + 1);
      commit_copies();
    }
    fill_tile<kType>(raw + span % 2 * Raw::kBytes, row_begin, span, step % Raw::kSteps, grid,
                     stages + (2 * stage + half) * kTileBytes, row);
    // The step's tokens are here; younger are those of the next and the next span, where they were asked for.
    if (S::kAhead == 0 && begins_span)
      wait_copies<1>();
    else if (S::kAhead == 0)
      wait_copies<0>();
    else if (follows_begin)
      wait_copies<2>();
    else if (!begins_span)
      wait_copies<1>();
    fence_async_proxy();
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive(&barriers->full[stage]);
  }
}

// y = silu(gate) * up as fp16, in units of 4^e / kHiddenScale (gemm_tile.cuh, Output). The second group hands
// its sums to the first through the stages, which all have left; all write the tile's rows in pieces of 16
// bytes.
template <int kTokens>
__device__ __forceinline__ void store_gated(const PairProduct& op, const Place& place,
                                            const TokenRows& token_rows, uint8_t* stages, uint8_t* halves,
                                            int group, const Sums& sums) {
  const int n_tokens = place.tile.n;
  sync_products();
  if (group == 1)
    for_each_sum<kTokens>(sums, n_tokens, [&](int token, int row, float up) {
      *reinterpret_cast<float*>(stages + token * kSumPitch + row * 4) = up;
    });
  sync_products();
  if (group == 0)
    for_each_sum<kTokens>(sums, n_tokens, [&](int token, int row, float gate) {
      const float unit = token_rows.units[token];
      const float up = *reinterpret_cast<const float*>(stages + token * kSumPitch + row * 4);
      const float gated = silu(gate * unit) * (inverse_of_power(unit) * (kHiddenScale / kLargestInUnits));
      *reinterpret_cast<__half*>(halves + token * kHalfPitch + row * 2) =
          to_f16(gated * (up * (1.0f / kLargestInUnits)));
    });
  sync_products();
  auto* y = static_cast<__half*>(op.product.y);
  const int n_rows = static_cast<int>(min(int64_t{kTileRows}, op.product.weight.n_rows - place.first_row));
  for (int i = static_cast<int>(threadIdx.x) - kFillThreads; i < n_tokens * (kTileRows / 8);
       i += kProductThreads) {
    const int token = i / (kTileRows / 8), row = i % (kTileRows / 8) * 8;
    const auto* from = reinterpret_cast<const __half*>(halves + token * kHalfPitch) + row;
    __half* to = y + token_rows.y[token] + place.first_row + row;
    if (row + 8 <= n_rows)
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
    else
      for (int k = 0; k < n_rows - row; ++k) to[k] = from[k];
  }
}

template <int kTokens, int kTokenStages>
__device__ __forceinline__ void multiply_tiles(const PairProduct& op, const Place& place,
                                               const TokenRows& token_rows, uint8_t* stages, uint8_t* halves,
                                               Barriers* barriers) {
  const int group = static_cast<int>(threadIdx.x) / 128 - 2;
  Sums sums;
  const uint32_t rows = shared_address(stages) + group * kTileBytes,
                 tokens = shared_address(stages) + 2 * kStages * kTileBytes;
  StageWalk<kStages> walk;
  multiply_stages<kTokens>(
      place.n_steps, walk, barriers, [&](int stage) { return rows + 2 * stage * kTileBytes; },
      [&](int, int step) { return tokens + step % kTokenStages * kTileBytes; }, sums);
  if (op.is_gated) return store_gated<kTokens>(op, place, token_rows, stages, halves, group, sums);
  auto* y = static_cast<float*>(op.product.y);
  const int64_t first_row = place.first_row + group * kTileRows,
                n_rows = op.product.weight.n_rows - first_row;
  for_each_sum<kTokens>(sums, place.tile.n, [&](int token, int row, float sum) {
    if (row < n_rows) y[token_rows.y[token] + first_row + row] = sum * token_rows.units[token];
  });
}

#endif

// y[use, r] = sum over c of f16(W[r, c]) * x[use, c], or silu of that times the same of a second matrix; f32
// sums in ascending c.
// A CTA makes up to 128 tokens x 2 tiles of 128 rows; grid: (row tiles, most token tiles).
//
// Warps 0-7 bring columns in, 8-15 multiply, each four of them one tile of rows; registers go from those to
// these.
//
// Bound by dequantising and by shared memory, which both sides use: a step takes 1 550 cycles with 32 tokens
// and 2 600 with 64, where products alone would take 512.
// Measured (H100, 2026-11-23): 256 experts, Q4_K, 2048 tokens 175 TFLOP/s, 8192 tokens 264.
template <TensorType kType>
__global__ void __launch_bounds__(kThreads, 1) multiply_pairs_kernel(const PairProduct op) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) uint8_t shared[];
  using S = PairStaging<kType>;
  uint8_t* stages =
      shared;  // [kStages][2] tiles of weights, [kTokenStages] of tokens; in the end the upper sums
  uint8_t* raw =
      stages + (2 * kStages + S::kTokenStages) * kTileBytes;  // [2][2] spans; in the end the gated values
  auto& token_rows = *reinterpret_cast<TokenRows*>(raw + 2 * S::kRawBytes);
  auto* barriers = reinterpret_cast<Barriers*>(&token_rows + 1);
  auto* grid = reinterpret_cast<uint32_t*>(barriers + 1);
  Place place;
  if (!find_place(op.product, op.is_gated ? kTileRows : 2 * kTileRows, place)) return;
  find_token_rows(op.product, place, token_rows);
  fill_grid<kType>(grid);
  init_stages(barriers, kFillThreads / 32);
  __syncthreads();
  if (threadIdx.x < kFillThreads) {
    give_registers<kFillRegisters>();
    fill_stages<kType>(op, place, token_rows, stages, raw, grid, barriers);
    return;
  }
  take_registers<kProductRegisters>();
  with_tokens(place.tile.n, [&]<int kTokens>() {
    multiply_tiles<kTokens, S::kTokenStages>(op, place, token_rows, stages, raw, barriers);
  });
#else
  __trap();
#endif
}

template <TensorType kType>
void start(const PairProduct& op, const Launch& launch) {
  if constexpr (PairStaging<kType>::kFits) {
    constexpr int kBytes = PairStaging<kType>::kBytes;
    static_assert(kTileTokens * kHalfPitch <= 2 * PairStaging<kType>::kRawBytes);
    CUDA_CHECK(cudaFuncSetAttribute(multiply_pairs_kernel<kType>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    kBytes));
    const dim3 grid = product_grid(op.product, op.is_gated ? kTileRows : 2 * kTileRows);
    multiply_pairs_kernel<kType><<<grid, kThreads, kBytes, launch.stream>>>(op);
    check_launch("multiply_pairs_kernel");
  }
}

}  // namespace

bool has_pairs(TensorType type) {
  bool fits = false;
  with_type(type, [&]<TensorType kType>() { fits = PairStaging<kType>::kFits; });
  return fits && has_hopper_products();
}

void multiply_pairs(const PairProduct& op, const Launch& launch) {
  with_type(op.product.weight.type, [&]<TensorType kType>() { start<kType>(op, launch); });
}

}  // namespace dsv32::cuda
