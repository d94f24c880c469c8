// Products with weights in any GGUF format on Hopper, dequantised on their way into the tile; one kernel per
// format.
//
// cp.async copies raw bytes one span of columns ahead; a thread converts 64 values of its row to fp16 while
// the tensor cores work on the 64 before. An expert rarely has more tokens than a tile, so nearly every
// weight is dequantised once.
#include "cuda/weight_tile.cuh"

namespace dsv32::cuda {
namespace {

constexpr int kThreads = kTileThreads;

// Shared memory of a CTA.
template <TensorType kType>
struct Staging {
  static constexpr int shared_bytes(int n_tiles) {
    return (2 + n_tiles) * kTileBytes + 2 * RawSpan<kType>::kBytes + static_cast<int>(sizeof(TokenRows)) +
           4 * kGridWords<kType>;
  }
  // Two tiles of weights, one to fill and one to multiply, if two CTAs then still fit a multiprocessor.
  static constexpr int kTiles = shared_bytes(2) <= 113 * 1024 ? 2 : 1;
  static constexpr int kSharedBytes = shared_bytes(kTiles);
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// sums.of[i][4 j + e]: row 64 i + 16 warp + lane / 4 + 8 (e / 2), token 8 j + 2 (lane % 4) + e % 2.
struct Sums {
  float of[2][64];
};

// All instructions are in one branch: the assembler then sees that nothing else touches the sums.
template <int kTokens>
DSV32_DEVICE void start_products(Sums& sums, uint64_t rows, uint64_t tokens) {
  wgmma_begin();
  DSV32_UNROLL for (int k = 0; k < kStep / 16; ++k) {
    wgmma<kTokens>(sums.of[0], rows + 2 * k, tokens + 2 * k);
    wgmma<kTokens>(sums.of[1], rows + 64 * 128 / 16 + 2 * k, tokens + 2 * k);
  }
  wgmma_commit();
}

// Starts adding the step's products. rows and tokens are shared addresses of tiles, which must not change
// before finish_products().
DSV32_DEVICE void start_products(Sums& sums, uint32_t rows, uint32_t tokens, int n_tokens) {
  const uint64_t a = wgmma_operand(rows), b = wgmma_operand(tokens);
  __syncwarp();  // lanes leave the copy loops at different times
  with_tokens(n_tokens, [&]<int kTokens>() { start_products<kTokens>(sums, a, b); });
}

// The empty statements keep the compiler from reading sums too early.
DSV32_DEVICE void finish_products(Sums& sums) {
  wgmma_wait();
  DSV32_UNROLL for (int i = 0; i < 64;
                    ++i) asm volatile("" : "+f"(sums.of[0][i]), "+f"(sums.of[1][i])::"memory");
}

#endif

// y[t, r] = sum over c of f16(W[r, c]) * x[t, c], f32 sums in ascending c.
// A CTA of one warpgroup makes up to 128 tokens x 128 rows; grid: product_grid().
// Activations are copied one step ahead, raw weights one span ahead. Weights are dequantised one step ahead
// if shared memory holds two tiles; one barrier per step (two with one tile).
// Bound by the weights' bytes with few tokens, by dequantising and the tensor cores with 128. Measured (H200,
// 2026-11-21): 64 tokens, 18432 x 7168, Q4_K: 0.24 ms, 309 GB/s, 70 TFLOP/s.
template <TensorType kType>
__global__ void __launch_bounds__(kThreads, 2) multiply_blocks_kernel(const Product product) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using S = Staging<kType>;
  using Raw = RawSpan<kType>;
  constexpr int kAhead = S::kTiles - 1;  // steps from filling to multiplying
  extern __shared__ __align__(1024) uint8_t shared[];
  uint8_t* activations = shared;                  // [2, kTileBytes]
  uint8_t* tiles = shared + 2 * kTileBytes;       // [kTiles, kTileBytes]
  uint8_t* raw = tiles + S::kTiles * kTileBytes;  // [2, Raw::kBytes]
  auto& token_rows = *reinterpret_cast<TokenRows*>(raw + 2 * Raw::kBytes);
  auto* grid = reinterpret_cast<uint32_t*>(&token_rows + 1);
  Place place;
  if (!find_place(product, kTileRows, place)) return;
  const TokenTile tile = place.tile;
  find_token_rows(product, place, token_rows);
  fill_grid<kType>(grid);
  __syncthreads();

