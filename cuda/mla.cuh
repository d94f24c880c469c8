// Shared by the kernels of sparse MLA: sizes, copying selected rows into shared memory, the softmax.
//
// A block is 64 selected rows of one token, copied in chunks of 16 bytes. Queries, latents and weights have
// the layout of Hopper's products and ldmatrix in shared memory: lines of 128 bytes, nine columns of lines
// for a row of 576 values, and chunk c of row r at place c ^ r % 8 of its line, so that one chunk of eight
// rows covers all banks.
#pragma once

#include "cuda/common.cuh"

namespace dsv32::cuda {

constexpr int kRank = 512, kRope = 64;
constexpr int kBlockRows = 64;  // selected rows that are processed at once
constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kLine = 128;                              // bytes
constexpr int kRowLines = (kRank + kRope) * 2 / kLine;  // of a row of queries or latents, bf16
constexpr int kBlockBytes = kRowLines * kBlockRows * kLine;
constexpr float kSlack = 8;  // the running maximum may lag behind the true one by this power of two

// ---- copying rows into shared memory ----

// A selected row; id -1: past the end. Only fp8 rows have scales.
struct FoundRow {
  int32_t id;
  uint32_t scales;
};

// The tensor-core kernels' parameters besides the operation.
struct Plan {
  int n_head_tiles;     // CTAs side by side for one token and split
  int n_splits;         // CTAs that share the rows of one token: split s takes blocks s, s + n_splits, ...
  const uint8_t* rows;  // cache.slots
  const uint8_t* f16_rows = nullptr;  // the rows as fp16, by position (mla_hopper.cu)
  int64_t page_bytes;                 // of a key page
  RoundedRows rounded;  // [n_tokens, n_heads, kRank] the output; if values is null: f32 in op.o_c

