// Products with weights in any GGUF format, dequantised on their way into the tile: no copy of the matrix is
// made.
//
// One kernel per format. Raw bytes come by cp.async, one span of columns ahead; a thread then turns 64 values
// of its row into fp16, while the tensor cores are busy with the 64 before them. Of experts nearly every
// weight is dequantised exactly once, because an expert rarely has more tokens than a tile.
#include "cuda/gemm_tile.cuh"
#include "cuda/widen.cuh"

namespace dsv32::cuda {
namespace {

constexpr int kThreads = 128;

template <TensorType kType>
constexpr int block_values() {
  if constexpr (kIsFloat<kType>)
    return 1;
  else
    return Codes<kType>::kBlockValues;
}

template <TensorType kType>
constexpr int block_bytes() {
  if constexpr (kIsFloat<kType>)
    return kType == TensorType::f32 ? 4 : 2;
  else
    return Codes<kType>::kBlockBytes;
}

// What a CTA keeps in shared memory. A row's span is copied in whole 16-byte pieces of memory, wherever in
// them it begins.
template <TensorType kType>
struct Staging {
  // Columns copied together: one block where blocks are long.
  static constexpr int kSpan = kIsFloat<kType> ? 64 : block_values<kType>() == 32 ? 128 : 256;
  static constexpr int kSpanSteps = kSpan / kStep;
  static constexpr int kSpanBytes = kSpan / block_values<kType>() * block_bytes<kType>();
  static constexpr int kPieces = (kSpanBytes + 15 + 15) / 16;
  static constexpr int kPitch =
      (kPieces | 1) * 16;  // an odd number of pieces: eight rows lie in different banks
  static constexpr int kRawBytes = kTileRows * kPitch;

