// Tiles of f32 products, for stored weights, attention and the indexer: most of the CPU's time is spent here.
//
// A dot tile holds the sums of some rows times some vectors in registers, sixteen lanes each along the summed
// dimension, so that a product is the same chain of operations alone or among others. A sum tile holds
// adjacent outputs of some vectors, one chain each. Included once per target, hence the toggling guard.
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

// Twelve sums, three vectors and a row fill the sixteen registers of AVX2.
constexpr int kDotRows = 4, kDotVectors = 3;

// Forces a value into a register; the compiler would read it again for each use.
HWY_INLINE hn::Vec<FloatTag> load_once(const float* from) {
  auto value = hn::LoadU(FloatTag(), from);
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR
  __asm__("" : "+v"(value.raw));
#endif
  return value;
}

// sums[v * kDotRows + r] = row r . x[v], lane by lane, over n columns, a multiple of 16. row(r, i, p): the
// address of part p of row r's columns [i, i + 16). All columns of a part before the next part: more rows
// then share the loaded x.
template <int V, class Row>
HWY_INLINE void dot_lanes(const Row& row, const float* const* x, int64_t n, Eight* sums) {
  const FloatTag tag;
  DSV32_UNROLL for (int p = 0; p < kParts; ++p) {
    hn::Vec<FloatTag> lanes[V][kDotRows];
    DSV32_UNROLL for (int v = 0; v < V; ++v) {
      DSV32_UNROLL for (int r = 0; r < kDotRows; ++r) lanes[v][r] = hn::Zero(tag);
    }
    for (int64_t i = 0; i < n; i += 16) {
      hn::Vec<FloatTag> of_x[V];
      DSV32_UNROLL for (int v = 0; v < V; ++v) of_x[v] = load_once(x[v] + i + p * kPartLanes);
      DSV32_UNROLL for (int r = 0; r < kDotRows; ++r) {
        const auto of_row = load_once(row(r, i, p));
        DSV32_UNROLL for (int v = 0; v < V; ++v) lanes[v][r] = hn::MulAdd(of_row, of_x[v], lanes[v][r]);
      }
    }
    DSV32_UNROLL for (int v = 0; v < V; ++v) {
      DSV32_UNROLL for (int r = 0; r < kDotRows; ++r) add_part(lanes[v][r], p, sums[v * kDotRows + r]);
    }
  }
}

// Where a tile's sums are read and written; the vectors' sums are `stride` floats apart.
struct Tile {
  const float* from;
  int64_t from_stride;
  float* to;
  int64_t to_stride;
};

// to[v][r] = from[v][r] + row r . x[v], for kDotRows rows and V vectors.
template <int V, class Row>
HWY_INLINE void dot_tile(const Row& row, const float* const* x, int64_t n, const Tile& tile) {
  Eight sums[V * kDotRows];
  dot_lanes<V>(row, x, n, sums);
  DSV32_UNROLL for (int v = 0; v < V; ++v)
      add_sums(sums + v * kDotRows, tile.from + v * tile.from_stride, tile.to + v * tile.to_stride);
}

// The same for n_vectors, at most kDotVectors.
template <class Row>
HWY_INLINE void dot_tile(int64_t n_vectors, const Row& row, const float* const* x, int64_t n,
                         const Tile& tile) {
  static_assert(kDotVectors == 3);
  if (n_vectors >= 3)
    dot_tile<3>(row, x, n, tile);
  else if (n_vectors == 2)
    dot_tile<2>(row, x, n, tile);
  else
    dot_tile<1>(row, x, n, tile);
}

constexpr float kZeros[kDotRows] = {};  // `from` of new sums

// A sum tile: kSumParts registers of outputs, which share broadcast factors, for up to kSums vectors. Twelve
// sums in AVX2's registers, or 24 in AVX-512's, hide the latency of additions.
constexpr int kSumParts = 3, kSums = kParts == 1 ? 8 : 4;
constexpr int64_t kSumLanes = kSumParts * kPartLanes;

// sums[v][p] += sum over k of factors[v * stride + k] * row(k)[p * kPartLanes ..], k ascending.
template <int V, int P, class Row>
HWY_INLINE void sum_tile(const float* factors, int64_t stride, int64_t n, const Row& row,
                         hn::Vec<FloatTag> (&sums)[V][P]) {
  const FloatTag tag;
  for (int64_t k = 0; k < n; ++k) {
    const float* from = row(k);
    hn::Vec<FloatTag> values[P];
    DSV32_UNROLL for (int p = 0; p < P; ++p) values[p] = load_once(from + p * kPartLanes);
    DSV32_UNROLL for (int v = 0; v < V; ++v) {
      const auto factor = hn::Set(tag, factors[v * stride + k]);
      DSV32_UNROLL for (int p = 0; p < P; ++p) sums[v][p] = hn::MulAdd(factor, values[p], sums[v][p]);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace dsv32
HWY_AFTER_NAMESPACE();

#endif  // DSV32_CPU_TILES_INL_H_
