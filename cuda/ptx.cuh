// Instructions without a name in C++: asynchronous copies, barriers that count bytes, matrices in registers
// and in shared memory, and the tensor cores' products.
//
// Addresses in shared memory are 32-bit numbers (shared_address). Hopper's bulk copies and warpgroup products
// use the asynchronous proxy: between them and ordinary accesses to the same shared memory
// fence_async_proxy() is needed. In every product of 16-bit values [16, 8] or [64, N] a thread's d[4 j + 0,
// 1] are row lane / 4 (of the warp's 16), columns 8 j + 2 (lane % 4) + 0, 1; its d[4 j + 2, 3] are the same
// columns 8 rows below.
#pragma once

#include <cstdint>

// A function that is inlined into kernels.
#define DSV32_DEVICE __device__ __forceinline__
// Before a loop: the first unrolls it completely, so that arrays stay in registers; the second keeps it a
// loop.
#define DSV32_UNROLL _Pragma("unroll")
#define DSV32_NO_UNROLL _Pragma("unroll 1")

namespace dsv32::cuda {

DSV32_DEVICE uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// x, hidden from the compiler, which then keeps it in a register instead of recomputing it.
DSV32_DEVICE uint32_t opaque(uint32_t x) {
  asm("" : "+r"(x));
  return x;
}

// The same for a constant: hidden from the assembler too, which else copies it for each use.
DSV32_DEVICE uint32_t hidden(uint32_t x) {
  uint32_t sm;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  return sm < 65536 + threadIdx.x ? x : sm;
}

// Selects bytes of two words by the four lower nibbles of `selector`. A nibble of 8 + k gives a byte of the
// sign of byte k, 0 or -1.
DSV32_DEVICE uint32_t select_bytes(uint32_t low, uint32_t high, uint32_t selector) {
  uint32_t out;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(out) : "r"(low), "r"(high), "r"(selector));
  return out;
}

DSV32_DEVICE uint32_t load_shared_u32(uint32_t address) {
  uint32_t x;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(address));
  return x;
}
DSV32_DEVICE uint2 load_shared_u32x2(uint32_t address) {
  uint2 x;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "r"(address));
  return x;
}

DSV32_DEVICE uint4 load_shared_u32x4(uint32_t address) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(address));
  return x;
}

// Stores, or counts up by one, if is_wanted, without a branch.
DSV32_DEVICE void store_shared_if(uint32_t address, uint32_t x, bool is_wanted) {
  asm volatile(
      "{\n.reg .pred wanted;\nsetp.ne.b32 wanted, %2, 0;\n@wanted st.shared.u32 [%0], %1;\n}" ::"r"(address),
      "r"(x), "r"(static_cast<int>(is_wanted))
      : "memory");
}
DSV32_DEVICE void count_shared_if(uint32_t address, bool is_wanted) {
  asm volatile(
      "{\n.reg .pred wanted;\nsetp.ne.b32 wanted, %1, 0;\n@wanted red.shared.add.u32 [%0], 1;\n}" ::"r"(
          address),
      "r"(static_cast<int>(is_wanted))
      : "memory");
}

// ---- copies of 16 bytes from global to shared memory, past L1 and the registers ----

// Reads the first n_bytes; the rest of the 16 is zero.
DSV32_DEVICE void copy_async(uint32_t to, const void* from, int n_bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(n_bytes) : "memory");
}
// Makes L2 fetch the whole line of 128 bytes.
DSV32_DEVICE void copy_line_async(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
// The same if is_wanted, without a branch.
DSV32_DEVICE void copy_line_async_if(uint32_t to, const void* from, bool is_wanted) {
  asm volatile(
      "{\n.reg .pred wanted;\nsetp.ne.b32 wanted, %2, 0;\n"
      "@wanted cp.async.cg.shared.global.L2::128B [%0], [%1], 16;\n}" ::"r"(to),
      "l"(from), "r"(static_cast<int>(is_wanted))
      : "memory");
}
// The same; zeros if !is_there (then nothing is read).
DSV32_DEVICE void copy_line_async(uint32_t to, const void* from, bool is_there) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(is_there ? 16 : 0)
               : "memory");
}
// copy_line_async_if() for data that is read once: L2 evicts it first, so that data read by all layers stays.
// Copies to `to` + kTo from `from` + kFrom (bytes).
template <int kTo = 0, int kFrom = 0>
DSV32_DEVICE void copy_passing_async_if(uint32_t to, const void* from, bool is_wanted) {
  constexpr uint64_t kEvictFirst = 0x12f0000000000000;  // createpolicy.fractional.L2::evict_first's
  asm volatile(
      "{\n.reg .pred wanted;\nsetp.ne.b32 wanted, %2, 0;\n"
      "@wanted cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0 + %4], [%1 + %5], 16, %3;\n}" ::"r"(to),
      "l"(from), "r"(static_cast<int>(is_wanted)), "l"(kEvictFirst), "n"(kTo), "n"(kFrom)
      : "memory");
}
// Copies 8 bytes, through L1.
DSV32_DEVICE void copy_small_async(uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(from) : "memory");
}
// Makes the thread's copies since its last commit a group.
DSV32_DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most kPending of this thread's groups are under way.
template <int kPending>
DSV32_DEVICE void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
// Waits for all of this thread's copies, committed or not.
DSV32_DEVICE void wait_all_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// ---- products of a warp, and loading their matrices from shared memory ----

