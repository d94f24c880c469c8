// Hopper's bulk copies between global and shared memory, and the barriers that tell when bytes have arrived.
//
// One thread starts a copy of any multiple of 16 bytes between addresses that are multiples of 16; nobody
// carries the bytes through registers. Copies go by the asynchronous proxy: whoever reads or writes the same
// shared memory by ordinary instructions needs fence_async_proxy() between.
#pragma once

#include <cstdint>

namespace dsv32::cuda {

#if __CUDA_ARCH__ >= 900

__device__ __forceinline__ uint32_t shared_address_of(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// ---- barriers: a phase ends when n_arrivals threads and all the bytes that they announced have arrived ----

__device__ __forceinline__ void init_barrier(uint64_t* barrier, uint32_t n_arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address_of(barrier)), "r"(n_arrivals)
               : "memory");
}
// After the inits, in the thread that made them and before others are let on.
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address_of(barrier)) : "memory");
}
__device__ __forceinline__ void arrive_expecting(uint64_t* barrier, uint32_t n_bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address_of(barrier)),
               "r"(n_bytes)
               : "memory");
}
// Waits for the end of the phase of that parity; the first phase is 0.
__device__ __forceinline__ void wait_for_phase(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra "
      "again;\n}" ::"r"(shared_address_of(barrier)),
      "r"(parity)
      : "memory");
}
__device__ __forceinline__ void fence_async_proxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- copies ----

__device__ __forceinline__ void copy_in(void* shared, const void* global, uint32_t n_bytes,
                                        uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          shared_address_of(shared)),
      "l"(global), "r"(n_bytes), "r"(shared_address_of(barrier))
      : "memory");
}
// Each thread's copies out form groups: those since its last commit are one.
__device__ __forceinline__ void copy_out(void* global, const void* shared, uint32_t n_bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global),
               "r"(shared_address_of(shared)), "r"(n_bytes)
               : "memory");
}
__device__ __forceinline__ void commit_copies_out() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Until all groups of this thread but the last n have read their shared memory: it may be filled anew.
template <int n>
__device__ __forceinline__ void wait_until_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(n) : "memory");
}
// Until all groups of this thread are written.
__device__ __forceinline__ void wait_until_written() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

#endif

}  // namespace dsv32::cuda
