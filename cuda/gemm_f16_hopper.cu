// Products with fp16 weights on Hopper: one CTA per multiprocessor; each makes one tile after another.
//
// Four warps load and eight multiply, so a tile's first columns are in shared memory when the sums of the
// tile before have been written. A tile is 128 rows by 256 tokens. Each group of four multiplying warps has
// 64 rows and all tokens, so most of shared memory is read once per 64 rows.
#include "cuda/gemm_tile.cuh"
#include "cuda/wgmma.cuh"

namespace dsv32::cuda {
namespace {

constexpr int kLoadThreads = 128, kThreads = kLoadThreads + kProductThreads;
constexpr int kStages = 4;
constexpr int kStageTiles = 3;  // one of rows, two of tokens
constexpr int kItemTokens = 2 * kTileTokens;

using Barriers = Pipe<kStages>;
constexpr int kSharedBytes = kStages * kStageTiles * kTileBytes + static_cast<int>(sizeof(Barriers));

// A tile of the product: n_tokens from first_token on, rows from first_row on, and columns from 64 *
// first_step on.
struct Item {
  int64_t first_token, first_row, y_offset;
  int mat, n_tokens, first_step, n_steps;
};

struct Shape {
  int64_t n_token_tiles, n_row_tiles, n_items;
};

Shape shape_of(const Product& product) {
  const int64_t n_token_tiles = ceil_div(product.n_places, kItemTokens),
                n_row_tiles = ceil_div(product.weight.n_rows, kTileRows);
  return {n_token_tiles, n_row_tiles,
          n_token_tiles * n_row_tiles * std::max(product.weight.n_mats, product.n_splits)};
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr int kLoadRegisters = 40,
              kProductRegisters = 232;  // 40 + 2 * 232 = 3 * 168, what the CTA starts with

// Tiles of the same rows follow one another, so that CTAs at work together share both operands in L2.
DSV32_DEVICE Item item_of(const Product& product, const Shape& shape, int64_t index) {
  Item item;
  item.first_token = index % shape.n_token_tiles * kItemTokens;
  item.n_tokens = static_cast<int>(min(int64_t{kItemTokens}, product.n_places - item.first_token));
  index /= shape.n_token_tiles;
  item.first_row = index % shape.n_row_tiles * kTileRows;
  const int part = static_cast<int>(index / shape.n_row_tiles);
  const bool is_split = product.n_splits > 1;
  item.mat = is_split ? 0 : part;
  const Columns columns = columns_of(product, is_split ? part : 0);
  item.first_step = columns.first_step, item.n_steps = columns.n_steps;
  item.y_offset = is_split ? part * product.y_split_stride : item.mat * product.y_mat_stride;
  return item;
}

constexpr int kRowsAtOnce = kLoadThreads / 8;  // eight threads copy 128 bytes of a row

// The row of sixteen that lies at place i of a tile. Neighbouring rows lie eight places apart, so that one
// thread has the sums of both.
DSV32_DEVICE int row_at(int i) { return i % 8 * 2 + i / 8; }

// Rows of an operand, of which a thread copies every kRowsAtOnce-th: its piece of its first row, and its
// number of rows.
struct Source {
  const uint8_t* at;
  size_t stride;
  int n;
};

DSV32_DEVICE Source source_of(const void* first, size_t row_bytes, int64_t n_rows, int row) {
  const int piece = static_cast<int>(threadIdx.x) % 8;
  const int n = static_cast<int>(min(int64_t{2 * kTileRows}, n_rows)) - row;
  return {static_cast<const uint8_t*>(first) + row * row_bytes + piece * 16, row_bytes * kRowsAtOnce,
          (n + kRowsAtOnce - 1) / kRowsAtOnce};
}

// Starts the copy of a step's 128 bytes of up to kTiles tiles of rows; zeros if not is_inside.
template <int kTiles>
DSV32_DEVICE void load_rows(const Source& from, bool is_inside, uint32_t to) {
  size_t stride = from.stride;
  asm volatile("" : "+l"(stride));  // a pointer for each row would take more registers than there are
  DSV32_UNROLL for (int i = 0; i < kTiles * kTileRows / kRowsAtOnce; ++i) if (i < from.n)
      copy_async(to + i * kRowsAtOnce * 128, from.at + i * stride, is_inside ? 16 : 0);
}

// What the loading warps do. In a stage the tile of weights comes first, the tiles of tokens follow.
DSV32_DEVICE void load_stages(const Product& product, const Shape& shape, uint32_t stages,
                              Barriers* barriers) {
  const int place_row = static_cast<int>(threadIdx.x) / 8;
  const uint32_t place = stages + tile_offset(place_row, threadIdx.x % 8 * 16);
  RingWalk walk;
  for (int64_t index = blockIdx.x; index < shape.n_items; index += gridDim.x) {
    const Item item = item_of(product, shape, index);
    const int64_t first_column = int64_t{item.first_step} * kStep,
                  x_row = item.first_token * product.x_mats + (product.x_mats > 1 ? item.mat : 0);
    Source weights =
        source_of(row_of(product.weight, item.mat, item.first_row) + first_column * 2,
                  product.weight.row_bytes, product.weight.n_rows - item.first_row, row_at(place_row));
    Source tokens =
        source_of(product.x + x_row * product.x_columns + first_column,
                  static_cast<size_t>(product.x_mats * product.x_columns) * 2, item.n_tokens, place_row);
    // The columns that the matrix has from this thread's piece on; x is padded.
    int n_columns =
        static_cast<int>(product.weight.n_cols - first_column) - static_cast<int>(threadIdx.x % 8) * 8;
    for (int step = 0; step < item.n_steps; ++step, walk.advance(kStages)) {
      barriers->wait_empty(walk);
      const uint32_t to = place + walk.stage * kStageTiles * kTileBytes;
      load_rows<1>(weights, n_columns > 0, to);
      load_rows<2>(tokens, true, to + kTileBytes);
      fill_stage(&barriers->full[walk.stage]);
      weights.at += kStep * 2, tokens.at += kStep * 2, n_columns -= kStep;
    }
  }
  wait_all_copies();
}

// A tile's sums in one thread of a group: sums[4 j + e] is row 16 (warp of the group) + 2 (lane / 4) + e / 2,
// token 8 j + 2 (lane % 4) + e % 2. The products of one step are always under way.
template <int kTokens>
DSV32_DEVICE void multiply_steps(int n_steps, uint32_t stages, uint32_t rows, Barriers* barriers,
                                 RingWalk& walk, float (&sums)[kTokens / 2]) {
  const bool tells = threadIdx.x % 32 == 0;
  DSV32_UNROLL for (int i = 0; i < kTokens / 2; ++i) sums[i] = 0;
  RingWalk done = walk;
  for (int step = 0; step < n_steps; ++step, walk.advance(kStages)) {
    const uint32_t stage = stages + walk.stage * kStageTiles * kTileBytes;
    const uint64_t a = wgmma_operand(stage + rows), b = wgmma_operand(stage + kTileBytes);
    barriers->wait_full(walk);
    fence_async_proxy();
    __syncwarp();
    wgmma_begin();
    DSV32_UNROLL for (int k = 0; k < kStep / 16; ++k) wgmma<kTokens>(sums, a + 2 * k, b + 2 * k);
    wgmma_commit();
    wgmma_wait<1>();
    if (step == 0) continue;
    if (tells) arrive(&barriers->empty[done.stage]);
    done.advance(kStages);
  }
  wgmma_wait<0>();
  DSV32_UNROLL for (int i = 0; i < kTokens / 2; ++i) asm volatile("" : "+f"(sums[i])::"memory");
  if (n_steps > 0 && tells) arrive(&barriers->empty[done.stage]);
}

// What one of the two multiplying groups does.
DSV32_DEVICE void multiply_items(const Product& product, const Shape& shape, uint32_t stages,
                                 Barriers* barriers) {
  const int lane = static_cast<int>(threadIdx.x) % 32,
            warp = static_cast<int>(threadIdx.x - kLoadThreads) / 32;
  RingWalk walk;
  for (int64_t index = blockIdx.x; index < shape.n_items; index += gridDim.x) {
    const Item item = item_of(product, shape, index);
    const int64_t row = item.first_row + 16 * warp + lane / 4 * 2, n_rows = product.weight.n_rows,
                  first_token = item.first_token + lane % 4 * 2;
    const int n_tokens = item.n_tokens - lane % 4 * 2;
    const float* units = product.x_units + first_token * product.x_mats + (product.x_mats > 1 ? item.mat : 0);
    float* y = static_cast<float*>(product.y) + first_token * product.y_stride + item.y_offset + row;
    const bool is_pair =
        row + 1 < n_rows && reinterpret_cast<uintptr_t>(y) % 8 == 0 && product.y_stride % 2 == 0;
    with_tokens<64, 128, 256>(item.n_tokens, [&]<int kTokens>() {
      float sums[kTokens / 2];
      multiply_steps<kTokens>(item.n_steps, stages, warp / 4 * 64 * 128, barriers, walk, sums);
      // Units are loaded in groups before sums are written, because the compiler must assume that a write
      // changes them.
      constexpr int kTogether = kTokens / 4 < 32 ? kTokens / 4 : 32;
      DSV32_UNROLL for (int first = 0; first < kTokens / 4; first += kTogether) {
        float own[kTogether];
        DSV32_UNROLL for (int i = 0; i < kTogether; ++i) {
          const int token = (first + i) / 2 * 8 + i % 2;
          own[i] = token < n_tokens ? units[token * product.x_mats] : 0;
        }
        DSV32_UNROLL for (int i = 0; i < kTogether; ++i) {
          const int j = first + i, token = j / 2 * 8 + j % 2;
          if (token >= n_tokens) continue;
          float* to = y + token * product.y_stride;
          const float2 pair = {sums[j / 2 * 4 + j % 2] * own[i], sums[j / 2 * 4 + 2 + j % 2] * own[i]};
          if (is_pair) {
            *reinterpret_cast<float2*>(to) = pair;
          } else {
            if (row < n_rows) to[0] = pair.x;
            if (row + 1 < n_rows) to[1] = pair.y;
          }
        }
      }
    });
  }
}

#endif

// y[t, r] = sum over c of W[r, c] * x[t, c], fp16 products, f32 sums in ascending c.
// A CTA makes every gridDim.x-th tile: warps 0-3 load, 4-11 multiply, each four of them 64 rows by 256
// tokens. Four stages of 64 columns; the next tile's columns are loaded while sums are written.
// Bound by the tensor cores, 1024 cycles per step, and nearly as much by shared memory: 640 cycles of
// reading, 384 of writing. Measured (H100, 2026-11-23): 2048 tokens, 18432 x 7168: F16 600 TFLOP/s, Q4_K with
// its expansion 525.
__global__ void __launch_bounds__(kThreads, 1)
    multiply_direct_hopper_kernel(const Product product, const Shape shape) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) uint8_t shared[];
  auto* barriers = reinterpret_cast<Barriers*>(shared + kStages * kStageTiles * kTileBytes);
  init_stages(barriers, kLoadThreads);
  __syncthreads();
  if (threadIdx.x < kLoadThreads) {
    give_registers<kLoadRegisters>();
    load_stages(product, shape, shared_address(shared), barriers);
  } else {
    take_registers<kProductRegisters>();
    multiply_items(product, shape, shared_address(shared), barriers);
  }
#else
  __trap();
#endif
}

}  // namespace

void multiply_direct_hopper(const Product& product, const Launch& launch) {
  const Shape shape = shape_of(product);
  launch_plain(multiply_direct_hopper_kernel,
               {std::min<int64_t>(shape.n_items, launch.n_sms), kThreads, kSharedBytes}, launch, product,
               shape);
}

}  // namespace dsv32::cuda
