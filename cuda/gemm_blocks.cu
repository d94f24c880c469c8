// Products with weights in any GGUF format: dequantised into the registers from which the tensor cores take
// operand A; one kernel per format.
//
// A warp has sixteen rows and all tokens of the tile, so each weight is dequantised once. Lanes 4 g + i with
// even i have row g, those with odd i row g + 8: of every sixteen columns the four from j = 4 (i / 2) on and
// the four from j + 8 on. The tensor core wants two and two of both rows in each lane, in the order of
// columns, so neighbouring lanes exchange half of what they have. Another order of columns could give sums
// other bits than those of dequantised slabs have: not every tensor core adds sixteen products at once.
#include "cuda/weight_tile.cuh"

namespace dsv32::cuda {
namespace {

constexpr int kThreads = 256;
static_assert(kTileRows == kThreads / 32 * 16);

// Shared memory of a CTA.
template <TensorType kType>
struct Staging {
  static constexpr int n_bytes(int n_stages) {
    return n_stages * kTileBytes + 2 * RawSpan<kType>::kBytes + static_cast<int>(sizeof(TokenRows)) +
           4 * kGridWords<kType>;
  }
  // Two stages of tokens, one to fill and one to multiply; F32 has room for one.
  static constexpr int kStages = n_bytes(2) <= kGenericSharedBytes ? 2 : 1;
  static constexpr int kBytes = n_bytes(kStages);
  static_assert(kBytes <= kGenericSharedBytes && (kStages == 2 || RawSpan<kType>::kSteps == 1));
};

struct Lane {
  int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  bool is_odd = lane % 2;
  int row = 16 * warp + lane / 4 + 8 * (lane % 2);  // in the tile
  int column = lane % 4 / 2 * 4;                    // of every eight
};

// Four values of a row from `column` on of a span, in pairs: first those that the lane keeps, then those of
// its neighbour. group: a multiple of 16 not above column; scale and constant: its own.
template <TensorType kType>
DSV32_DEVICE void widen_pairs(const uint8_t* span, uint32_t group, int column, float scale, float constant,
                              bool is_odd, const uint32_t* grid, uint32_t (&out)[2]) {
  if constexpr (kIsFloat<kType>) {
    DSV32_UNROLL for (int i = 0; i < 2; ++i) {
      const uint32_t at = group + column + 2 * (i ^ static_cast<int>(is_odd));
      if constexpr (kType == TensorType::f32) {
        out[i] = pack_f16(load_float<kType>(span, at), load_float<kType>(span, at + 1));
      } else {
        const uint32_t pair = load_word<2>(span + 2 * at);
        out[i] = kType == TensorType::f16
                     ? pair
                     : pack_f16(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
      }
    }
  } else {
    const InBlock<kType> at(span, group);
    const uint32_t codes = Codes<kType>::codes4(at.block, at.i16, column, grid);
    widen4<kType>(__byte_perm(codes, 0, is_odd ? 0x1032 : 0x3210), scale, constant, out);
  }
}

// Columns of a span's step: of the warp's rows as operand A.
template <TensorType kType>
struct StepRows {
  const uint8_t* span;  // of the lane's row
  uint32_t first_column;
  const uint32_t* grid;
  float scale = 0, constant = 0;

  // The k-th sixteen columns; called in ascending k.
  DSV32_DEVICE void widen(int k, const Lane& own, uint32_t (&a)[4]) {
    const uint32_t group = first_column + 16 * k;
    if constexpr (!kIsFloat<kType>) {
      if (k % (Codes<kType>::kGroup < 32 ? 1 : 2) == 0) {
        const InBlock<kType> at(span, group);
        const ScaleMin s = Codes<kType>::scale(at.block, at.i16);
        scale = s.scale, constant = widen_constant<kType>(s);
      }
    }
    DSV32_UNROLL for (int half = 0; half < 2; ++half) {
      uint32_t pairs[2];
      widen_pairs<kType>(span, group, own.column + 8 * half, scale, constant, own.is_odd, grid, pairs);
      const uint32_t got = __shfl_xor_sync(0xffffffffu, pairs[1], 1);
      a[2 * half] = own.is_odd ? got : pairs[0];
      a[2 * half + 1] = own.is_odd ? pairs[0] : got;
    }
  }
};

// Adds sixteen columns' products; tokens: the shared address of the lane's piece of its first token.
template <int kTokens>
DSV32_DEVICE void add_products(const uint32_t (&a)[4], uint32_t tokens, float (&sums)[kTokens / 2]) {
  DSV32_UNROLL for (int j = 0; j < kTokens / 16; ++j) {
    uint32_t b[4];
    load_matrices(b, tokens + j * 16 * 128);
    multiply_f16(sums + 8 * j, a, b[0], b[1]);
    multiply_f16(sums + 8 * j + 4, a, b[2], b[3]);
  }
}

// The sums of the warp's rows with up to kTokens tokens. stages, raw, grid: in shared memory.
template <TensorType kType, int kTokens>
DSV32_DEVICE void multiply_tile(const Product& product, const Place& place, const TokenRows& token_rows,
                                uint32_t stages, const uint8_t* raw, const uint32_t* grid,
                                float (&sums)[kTokens / 2]) {
  using Raw = RawSpan<kType>;
  constexpr int kStages = Staging<kType>::kStages, kSteps = Raw::kSteps;
  const RowRun rows(product.weight, row_of(product.weight, place.tile.mat, place.first_row));
  const int n_rows = static_cast<int>(min(product.weight.n_rows - place.first_row, int64_t{kTileRows}));
  const int n_steps = place.n_steps, n_spans = (n_steps + kSteps - 1) / kSteps,
            first_span = place.first_step / kSteps;
  const Lane own;
  // Matrices: pieces 0, 1 of tokens 0-7; of 8-15.
  const uint32_t token_at = (own.lane % 8 + own.lane / 16 * 8) * 128, turn = own.lane % 8 * 16,
                 piece = own.lane / 8 % 2 * 16;
  constexpr int kAtOnce = kThreads / 8;  // eight threads copy 128 bytes of a token
  const int token = static_cast<int>(threadIdx.x) / 8, token_piece = static_cast<int>(threadIdx.x) % 8;
  uint32_t pieces[kTokens / kAtOnce];  // of x: this thread's, for each of its tokens
  DSV32_UNROLL for (int i = 0; i < kTokens / kAtOnce; ++i) pieces[i] =
      static_cast<uint32_t>(token_rows.x[min(i * kAtOnce + token, place.tile.n - 1)] / 8) + token_piece;
  const auto load_tokens = [&](int step) {
    const uint32_t to = stages + step % kStages * kTileBytes + tile_offset(token, token_piece * 16);
    const auto* x = reinterpret_cast<const uint4*>(product.x) + step * (kStep / 8);
    DSV32_UNROLL for (int i = 0; i < kTokens / kAtOnce;
                      ++i) if (step < n_steps && i * kAtOnce + token < place.tile.n)
        copy_async(to + i * kAtOnce * 128, x + pieces[i], 16);
    commit_copies();
  };
  const auto load_raw = [&](int span) {
    if (span < n_spans)
      load_span<kType, false, kThreads>(rows, n_rows, first_span + span,
                                        shared_address(raw) + span % 2 * Raw::kBytes, threadIdx.x);
  };
  load_raw(0);
  load_tokens(0);
  for (int step = 0; step < n_steps; ++step) {
    // The newest group of copies is a span that is not needed yet, except the first span, or where each step
    // has its own span.
    if (kSteps == 1 || step == 0)
      wait_copies<0>();
    else
      wait_copies<1>();
    __syncthreads();
    if constexpr (kStages == 2) load_tokens(step + 1);
    const int span = step / kSteps;
    if (step % kSteps == 0) load_raw(span + 1);
    commit_copies();

    StepRows<kType> from = {loaded_row<kType>(raw + span % 2 * Raw::kBytes, rows, first_span + span, own.row),
                            static_cast<uint32_t>(step % kSteps * kStep), grid};
    const uint32_t tokens = stages + step % kStages * kTileBytes + token_at;
    uint32_t a[2][4];
    from.widen(0, own, a[0]);
    DSV32_UNROLL for (int k = 0; k < kStep / 16; ++k) {
      if (k + 1 < kStep / 16) from.widen(k + 1, own, a[(k + 1) % 2]);
      add_products<kTokens>(a[k % 2], tokens + ((32 * k + piece) ^ turn), sums);
    }
    if constexpr (kStages == 1) {
      __syncthreads();
      load_tokens(step + 1);
    }
  }
}

// y[t, r] = sum over c of f16(W[r, c]) * x[t, c], f32 sums in ascending c, sixteen at a time.
// A CTA of eight warps makes up to 128 tokens x 128 rows; grid: product_grid(). Activations are copied one
// step of 64 columns ahead, raw weights one span. A warp dequantises the next sixteen columns before it
// multiplies sixteen; other warps do one while it does the other.
// For 64 tokens a warp issues some 85 instructions each sixteen columns (Q4_K, sm_80); on an A100 their
// products take 64 cycles, and reading the tokens, which each warp does, as long. With more tokens products
// and reading bound it, on cards with slower tensor cores products alone. Measured (H100 at its base clock,
// code for 8.0, 2026-11-26): 2 048 tokens by 8 of 256 experts, Q4_K, 2048 x 7168: 2.5 ms, 196 TFLOP/s.
template <TensorType kType>
__global__ void __launch_bounds__(kThreads, 2) multiply_formats_kernel(const Product product) {
  extern __shared__ __align__(1024) uint8_t shared[];
  uint8_t* raw = shared + Staging<kType>::kStages * kTileBytes;  // [2, RawSpan::kBytes], after the tokens
  auto& token_rows = *reinterpret_cast<TokenRows*>(raw + 2 * RawSpan<kType>::kBytes);
  auto* grid = reinterpret_cast<uint32_t*>(&token_rows + 1);
  Place place;
  if (!find_place(product, kTileRows, place)) return;
  find_token_rows(product, place, token_rows);
  fill_grid<kType>(grid);
  __syncthreads();
  with_tokens<32, 64, 96, 128>(place.tile.n, [&]<int kTokens>() {
    float sums[kTokens / 2] = {};
    multiply_tile<kType, kTokens>(product, place, token_rows, shared_address(shared), raw, grid, sums);
    store_sums<kTokens>(product, token_rows, place.tile, place.first_row + threadIdx.x / 32 * 16, sums);
  });
}

}  // namespace

void multiply_blocks(const Product& product, const Launch& launch) {
  with_type(product.weight.type, [&]<TensorType kType>() {
    launch_plain(multiply_formats_kernel<kType>,
                 {product_grid(product, kTileRows), kThreads, Staging<kType>::kBytes}, launch, product);
  });
}

}  // namespace dsv32::cuda
