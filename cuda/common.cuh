// Device-side helpers that several kernels share: reductions, streaming loads, conversions, pages, clusters.
#pragma once

#include <cmath>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "cuda/dependent.cuh"
#include "cuda/kernels.h"
#include "cuda/ptx.cuh"

namespace dsv32::cuda {

// Multiplies the two sums of one problem of a gated product by their scales.
DSV32_DEVICE void scale_pair(const GateScales& scales, int64_t problem, float& gate, float& up) {
  if (!scales.pairs) return;
  const float* pair = scales.pairs + (scales.mats ? 2 * int64_t{scales.mats[problem]} : 0);
  gate *= pair[0], up *= pair[1];
}

template <typename T>
DSV32_DEVICE T warp_sum(T x) {
  DSV32_UNROLL for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}

DSV32_DEVICE float warp_max(float x) {
  DSV32_UNROLL for (int offset = 16; offset > 0; offset /= 2) x =
      fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
  return x;
}

// The sum over this lane and the lanes before it.
template <typename T>
DSV32_DEVICE T warp_prefix(T x) {
  DSV32_UNROLL for (int offset = 1; offset < 32; offset *= 2) {
    const T before = __shfl_up_sync(0xffffffffu, x, offset);
    if (static_cast<int>(threadIdx.x % 32) >= offset) x += before;
  }
  return x;
}

// Replaces each x by its sum over a block of up to 1024 threads, for every thread. All threads call it.
template <int kSums>
DSV32_DEVICE void block_sums(float (&x)[kSums]) {
  __shared__ float partial[kSums][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n_warps = (blockDim.x + 31) / 32;
  DSV32_UNROLL for (float& of : x) of = warp_sum(of);
  __syncthreads();  // the previous call's sums are read
  DSV32_UNROLL for (int i = 0; i < kSums; ++i) if (lane == 0) partial[i][warp] = x[i];
  __syncthreads();
  DSV32_UNROLL for (int i = 0; i < kSums; ++i) x[i] = warp_sum(lane < n_warps ? partial[i][lane] : 0.0f);
}
DSV32_DEVICE float block_sum(float x) {
  float sums[1] = {x};
  block_sums(sums);
  return sums[0];
}

// Multiplies x [dim], a power of two, in shared memory by the orthonormal Hadamard matrix, in the CPU's
// stages and order. Called by n_threads threads with the barrier sync(); begins and ends with it.
template <typename Sync>
DSV32_DEVICE void hadamard(float* x, int64_t dim, unsigned thread, unsigned n_threads, const Sync& sync) {
  const auto n_pairs = static_cast<unsigned>(dim / 2);
  for (unsigned half = 1; half <= n_pairs; half *= 2) {
    sync();
    for (unsigned i = thread; i < n_pairs; i += n_threads) {
      float* pair = x + 2 * i - (i & (half - 1));  // half is a power of two
      const float a = pair[0], b = pair[half];
      pair[0] = a + b;
      pair[half] = a - b;
    }
  }
  sync();
  const float norm = 1.0f / sqrtf(static_cast<float>(dim));
  for (int64_t i = thread; i < dim; i += n_threads) x[i] *= norm;
  sync();
}

// Loads 16 bytes that are read once, past L1. After wait_for_inputs() they may be a kernel's output.
DSV32_DEVICE uint4 load_streaming(const void* p) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

// Hardware rounding (nearest even, saturating to 448): the same values as base/numbers.h.
DSV32_DEVICE uint8_t to_e4m3(float x) { return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3); }
DSV32_DEVICE float from_e4m3(uint8_t x) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(x, __NV_E4M3)));
}

// 2^ceil(log2(max(amax, 1e-4) / 448)) as ue8m0 (base/numbers.h, e4m3_tile_scale).
DSV32_DEVICE uint8_t tile_scale(float amax) {
  const uint32_t bits = __float_as_uint(fmaxf(amax, 1e-4f) / 448.0f);
  return static_cast<uint8_t>((bits >> 23) + ((bits & 0x7fffffu) != 0));
}
DSV32_DEVICE float from_ue8m0(uint8_t x) {
  return __uint_as_float(x == 0 ? 0x00400000u : static_cast<uint32_t>(x) << 23);
}

// ---- values as fp16 for tensor cores: eleven significant bits, from steps of 2^-24 to 65504 ----

// Weights are rounded and saturated. Activations may have any size: each row is divided by its unit, a power
// of two chosen by the row's largest value, and its sums are multiplied by the unit again, which is exact.

// A row's largest magnitude lies between this and twice this, in units of the row. Values down to 2^-28 of
// the largest keep all their bits, and no sum of products overflows f32.
constexpr float kLargestInUnits = 16384;

// Rows of activations as fp16; each row has its own unit.
struct RoundedRows {
  __half* values = nullptr;
  float* units = nullptr;
};

// Fp16 rows for the next operation in the memory of n_rows f32 rows of n_cols >= 2: first all values, then
// all units.
inline RoundedRows rounded_rows_in(const float* room, int64_t n_rows, int64_t n_cols) {
  auto* values = reinterpret_cast<__half*>(const_cast<float*>(room));
  return {values, reinterpret_cast<float*>(values + n_rows * n_cols)};
}

