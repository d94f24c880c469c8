// A model and its block for drafts that lie in two files: the one is checked against the other, and the
// model's GgufFile takes the block's tensors in, so that all readers find them where they look for them.
#include "base/error.h"
#include "base/text.h"
#include "weights/config.h"

namespace dsv32 {
namespace {

struct Size {
  const char* key;
  int64_t ModelArgs::*of;
};
constexpr Size kSizes[] = {
    {"block_count without nextn_predict_layers", &ModelArgs::n_layers},
    {"embedding_length", &ModelArgs::dim},
    {"attention.head_count", &ModelArgs::n_heads},
    {"attention.q_lora_rank", &ModelArgs::q_lora_rank},
    {"attention.kv_lora_rank", &ModelArgs::kv_lora_rank},
    {"attention.key_length_mla without rope.dimension_count", &ModelArgs::qk_nope_head_dim},
    {"attention.value_length_mla", &ModelArgs::v_head_dim},
    {"rope.dimension_count", &ModelArgs::qk_rope_head_dim},
    {"attention.indexer.head_count", &ModelArgs::index_n_heads},
    {"attention.indexer.key_length", &ModelArgs::index_head_dim},
    {"attention.indexer.top_k", &ModelArgs::index_topk},
    {"expert_count", &ModelArgs::n_routed_experts},
    {"expert_used_count", &ModelArgs::n_activated_experts},
    {"expert_shared_count", &ModelArgs::n_shared_experts},
    {"expert_feed_forward_length", &ModelArgs::moe_inter_dim},
};

// Throws unless the block was made for this model.
void check_draft(const GgufFile& model, const GgufFile& draft) {
  const ModelArgs args = read_model_args(model), block = read_draft_args(draft);
  const std::string model_name = visible(model.path()), name = visible(draft.path());
  if (args.n_draft_layers > 0)
    fail(ErrorKind::model,
         format("%s has a block for drafts, blk.%lld, expected none beside --draft-model", model_name.c_str(),
                as_ll(args.n_layers)),
         "leave --draft-model out");
  const auto refuse = [&](const std::string& what) {
    fail(ErrorKind::model, name + what,
         "--draft-model takes the block of the same model, in a file of its own");
  };
  if (block.architecture != args.architecture)
    refuse(format(": general.architecture is '%s', expected %s as in %s", block.architecture.c_str(),
                  args.architecture.c_str(), model_name.c_str()));
  for (const Size& size : kSizes)
    if (block.*size.of != args.*size.of)
      refuse(format(": %s is %lld, expected %lld as in %s", size.key, as_ll(block.*size.of),
                    as_ll(args.*size.of), model_name.c_str()));
  if (block.n_draft_layers == 0)
    refuse(format(" holds no block for drafts: no tensor is named blk.%lld.nextn.*", as_ll(args.n_layers)));
}

}  // namespace

GgufFile open_model(const std::string& path, const std::string& draft_path) {
  GgufFile model(path);
  if (draft_path.empty()) return model;
  GgufFile draft(draft_path);
  check_draft(model, draft);
  const int64_t block = read_draft_args(draft).n_layers;
  model.take(std::move(draft), [&](const GgufTensor& tensor) { return block_of(tensor.name) == block; });
  return model;
}

}  // namespace dsv32