// Four 8x8 matrices of 16-bit values; lane i gives the address of row i % 8 of matrix i / 8.
DSV32_DEVICE void load_matrices(uint32_t (&m)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address)
               : "memory");
}
DSV32_DEVICE void load_transposed(uint32_t (&m)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address)
               : "memory");
}

// d [16, 8] += a b: a [16, 16], b [16, 8] of fp16 or bf16 into f32; or a [16, 32], b [32, 8] of bytes into 32
// bits, signed ones of b, signed or unsigned ones of a.
#define DSV32_MULTIPLY(NAME, TYPES, SUM, REGISTER)                                                  \
  DSV32_DEVICE void NAME(SUM* d, const uint32_t(&a)[4], uint32_t b0, uint32_t b1) {                 \
    asm volatile("mma.sync.aligned." TYPES " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
                 : REGISTER(d[0]), REGISTER(d[1]), REGISTER(d[2]), REGISTER(d[3])                   \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                   \
  }
DSV32_MULTIPLY(multiply_f16, "m16n8k16.row.col.f32.f16.f16.f32", float, "+f")
DSV32_MULTIPLY(multiply_bf16, "m16n8k16.row.col.f32.bf16.bf16.f32", float, "+f")
DSV32_MULTIPLY(multiply_signed_bytes, "m16n8k32.row.col.s32.s8.s8.s32", int, "+r")
DSV32_MULTIPLY(multiply_bytes, "m16n8k32.row.col.s32.u8.s8.s32", int, "+r")
#undef DSV32_MULTIPLY
// d += a b with a [16, 8], b [8, 8] in TF32 (the lower 13 bits are not read); a[0, 1] are column i = lane %
// 4, a[2, 3] column i + 4.
DSV32_DEVICE void multiply_tf32(float d[4], const float a[4], float b0, float b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])),
        "r"(__float_as_uint(a[3])), "r"(__float_as_uint(b0)), "r"(__float_as_uint(b1)));
}

// Reads a counter of the device. What blocks wrote and fenced before they counted is visible afterwards.
DSV32_DEVICE uint32_t load_acquire(const uint32_t* p) {
  uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(p) : "memory");
  return value;
}

DSV32_DEVICE uint64_t nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

// A named barrier of kThreads threads of the block, in whole warps. Number 0 belongs to __syncthreads().
template <int kThreads>
DSV32_DEVICE void sync_at(int barrier) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(kThreads) : "memory");
}
// Arrives at the barrier without waiting.
template <int kThreads>
DSV32_DEVICE void arrive_at(int barrier) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"(kThreads) : "memory");
}

// 2^x, to about 22 bits.
DSV32_DEVICE float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The thread's warp. The compiler sees that all threads of the warp have the same, and computes what depends
// on it once per warp.
DSV32_DEVICE int uniform_warp() { return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0); }

// ---- barriers: a phase ends when n_arrivals threads and all bytes that they announced have arrived ----

// The current stage of a ring and the parity of its barriers' phase, for filling and for emptying alike.
struct RingWalk {
  int stage = 0;
  uint32_t parity = 0;
  DSV32_DEVICE void advance(int n_stages) {
    if (++stage == n_stages) stage = 0, parity ^= 1;
  }
};