// Rounds to nearest. Magnitudes above 65504, and infinity, become 65504. NaN stays NaN.
DSV32_DEVICE uint32_t pack_f16(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
DSV32_DEVICE __half to_f16(float x) {
  return __ushort_as_half(static_cast<unsigned short>(pack_f16(x, 0.0f)));
}

// Pairs of 16-bit floats in a word.
template <typename Pair>
DSV32_DEVICE uint32_t as_word(Pair x) {
  return *reinterpret_cast<const uint32_t*>(&x);
}
DSV32_DEVICE __half2 as_half2(uint32_t x) { return *reinterpret_cast<const __half2*>(&x); }
DSV32_DEVICE __nv_bfloat162 as_bfloat2(uint32_t x) { return *reinterpret_cast<const __nv_bfloat162*>(&x); }
DSV32_DEVICE float2 unpack_f16(uint32_t pair) { return __half22float2(as_half2(pair)); }

// The unit of a row whose largest magnitude is `largest`. Bounded so that its inverse is a normal float: rows
// below 2^-98 only become less accurate, infinity stays infinite.
DSV32_DEVICE float unit_of(float largest) {
  const uint32_t exponent = max(__float_as_uint(largest) >> 23, 29u);
  return __uint_as_float((exponent - 14) << 23);
}

// The unit of a plain row: 1, unless its values are too large for fp16 or so small that they lose bits.
DSV32_DEVICE float plain_unit(float largest) {
  constexpr float kSmallest = 1.0f / 256;
  return largest == 0 || (largest >= kSmallest && largest <= kLargestInUnits) ? 1.0f : unit_of(largest);
}

// 1 / x of a power of two x whose inverse is a normal float.
DSV32_DEVICE float inverse_of_power(float x) { return __uint_as_float((254u << 23) - __float_as_uint(x)); }

// ---- where a token's row and its key entry lie in the paged pools (backend/cache_layout.h) ----

// The number of the row of `pos` in the pool whose pages `pages` lists.
DSV32_DEVICE int64_t paged_row(const int32_t* pages, const CacheView& cache, int64_t seq, int64_t pos) {
  return static_cast<int64_t>(pages[seq * cache.max_pages + pos / kPageTokens]) * kPageTokens +
         pos % kPageTokens;
}

// Whether rows can be copied 16 bytes at a time.
inline bool has_whole_words(const CacheView& cache) {
  return is_aligned(cache.rows, 16) && is_aligned(cache.slots, 16) && cache.layout.row_bytes() % 16 == 0;
}

// The tokens of a sequence in a decode step: n of them, and how many are before the one that asks. Their
// lines in the table of buffers are consecutive and equal.
struct SequenceTokens {
  int n_before = 0, n = 1;

  // seq: has a buffer.
  static DSV32_DEVICE SequenceTokens of(const CacheView& cache, int64_t n_seqs, int64_t seq) {
    const int32_t* own = cache.buffers[seq].slot_pos;
    int n_before = 0, n_after = 0;
    DSV32_UNROLL for (int i = 1; i < kMostSequenceTokens; ++i) {  // no load waits for another
      const bool is_before = seq >= i && cache.buffers[seq - i].slot_pos == own,
                 is_after = seq + i < n_seqs && cache.buffers[seq + i].slot_pos == own;
      n_before += is_before, n_after += is_after;
    }
    return {n_before, n_before + 1 + n_after};
  }
};

// What the claims of a sequence's n newest positions take, one after the other (claim_newest() of
// src/backend/topk_buffer). own[j]: in: where position j lies already, or -1; out: what its claim takes: the
// same, unless an earlier claim took it; else the first in `order` that is left. `order` has the first n
// victims.
DSV32_DEVICE void claim_in_turn(int n, const int (&order)[kMostSequenceTokens],
                                int (&own)[kMostSequenceTokens]) {
  DSV32_UNROLL for (int j = 0; j < kMostSequenceTokens; ++j) {
    const auto is_left = [&](int place) {
      bool is_taken = false;
      DSV32_UNROLL for (int i = 0; i < j; ++i) is_taken |= own[i] == place;
      return !is_taken;
    };
    if (j >= n || (own[j] >= 0 && is_left(own[j]))) continue;
    DSV32_UNROLL for (int i = j; i >= 0; --i) if (is_left(order[i])) own[j] = order[i];
  }
}

// The start of the key page that holds `pos`.
DSV32_DEVICE uint8_t* key_page(const CacheView& cache, int64_t seq, int64_t pos) {
  return cache.key_pages +
         cache.pages[seq * cache.max_pages + pos / kPageTokens] * cache.layout.key_page_bytes();
}

// ---- the blocks that share a row: a cluster, whose blocks see each other's shared memory, or one block ----

struct Team {
  int rank = 0, size = 1;

  __device__ Team(int own_rank, int n_blocks) : rank(own_rank), size(n_blocks) {}
  __device__ Team() {
#if __CUDA_ARCH__ >= 900
    rank = block_of_cluster(), size = n_blocks_of_cluster();
#endif
  }
  // A barrier of all threads of all blocks; afterwards all see the shared memory that was written before.
  __device__ void sync() const { size > 1 ? sync_cluster() : __syncthreads(); }
  // The same variable in the shared memory of block `of`.
  template <typename T>
  __device__ T* of(T* shared, int block) const {
#if __CUDA_ARCH__ >= 900
    if (size > 1) return shared_of_block(shared, block);
#endif
    return shared;
  }
};

}  // namespace dsv32::cuda
