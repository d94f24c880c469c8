// Products of a warpgroup (wgmma), of operands in registers and in shared memory. Only in code built for
// Hopper (sm_90a).
//
// Operands in shared memory are rows of 64 fp16 values (128 bytes). The 16-byte piece c of row r lies at
// place c ^ r % 8 (the "128-byte swizzle"). Groups of 8 rows start at multiples of 1024 bytes.
#pragma once

#include "cuda/ptx.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
namespace dsv32::cuda {

// The descriptor of an operand, which starts at a multiple of 1024 bytes, or 32, 64, 96 bytes further for the
// next 16 values of each row. kNextBytes: of operands whose rows lie side by side, from 64 values to the next
// 64. kRow: a row's bytes; of 64 the swizzle is the "64-byte swizzle".
template <uint64_t kNextBytes = 16, uint64_t kRow = 128>
DSV32_DEVICE uint64_t wgmma_operand(uint32_t shared_address) {
  return uint64_t{(shared_address & 0x3ffffu) >> 4} | kNextBytes >> 4 << 16 | 8 * kRow >> 4 << 32 |
         uint64_t{128 / kRow} << 62;
}

// The lower half of an unswizzled operand's descriptor; the upper half is the same for all. The operand has
// tiles of 8 rows of 8 values, 128 bytes; next come the tile of the next 8 values, then those of the next 8
// rows.
DSV32_DEVICE uint32_t plain_operand(uint32_t shared_address) {
  return (shared_address & 0x3ffffu) >> 4 | 128u >> 4 << 16;
}
DSV32_DEVICE uint64_t whole_plain_operand(uint32_t lower) { return uint64_t{256 >> 4} << 32 | lower; }

// From here on products may write the registers of the sums.
DSV32_DEVICE void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DSV32_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most kPending groups are under way.
template <int kPending = 0>
DSV32_DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// The table of products: for each width the names of the sums d, the numbers of the operands after them, and
// the sums.
#define DSV32_SUM "+f"
#define DSV32_SUMS_4(o) DSV32_SUM(d[o]), DSV32_SUM(d[o + 1]), DSV32_SUM(d[o + 2]), DSV32_SUM(d[o + 3])
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
// part. a lies in shared memory, or in registers, for each warp as in multiply_f16. kSideBySide: b's rows lie
// side by side, not its columns.
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
// adds: true: d += the product; false: d = the product.
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
// The same for a [64, 32] of e4m3 in registers and 64 columns.
DSV32_DEVICE void wgmma_e4m3(float* d, const uint32_t (&a)[4], uint64_t b, bool adds) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\nwgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 "
      "{" DSV32_NAMES_32 "}, {%32, %33, %34, %35}, %36, p, 1, 1;\n}"
      : DSV32_SUMS_32(0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(adds)));
}
// The same for a [64, 32] of unsigned and of signed bytes in registers, b [kN, 32] of signed bytes, and sums
// of 32 bits.
#undef DSV32_SUM
#define DSV32_SUM "+r"
#define DSV32_BYTES(A_TYPE, N, NAMES, A0, A1, A2, A3, B, ADDS, UNUSED, ...)                              \
  if constexpr (kN == N)                                                                                 \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #ADDS ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N \
                 "k32.s32." #A_TYPE ".s8 {" NAMES "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B    \
                 ", p;\n}"                                                                               \
                 : __VA_ARGS__                                                                           \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(adds)));
#define DSV32_UNSIGNED(...) DSV32_BYTES(u8, __VA_ARGS__)
template <int kN>
DSV32_DEVICE void wgmma_bytes(int* d, const uint32_t (&a)[4], uint64_t b, bool adds) {
  DSV32_FOR_EACH_WIDTH(DSV32_UNSIGNED)
}
#define DSV32_SIGNED(...) DSV32_BYTES(s8, __VA_ARGS__)
template <int kN>
DSV32_DEVICE void wgmma_signed_bytes(int* d, const uint32_t (&a)[4], uint64_t b, bool adds) {
  DSV32_FOR_EACH_WIDTH(DSV32_SIGNED)
}

// Move registers from warps that need few to those that need many; called by all warps of a warpgroup.
template <int kRegisters>
DSV32_DEVICE void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
DSV32_DEVICE void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace dsv32::cuda
#endif