DSV32_DEVICE void init_barrier(uint64_t* barrier, uint32_t n_arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(n_arrivals)
               : "memory");
}
DSV32_DEVICE void arrive(uint64_t* barrier) {
  asm volatile(
      "{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(shared_address(barrier))
      : "memory");
}
// Arrives when all copies (copy_async) that this thread has started are done; counts as one of the
// n_arrivals.
DSV32_DEVICE void arrive_when_copied(uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// Waits for the end of the phase with this parity. The first phase has parity 0; a phase of parity 1 counts
// as ended before it.
DSV32_DEVICE void wait_for_phase(uint64_t* barrier, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
#define DSV32_HAS_ENDED "mbarrier.try_wait.parity.shared::cta.b64"
#else
#define DSV32_HAS_ENDED "mbarrier.test_wait.parity.shared.b64"
#endif
  asm volatile("{\n.reg .pred done;\nagain:\n" DSV32_HAS_ENDED
               " done, [%0], %1;\n@!done bra again;\n}" ::"r"(shared_address(barrier)),
               "r"(parity)
               : "memory");
}

// A ring of stages, each with one barrier for "full" and one for "empty". Stages are counted by turns or by a
// RingWalk. kBeginTaken: the first filling of a stage also waits until it is marked empty.
template <int kStages, bool kBeginTaken = false>
struct Pipe {
  static constexpr int kSize = kStages;
  uint64_t full[kStages], empty[kStages];

  DSV32_DEVICE static int stage(int turn) { return turn % kStages; }
  DSV32_DEVICE void init_stage(int k, int n_fill, int n_empty) {
    init_barrier(&full[k], n_fill), init_barrier(&empty[k], n_empty);
  }
  DSV32_DEVICE void init(int n_fill, int n_empty) {
    for (int k = 0; k < kStages; ++k) init_stage(k, n_fill, n_empty);
  }
  DSV32_DEVICE void wait_full(int turn) { wait_for_phase(&full[turn % kStages], turn / kStages % 2); }
  DSV32_DEVICE void wait_empty(int turn) {
    wait_for_phase(&empty[turn % kStages], (turn / kStages + (kBeginTaken ? 0 : 1)) % 2);
  }
  DSV32_DEVICE void wait_full(const RingWalk& at) { wait_for_phase(&full[at.stage], at.parity); }
  DSV32_DEVICE void wait_empty(const RingWalk& at) { wait_for_phase(&empty[at.stage], at.parity ^ 1); }
};

// ---- a cluster's blocks: which one this is, and their shared memory ----

#if __CUDA_ARCH__ >= 900
DSV32_DEVICE int block_of_cluster() {
  int rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
DSV32_DEVICE int n_blocks_of_cluster() {
  int n;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(n));
  return n;
}
// The same variable in the shared memory of that block.
template <typename T>
DSV32_DEVICE T* shared_of_block(T* shared, int block) {
  uint64_t there;
  asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(shared), "r"(block));
  return reinterpret_cast<T*>(there);
}
#endif

// ---- the barrier of a cluster's blocks in two halves; without clusters it does nothing ----

DSV32_DEVICE void arrive_at_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}
DSV32_DEVICE void wait_for_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}
// Afterwards all threads of all blocks see the shared memory that was written before.
DSV32_DEVICE void sync_cluster() {
  arrive_at_cluster();
  wait_for_cluster();
}

#if __CUDA_ARCH__ >= 900

// Bulk copies and warpgroup products that start after the next barrier see the data of ordinary stores and
// cp.async, and the other way round.
DSV32_DEVICE void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Call after init_barrier(), in the same thread, before other threads may use the barriers.
DSV32_DEVICE void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  fence_async_proxy();
}
DSV32_DEVICE void arrive_expecting(uint64_t* barrier, uint32_t n_bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(n_bytes)
               : "memory");
}

// ---- bulk copies: one thread starts a copy; addresses and size are multiples of 16 bytes ----

DSV32_DEVICE void copy_in(void* shared, const void* global, uint32_t n_bytes, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          shared_address(shared)),
      "l"(global), "r"(n_bytes), "r"(shared_address(barrier))
      : "memory");
}
// Arriving at another block's barrier need not order what this thread has written: the copy's bytes do. CUDA
// before 12.5 can only say it with an order.
#if __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1205
#define DSV32_ARRIVE_THERE "mbarrier.arrive.expect_tx.relaxed.cluster.shared::cluster.b64"
#else
#define DSV32_ARRIVE_THERE "mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64"
#endif
// Copies `shared` to the same place in another block of the cluster. That block's `barrier` gets one arrival
// and the bytes.
DSV32_DEVICE void copy_to_block(int block, const void* shared, uint32_t n_bytes, uint64_t* barrier) {
  asm volatile(
      "{\n.reg .b32 to, there;\nmapa.shared::cluster.u32 to, %0, %3;\nmapa.shared::cluster.u32 there, %1, "
      "%3;\n" DSV32_ARRIVE_THERE
      " _, [there], %2;\n"
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [to], [%0], %2, [there];\n}" ::
          "r"(shared_address(shared)),
      "r"(shared_address(barrier)), "r"(n_bytes), "r"(block)
      : "memory");
}
// A thread's copies out since its last commit are one group.
DSV32_DEVICE void copy_out(void* global, const void* shared, uint32_t n_bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global),
               "r"(shared_address(shared)), "r"(n_bytes)
               : "memory");
}
DSV32_DEVICE void commit_copies_out() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Waits until all groups of this thread but the last n have read their shared memory: it may be refilled.
template <int n>
DSV32_DEVICE void wait_until_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(n) : "memory");
}
// Waits until all groups of this thread are written.
DSV32_DEVICE void wait_until_written() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

#endif

}  // namespace dsv32::cuda
