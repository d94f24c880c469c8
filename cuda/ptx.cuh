// Instructions that C++ has no name for: asynchronous copies, barriers that count bytes, matrices in
// registers and in shared memory, and the tensor cores' products.
//
// Addresses in shared memory are 32-bit numbers (shared_address). Hopper's bulk copies and warpgroup products
// go by the asynchronous proxy: between them and ordinary accesses to the same shared memory
// fence_async_proxy() is needed. Of every product of 16-bit values [16, 8] or [64, N] a thread holds d[4 j +
// 0, 1] = row lane / 4 (of the warp's 16), columns 8 j + 2 (lane % 4) + 0, 1, and d[4 j + 2, 3] = the same 8
// rows below.
#pragma once

#include <cstdint>

// What is inlined into kernels.
#define DSV32_DEVICE __device__ __forceinline__
// Before a loop: it is unrolled completely, so that arrays stay in registers; it is not unrolled.
#define DSV32_UNROLL _Pragma("unroll")
#define DSV32_NO_UNROLL _Pragma("unroll 1")

namespace dsv32::cuda {

DSV32_DEVICE uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// x, of which the compiler knows nothing: it keeps it in a register instead of making it again.
DSV32_DEVICE uint32_t opaque(uint32_t x) {
  asm("" : "+r"(x));
  return x;
}

// The same of a constant: not even the assembler knows it, which else copies one for each use.
DSV32_DEVICE uint32_t hidden(uint32_t x) {
  uint32_t sm;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  return sm < 65536 + threadIdx.x ? x : sm;
}

// Bytes of two words by the nibbles of a selector, of which each is below 8.
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

// Where is_wanted, without a branch.
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

// Of which the first n_bytes are read and the rest is zero.
DSV32_DEVICE void copy_async(uint32_t to, const void* from, int n_bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(n_bytes) : "memory");
}
// L2 fetches the whole line of 128 bytes.
DSV32_DEVICE void copy_line_async(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
// The same where is_wanted, without a branch.
DSV32_DEVICE void copy_line_async_if(uint32_t to, const void* from, bool is_wanted) {
  asm volatile(
      "{\n.reg .pred wanted;\nsetp.ne.b32 wanted, %2, 0;\n"
      "@wanted cp.async.cg.shared.global.L2::128B [%0], [%1], 16;\n}" ::"r"(to),
      "l"(from), "r"(static_cast<int>(is_wanted))
      : "memory");
}
// The same; zeros when !is_there (then nothing is read).
DSV32_DEVICE void copy_line_async(uint32_t to, const void* from, bool is_there) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(is_there ? 16 : 0)
               : "memory");
}
// The same of what nobody reads again: it is the first to leave L2, so that what all layers read stays there.
// kTo and kFrom bytes further.
template <int kTo = 0, int kFrom = 0>
DSV32_DEVICE void copy_passing_async_if(uint32_t to, const void* from, bool is_wanted) {
  constexpr uint64_t kEvictFirst = 0x12f0000000000000;  // as createpolicy.fractional.L2::evict_first makes it
  asm volatile(
      "{\n.reg .pred wanted;\nsetp.ne.b32 wanted, %2, 0;\n"
      "@wanted cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0 + %4], [%1 + %5], 16, %3;\n}" ::"r"(to),
      "l"(from), "r"(static_cast<int>(is_wanted)), "l"(kEvictFirst), "n"(kTo), "n"(kFrom)
      : "memory");
}
// 4 or 8 bytes, through L1.
template <int kBytes>
DSV32_DEVICE void copy_small_async(uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(kBytes) : "memory");
}
// A thread's copies since its last commit are a group.
DSV32_DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most kPending of this thread's groups are on their way.
template <int kPending>
DSV32_DEVICE void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
// Until none is, committed or not.
DSV32_DEVICE void wait_all_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// ---- products of a warp, and matrices in shared memory for them ----

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

// d [16, 8] += a [16, 16] b [16, 8] of fp16, into f32.
DSV32_DEVICE void multiply_f16(float* d, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// The same of bf16.
DSV32_DEVICE void multiply_bf16(float* d, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// d += a b with a [16, 8], b [8, 8] of TF32 (the lower 13 bits are not read); a: columns i (0, 1) and i + 4
// (2, 3).
DSV32_DEVICE void multiply_tf32(float d[4], const float a[4], float b0, float b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])),
        "r"(__float_as_uint(a[3])), "r"(__float_as_uint(b0)), "r"(__float_as_uint(b1)));
}

// Named barriers: kThreads of the block, whole warps, meet at one. Number 0 is __syncthreads()'s.
template <int kThreads>
DSV32_DEVICE void sync_at(int barrier) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(kThreads) : "memory");
}
// Tells those who sync there, and goes on.
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

// The number of the thread's warp, so that the compiler sees that all of its threads have the same: what
// follows from it is computed once a warp.
DSV32_DEVICE int uniform_warp() { return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0); }

