// The warpgroup product of Hopper's tensor cores (sm_90a): D [64, N] += A [64, 16] times B [N, 16]
// transposed, fp16 into f32.
//
// A and B lie in shared memory as rows of 64 values (128 bytes) whose 16-byte pieces are exchanged by the row
// number modulo 8 (the "128-byte swizzle", tile_offset() in gemm_tile.cuh), in groups of 8 rows that start at
// multiples of 1024 bytes. Of D a thread holds d[4 j + 0, 1] = row 16 warp + lane / 4, columns 8 j + 2 (lane
// % 4) + 0, 1, and d[4 j + 2, 3] = the same 8 rows below: the places that mma.m16n8k16 gives, so whoever
// reads the sums need not know which instruction made them.
#pragma once

#include <cstdint>

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace dsv32::cuda {

// Of an operand that starts at a multiple of 1024 bytes, or 32, 64, 96 bytes further for the next 16 values
// of each row. Fields in units of 16 bytes: start; (unused with a swizzle) 1; 1024 bytes from 8 rows to the
// next 8; 1 = 128-byte swizzle.
__device__ __forceinline__ uint64_t wgmma_operand(uint32_t shared_address) {
  return uint64_t{(shared_address & 0x3ffffu) >> 4} | uint64_t{1} << 16 | uint64_t{1024 >> 4} << 32 |
         uint64_t{1} << 62;
}

// What ordinary stores and cp.async wrote to shared memory is seen by products that start after the next
// barrier.
__device__ __forceinline__ void fence_for_wgmma() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// The sums are in registers that products may write from here on.
__device__ __forceinline__ void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}

#define DSV32_SUMS_4(o) "+f"(d[o]), "+f"(d[o + 1]), "+f"(d[o + 2]), "+f"(d[o + 3])
#define DSV32_SUMS_16(o) DSV32_SUMS_4(o), DSV32_SUMS_4(o + 4), DSV32_SUMS_4(o + 8), DSV32_SUMS_4(o + 12)

// Starts one product; d [kN / 2] is this thread's part of D.
template <int kN>
__device__ void wgmma(float* d, uint64_t a, uint64_t b);

template <>
__device__ __forceinline__ void wgmma<32>(float* d, uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
      "%16, %17, 1, 1, 1, 0, 0;"
      : DSV32_SUMS_16(0)
      : "l"(a), "l"(b));
}

template <>
__device__ __forceinline__ void wgmma<64>(float* d, uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "%32, %33, 1, 1, 1, 0, 0;"
      : DSV32_SUMS_16(0), DSV32_SUMS_16(16)
      : "l"(a), "l"(b));
}

template <>
__device__ __forceinline__ void wgmma<96>(float* d, uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n96k16.f32.f16.f16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, "
      "%48, %49, 1, 1, 1, 0, 0;"
      : DSV32_SUMS_16(0), DSV32_SUMS_16(16), DSV32_SUMS_16(32)
      : "l"(a), "l"(b));
}

template <>
__device__ __forceinline__ void wgmma<128>(float* d, uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "%64, %65, 1, 1, 1, 0, 0;"
      : DSV32_SUMS_16(0), DSV32_SUMS_16(16), DSV32_SUMS_16(32), DSV32_SUMS_16(48)
      : "l"(a), "l"(b));
}

#undef DSV32_SUMS_16
#undef DSV32_SUMS_4

}  // namespace dsv32::cuda

#endif