  static constexpr int shared_bytes(int n_tiles) {
    return (2 + n_tiles) * kTileBytes + 2 * kRawBytes + static_cast<int>(sizeof(TokenRows)) +
           4 * kGridWords<kType>;
  }
  // Two tiles of weights, one being filled while the other is multiplied, as long as two CTAs fit a
  // multiprocessor.
  static constexpr int kTiles = shared_bytes(2) <= 113 * 1024 ? 2 : 1;
  static constexpr int kAhead = kTiles - 1;  // steps from filling to multiplying
  static constexpr int kSharedBytes = shared_bytes(kTiles);
};

// Starts the copy of span `span` of the tile's rows. Past the end of a row: zeros, which every format reads
// as the value 0.
template <class S>
__device__ __forceinline__ void load_span(const uint8_t* first, size_t row_bytes, int n_rows, int span,
                                          uint32_t to) {
  const uint8_t* aligned_first = first - (reinterpret_cast<uintptr_t>(first) & 15);  // where nothing is read
  for (int i = threadIdx.x; i < kTileRows * S::kPieces; i += kThreads) {
    const int row = i / S::kPieces, piece = i % S::kPieces;
    if (row >= n_rows) break;
    const uint8_t* row_begin = first + static_cast<size_t>(row) * row_bytes;
    const uint8_t* begin = row_begin + static_cast<size_t>(span) * S::kSpanBytes;
    const uint8_t* from = begin - (reinterpret_cast<uintptr_t>(begin) & 15) + 16 * piece;
    if (from >= begin + S::kSpanBytes) continue;
    const int64_t n_left = row_begin + row_bytes - from;
    const int n_bytes = n_left >= 16 ? 16 : n_left > 0 ? static_cast<int>(n_left) : 0;
    copy_async(to + row * S::kPitch + piece * 16, n_bytes ? from : aligned_first, n_bytes);
  }
}

// 64 values of this thread's row: from its raw span, of which they are step `within`, into the tile.
template <TensorType kType>
__device__ __forceinline__ void fill_tile(const uint8_t* raw, const uint8_t* row_begin, int span, int within,
                                          const uint32_t* grid, uint8_t* tile) {
  using S = Staging<kType>;
  const int row = threadIdx.x;
  const uint32_t begin = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(row_begin)) + span * S::kSpanBytes;
  const uint8_t* at = raw + row * S::kPitch + begin % 16;
#pragma unroll
  for (int i = 0; i < kStep; i += 16) {
    uint32_t values[8];
    widen16<kType>(at, within * kStep + i, values, grid);
    *reinterpret_cast<uint4*>(tile + tile_offset(row, 2 * i)) =
        make_uint4(values[0], values[1], values[2], values[3]);
    *reinterpret_cast<uint4*>(tile + tile_offset(row, 2 * i + 16)) =
        make_uint4(values[4], values[5], values[6], values[7]);
  }
}

// y[t, r] = sum over c of f16(W[r, c]) * x[t, c], f32 sums in ascending c.
// A CTA of one warpgroup makes up to 128 tokens x 128 rows; grid: product_grid().
// Activations are copied one step ahead, raw weights one span ahead, and dequantised one step ahead where
// shared memory holds two tiles; a barrier a step (two with one tile) hands all three over.
// Bound by the weights' bytes with few tokens, by dequantising and the tensor cores with 128.
// Measured (H200, 2026-11-21): 64 tokens, 18432 x 7168, Q4_K: 0.24 ms, 309 GB/s, 70 TFLOP/s.
template <TensorType kType>
__global__ void __launch_bounds__(kThreads, 2) multiply_blocks_kernel(const Product product) {
  using S = Staging<kType>;
  extern __shared__ __align__(1024) uint8_t shared[];
  uint8_t* activations = shared;                  // [2, kTileBytes]
  uint8_t* tiles = shared + 2 * kTileBytes;       // [kTiles, kTileBytes]
  uint8_t* raw = tiles + S::kTiles * kTileBytes;  // [2, kRawBytes]
  auto& token_rows = *reinterpret_cast<TokenRows*>(raw + 2 * S::kRawBytes);
  auto* grid = reinterpret_cast<uint32_t*>(&token_rows + 1);
  Place place;
  if (!find_place(product, kTileRows, place)) return;
  const TokenTile tile = place.tile;
  find_token_rows(product, place, token_rows);
  fill_grid<kType>(grid);
  __syncthreads();

  const WeightMatrix& weight = product.weight;
  const uint8_t* first = row_of(weight, tile.mat, place.first_row);
  const int64_t n_rows_left = weight.n_rows - place.first_row;
  const int n_rows = n_rows_left < kTileRows ? static_cast<int>(n_rows_left) : kTileRows;
  const uint8_t* row_begin = first + threadIdx.x * weight.row_bytes;
  const int n_steps = place.n_steps, n_spans = (n_steps + S::kSpanSteps - 1) / S::kSpanSteps;
  const int first_span = place.first_step / S::kSpanSteps;

  const auto load_tokens = [&](int step) {
    load_activations<kThreads>(product, token_rows, tile.n, step,
                               shared_address(activations) + step % 2 * kTileBytes);
  };
  const auto load_raw = [&](int span) {
    load_span<S>(first, weight.row_bytes, n_rows, first_span + span,
                 shared_address(raw) + span % 2 * S::kRawBytes);
  };
  // Fills the tile of `step`; the steps before it are filled, so a span that it begins leaves the other half
  // of raw free.
  const auto fill = [&](int step) {
    const int span = step / S::kSpanSteps;
    fill_tile<kType>(raw + span % 2 * S::kRawBytes, row_begin, first_span + span, step % S::kSpanSteps, grid,
                     tiles + step % S::kTiles * kTileBytes);
  };
  const auto load_raw_behind = [&](int step) {
    if (step % S::kSpanSteps == 0 && step / S::kSpanSteps + 1 < n_spans) load_raw(step / S::kSpanSteps + 1);
    commit_copies();
  };

  load_raw(0);
  load_tokens(0);
  commit_copies();
  if constexpr (S::kAhead == 1) {
    wait_copies<0>();
    __syncthreads();
    load_raw_behind(0);
    fill(0);
  }
  Sums sums = {};
  for (int step = 0; step < n_steps; ++step) {
    // The newest group is a span that is not needed yet, unless it is the first or each step has a span of
    // its own.
    if (S::kSpanSteps == 1 || (S::kAhead == 0 && step == 0))
      wait_copies<0>();
    else
      wait_copies<1>();
    publish_tile();
    __syncthreads();
    if (step + 1 < n_steps) load_tokens(step + 1);
    commit_copies();
    const uint32_t tokens = shared_address(activations) + step % 2 * kTileBytes;
    const uint32_t rows = shared_address(tiles) + step % S::kTiles * kTileBytes;
    if constexpr (S::kAhead == 1) {
      if (step + 1 < n_steps)
        load_raw_behind(step + 1);
      else
        commit_copies();
      start_products(sums, rows, tokens, tile.n);
      if (step + 1 < n_steps) fill(step + 1);
    } else {
      load_raw_behind(step);
      fill(step);
      publish_tile();
      __syncthreads();
      start_products(sums, rows, tokens, tile.n);
    }
    finish_products(sums);
  }
  store_sums(product, token_rows, tile.n, place.first_row, sums);
}

template <TensorType kType>
void start(const Product& product, const Launch& launch) {
  constexpr int kSharedBytes = Staging<kType>::kSharedBytes;
  CUDA_CHECK(cudaFuncSetAttribute(multiply_blocks_kernel<kType>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  kSharedBytes));
  multiply_blocks_kernel<kType>
      <<<product_grid(product, kTileRows), kThreads, kSharedBytes, launch.stream>>>(product);
  check_launch("multiply_blocks_kernel");
}

}  // namespace

void multiply_blocks(const Product& product, const Launch& launch) {
  with_type(product.weight.type, [&]<TensorType kType>() { start<kType>(product, launch); });
}

}  // namespace dsv32::cuda