// ---- barriers: a phase ends when n_arrivals threads and all the bytes that they announced have arrived ----

// The next place of a ring of n stages, and the parity of its barriers' phase: the same steps for filling and
// for emptying.
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
// Arrives when all copies (copy_async) that this thread has started are done; one of the n_arrivals.
DSV32_DEVICE void arrive_when_copied(uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// Waits for the end of the phase of that parity; the first phase is 0, and before it one of parity 1 has
// ended.
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

// A ring of stages, with barriers that tell when one is full and when it is empty again. Stages follow each
// other by turns or by walks. kBeginTaken: those who empty stages say first that they may be filled.
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

// ---- a meeting of the cluster's blocks in two halves; nothing where there are no clusters ----

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

#if __CUDA_ARCH__ >= 900

// What ordinary stores and cp.async wrote is seen by bulk copies and warpgroup products that start after the
// next barrier, and the other way round.
DSV32_DEVICE void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// After the inits, in the thread that made them and before others are let on.
DSV32_DEVICE void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  fence_async_proxy();
}
DSV32_DEVICE void arrive_expecting(uint64_t* barrier, uint32_t n_bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(n_bytes)
               : "memory");
}

// ---- bulk copies: one thread starts a copy of a multiple of 16 bytes between multiples of 16 ----

DSV32_DEVICE void copy_in(void* shared, const void* global, uint32_t n_bytes, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          shared_address(shared)),
      "l"(global), "r"(n_bytes), "r"(shared_address(barrier))
      : "memory");
}
// To where `shared` lies in another block of the cluster. That block's `barrier` has an arrival and the
// bytes.
DSV32_DEVICE void copy_to_block(int block, const void* shared, uint32_t n_bytes, uint64_t* barrier) {
  asm volatile(
      "{\n.reg .b32 to, there;\nmapa.shared::cluster.u32 to, %0, %3;\nmapa.shared::cluster.u32 there, %1, "
      "%3;\nmbarrier.arrive.expect_tx.relaxed.cluster.shared::cluster.b64 _, [there], %2;\n"
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [to], [%0], %2, [there];\n}" ::
          "r"(shared_address(shared)),
      "r"(shared_address(barrier)), "r"(n_bytes), "r"(block)
      : "memory");
}
// Each thread's copies out form groups: those since its last commit are one.
DSV32_DEVICE void copy_out(void* global, const void* shared, uint32_t n_bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global),
               "r"(shared_address(shared)), "r"(n_bytes)
               : "memory");
}
DSV32_DEVICE void commit_copies_out() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Until all groups of this thread but the last n have read their shared memory: it may be filled anew.
template <int n>
DSV32_DEVICE void wait_until_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(n) : "memory");
}
// Until all groups of this thread are written.
DSV32_DEVICE void wait_until_written() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

#endif

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// ---- warpgroup products, which exist in code built for Hopper (sm_90a) alone ----
//
// Operands in shared memory are rows of 64 fp16 values (128 bytes) whose 16-byte pieces are exchanged by the
// row number modulo 8 (the "128-byte swizzle"), in groups of 8 rows that start at multiples of 1024 bytes.

// Of an operand that starts at a multiple of 1024 bytes, or 32, 64, 96 bytes further for the next 16 values
// of each row. Fields in units of 16 bytes: start; 1 (unused with a swizzle); 1024 bytes from 8 rows to the
// next 8; then 1 = 128-byte swizzle.
DSV32_DEVICE uint64_t wgmma_operand(uint32_t shared_address) {
  return uint64_t{(shared_address & 0x3ffffu) >> 4} | uint64_t{1} << 16 | uint64_t{1024 >> 4} << 32 |
         uint64_t{1} << 62;
}

// Of an operand whose 8 rows of 8 values lie side by side, 128 bytes; those of the next 8 values after them,
// then those of the next 8 rows. The lower half of a word: the upper one is the same of all.
DSV32_DEVICE uint32_t plain_operand(uint32_t shared_address) {
  return (shared_address & 0x3ffffu) >> 4 | 128u >> 4 << 16;
}
DSV32_DEVICE uint64_t whole_plain_operand(uint32_t lower) { return uint64_t{256 >> 4} << 32 | lower; }

// The sums are in registers that products may write from here on.
DSV32_DEVICE void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DSV32_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until at most kPending groups are under way.
template <int kPending = 0>
DSV32_DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// The table of products: of each width the operands behind the sums d, by number.
#define DSV32_SUMS_4(o) "+f"(d[o]), "+f"(d[o + 1]), "+f"(d[o + 2]), "+f"(d[o + 3])
#define DSV32_SUMS_8(o) DSV32_SUMS_4(o), DSV32_SUMS_4(o + 4)
#define DSV32_SUMS_16(o) DSV32_SUMS_8(o), DSV32_SUMS_8(o + 8)
#define DSV32_SUMS_32(o) DSV32_SUMS_16(o), DSV32_SUMS_16(o + 16)
#define DSV32_NAMES_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define DSV32_NAMES_20 DSV32_NAMES_16 ", %16, %17, %18, %19"
#define DSV32_NAMES_24 DSV32_NAMES_20 ", %20, %21, %22, %23"
#define DSV32_NAMES_32 DSV32_NAMES_24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define DSV32_NAMES_40 DSV32_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define DSV32_NAMES_48 DSV32_NAMES_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define DSV32_NAMES_64 \
  DSV32_NAMES_48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define DSV32_NAMES_72 DSV32_NAMES_64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define DSV32_NAMES_128                                                                                 \
  DSV32_NAMES_72                                                                                        \
  ", %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, "   \
  "%91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, " \
  "%109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, "    \
  "%125, %126, %127"