  const WeightMatrix& weight = product.weight;
  const RowRun rows_here(weight, row_of(weight, tile.mat, place.first_row));
  const int64_t n_rows_left = weight.n_rows - place.first_row;
  const int n_rows = n_rows_left < kTileRows ? static_cast<int>(n_rows_left) : kTileRows;
  const int n_steps = place.n_steps, n_spans = (n_steps + Raw::kSteps - 1) / Raw::kSteps;
  const int first_span = place.first_step / Raw::kSteps;

  const auto load_tokens = [&](int step) {
    load_activations<kThreads>(product, token_rows, tile.n, step,
                               shared_address(activations) + step % 2 * kTileBytes);
  };
  const auto load_raw = [&](int span) {
    load_span<kType>(rows_here, n_rows, first_span + span, shared_address(raw) + span % 2 * Raw::kBytes,
                     threadIdx.x);
  };
  // Fills the tile of `step`. The steps before are filled, so at the first step of a span the other half of
  // raw is free.
  const auto fill = [&](int step) {
    const int span = step / Raw::kSteps;
    fill_tile<kType>(raw + span % 2 * Raw::kBytes, rows_here, first_span + span, step % Raw::kSteps, grid,
                     tiles + step % S::kTiles * kTileBytes, threadIdx.x);
  };
  const auto load_raw_behind = [&](int step) {
    if (step % Raw::kSteps == 0 && step / Raw::kSteps + 1 < n_spans) load_raw(step / Raw::kSteps + 1);
    commit_copies();
  };

  load_raw(0);
  load_tokens(0);
  commit_copies();
  if constexpr (kAhead == 1) {
    wait_copies<0>();
    __syncthreads();
    load_raw_behind(0);
    fill(0);
  }
  Sums sums = {};
  for (int step = 0; step < n_steps; ++step) {
    // The newest group of copies is a span that is not needed yet, except the first span, or where each step
    // has its own span.
    if (Raw::kSteps == 1 || (kAhead == 0 && step == 0))
      wait_copies<0>();
    else
      wait_copies<1>();
    fence_async_proxy();
    __syncthreads();
    if (step + 1 < n_steps) load_tokens(step + 1);
    commit_copies();
    const uint32_t tokens = shared_address(activations) + step % 2 * kTileBytes;
    const uint32_t rows = shared_address(tiles) + step % S::kTiles * kTileBytes;
    if constexpr (kAhead == 1) {
      if (step + 1 < n_steps)
        load_raw_behind(step + 1);
      else
        commit_copies();
      start_products(sums, rows, tokens, tile.n);
      if (step + 1 < n_steps) fill(step + 1);
    } else {
      load_raw_behind(step);
      fill(step);
      fence_async_proxy();
      __syncthreads();
      start_products(sums, rows, tokens, tile.n);
    }
    finish_products(sums);
  }
  DSV32_UNROLL for (int i = 0; i < 2; ++i) store_sums<kTileTokens>(
      product, token_rows, tile, place.first_row + 64 * i + threadIdx.x / 32 * 16, sums.of[i]);
#else
  __trap();
#endif
}

template <TensorType kType>
void start(const Product& product, const Launch& launch) {
  launch_plain(multiply_blocks_kernel<kType>,
               {product_grid(product, kTileRows), kThreads, Staging<kType>::kSharedBytes}, launch, product);
}

}  // namespace

void multiply_blocks_hopper(const Product& product, const Launch& launch) {
  with_type(product.weight.type, [&]<TensorType kType>() { start<kType>(product, launch); });
}

}  // namespace dsv32::cuda
