// The working memory of a step: every intermediate of one layer.
//
// Owned by a stage, allocated once, overwritten by each layer. A layer goes through a long step in pieces;
// only what leads from piece to piece has room for all of its tokens. Shapes are as written beside each: N
// for max_tokens, n for piece_tokens.
#pragma once

#include "backend/backend.h"
#include "weights/config.h"

namespace dsv32 {

struct Activations {
  // Without a backend nothing is allocated, and n_bytes says what would be.
  Activations(Backend* backend, const ModelArgs& args, int64_t n_tokens, int64_t context);

  uint64_t n_bytes = 0;
  int64_t max_tokens = 0, piece_tokens = 0, max_context = 0;
  int64_t topk = 0;  // the most rows that one token attends to

  Buffer<int32_t> step_ints;     // [3, N] tokens, positions, sequences
  Buffer<float> h;               // [N, dim] the residual stream
  Buffer<float> x;               // [N, dim] after a norm
  Buffer<float> out;             // [N, dim] of attention, of the MLP
  Buffer<float> qr;              // [n, q_lora_rank]
  Buffer<float> q;               // [n, n_heads, qk_nope | qk_rope]
  Buffer<float> q_c, o_c;        // [n, n_heads, kv_lora_rank]; q_c has H index_q first, for f32 keys
  Buffer<float> o;               // [n, n_heads, v_head_dim]
  Buffer<float> kv;              // [n, kv_lora_rank | qk_rope]
  Buffer<float> c;               // [n, kv_lora_rank]
  Buffer<float> index_q;         // [n, index_n_heads, index_head_dim]
  Buffer<uint8_t> index_q_fp8;   // the same as e4m3
  Buffer<float> index_q_scales;  // [n, index_n_heads, tiles]
  Buffer<float> index_k;         // [n, index_head_dim]
  Buffer<float> index_weights;   // [n, index_n_heads]
  Buffer<float> scores;          // [some tokens, context]: as many tokens at a time as fit
  Buffer<int32_t> selected;      // [n, topk]
  Buffer<int32_t> n_selected;    // [n]
  Buffer<int64_t> row_ids;       // [n, topk]
  Buffer<int32_t> misses;        // [n, topk]
  Buffer<int32_t> n_misses;      // [n]
  Buffer<int64_t> tally;         // [2] rows looked up in buffers, rows missing
  Buffer<float> gate, up;        // [n, the widest MLP]
  Buffer<float> route_logits;    // [n, n_routed_experts]
  Buffer<int32_t> experts;       // [N, n_activated_experts]
  Buffer<float> expert_weights;  // [N, n_activated_experts]
};

}  // namespace dsv32
