// The byte layout of a token's cache entry in one layer: the latent row, its scales, and what a selector
// keeps to score it: the indexer a key for each token, Quest bounds for each span of tokens.
//
//   kv type  latent row (host pool, buffer slots)        entry of a page of keys (device)
//   fp8      c: kv_lora_rank e4m3 | k_pe: rope_dim bf16  c scales: n_tiles ue8m0 | key: e4m3 | key scale: f32
//   bf16     c: kv_lora_rank bf16 | k_pe: rope_dim bf16  key: e4m3 | key scale: f32
//   f32      c: kv_lora_rank f32  | k_pe: rope_dim f32   key: f32
//
// A key page holds four arrays one after the other: [64, n_tiles] | [64, key_bytes] | [64, key_scale_bytes] |
// bounds of 4 spans. A span's bounds are the largest and the smallest of each value of its rows as they are
// stored, rounded to whole steps in four bits: [2, kv_lora_rank + rope_dim] steps + 8, the even value in the
// low half of a byte | the f32 steps of each 64 values of c, then of k_pe: a seventh of the largest
// magnitude. They are valid once all tokens of the span are stored. (Larger tiles, or rounding outwards, lose
// a tenth of the right answers of the demo model.)
//
// With V3.2's sizes an fp8 row is 640 bytes, five whole 128-byte lines (rows that are not whole lines lose a
// quarter of the link's speed), and a token's key entry 136 bytes. The scales are four bytes and stay on the
// device.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dsv32 {

enum class KvType { fp8, bf16, f32 };  // f32: unrounded, for comparison with other implementations

constexpr int64_t kPageTokens = 64;   // tokens in a page; page p means the same tokens in every layer
constexpr int64_t kTileValues = 128;  // values that share one e4m3 scale
constexpr int64_t kSpanTokens = 16;   // tokens that Quest scores together; whole spans make a page
constexpr int64_t kBoundTile = 64;    // bounds that share a step
constexpr float kMostSteps = 7;
constexpr int kZeroStep = 8;           // the code of 0
constexpr float kLeastBound = 1e-30f;  // a tile of smaller magnitudes is zeros: they have no inverse

struct CacheLayout {
  KvType kv_type = KvType::fp8;
  int64_t kv_lora_rank = 0, qk_rope_head_dim = 0;
  int64_t index_head_dim = 0;  // 0: no indexer, no keys
  bool has_bounds = false;     // for Quest

  static constexpr int64_t tiles(int64_t n_values) { return (n_values + kTileValues - 1) / kTileValues; }

  constexpr int64_t latent_bytes() const {
    return kv_lora_rank * (kv_type == KvType::fp8 ? 1 : kv_type == KvType::bf16 ? 2 : 4);
  }
  constexpr int64_t row_bytes() const {
    return latent_bytes() + qk_rope_head_dim * (kv_type == KvType::f32 ? 4 : 2);
  }

  constexpr int64_t scale_bytes() const { return kv_type == KvType::fp8 ? tiles(kv_lora_rank) : 0; }
  constexpr int64_t key_bytes() const { return index_head_dim * (kv_type == KvType::f32 ? 4 : 1); }
  constexpr int64_t key_scale_bytes() const { return kv_type == KvType::f32 ? 0 : tiles(index_head_dim) * 4; }

  constexpr int64_t row_values() const { return kv_lora_rank + qk_rope_head_dim; }
  constexpr int64_t span_bytes() const {  // rounded up to whole 16 bytes
    return has_bounds ? (steps_offset() + n_steps() * 4 + 15) / 16 * 16 : 0;
  }
  constexpr int64_t n_steps() const {
    return (kv_lora_rank + kBoundTile - 1) / kBoundTile + (qk_rope_head_dim + kBoundTile - 1) / kBoundTile;
  }
  constexpr int64_t steps_offset() const { return row_values(); }  // in a span's bounds

  constexpr int64_t key_page_bytes() const {  // rounded up so that every page's arrays are aligned
    return aligned(bounds_offset() + kPageTokens / kSpanTokens * span_bytes());
  }
  constexpr int64_t keys_offset() const { return kPageTokens * scale_bytes(); }
  constexpr int64_t key_scales_offset() const { return keys_offset() + kPageTokens * key_bytes(); }
  constexpr int64_t bounds_offset() const {
    return aligned(key_scales_offset() + kPageTokens * key_scale_bytes());
  }

 private:
  static constexpr int64_t aligned(int64_t n_bytes) { return (n_bytes + 127) / 128 * 128; }
};

}  // namespace dsv32
