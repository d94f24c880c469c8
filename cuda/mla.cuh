// What the kernels of sparse MLA share: sizes, how selected rows come into shared memory, and the plain
// kernel's entry.
//
// A block is 64 selected rows of one token. Each of a CTA's eight warps brings in eight of them: 16-byte
// chunks by cp.async, and fp8 rows are then widened to bf16, which is exact (four significant bits,
// power-of-two scales). In shared memory a row of queries or latents is 1152 bytes, nine lines, and chunk c
// of row r lies at place c ^ (r % 8): eight rows of one column of chunks, or eight chunks of a row, then
// cover all banks.
#pragma once

#include "cuda/common.cuh"
#include "cuda/kernels.h"

namespace dsv32::cuda {

// mla_plain.cu: any sizes and every kv type, no tensor cores. rows: cache.slots or cache.resident.
void attend_plain(const Attend& op, const uint8_t* rows, const Launch& launch);

constexpr int kRank = 512, kRope = 64;
constexpr int kBlockRows = 64;  // selected rows that are worked on at once
constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kWarpRows = kBlockRows / kWarps;  // rows of a block that one warp brings in
constexpr int kPitch = (kRank + kRope) * 2;     // bytes of a row of queries or latents in shared memory, bf16
constexpr int kChunks = kPitch / 16;
constexpr int kWeightPitch = kBlockRows * 2;        // bytes of a head's softmax weights, bf16
constexpr int kStatBytes = (kWarps * 16 + 64) * 4;  // maxima and factors of heads
constexpr int kMostSplits = 256;
constexpr float kSlack = 8;  // the running maximum may lag behind the true one by this power of two

// ---- instructions that C++ has no name for ----

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// 16 bytes from global to shared memory, past L1; zeros when !is_there (then nothing is read).
__device__ __forceinline__ void copy_async(uint32_t to, const void* from, bool is_there) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(is_there ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void wait_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Four 8x8 matrices of 16-bit values; lane i gives the address of row i % 8 of matrix i / 8.
__device__ __forceinline__ void load_matrices(uint32_t (&m)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void load_transposed(uint32_t (&m)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address)
               : "memory");
}

// d [16, 8] += a [16, 16] b [16, 8], a and b bf16
__device__ __forceinline__ void multiply_add(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// ---- bringing rows in ----

// What the tensor-core kernel needs besides the operation.
struct Plan {
  int n_head_tiles;      // CTAs side by side for one token and split
  int n_splits;          // CTAs that share the rows of one token: split s takes blocks s, s + n_splits, ...
  int n_stages;          // bf16 rows: tiles in shared memory, 1 or 2
  const uint8_t* rows;   // cache.slots or cache.resident
  int64_t page_bytes;    // of a key page
  float* part;           // [n_tokens, n_splits, n_heads, kRank] sums not yet divided, when n_splits > 1
  float2* part_max_sum;  // [n_tokens, n_splits, n_heads] largest score (base 2) and the sum of the weights
};

template <KvType kKv>
constexpr int kRowBytes = kKv == KvType::fp8 ? kRank + 2 * kRope : 2 * (kRank + kRope);

template <KvType kKv, int kTiles>
constexpr int shared_bytes(int n_stages) {
  const int n_heads = 16 * kTiles;
  const int rows =
      kKv == KvType::fp8 ? kBlockRows * (kPitch + kRowBytes<kKv>) : n_stages * kBlockRows * kPitch;
  return n_heads * (kPitch + kWeightPitch) + rows + kStatBytes;
}

// A selected row: every lane knows row lane % 8 of its warp's eight.
struct RowPlace {
  int64_t id;  // -1: past the end
  int32_t pos;
};

__device__ __forceinline__ RowPlace find_row(const Attend& op, int64_t t, int block, int n, int warp,
                                             int lane) {
  const int j = block * kBlockRows + warp * kWarpRows + lane % kWarpRows;
  if (j >= n) return {-1, 0};
  return {op.row_ids[t * op.topk + j], op.selected[t * op.topk + j]};
}

// Starts the copy of the warp's eight rows; bf16 rows go to their final, swizzled places.
template <KvType kKv>
__device__ __forceinline__ void start_rows(const uint8_t* rows, int64_t id, uint8_t* landing, int warp,
                                           int lane) {
  constexpr int n_chunks = kRowBytes<kKv> / 16;
  const uint32_t to = shared_address(landing) + warp * kWarpRows * kRowBytes<kKv>;
#pragma unroll
  for (int i = 0; i < kWarpRows * n_chunks / 32; ++i) {
    const int c = i * 32 + lane, r = c / n_chunks, chunk = c - r * n_chunks;
    const int64_t row = __shfl_sync(0xffffffffu, id, r);
    const int place = kKv == KvType::fp8 ? chunk : chunk ^ r;
    copy_async(to + r * kRowBytes<kKv> + place * 16, rows + (row < 0 ? 0 : row * kRowBytes<kKv> + chunk * 16),
               row >= 0);
  }
}

__device__ __forceinline__ int32_t find_page(const Attend& op, int64_t seq, const RowPlace& place) {
  return place.id < 0 ? 0 : op.cache.key_page_ids[seq * op.cache.max_pages + place.pos / kPageTokens];
}

// The four ue8m0 scales of a row; 1 for rows past the end, whose values are zeros.
__device__ __forceinline__ uint32_t load_scales(const Attend& op, int64_t page_bytes, int32_t page,
                                                const RowPlace& place) {
  if (place.id < 0) return 0x7f7f7f7fu;
  const uint8_t* scales = op.cache.key_pages + page * page_bytes + place.pos % kPageTokens * 4;
  return *reinterpret_cast<const uint32_t*>(scales);
}

// Two e4m3 values, each in the upper byte of a half, times a power of two, as bf16: exact. The seven bits of
// exponent and fraction, shifted to where bf16 has them, are the value times 2^-120 (denormals too).
__device__ __forceinline__ uint32_t expand_pair(uint32_t halves, __nv_bfloat162 scale) {
  const uint32_t bits = (halves & 0x80008000u) | ((halves >> 4) & 0x07f007f0u);
  const __nv_bfloat162 rebias = __bfloat162bfloat162(__ushort_as_bfloat16(0x7b80));  // 2^120
  const __nv_bfloat162 value =
      __hmul2(__hmul2(*reinterpret_cast<const __nv_bfloat162*>(&bits), rebias), scale);
  return *reinterpret_cast<const uint32_t*>(&value);
}

// The warp's eight fp8 rows from the landing place to bf16; `scales` is that of row lane % 8.
__device__ __forceinline__ void expand_rows(const uint8_t* landing, uint8_t* k, uint32_t scales, int warp,
                                            int lane) {
  constexpr int row_bytes = kRowBytes<KvType::fp8>;
#pragma unroll 4
  for (int r = 0; r < kWarpRows; ++r) {
    const int row = warp * kWarpRows + r;
    const uint4 codes = *reinterpret_cast<const uint4*>(landing + row * row_bytes + lane * 16);
    const uint32_t code = __shfl_sync(0xffffffffu, scales, r) >> (lane / 8 * 8) & 0xffu;
    const __nv_bfloat162 scale = __bfloat162bfloat162(
        __ushort_as_bfloat16(static_cast<unsigned short>(code == 0 ? 0x40u : code << 7)));
    const uint32_t in[4] = {codes.x, codes.y, codes.z, codes.w};
    uint32_t out[8];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      out[2 * i] = expand_pair(__byte_perm(in[i], 0, 0x1404), scale);
      out[2 * i + 1] = expand_pair(__byte_perm(in[i], 0, 0x3424), scale);
    }
    // Lanes 4..7 of each eight store their second half first: eight lanes then meet eight different groups of
    // banks.
    const uint4 low = {out[0], out[1], out[2], out[3]}, high = {out[4], out[5], out[6], out[7]};
    const int odd = lane / 4 % 2;
    *reinterpret_cast<uint4*>(k + row * kPitch + ((2 * lane + odd) ^ r) * 16) = odd ? high : low;
    *reinterpret_cast<uint4*>(k + row * kPitch + ((2 * lane + 1 - odd) ^ r) * 16) = odd ? low : high;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {  // k_pe is bf16 already
    const int r = i * 4 + lane / 8, row = warp * kWarpRows + r, chunk = lane % 8;
    *reinterpret_cast<uint4*>(k + row * kPitch + ((kRank / 8 + chunk) ^ r) * 16) =
        *reinterpret_cast<const uint4*>(landing + row * row_bytes + kRank + chunk * 16);
  }
}

__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// The queries of the CTA's heads as bf16 [n_heads, kRank + kRope]; zeros for heads past the last.
__device__ __forceinline__ void load_queries(const Attend& op, int64_t t, int first_head, int n_rows,
                                             uint8_t* q) {
  for (int c = threadIdx.x; c < n_rows * kChunks; c += kThreads) {
    const int row = c / kChunks, chunk = c % kChunks;
    const int64_t head = first_head + row;
    float4 low = {0, 0, 0, 0}, high = {0, 0, 0, 0};
    if (head < op.n_heads && chunk < kRank / 8) {
      const float* from = op.q_c + (t * op.n_heads + head) * kRank + chunk * 8;
      low = *reinterpret_cast<const float4*>(from), high = *reinterpret_cast<const float4*>(from + 4);
    } else if (head < op.n_heads) {
      const float* from =
          op.q_pe + t * op.q_pe_token_stride + head * op.q_pe_head_stride + (chunk * 8 - kRank);
      low = {from[0], from[1], from[2], from[3]}, high = {from[4], from[5], from[6], from[7]};
    }
    *reinterpret_cast<uint4*>(q + row * kPitch + (chunk ^ (row & 7)) * 16) = {
        pack_bf16(low.x, low.y), pack_bf16(low.z, low.w), pack_bf16(high.x, high.y),
        pack_bf16(high.z, high.w)};
  }
}

}  // namespace dsv32::cuda
