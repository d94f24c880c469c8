// The byte layout of a token's cache entry in one layer: the latent row, its scales, and the index key.
//
//   kv type  latent row (host pool, buffer slots)        entry of a page of keys (device)
//   fp8      c: kv_lora_rank e4m3 | k_pe: rope_dim bf16  c scales: n_tiles ue8m0 | key: e4m3 | key scale: f32
//   bf16     c: kv_lora_rank bf16 | k_pe: rope_dim bf16  key: e4m3 | key scale: f32
//   f32      c: kv_lora_rank f32  | k_pe: rope_dim f32   key: f32
//
// A key page holds three arrays one after the other: [64, n_tiles] | [64, key_bytes] | [64, key_scale_bytes].
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

struct CacheLayout {
  KvType kv_type = KvType::fp8;
  int64_t kv_lora_rank = 0, qk_rope_head_dim = 0;
  int64_t index_head_dim = 0;  // 0: a model without indexer and keys

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

  constexpr int64_t key_page_bytes() const {  // rounded up so that every page's f32 arrays are aligned
    return (key_scales_offset() + kPageTokens * key_scale_bytes() + 127) / 128 * 128;
  }
  constexpr int64_t keys_offset() const { return kPageTokens * scale_bytes(); }
  constexpr int64_t key_scales_offset() const { return keys_offset() + kPageTokens * key_bytes(); }
};

}  // namespace dsv32
