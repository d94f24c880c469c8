#include "weights/layer_bytes.h"

#include <algorithm>

#include "backend/link_share.h"
#include "weights/shares.h"
#include "weights/weights.h"

namespace dsv32 {
namespace {

uint64_t stored_bytes(const WeightMatrix& m) {
  return static_cast<uint64_t>(m.n_mats * m.n_rows) * m.row_bytes;
}

template <class Mlp>
uint64_t mlp_bytes(const Mlp& mlp) {
  return stored_bytes(mlp.w1) + stored_bytes(mlp.w3) + stored_bytes(mlp.w2);
}

LayerBytes layer_bytes(const LayerWeights& layer, const ModelArgs& args) {
  const uint64_t heads =
      stored_bytes(layer.wq_b) + stored_bytes(layer.w_uk) + stored_bytes(layer.w_uv) + stored_bytes(layer.wo);
  if (layer.is_dense) return {.core = layer.n_bytes, .divided = mlp_bytes(layer.mlp), .heads = heads};
  const ExpertStacks& routed = layer.experts.routed;
  const uint64_t experts = mlp_bytes(routed);
  const uint64_t one_expert = experts / static_cast<uint64_t>(args.n_routed_experts);
  const auto n_activated = static_cast<uint64_t>(args.n_activated_experts);
  return {.core = layer.n_bytes - experts,
          .experts = experts,
          .experts_read = one_expert * n_activated,
          .link_read = link_bytes(routed) * n_activated,
          .link_window = link_window_bytes(routed),
          .divided = mlp_bytes(layer.experts.shared),
          .heads = heads};
}

void add_draft(const Weights& weights, const ModelArgs& args, ModelBytes& bytes) {
  const DraftWeights& draft = weights.draft;
  LayerBytes& layer = bytes.layers.back();
  layer = {.core = layer.core + layer.experts,
           .is_draft = true,
           .divided = layer.divided + layer.experts,
           .heads = layer.heads};
  const bool has_embed = draft.embed.data != weights.embed.data,
             has_head = draft.head.data != weights.head.data;
  bytes.draft = stored_bytes(draft.eh_proj) + 3 * static_cast<uint64_t>(args.dim) * sizeof(float);
  if (has_embed) bytes.draft += stored_bytes(draft.embed);
  bytes.draft_divided = has_head ? stored_bytes(draft.head) : 0;
  bytes.draft += bytes.draft_divided;
  bytes.draft_embedding = has_embed || bytes.tied > 0 ? 0 : bytes.embedding;
}

}  // namespace

ModelBytes without_draft(ModelBytes bytes) {
  std::erase_if(bytes.layers, [](const LayerBytes& layer) { return layer.is_draft; });
  bytes.draft = bytes.draft_embedding = bytes.draft_divided = 0;
  return bytes;
}

ModelBytes share_of(const ModelBytes& whole, int64_t n_members) {
  if (n_members == 1) return whole;
  const auto n = static_cast<uint64_t>(n_members);
  const auto divide = [n](uint64_t& bytes, uint64_t& divided) {
    bytes = bytes - divided + divided / n;
    divided /= n;
  };
  ModelBytes share = whole;
  for (LayerBytes& layer : share.layers) {
    divide(layer.core, layer.divided);
    layer.heads_unread = layer.heads - layer.heads / n;
    layer.experts /= n, layer.experts_read /= n;
    layer.link_read = layer.link_window = 0;
  }
  if (!divides_rows(whole.vocab_size, n_members)) return share;
  divide(share.head, share.head_divided);
  divide(share.draft, share.draft_divided);
  share.tied /= n;
  return share;
}

uint64_t core_bytes(const ModelBytes& bytes) {
  uint64_t n_bytes = bytes.embedding + bytes.head - bytes.tied + bytes.draft;
  for (const LayerBytes& layer : bytes.layers) n_bytes += layer.core;
  return n_bytes;
}

uint64_t total_bytes(const ModelBytes& bytes) {
  uint64_t n_bytes = core_bytes(bytes);
  for (const LayerBytes& layer : bytes.layers) n_bytes += layer.experts;
  return n_bytes;
}

bool has_experts(const ModelBytes& bytes) {
  return std::ranges::any_of(bytes.layers, [](const LayerBytes& layer) { return layer.experts > 0; });
}

ModelBytes model_bytes(const Weights& weights, const ModelArgs& args) {
  ModelBytes bytes;
  for (const LayerWeights& layer : weights.layers) bytes.layers.push_back(layer_bytes(layer, args));
  const LayerWeights& last = weights.layers[static_cast<size_t>(args.n_layers) - 1];
  bytes.format = (last.is_dense ? last.mlp.w1 : last.experts.routed.w1).type;
  bytes.embedding = stored_bytes(weights.embed);
  bytes.embedding_read = weights.embed.row_bytes;
  bytes.vocab_size = args.vocab_size;
  bytes.head_divided = stored_bytes(weights.head);
  bytes.head = bytes.head_divided + static_cast<uint64_t>(args.dim) * sizeof(float);
  const bool is_tied = weights.head.data && weights.head.data == weights.embed.data;
  bytes.tied = is_tied ? bytes.embedding : 0;
  if (args.n_draft_layers > 0) add_draft(weights, args, bytes);
  return bytes;
}

}  // namespace dsv32
