// Shared by the indexer's kernels: their parameters, and how 16 keys lie in a warp's registers.
//
// In a tensor-core product keys are the rows and heads the columns, so that nearly all of the sum over heads
// is inside a thread. A thread reads its part of a key as 16-byte words from the page to registers; the
// queries' values are stored in the order that these words give.
#pragma once

#include "cuda/common.cuh"

namespace dsv32::cuda {

constexpr int kDim = 128;           // values of a key in the tensor-core kernels
constexpr int kHeads = 64;          // heads of one product; missing ones are zeros
constexpr int kPage = kPageTokens;  // 64 keys
constexpr int kQueryBytes = kHeads * kDim;

// IndexerScores for the kernels, with the layout's offsets computed on the host.
struct Scoring : IndexerScores {
  int64_t page_bytes, keys_offset, scales_offset;
  int32_t dim;

  explicit Scoring(const IndexerScores& op)
      : IndexerScores(op),
        page_bytes(cache.layout.key_page_bytes()),
        keys_offset(cache.layout.keys_offset()),
        scales_offset(cache.layout.key_scales_offset()),
        dim(static_cast<int32_t>(cache.layout.index_head_dim)) {}

  __device__ const uint8_t* page(int64_t sequence, int64_t i) const {
    return cache.key_pages + cache.pages[sequence * cache.max_pages + i] * page_bytes;
  }
  // For e4m3 queries of one tile: the product of all factors that do not depend on the key. Zero past the
  // last head.
  __device__ float head_factor(int64_t t, int h) const {
    if (h >= n_heads) return 0;
    return weights[t * n_heads + h] * weight_scale * q_scales[t * n_heads + h];
  }
  __device__ uint4 query_word(int64_t t, int h, int i) const {  // 16 e4m3 values
    if (h >= n_heads) return make_uint4(0, 0, 0, 0);
    return reinterpret_cast<const uint4*>(q_fp8 + (t * n_heads + h) * kDim)[i];
  }
};

DSV32_DEVICE uint32_t word_of(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// Two e4m3 values (the low 16 bits) to two f16 values; exact. Without the instruction of 8.9 the seven bits
// of exponent and fraction, put where f16 has them, are the value times 2^-8.
DSV32_DEVICE uint32_t widen(uint32_t pair) {
#if __CUDA_ARCH__ < 890
  const uint32_t halves = __byte_perm(pair, 0, 0x1404);
  const uint32_t bits = (halves & 0x80008000u) | ((halves >> 1) & 0x3f803f80u);
  return as_word(__hmul2(as_half2(bits), __half2half2(__ushort_as_half(0x5c00))));  // 2^8
#else
  const __half2_raw h = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(pair), __NV_E4M3);
  return static_cast<uint32_t>(h.y) << 16 | h.x;
#endif
}

// A thread's part of the 16 keys that a warp holds as rows: lane = 4 g + c has rows g and g + 8, and of each
// row the 16-byte words c and c + 4, together eight 4-byte words. Word i goes into the products: as e4m3,
// half i % 2 of step i / 2 (32 values); as f16, both halves of step i (16 values).
struct KeyFragment {
  uint4 rows[2][2];  // [row g, g + 8] [16-byte word]

  __device__ void load(const uint8_t* first_row, int lane) {
    DSV32_UNROLL for (int i = 0; i < 4; ++i) rows[i / 2][i % 2] =
        load_streaming(first_row + (lane / 4 + 8 * (i / 2)) * kDim + (lane % 4 + 4 * (i % 2)) * 16);
  }
  __device__ void clear() { rows[0][0] = rows[0][1] = rows[1][0] = rows[1][1] = make_uint4(0, 0, 0, 0); }
  __device__ uint32_t word(int row, int i) const { return word_of(rows[row][i / 4], i % 4); }
  // Step i of 8, as the f16 A operand of a product over 16 values.
  __device__ void widened(int i, uint32_t (&a)[4]) const {
    a[0] = widen(word(0, i) & 0xffffu), a[1] = widen(word(1, i) & 0xffffu);
    a[2] = widen(word(0, i) >> 16), a[3] = widen(word(1, i) >> 16);
  }
};

// Calls store(h, w, p, pair) for each f16 pair p of each 16-byte word w of 64 heads' queries; the block's
// threads share the work. The products read pairs in groups of four (8 values): this pair is number w % 4 of
// group 8 * (w / 4) + p.
template <unsigned n_threads, typename Store>
DSV32_DEVICE void widen_queries(const Scoring& op, int64_t t, int first_head, const Store& store) {
  constexpr unsigned kItems = kHeads * 8 / n_threads;  // words of a thread
  const unsigned w = threadIdx.x % 8, first = threadIdx.x / 8;
  uint4 words[kItems];
  DSV32_UNROLL for (unsigned k = 0; k < kItems; ++k) words[k] =
      op.query_word(t, first_head + first + k * n_threads / 8, w);
  DSV32_UNROLL for (unsigned k = 0; k < kItems; ++k) {
    DSV32_UNROLL for (unsigned p = 0; p < 8; ++p) {
      const uint32_t four = word_of(words[k], p / 2);
      store(first + k * n_threads / 8, w, p, widen(p % 2 ? four >> 16 : four & 0xffffu));
    }
  }
}

// sums += weight * max(0, product) of a thread's two rows (d[0, 1] and d[2, 3]) and two heads.
DSV32_DEVICE void add_two_heads(const float* d, float2 w, float (&sums)[2]) {
  sums[0] = fmaf(w.x, fmaxf(d[0], 0.0f), sums[0]);
  sums[1] = fmaf(w.x, fmaxf(d[2], 0.0f), sums[1]);
  sums[0] = fmaf(w.y, fmaxf(d[1], 0.0f), sums[0]);
  sums[1] = fmaf(w.y, fmaxf(d[3], 0.0f), sums[1]);
}

// The same for all of a thread's heads 8 * j + 2 * c + (0, 1); weights(j) returns two heads' weights.
template <typename Weights>
DSV32_DEVICE void add_heads(const float (&products)[32], const Weights& weights, float (&sums)[2]) {
  DSV32_UNROLL for (int j = 0; j < 8; ++j) add_two_heads(products + 4 * j, weights(j), sums);
}

// The sum over this lane and lane ^ bit: of `low` in the lane without the bit, of `high` in the other.
DSV32_DEVICE float fold(float low, float high, int lane, int bit) {
  return (lane & bit ? high : low) + __shfl_xor_sync(0xffffffffu, lane & bit ? low : high, bit);
}
// Adds the sums of the four lanes of a row; even lanes return row g, odd lanes row g + 8.
DSV32_DEVICE float fold_rows(const float (&sums)[2], int lane) {
  const float sum = fold(sums[0], sums[1], lane, 1);
  return sum + __shfl_xor_sync(0xffffffffu, sum, 2);
}

// n_pages: at least the pages of the longest sequence. generic/indexer.cu; indexer_hopper.cu.
void score_generic(const Scoring& op, int64_t n_pages, const Launch& launch);
void score_decode(const Scoring& op, int64_t n_pages, const Launch& launch);
void score_prefill(const Scoring& op, int64_t n_pages, const Launch& launch);

}  // namespace dsv32::cuda
