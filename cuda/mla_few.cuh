// What the two kernels of decode's attention for few tokens share (mla_few.cu): how work is cut, and where
// the selected rows lie.
#pragma once

#include "cuda/mla_fill.cuh"

namespace dsv32::cuda {

inline constexpr int kFewHeads = 32;   // of a CTA
inline constexpr int kFewBlocks = 32;  // of a token's rows, at most
inline constexpr int kFewWarps = 16, kFewThreads = 32 * kFewWarps;
inline constexpr int kFewColumns = 32;  // of a CTA of the second kernel
inline constexpr int kFewParts = kRank / kFewColumns;
static_assert(kFewHeads == 32 && kFewParts == 16 && kFewBlocks * kBlockRows == 2048);  // attends_few()

// Weights of kFewHeads heads and a block pass as the threads that multiply hold them: of each 16 heads
// kOperandLines lines, of a chunk for each lane.
inline constexpr int kFewChunks = kFewHeads / 16 * kOperandLines * 32;

// What is written of row j of a token, whether or not so many are selected: so it is asked for at once.
__device__ __forceinline__ RowPlace ask_row(const Attend& op, int64_t t, int j) {
  if (j >= op.topk) return {-1, 0};
  const int64_t at = t * op.topk + j;
  return {op.row_ids ? __ldcg(op.row_ids + at) : 0, __ldcg(op.selected + at)};
}

// Of what ask_row() has brought, where the row lies. Loads hang on no condition, so that several are under
// way together.
__device__ __forceinline__ RowPlace find_asked_row(const Attend& op, int64_t seq, const RowPlace& asked,
                                                   bool is_selected) {
  constexpr int kRows = kPageTokens;
  const int32_t pos = is_selected ? asked.pos : 0;
  int64_t page = 0;
  if (!op.row_ids) page = __ldcg(op.cache.slot_pages + seq * op.cache.max_pages + pos / kRows);
  return {!is_selected ? -1 : op.row_ids ? asked.id : page * kRows + pos % kRows, pos};
}

// The key page of such a row; past the end, that of position 0.
__device__ __forceinline__ int32_t find_key_page(const Attend& op, int64_t seq, const RowPlace& asked,
                                                 bool is_selected) {
  const int32_t pos = is_selected ? asked.pos : 0;
  return __ldcg(op.cache.key_page_ids + seq * op.cache.max_pages + pos / int{kPageTokens});
}

// The four scales of an fp8 row; 1 for rows past the end.
__device__ __forceinline__ uint32_t ask_scales(const Attend& op, int64_t page_bytes, int32_t page,
                                               const RowPlace& place) {
  if (place.id < 0) return 0x7f7f7f7fu;
  const uint8_t* scales = op.cache.key_pages + page * page_bytes + place.pos % int{kPageTokens} * 4;
  return __ldcg(reinterpret_cast<const uint32_t*>(scales));
}

}  // namespace dsv32::cuda
