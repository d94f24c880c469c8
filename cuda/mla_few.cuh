// What the two kernels of decode's attention for few tokens share (mla_few.cu): how work is cut, and where
// the selected rows lie.
#pragma once

#include "cuda/mla_weights.cuh"

namespace dsv32::cuda {

inline constexpr int kFewHeads = 32;   // of a CTA
inline constexpr int kFewBlocks = 32;  // of a token's rows, at most
inline constexpr int kFewWarps = 16, kFewThreads = 32 * kFewWarps;
inline constexpr int kFewColumns = 32;  // of a CTA of the second kernel
inline constexpr int kFewParts = kRank / kFewColumns;

// Weights of kFewHeads heads and a block pass as they lie in shared memory: a line of 64 for each head.
inline constexpr int kFewChunks = kFewHeads * kLine / 16;

// What is written of row j of a token, whether or not so many are selected: so it is asked for at once.
__device__ __forceinline__ RowPlace ask_row(const Attend& op, int64_t t, int j) {
  if (j >= op.topk) return {-1, 0};
  const int64_t at = t * op.topk + j;
  return {op.row_ids ? __ldcg(op.row_ids + at) : 0, __ldcg(op.selected + at)};
}

// Of what ask_row() has brought, where the row lies.
__device__ __forceinline__ RowPlace find_asked_row(const Attend& op, int64_t seq, const RowPlace& asked,
                                                   bool is_selected) {
  if (!is_selected) return {-1, 0};
  return {op.row_ids ? asked.id : paged_row(op.cache.slot_pages, op.cache, seq, asked.pos), asked.pos};
}

// The four scales of an fp8 row, of find_page()'s page; 1 for rows past the end. Volatile: the compiler shall
// not put the load off to where it is waited for.
__device__ __forceinline__ uint32_t ask_scales(const Attend& op, int64_t page_bytes, int32_t page,
                                               const RowPlace& place) {
  if (place.id < 0) return 0x7f7f7f7fu;
  const uint8_t* scales = op.cache.key_pages + page * page_bytes + place.pos % kPageTokens * 4;
  uint32_t x;
  asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(x) : "l"(scales));
  return x;
}

}  // namespace dsv32::cuda