  // Passed from mla_decode.cu's first kernel to its second.
  FoundRow* found = nullptr;  // [n_tokens, n_most_blocks, kBlockRows]
  uint4* weights;             // [n_tokens, n_most_blocks, n_head_warps, kWeightLines, 32]
  int n_most_blocks, n_head_warps;
  // In mla_few.cu: weights [n_tokens, n_head_tiles, n_most_blocks, kFewChunks], and for each head and block
  // the power and the weights' sum.
  float2* powers = nullptr;  // [n_tokens, n_head_tiles, n_most_blocks, heads of a CTA]
};

// generic/mla.cu: every card; generic/mla_plain.cu: any sizes and every kv type, no tensor cores.
void attend_generic(const Attend& op, const Launch& launch);
void attend_plain(const Attend& op, const Launch& launch);
// By Hopper's products; fp8 and bf16 rows. mla_hopper.cu: prompts; mla_decode.cu and mla_few.cu: decode.
void attend_hopper(const Attend& op, Plan plan, const Launch& launch);
void attend_decode(const Attend& op, Plan plan, const Launch& launch);
// For few tokens, by CTAs of n_heads heads, 32 or 64 (choose_few_heads()); needs plan.n_most_blocks.
void attend_few(const Attend& op, const Plan& plan, int64_t n_heads, const Launch& launch);

// The same operation for tokens [first, first + n).
inline Attend of_tokens(const Attend& op, int64_t first, int64_t n) {
  Attend part = op;
  part.step.n_tokens = n, part.step.seq += first;
  part.q_c += first * op.n_heads * kRank, part.q_pe += first * op.q_pe_token_stride;
  part.selected += first * op.topk, part.n_selected += first,
      part.row_ids += op.row_ids ? first * op.topk : 0;
  part.o_c += first * op.n_heads * kRank;
  return part;
}

// Calls attend_tokens(op, n_together, scratch) for groups of at most n_together tokens: as many as scratch
// memory has room for, with n_bytes_token each.
template <typename AttendTokens>
void in_groups(const Attend& op, int64_t n_bytes_token, const Launch& launch, AttendTokens attend_tokens) {
  const int64_t n_room = launch.workspace->n_bytes_left() / n_bytes_token;
  const int64_t n_together = std::min(op.step.n_tokens, n_room);
  if (n_together < 1) fail(ErrorKind::internal, "no scratch memory is left for a token's attention");
  auto* scratch = launch.workspace->take<uint8_t>(n_together * n_bytes_token);
  for (int64_t first = 0; first < op.step.n_tokens; first += n_together)
    attend_tokens(of_tokens(op, first, std::min(n_together, op.step.n_tokens - first)), n_together, scratch);
}

// Calls work.operator()<type>() with the rows' type, fp8 or bf16.
template <typename Work>
auto with_kv(const Attend& op, const Work& work) {
  return op.cache.layout.kv_type == KvType::fp8 ? work.template operator()<KvType::fp8>()
                                                : work.template operator()<KvType::bf16>();
}

template <KvType kKv>
constexpr int kRowBytes = kKv == KvType::fp8 ? kRank + 2 * kRope : 2 * (kRank + kRope);

// The offset of chunk `chunk` of row `row` in an array of n_rows rows: [columns of lines][n_rows][kLine
// bytes].
DSV32_DEVICE int chunk_place(int chunk, int row, int n_rows) {
  return chunk / 8 * n_rows * kLine + row * kLine + ((chunk ^ row) & 7) * 16;
}

// Stores chunks 2 pair and 2 pair + 1 of a row of an array of n_rows rows.
DSV32_DEVICE void store_chunks(const uint4& low, const uint4& high, uint8_t* rows, int n_rows, int row,
                               int pair) {
  // The last four of each eight lanes store `high` first: then eight lanes use eight groups of banks.
  const int odd = pair / 4 % 2;
  *reinterpret_cast<uint4*>(rows + chunk_place(2 * pair + odd, row, n_rows)) = odd ? high : low;
  *reinterpret_cast<uint4*>(rows + chunk_place(2 * pair + 1 - odd, row, n_rows)) = odd ? low : high;
}

// The slot of a token's selected row, and its position.
struct RowPlace {
  int64_t id;  // -1: past the end
  int32_t pos;
};

DSV32_DEVICE RowPlace find_row(const Attend& op, int64_t t, int j, int n) {
  if (j >= n) return {-1, 0};
  const int64_t at = t * op.topk + j;
  const int32_t pos = op.selected[at];
  return {op.row_ids ? op.row_ids[at] : paged_row(op.cache.slot_pages, op.cache, op.step.seq[t], pos), pos};
}

// Starts eight lanes' copies of row `row` of n_rows; zeros if its id is -1. bf16 rows go to where products
// read them, fp8 rows to a landing place.
template <KvType kKv>
DSV32_DEVICE void start_row(const uint8_t* rows, int64_t id, uint8_t* to, int row, int n_rows, int lane) {
  constexpr bool kLands = kKv == KvType::fp8;
  const uint8_t* from = rows + (id < 0 ? 0 : id * kRowBytes<kKv>)+lane % 8 * 16;
  const uint32_t place = shared_address(to) +
                         (kLands ? row * kRowBytes<kKv> + lane % 8 * 16 : chunk_place(lane % 8, row, n_rows));
  DSV32_UNROLL for (int line = 0; line < kRowBytes<kKv> / kLine; ++line)
      copy_line_async(place + line * (kLands ? kLine : n_rows * kLine), from + line * kLine, id >= 0);
}

// Starts a warp's copies of kRows rows of a block; lane r has the id of row first_row + r.
template <KvType kKv, int kRows>
DSV32_DEVICE void start_rows(const uint8_t* rows, int64_t id, uint8_t* to, int first_row, int lane) {
  DSV32_UNROLL for (int i = 0; i < kRows; i += 4) start_row<kKv>(
      rows, __shfl_sync(0xffffffffu, id, i + lane / 8), to, first_row + i + lane / 8, kBlockRows, lane);
}

DSV32_DEVICE int32_t find_page(const Attend& op, int64_t seq, const RowPlace& place) {
  return place.id < 0 ? 0 : op.cache.pages[seq * op.cache.max_pages + place.pos / kPageTokens];
}

// The four ue8m0 scales of a row; all 1 for rows past the end.
DSV32_DEVICE uint32_t load_scales(const Attend& op, int64_t page_bytes, int32_t page, const RowPlace& place) {
  if (place.id < 0) return 0x7f7f7f7fu;
  const uint8_t* scales = op.cache.key_pages + page * page_bytes + place.pos % kPageTokens * 4;
  return *reinterpret_cast<const uint32_t*>(scales);
}

// Loads eight values of a head's query; `values` is aligned. Nothing past the last chunk and head.
DSV32_DEVICE void load_query_chunk(const Attend& op, int64_t t, int64_t head, int chunk, float (&values)[8]) {
  if (head >= op.n_heads || chunk >= kRowLines * 8) return;
  if (chunk < kRank / 8) {
    const float* from = op.q_c + (t * op.n_heads + head) * kRank + chunk * 8;
    *reinterpret_cast<float4*>(values) = *reinterpret_cast<const float4*>(from);
    *reinterpret_cast<float4*>(values + 4) = *reinterpret_cast<const float4*>(from + 4);
  } else {
    const float* from = op.q_pe + t * op.q_pe_token_stride + head * op.q_pe_head_stride + (chunk * 8 - kRank);
    DSV32_UNROLL for (int i = 0; i < 8; ++i) values[i] = from[i];
  }
}

// Writes a thread's sums of head h (of its two) times a factor: o[4 c + 2 h + e] to column first_column + 8 c
// + 2 (lane % 4) + e of the token's `head`; nothing past the last head.
template <int kN>
DSV32_DEVICE void store_head(const Attend& op, int64_t t, int64_t head, int first_column, const float* o,
                             int h, float factor) {
  if (head >= op.n_heads) return;
  float* out = op.o_c + (t * op.n_heads + head) * kRank + first_column + threadIdx.x % 4 * 2;
  DSV32_UNROLL for (int c = 0; c < kN / 4; ++c) *
      reinterpret_cast<float2*>(out + c * 8) = {o[4 * c + 2 * h] * factor, o[4 * c + 2 * h + 1] * factor};
}

// Over the four lanes that have the same two heads.
DSV32_DEVICE float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
DSV32_DEVICE float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// ---- the softmax ----

// A thread's softmax of its two heads (lane / 4 and lane / 4 + 8) of the warp's 16; scores are in base 2.
struct Running {
  float largest[2] = {-INFINITY, -INFINITY};  // at most kSlack below the largest score so far
  float sum[2] = {0, 0};                      // of the weights in the thread's own columns
};

// Converts scores to base 2 by the heads' scales, those of rows past the end to -infinity. Returns the
// largest of each of the thread's heads in the warp's columns.
DSV32_DEVICE float2 scale_scores(float (&s)[8][4], const float (&scales)[2], int first_row, int n, int lane) {
  float largest[2] = {-INFINITY, -INFINITY};
  DSV32_UNROLL for (int i = 0; i < 8; ++i) {
    DSV32_UNROLL for (int e = 0; e < 4; ++e) {
      s[i][e] = first_row + i * 8 + lane % 4 * 2 + e % 2 < n ? s[i][e] * scales[e / 2] : -INFINITY;
      largest[e / 2] = fmaxf(largest[e / 2], s[i][e]);
    }
  }
  return {quad_max(largest[0]), quad_max(largest[1])};
}

// Updates the running maxima by a block's largest scores. Returns whether one grew. `factors` multiply the
// earlier sums.
DSV32_DEVICE bool grow(Running& running, const float (&largest_here)[2], float (&factors)[2]) {
  bool is_grown = false;
  DSV32_UNROLL for (int h = 0; h < 2; ++h) {
    factors[h] = 1;
    if (largest_here[h] > running.largest[h] + kSlack) {
      factors[h] = exp2_fast(running.largest[h] - largest_here[h]);
      running.largest[h] = largest_here[h];
      is_grown = true;
    }
    running.sum[h] *= factors[h];
  }
  return is_grown;
}

}  // namespace dsv32::cuda
