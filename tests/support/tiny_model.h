// Writes random models of DeepSeek-V3.2's shape, small enough for a test and deterministic from their seed.
//
// The default has the real attention geometry, sixteen storage types among its weights, and a complete block
// for drafts (MTP) behind its layers. Tests change fields to get other shapes, older files (no indexer, no
// group keys) and wrong ones.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "gguf/quant.h"
#include "tests/support/gguf_writer.h"

namespace dsv32 {

struct TinyModel {
  uint64_t seed = 1;
  std::string architecture = "deepseek32";  // the prefix of the keys

  uint32_t n_layers = 5, n_dense_layers = 2;  // main layers; block_count counts the MTP block too
  uint32_t dim = 256, inter_dim = 512, moe_inter_dim = 256;
  uint32_t n_heads = 8, q_lora_rank = 256, kv_lora_rank = 512;
  uint32_t qk_nope_head_dim = 128, qk_rope_head_dim = 64, v_head_dim = 128;
  uint32_t index_n_heads = 16, index_head_dim = 128, index_topk = 64;
  uint32_t n_routed_experts = 16, n_activated_experts = 4, n_shared_experts = 1;
  uint32_t n_expert_groups = 4, n_limited_groups = 2;
  uint32_t context_length = 16384, original_seq_len = 4096;

  bool has_indexer = true;  // false: neither its keys nor its tensors
  bool has_mtp = true;      // one block for drafts after the main layers
  // Whether that block has an embedding, a head and a norm before it of its own.
  bool has_mtp_embed = false, has_mtp_head = false, has_mtp_norm = true;
  bool fuse_gate_up = false;  // ffn_gate_up_exps, gate rows first, replaces ffn_gate_exps and ffn_up_exps

  std::vector<TensorType> only_types = {};           // matrices take these in turn, where their rows allow it
  std::map<std::string, TensorType> types = {};      // of single tensors, by full name
  std::set<std::string> without = {};                // full names of keys and tensors to leave out
  std::map<std::string, uint32_t> replace_u32 = {};  // full name of a u32 key -> another value
};

GgufWriter tiny_model(const TinyModel& shape);

// Throws Error{io}.
void write_tiny_model(const std::string& path, const TinyModel& shape);

}  // namespace dsv32