#define DSV32_FOR_EACH_WIDTH(FORM)                                                                   \
  FORM(32, DSV32_NAMES_16, 16, 17, 18, 19, 20, 21, 22, DSV32_SUMS_16(0))                             \
  FORM(40, DSV32_NAMES_20, 20, 21, 22, 23, 24, 25, 26, DSV32_SUMS_16(0), DSV32_SUMS_4(16))           \
  FORM(48, DSV32_NAMES_24, 24, 25, 26, 27, 28, 29, 30, DSV32_SUMS_16(0), DSV32_SUMS_8(16))           \
  FORM(64, DSV32_NAMES_32, 32, 33, 34, 35, 36, 37, 38, DSV32_SUMS_32(0))                             \
  FORM(80, DSV32_NAMES_40, 40, 41, 42, 43, 44, 45, 46, DSV32_SUMS_32(0), DSV32_SUMS_8(32))           \
  FORM(96, DSV32_NAMES_48, 48, 49, 50, 51, 52, 53, 54, DSV32_SUMS_32(0), DSV32_SUMS_16(32))          \
  FORM(128, DSV32_NAMES_64, 64, 65, 66, 67, 68, 69, 70, DSV32_SUMS_32(0), DSV32_SUMS_32(32))         \
  FORM(144, DSV32_NAMES_72, 72, 73, 74, 75, 76, 77, 78, DSV32_SUMS_32(0), DSV32_SUMS_32(32),         \
       DSV32_SUMS_8(64))                                                                             \
  FORM(256, DSV32_NAMES_128, 128, 129, 130, 131, 132, 133, 134, DSV32_SUMS_32(0), DSV32_SUMS_32(32), \
       DSV32_SUMS_32(64), DSV32_SUMS_32(96))

#define DSV32_PRODUCT(N, NAMES, A, B, ADDS, TAIL)                                             \
  "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.f16.f16 {" NAMES "}, " A ", %" #B ", " ADDS \
  ", 1, 1, " TAIL ";"

// Starts d [64, kN] += a [64, 16] times b [kN, 16] transposed, fp16 into f32; d [kN / 2] is this thread's
// part. a: in shared memory, or in registers as those of multiply_f16 of each warp. kSideBySide: of b rows
// lie side by side, not columns.
#define DSV32_FORM(N, NAMES, A, B, SIDES, P3, P4, P5, P6, ...)          \
  if constexpr (kN == N)                                                \
    asm volatile(DSV32_PRODUCT(N, NAMES, "%" #A, B, "1", "0, %" #SIDES) \
                 : __VA_ARGS__                                          \
                 : "l"(a), "l"(b), "n"(kSideBySide ? 1 : 0));
template <int kN, bool kSideBySide = false>
DSV32_DEVICE void wgmma(float* d, uint64_t a, uint64_t b) {
  DSV32_FOR_EACH_WIDTH(DSV32_FORM)
}
#undef DSV32_FORM
// adds: else d = the product.
#define DSV32_FORM(N, NAMES, A0, A1, A2, A3, B, SIDES, ADDS, ...)                                    \
  if constexpr (kN == N)                                                                             \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #ADDS ", 0;\n" DSV32_PRODUCT(                  \
                     N, NAMES, "{%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}", B, "p", "%" #SIDES) "\n}" \
                 : __VA_ARGS__                                                                       \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kSideBySide ? 1 : 0),     \
                   "r"(static_cast<int>(adds)));
template <int kN, bool kSideBySide = false>
DSV32_DEVICE void wgmma(float* d, const uint32_t (&a)[4], uint64_t b, bool adds = true) {
  DSV32_FOR_EACH_WIDTH(DSV32_FORM)
}
#undef DSV32_FORM
// The same of 32 e4m3 values and 64 columns, of registers.
DSV32_DEVICE void wgmma_e4m3(float* d, const uint32_t (&a)[4], uint64_t b, bool adds) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\nwgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 "
      "{" DSV32_NAMES_32 "}, {%32, %33, %34, %35}, %36, p, 1, 1;\n}"
      : DSV32_SUMS_32(0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(adds)));
}

// Registers from the warps that need few to those that need many; all warps of a warpgroup call it.
template <int kRegisters>
DSV32_DEVICE void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
DSV32_DEVICE void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

#endif

}  // namespace dsv32::cuda
