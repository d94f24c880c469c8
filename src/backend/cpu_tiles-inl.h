// Tiles of products of f32: where the CPU's time goes, for stored weights, for attention and for the indexer.
//
// A dot tile holds some rows times some vectors in registers, sixteen lanes each along what is summed over,
// so that one token's product is the same chain of operations alone or among others. A sum tile holds
// sixteen outputs of some vectors, each one chain. Included once per target, hence the toggling guard.
#if defined(DSV32_CPU_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DSV32_CPU_TILES_INL_H_
#undef DSV32_CPU_TILES_INL_H_
#else
#define DSV32_CPU_TILES_INL_H_
#endif

#include <algorithm>

#include "backend/vec16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dsv32 {
namespace HWY_NAMESPACE {

// Twelve sums and what they are made of fill sixteen registers of AVX2.
constexpr int kDotRows = 4, kDotVectors = 3;
constexpr int kDotRowsAtOnce = kParts == 1 ? kDotRows : 2;

// Loads a value once, where the compiler would rather read it again for each of its uses.
template <class V>
HWY_INLINE void hold([[maybe_unused]] V& value) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR
  __asm__("" : "+v"(value.raw));
#endif
}

// sums[v * kDotRows + r] = rows[r] . x[v], lane by lane, over n columns, a multiple of 16.
template <int V>
HWY_INLINE void dot_lanes(const float* const* rows, const float* const* x, int64_t n, Eight* sums) {
  constexpr int R = kDotRowsAtOnce;
  Floats lanes[V][R];
  DSV32_UNROLL for (int v = 0; v < V; ++v) DSV32_UNROLL for (int r = 0; r < R; ++r) lanes[v][r] = zeros();
  for (int64_t i = 0; i < n; i += 16) DSV32_EACH_PART(p) {
      hn::Vec<FloatTag> row[R];
      DSV32_UNROLL for (int r = 0; r < R; ++r) row[r] = hn::LoadU(FloatTag(), rows[r] + i + p * kPartLanes);
      DSV32_UNROLL for (int v = 0; v < V; ++v) {
        auto of_x = hn::LoadU(FloatTag(), x[v] + i + p * kPartLanes);
        hold(of_x);
        DSV32_UNROLL for (int r = 0; r < R; ++r) lanes[v][r].part[p] =
            hn::MulAdd(row[r], of_x, lanes[v][r].part[p]);
      }
    }
  DSV32_UNROLL for (int v = 0; v < V; ++v) DSV32_UNROLL for (int r = 0; r < R; ++r) sums[v * kDotRows + r] =
      add_halves(lanes[v][r]);
}

// Where the sums of a tile come from and go to: those of its vectors stride floats apart.
struct Tile {
  const float* from;
  int64_t from_stride;
  float* to;
  int64_t to_stride;
};

// to[v][r] = from[v][r] + rows[r] . x[v], for kDotRows rows and V vectors.
template <int V>
HWY_INLINE void dot_tile(const float* const* rows, const float* const* x, int64_t n, const Tile& tile) {
  Eight sums[V * kDotRows];
  for (int r = 0; r < kDotRows; r += kDotRowsAtOnce) dot_lanes<V>(rows + r, x, n, sums + r);
  DSV32_UNROLL for (int v = 0; v < V; ++v)
      add_sums(sums + v * kDotRows, tile.from + v * tile.from_stride, tile.to + v * tile.to_stride);
}

// As many as there are, at most kDotVectors.
HWY_INLINE void dot_tile(int64_t n_vectors, const float* const* rows, const float* const* x, int64_t n,
                         const Tile& tile) {
  static_assert(kDotVectors == 3);
  if (n_vectors >= 3)
    dot_tile<3>(rows, x, n, tile);
  else if (n_vectors == 2)
    dot_tile<2>(rows, x, n, tile);
  else
    dot_tile<1>(rows, x, n, tile);
}

constexpr float kZeros[kDotRows] = {};  // from where new sums come

constexpr int kSumVectors = kParts == 1 ? 8 : 4;  // of a sum tile: as many as hide the latency of additions

// sums[v] += sum over k of factors[v * stride + k] * row(k)[0..15]
template <int V, class Row>
HWY_INLINE void sum_tile(const float* factors, int64_t stride, int64_t n, const Row& row, Floats* sums) {
  Floats held[V];
  DSV32_UNROLL for (int v = 0; v < V; ++v) held[v] = sums[v];
  for (int64_t k = 0; k < n; ++k) {
    const Floats values = load_floats_anywhere(row(k));
    DSV32_UNROLL for (int v = 0; v < V; ++v) held[v] =
        mul_add(broadcast(factors[v * stride + k]), values, held[v]);
  }
  DSV32_UNROLL for (int v = 0; v < V; ++v) sums[v] = held[v];
}

}  // namespace HWY_NAMESPACE
}  // namespace dsv32
HWY_AFTER_NAMESPACE();

#endif  // DSV32_CPU_TILES_INL_H_
