// GGUF name -> official name, shape: of every tensor of a layer.
#include "backend/cpu_backend.h"
#include "base/error.h"
#include "weights/weight_source.h"

namespace dsv32 {
namespace {

IndexerWeights bind_indexer(WeightSource& bind, const std::string& blk, const ModelArgs& a) {
  IndexerWeights w;
  w.wq_b = bind.matrix(blk + "indexer.attn_q_b.weight", a.q_lora_rank, a.index_n_heads * a.index_head_dim);
  w.wk = bind.matrix(blk + "indexer.attn_k.weight", a.dim, a.index_head_dim);
  w.weights_proj = bind.matrix(blk + "indexer.proj.weight", a.dim, a.index_n_heads);
  w.k_norm = bind.vector(blk + "indexer.k_norm.weight", a.index_head_dim);
  w.k_norm_bias = bind.vector(blk + "indexer.k_norm.bias", a.index_head_dim);
  return w;
}

// The factors of W1 and W3 are applied between products and SiLU; W2 is linear, so its factor goes into W3's.
MlpWeights bind_mlp(WeightSource& bind, const std::string& blk, const char* suffix, int64_t dim,
                    int64_t inter_dim) {
  const std::string gate = blk + "ffn_gate" + suffix + ".weight", up = blk + "ffn_up" + suffix + ".weight",
                    down = blk + "ffn_down" + suffix + ".weight";
  MlpWeights w;
  w.w1 = bind.stored(gate, dim, inter_dim, 1, Rows::share);
  w.w3 = bind.stored(up, dim, inter_dim, 1, Rows::share);
  w.w2 = bind.stored(down, inter_dim, dim, 1, Rows::share);
  const std::vector<float> s1 = bind.scales(gate, 1), s3 = bind.scales(up, 1), s2 = bind.scales(down, 1);
  const auto factor = [](const std::vector<float>& scales) { return scales.empty() ? 1.0f : scales[0]; };
  if (!s1.empty() || !s3.empty() || !s2.empty())
    w.scales = bind.placed({factor(s1), factor(s3) * factor(s2)}, "the factors of an MLP");
  return w;
}

// [n_experts, 2]: the factors of each expert's W1 x and W3 x. Empty if all are 1.
std::vector<float> hidden_scales(std::vector<float> s1, std::vector<float> s3, int64_t n_experts) {
  if (s1.empty() && s3.empty()) return {};
  s1.resize(static_cast<size_t>(n_experts), 1), s3.resize(static_cast<size_t>(n_experts), 1);
  std::vector<float> pairs;
  for (size_t e = 0; e < s1.size(); ++e) pairs.insert(pairs.end(), {s1[e], s3[e]});
  return pairs;
}

void bind_stacks(WeightSource& bind, const std::string& blk, const ModelArgs& a, ExpertWeights& w) {
  const std::string fused = blk + "ffn_gate_up_exps.weight", down = blk + "ffn_down_exps.weight";
  const int64_t n_experts = a.n_routed_experts, inter = a.moe_inter_dim;
  const bool is_fused = bind.has(fused);  // per expert the gate's rows, then the up projection's
  const std::string gate = is_fused ? fused : blk + "ffn_gate_exps.weight",
                    up = is_fused ? fused : blk + "ffn_up_exps.weight";
  const int64_t n_stored = is_fused ? 2 * inter : inter;
  ExpertStacks& routed = w.routed;
  routed.w1 = bind.stored(gate, a.dim, {inter, 0, n_stored}, n_experts, Rows::share);
  routed.w3 = bind.stored(up, a.dim, {inter, n_stored - inter, n_stored}, n_experts, Rows::share);
  routed.w2 = bind.stored(down, inter, a.dim, n_experts, Rows::share);
  bind.place_in(Place::device);
  w.host_scales = hidden_scales(bind.scales(gate, n_experts), bind.scales(up, n_experts), n_experts);
  if (!w.host_scales.empty()) {
    w.scales = bind.placed(w.host_scales, "the factors of experts");
    routed.scales = w.scales.data(), routed.host_scales = w.host_scales.data();
  }
  if (const std::vector<float> s2 = bind.scales(down, n_experts); !s2.empty())
    w.output_scales = bind.placed(s2, "the factors of experts");
}

// The bias decides which experts are chosen, so it must be present; files spell its name in three ways.
Vector bind_router_bias(WeightSource& bind, const std::string& blk, int64_t n_experts) {
  std::string name = blk + "exp_probs_b.bias";
  for (const char* other : {"exp_probs_b.weight", "exp_probs_b"})
    if (!bind.has(name) && bind.has(blk + other)) name = blk + other;
  return bind.vector(name, n_experts);
}

ExpertWeights bind_experts(WeightSource& bind, const std::string& blk, const ModelArgs& a, Place place) {
  ExpertWeights w;
  w.gate = bind.matrix(blk + "ffn_gate_inp.weight", a.dim, a.n_routed_experts);
  w.bias = bind_router_bias(bind, blk, a.n_routed_experts);
  w.place = place;
  bind.place_in(place);
  bind_stacks(bind, blk, a, w);
  if (a.n_shared_experts > 0)
    w.shared = bind_mlp(bind, blk, "_shexp", a.dim, a.n_shared_experts * a.moe_inter_dim);
  return w;
}

LayerWeights bind_layer(WeightSource& bind, int64_t layer, const ModelArgs& a, Place experts) {
  const std::string blk = format("blk.%lld.", as_ll(layer));
  LayerWeights w;
  w.attn_norm = bind.vector(blk + "attn_norm.weight", a.dim);
  w.q_norm = bind.vector(blk + "attn_q_a_norm.weight", a.q_lora_rank);
  w.kv_norm = bind.vector(blk + "attn_kv_a_norm.weight", a.kv_lora_rank);
  w.ffn_norm = bind.vector(blk + "ffn_norm.weight", a.dim);
  w.wq_a = bind.matrix(blk + "attn_q_a.weight", a.dim, a.q_lora_rank);
  w.wq_b = bind.matrix(blk + "attn_q_b.weight", a.q_lora_rank, a.n_heads * a.qk_head_dim());
  w.wkv_a = bind.matrix(blk + "attn_kv_a_mqa.weight", a.dim, a.kv_lora_rank + a.qk_rope_head_dim);
  if (bind.has(blk + "attn_k_b.weight")) {
    w.w_uk = bind.stack(blk + "attn_k_b.weight", a.qk_nope_head_dim, a.kv_lora_rank, a.n_heads);
    w.w_uv = bind.stack(blk + "attn_v_b.weight", a.kv_lora_rank, a.v_head_dim, a.n_heads);
  } else {
    const std::string kv_b =
        blk + (bind.has(blk + "attn_kv_b.weight") ? "attn_kv_b.weight" : "attn_k_b.weight");
    const int64_t n_k = a.qk_nope_head_dim, n_v = a.v_head_dim, n_stored = n_k + n_v;
    w.w_uk = bind.transposed(kv_b, a.kv_lora_rank, {n_k, 0, n_stored}, a.n_heads);
    w.w_uv = bind.stack(kv_b, a.kv_lora_rank, {n_v, n_k, n_stored}, a.n_heads);
  }
  w.wo = bind.matrix(blk + "attn_output.weight", a.n_heads * a.v_head_dim, a.dim);
  if (a.has_indexer()) w.indexer = bind_indexer(bind, blk, a);
  w.is_dense = layer < a.n_dense_layers;
  if (w.is_dense)
    w.mlp = bind_mlp(bind, blk, "", a.dim, a.inter_dim);
  else
    w.experts = bind_experts(bind, blk, a, experts);
  return w;
}

WeightMatrix bind_head(WeightSource& bind, const std::string& name, const ModelArgs& a) {
  return bind.matrix(name, a.dim, a.vocab_size, bind.rows_of_head(a.vocab_size));
}

// The last backend needs an embedding of its own unless it can read the model's, or has it as the head.
WeightMatrix bind_draft_embed(WeightSource& bind, const std::string& own, const ModelArgs& a,
                              const Weights& model, bool can_read_embed) {
  if (bind.has(own)) return bind.matrix(own, a.dim, a.vocab_size);
  if (can_read_embed) return model.embed;
  if (!bind.has("output.weight")) return model.head;
  return bind.matrix("token_embd.weight", a.dim, a.vocab_size);
}

DraftWeights bind_draft(WeightSource& bind, const ModelArgs& a, const Weights& model, bool can_read_embed) {
  const std::string blk = format("blk.%lld.nextn.", as_ll(a.n_layers));
  const std::string head = blk + "shared_head_head.weight", norm = blk + "shared_head_norm.weight";
  DraftWeights w;
  w.embed = bind_draft_embed(bind, blk + "embed_tokens.weight", a, model, can_read_embed);
  w.head = bind.has(head) ? bind_head(bind, head, a) : model.head;
  w.eh_proj = bind.matrix(blk + "eh_proj.weight", 2 * a.dim, a.dim);
  w.enorm = bind.vector(blk + "enorm.weight", a.dim);
  w.hnorm = bind.vector(blk + "hnorm.weight", a.dim);
  w.norm = bind.vector(bind.has(norm) ? norm : "output_norm.weight", a.dim);
  return w;
}

}  // namespace

Weights bind_weights(WeightSource& bind, const ModelArgs& args, const WeightPlaces& places) {
  Backend& first = places.backend(0);
  Backend& last = places.backend(args.n_all_layers() - 1);
  if (!places.member.is_alone() && &first != &last)
    fail(ErrorKind::internal, "a member of a team has its weights on several devices");
  Weights weights;
  bind.divide_for(places.member);
  bind.place_on(first);
  weights.embed = bind.matrix("token_embd.weight", args.dim, args.vocab_size);
  bind.place_on(last);
  weights.norm = bind.vector("output_norm.weight", args.dim);
  if (bind.has("output.weight"))
    weights.head = bind_head(bind, "output.weight", args);
  else if (&first != &last)
    weights.head = bind_head(bind, "token_embd.weight", args);
  else
    weights.head = bind.view(weights.embed, bind.rows_of_head(args.vocab_size));
  for (int64_t layer = 0; layer < args.n_all_layers(); ++layer) {
    bind.place_on(places.backend(layer));
    const uint64_t n_bytes_before = bind.n_bytes_found();
    weights.layers.push_back(bind_layer(bind, layer, args, places.experts(layer)));
    weights.layers.back().n_bytes = bind.n_bytes_found() - n_bytes_before;
  }
  bind.place_in(Place::device);
  if (args.n_draft_layers > 0)
    weights.draft = bind_draft(bind, args, weights, &first == &last || last.works_in_host_memory());
  return weights;
}

Weights bind_shapes(WeightSource& bind, const ModelArgs& args) {
  CpuBackend unused(1);
  return bind_weights(bind, args, {[&](int64_t) -> Backend& { return unused; }});
}

}  // namespace dsv32
