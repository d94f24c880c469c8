// The operations of sparse attention, in the order of their use, on a layer's rows and keys. As in ops.h
// pointers are to the backend's memory, f32 unless said otherwise, and strides count elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backend/cache_layout.h"
#include "backend/ops.h"
#include "backend/topk_buffer.h"

namespace dsv32 {

// One layer of the cache, with each sequence's pages. A step reads rows from its sequences' slots: slot n of
// a sequence is row n % kPageTokens of the sequence's page n / kPageTokens. Without a top-k buffer a sequence
// is resident: the row of position p lies in its slot p.
struct CacheView {
  CacheLayout layout;
  uint8_t* rows = nullptr;  // host pool of this layer: [n_pages, kPageTokens, row_bytes]
  // Device, in pages of the same size: the slot pool, a window that the rows were streamed into, or, on a
  // backend that works in host memory, perhaps `rows` itself.
  uint8_t* slots = nullptr;
  uint8_t* key_pages = nullptr;         // device: [n_pages, key_page_bytes]
  const int32_t* pages = nullptr;       // [n_seqs, max_pages] page of `rows` and of key_pages
  const int32_t* slot_pages = nullptr;  // [n_seqs, max_pages] page of `slots`
  int64_t max_pages = 0;
  // [n_seqs] the LRU of each sequence's slots; n_slots 0: it is resident; null: all are resident.
  const TopkBuffer* buffers = nullptr;
  int64_t most_slots = 0;  // the most slots of a buffer
};

// Stores each token's row and key, computed from the products with its hidden state:
//   qr = RMSNorm(qr)
//   c = RMSNorm(kv[:rank]), kv[rank:] = k_pe = rope(kv[rank:]); the row (c, k_pe) goes to the host pool, its
//   scales to the key page; the row is also copied to a slot: its position's, or the one from claim_newest()
//   (a backend may leave it to resolve() to record the claim); without cache.rows it goes to the slot alone
//   k = rope(LayerNorm(k)); H k goes to the key page, rounded as the layout says. H is the orthonormal
//   Hadamard matrix in Sylvester order.
//   the products of qr; if a backend normalises qr within them, qr itself stays as it was
// In main attention rope rotates values 2 i and 2 i + 1 together, in the indexer i and i + rope_dim / 2
// (model.py as corrected on 2025-11-17).
struct StoreTokens {
  StepTokens step;
  CacheView cache;                     // its layout has rank, rope_dim and index_head_dim
  const float* frequencies = nullptr;  // [rope_dim / 2]: pair i turns by pos * frequencies[i]
  float norm_eps = 0;
  float* qr = nullptr;            // [n_tokens, q_lora_rank]
  const float* q_norm = nullptr;  // [q_lora_rank]
  int64_t q_lora_rank = 0;
  float* kv = nullptr;             // [n_tokens, rank + rope_dim]
  const float* kv_norm = nullptr;  // [rank]
  float* c = nullptr;              // [n_tokens, rank]
  float* k = nullptr;              // [n_tokens, index_head_dim]; null: no indexer
  const float* k_norm = nullptr;   // [index_head_dim]
  const float* k_norm_bias = nullptr;
  float k_norm_eps = 0;
  // Products of qr; a product without weights is absent.
  Matmul to_q = {}, to_index_q = {};

