// Device-side helpers that several kernels share: reductions, streaming loads, bf16 and e4m3 conversions,
// pages.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "cuda/dependent.cuh"
#include "cuda/kernels.h"

// A loop that is unrolled whole, so that arrays stay in registers: a `for` with its parentheses behind.
#define DSV32_UNROLLED _Pragma("unroll") for

namespace dsv32::cuda {

// The sums of a problem of a gated product.
__device__ __forceinline__ void scale_pair(const GateScales& scales, int64_t problem, float& gate,
                                           float& up) {
  if (!scales.pairs) return;
  const float* pair = scales.pairs + (scales.mats ? 2 * int64_t{scales.mats[problem]} : 0);
  gate *= pair[0], up *= pair[1];
}

__device__ __forceinline__ float warp_sum(float x) {
  DSV32_UNROLLED (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}

__device__ __forceinline__ float warp_max(float x) {
  DSV32_UNROLLED (int offset = 16; offset > 0; offset /= 2)
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
  return x;
}

// The sum over the lanes up to and with this one.
template <typename T>
__device__ __forceinline__ T warp_prefix(T x) {
  DSV32_UNROLLED (int offset = 1; offset < 32; offset *= 2) {
    const T before = __shfl_up_sync(0xffffffffu, x, offset);
    if (static_cast<int>(threadIdx.x % 32) >= offset) x += before;
  }
  return x;
}

// The sum over a block of up to 1024 threads, for every thread. All threads of the block call it.
__device__ __forceinline__ float block_sum(float x) {
  __shared__ float partial[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n_warps = (blockDim.x + 31) / 32;
  x = warp_sum(x);
  __syncthreads();  // the previous call's readers are done
  if (lane == 0) partial[warp] = x;
  __syncthreads();
  return warp_sum(lane < n_warps ? partial[lane] : 0.0f);
}

// x [dim], a power of two, in shared memory, times the Hadamard matrix of ones and minus ones: the CPU's
// stages in its order. Called by n_threads threads that sync() brings together; it begins and ends with one.
template <typename Sync>
__device__ __forceinline__ void hadamard_stages(float* x, int64_t dim, unsigned thread, unsigned n_threads,
                                                const Sync& sync) {
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
}

// 16 bytes that are read once: past L1. After wait_for_inputs() this may be what a kernel wrote.
__device__ __forceinline__ uint4 load_streaming(const void* p) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

// Hardware rounding (nearest even, saturating to 448): the same values as base/numbers.h.
__device__ __forceinline__ uint8_t to_e4m3(float x) {
  return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
}
__device__ __forceinline__ float from_e4m3(uint8_t x) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(x, __NV_E4M3)));
}

// 2^ceil(log2(max(amax, 1e-4) / 448)) as ue8m0 (base/numbers.h, e4m3_tile_scale).
__device__ __forceinline__ uint8_t tile_scale(float amax) {
  const uint32_t bits = __float_as_uint(fmaxf(amax, 1e-4f) / 448.0f);
  return static_cast<uint8_t>((bits >> 23) + ((bits & 0x7fffffu) != 0));
}
__device__ __forceinline__ float from_ue8m0(uint8_t x) {
  return __uint_as_float(x == 0 ? 0x00400000u : static_cast<uint32_t>(x) << 23);
}

// ---- where a token's row and its key entry lie in the paged pools (backend/cache_layout.h) ----

// The number of the row of `pos` in the pool that `pages` leads to.
__device__ __forceinline__ int64_t paged_row(const int32_t* pages, const CacheView& cache, int64_t seq,
                                             int64_t pos) {
  return static_cast<int64_t>(pages[seq * cache.max_pages + pos / kPageTokens]) * kPageTokens +
         pos % kPageTokens;
}

// Whether rows are copied 16 bytes at a time.
inline bool has_whole_words(const CacheView& cache) {
  return is_aligned(cache.rows, 16) && is_aligned(cache.slots, 16) && cache.layout.row_bytes() % 16 == 0;
}

// Whether the sequence's slots are a top-k buffer's; else each row lies in the slot of its position.
__device__ __forceinline__ bool has_buffer(const CacheView& cache, int64_t seq) {
  return cache.buffers && cache.buffers[seq].n_slots > 0;
}

// The beginning of the key page that holds `pos`.
__device__ __forceinline__ uint8_t* key_page(const CacheView& cache, int64_t page_bytes, int64_t seq,
                                             int64_t pos) {
  return cache.key_pages +
         static_cast<int64_t>(cache.key_page_ids[seq * cache.max_pages + pos / kPageTokens]) * page_bytes;
}

}  // namespace dsv32::cuda
