// ModelArgs: the model's dimensions under the names of the official inference/model.py, read from GGUF
// metadata.
//
// Any consistent sizes work. Inconsistent sizes are refused here, with the key's name, before anything is
// allocated. Keys that converters leave out get the defaults of the format reference. added_files.cpp joins a
// model with an indexer or a block for drafts that lies in a file of its own.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/gguf.h"

namespace dsv32 {

// What scores the positions that a token may attend to: nothing, which selects all of them; the model's
// indexer; or Quest (Tang et al., 2024), which needs no training: in decode, spans are scored by bounds of
// their rows' attention scores, and prompts attend to every row.
enum class Selector { none, indexer, quest };

struct ModelArgs {
  std::string architecture;  // "deepseek32", or "deepseek2" for the same shape, mostly without an indexer
  int64_t vocab_size = 0;
  int64_t dim = 0;
  int64_t inter_dim = 0;      // of the dense MLP
  int64_t moe_inter_dim = 0;  // of one expert
  int64_t n_layers = 0;       // without blocks for drafts
  // 1: the block for drafts (MTP), which guesses the next tokens, is layer n_layers of weights and cache; 0:
  // there is none, or it is not used.
  int64_t n_draft_layers = 0;
  int64_t n_dense_layers = 0;
  int64_t n_heads = 0;
  int64_t n_routed_experts = 0, n_shared_experts = 0, n_activated_experts = 0;
  int64_t n_expert_groups = 1, n_limited_groups = 1;
  float route_scale = 1;
  bool normalize_expert_weights = true;
  int64_t q_lora_rank = 0, kv_lora_rank = 0;
  int64_t qk_nope_head_dim = 0, qk_rope_head_dim = 0, v_head_dim = 0;
  int64_t index_n_heads = 0, index_head_dim = 0, index_topk = 0;  // 0: no indexer
  bool ignores_indexer = false;                                   // that the file may have
  int64_t quest_topk = 0;  // rows that Quest selects in decode, not a file's; 0: Quest is not used
  float norm_eps = 1e-6f;
  float rope_theta = 10000;
  float rope_factor = 1;  // 1: no YaRN
  int64_t original_seq_len = 0;
  float beta_fast = 32, beta_slow = 1;
  float mscale = 0;  // yarn_log_multiplier / 0.1 (mscale_all_dim)
  int64_t max_seq_len = 0;
  std::vector<std::string> warnings;  // assumptions made, tensors ignored

  int64_t n_all_layers() const { return n_layers + n_draft_layers; }
  ModelArgs without_draft() const {
    ModelArgs args = *this;
    args.n_draft_layers = 0;
    return args;
  }
  // Without the indexer, if there is one, and the block for drafts, which has one too; in its place Quest, or
  // with no rows nothing.
  ModelArgs with_quest(int64_t n_rows) const {
    ModelArgs args = without_draft();
    args.index_n_heads = args.index_head_dim = args.index_topk = 0, args.quest_topk = n_rows;
    args.ignores_indexer = true;
    return args;
  }
  bool has_indexer() const { return index_topk > 0; }
  Selector selector() const {
    return quest_topk > 0 ? Selector::quest : has_indexer() ? Selector::indexer : Selector::none;
  }
  // The rows that a decode step selects for a token; 0: all.
  int64_t topk() const { return quest_topk > 0 ? quest_topk : index_topk; }
  int64_t qk_head_dim() const { return qk_nope_head_dim + qk_rope_head_dim; }
  // (1 + 0.1 * mscale * ln factor)^2 / sqrt(qk_head_dim)
  float softmax_scale() const;
};

// N of the tensor name "blk.N.…"; -1 for a tensor outside the blocks.
int64_t block_of(std::string_view name);
inline bool is_of_indexer(const GgufTensor& tensor) {
  return tensor.name.find(".indexer.") != std::string::npos;
}
// The first few names and the number of the others, for a message.
std::string some_names(const std::vector<std::string>& names);

// Throws Error{model} naming the key, the value and what was expected. If the file has blocks for drafts,
// n_draft_layers is 1.
ModelArgs read_model_args(const GgufFile& file);

// The same of a file that may hold nothing but an indexer or a block for drafts.
ModelArgs read_part_args(const GgufFile& file);
// Opens the model's file and takes in what it lacks and the added files have: the indexer, the block for
// drafts. Throws Error{model} as GgufFile does, and when an added file has neither, has what is there
// already, or is one of another model; where two versions of V3.2 meet, it adds a warning.
GgufFile open_model(const std::string& path, const std::vector<std::string>& added_paths,
                    std::vector<std::string>& warnings);
// The first file beside the model's that is named as one with an indexer, *indexer*.gguf; empty: none.
std::string indexer_beside(const std::string& path);
bool is_indexer_name(const std::string& path);

// What a user should hear if the block for drafts is used.
std::vector<std::string> warnings_about_draft(const GgufFile& file, const ModelArgs& args);
// What a user should hear if the model itself says which rows are selected: that it has no indexer.
std::vector<std::string> warnings_about_indexer(const GgufFile& file, const ModelArgs& args);

}  // namespace dsv32