  std::vector<Matmul> products() const {
    std::vector<Matmul> products = {to_q, to_index_q};
    std::erase_if(products, [](const Matmul& op) { return !op.weight.data; });
    return products;
  }
};

// Rotates the last rope_dim values of each head of q as k_pe is rotated, and index_q as k is rotated. Writes
// H index_q as e4m3 with one power-of-two scale per tile of kTileValues (rule: base/numbers.h,
// e4m3_tile_scale), or as f32.
struct TurnQueries {
  StepTokens step;
  const float* frequencies = nullptr;  // [rope_dim / 2]
  int64_t rope_dim = 0;
  float* q = nullptr;  // [n_tokens, n_heads, head_dim]
  int64_t n_heads = 0, head_dim = 0;
  float* index_q = nullptr;  // [n_tokens, n_index_heads, index_dim]; null: none
  int64_t n_index_heads = 0, index_dim = 0;
  uint8_t* turned_fp8 = nullptr;   // as index_q; turned_fp8 and turned_scales, or `turned`
  float* turned_scales = nullptr;  // [n_tokens, n_index_heads, tiles(index_dim)]
  float* turned = nullptr;         // as index_q
  // An independent product of the values that are not rotated: W_UK's. Without weights: none.
  MatmulHeads absorb = {};
};

// Copies rows beside the work that follows: from the host pool into a window on the device (stream_rows), or
// from slots to the host pool (save_rows). The latter is an operation because a kernel that writes to the
// host keeps a gather waiting until it has arrived there; the next gather, step or wait comes after its
// copies.
struct RowCopy {
  uint8_t* to = nullptr;
  const uint8_t* from = nullptr;
  size_t n_bytes = 0;
};

// scores[t, s] = sum over h of weights[t, h] * max(0, q[t, h] . key[s])  for s <= pos[t] (other scores are
// not written).
struct IndexerScores {
  StepTokens step;
  CacheView cache;
  int64_t n_heads = 0;
  const float* q = nullptr;         // [n_tokens, n_heads, index_head_dim] when the keys are f32, else null
  const uint8_t* q_fp8 = nullptr;   // the same as e4m3, else null
  const float* q_scales = nullptr;  // [n_tokens, n_heads, tiles(index_head_dim)]
  const float* weights = nullptr;   // [n_tokens, n_heads]
  float weight_scale = 1;           // multiplies every weight: n_heads^-0.5 * index_head_dim^-0.5
  float* scores = nullptr;          // [n_tokens, scores_stride]
  int64_t scores_stride = 0;
};

// Quest's scores of spans, in decode, for the spans p < pos[t] / kSpanTokens, those before the token's own:
// scores[t, p] = sum over heads h of softmax over p of bounds[t, h]. But for rounding, bounds[t, h, p] is an
// upper bound of the attention score of each row in p: scale * sum over values i of max(q_i * largest[p]_i,
// q_i * smallest[p]_i), q = (q_c, q_pe). An operation because no product has such keys.
struct QuestScores {
  StepTokens step;
  CacheView cache;
  int64_t n_heads = 0;
  const float* q_c = nullptr;   // [n_tokens, n_heads, kv_lora_rank]
  const float* q_pe = nullptr;  // [n_tokens, n_heads, qk_rope_head_dim], strides below
  int64_t q_pe_token_stride = 0, q_pe_head_stride = 0;
  float scale = 0;
  float* bounds = nullptr;  // [n_tokens, n_heads, scores_stride] for the operation's own use
  float* scores = nullptr;  // [n_tokens, scores_stride]
  int64_t scores_stride = 0;
};

// selected[t] = of the positions from `first` to pos[t] the topk with the largest scores, or all, ascending;
// ties: the lower position wins. NaN ranks below every number. With null scores all of them are selected
// (topk > max_pos then). With n_together = kSpanTokens a score is that of a span: selected are the token's
// own span up to pos[t] and, if not all positions, the topk / kSpanTokens - 1 best others, whole.
struct SelectTopk {
  StepTokens step;
  const float* scores = nullptr;  // [n_tokens, scores_stride]
  int64_t scores_stride = 0;
  int64_t topk = 0;
  int32_t* selected = nullptr;    // [n_tokens, topk]
  int32_t* n_selected = nullptr;  // [n_tokens]
  int32_t first = 0;              // 0 or 1, at most any pos[t]; with spans 0
  int64_t n_together = 1;         // positions of a score; a divisor of topk
};

// Finds where each selected row is read from. For a sequence with a buffer the LRU of backend/topk_buffer
// decides, and the misses are listed for FetchLatents: first the positions of all its tokens claim slots, in
// order, then its tokens' selections are resolved one after the other. A buffer has slots for the claims and
// for all of these selections, so that no row of the step is a victim.
struct Resolve {
  StepTokens step;
  CacheView cache;
  const int32_t* selected = nullptr;    // [n_tokens, topk]
  const int32_t* n_selected = nullptr;  // [n_tokens]
  int64_t topk = 0;
  int64_t* row_ids = nullptr;   // [n_tokens, topk] row of cache.slots
  int32_t* misses = nullptr;    // [n_tokens, topk] indices into `selected`
  int32_t* n_misses = nullptr;  // [n_tokens]
  int64_t* tally = nullptr;     // [2] grows by the rows looked up in buffers and by the missing rows
};

// Copies the missing rows from the host pool into their slots, after resolve() of the same tokens and beside
// the operations that follow. Each attend() with row_ids waits for the oldest fetch that no attend() has
// waited for yet. At most four fetches may be pending.
struct FetchLatents {
  StepTokens step;
  CacheView cache;
  const int32_t* selected = nullptr;  // as in Resolve
  const int64_t* row_ids = nullptr;
  const int32_t* misses = nullptr;
  const int32_t* n_misses = nullptr;
  int64_t topk = 0;
};

// Sparse MLA, absorbed: s(j) = (q_c . c_j + q_pe . k_pe_j) * scale over the selected rows; o_c = sum_j
// softmax(s)(j) * c_j.
struct Attend {
  StepTokens step;
  CacheView cache;
  int64_t n_heads = 0;
  const float* q_c = nullptr;   // [n_tokens, n_heads, kv_lora_rank]
  const float* q_pe = nullptr;  // [n_tokens, n_heads, qk_rope_head_dim], strides below
  int64_t q_pe_token_stride = 0, q_pe_head_stride = 0;
  float scale = 0;
  const int32_t* selected = nullptr;    // [n_tokens, topk] (finds the scales)
  const int32_t* n_selected = nullptr;  // [n_tokens]
  const int64_t* row_ids = nullptr;     // [n_tokens, topk]; null: the row of position p is in slot p
  int64_t topk = 0;
  // [n_tokens, n_heads, kv_lora_rank]; in prefill in the backend's own format, for matmul_heads only.
  float* o_c = nullptr;
  bool are_queries_older = false;  // q_c and q_pe were ready before `selected`: no need to wait for them
};

}  // namespace dsv32
