#include "weights/weights.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"

namespace dsv32 {
namespace {

std::string shape_text(const std::array<uint64_t, 4>& ne) {
  std::string text = "[";
  for (size_t i = 0; i < 4; ++i)
    if (i == 0 || ne[i] != 1 ||
        std::any_of(ne.begin() + static_cast<long>(i), ne.end(), [](auto n) { return n != 1; }))
      text += format("%s%llu", i ? ", " : "", static_cast<unsigned long long>(ne[i]));
  return text + "]";
}

// Finds tensors by name, checks their shapes and has them loaded where the backend can use them.
class Binder {
 public:
  Binder(const GgufFile& file, Loader& loader) : file_(file), loader_(loader) {}

  // Where what is found from now on is placed.
  void place_on(Backend& backend) { backend_ = &backend; }
  void place_in(Place place) { place_ = place; }

  // When all of it is there.
  void put_in_bands() const {
    for (const auto& [backend, matrix] : banded_) backend->put_in_bands(matrix);
  }

  uint64_t n_bytes_found() const { return n_bytes_found_; }
  bool has(const std::string& name) const { return file_.find_tensor(name) != nullptr; }

  // A stack of n_mats matrices [n_rows, n_cols]; GGUF shape {n_cols, n_rows, n_mats}. Each may be n_fused
  // matrices, one above the other.
  WeightMatrix stack(const std::string& name, int64_t n_cols, int64_t n_rows, int64_t n_mats,
                     int64_t n_fused = 1) {
    const GgufTensor& tensor = find(name, {static_cast<uint64_t>(n_cols), static_cast<uint64_t>(n_rows),
                                           static_cast<uint64_t>(n_mats), 1});
    refuse_scale(name.substr(0, name.rfind('.')) + ".scale");
    refuse_scale(name + ".scale");
    WeightMatrix matrix;
    matrix.type = tensor.type;
    matrix.n_rows = n_rows, matrix.n_cols = n_cols, matrix.n_mats = n_mats;
    matrix.row_bytes = row_bytes(tensor.type, n_cols);
    matrix.mat_bytes = matrix.row_bytes * static_cast<size_t>(n_rows);
    const size_t n_part_bytes = matrix.mat_bytes / static_cast<size_t>(n_fused);
    matrix.data = backend_->works_in_host_memory() ? tensor.data : place(tensor, n_part_bytes);
    if (place_ == Place::device && backend_->keeps_bands())
      matrix.step_bytes = band_step_bytes(matrix.type, n_rows / n_fused, n_cols);
    if (matrix.step_bytes > 0) banded_.emplace_back(backend_, matrix);
    return matrix;
  }
  WeightMatrix matrix(const std::string& name, int64_t n_cols, int64_t n_rows) {
    return stack(name, n_cols, n_rows, 1);
  }

  Vector vector(const std::string& name, int64_t n) {
    const GgufTensor& tensor = find(name, {static_cast<uint64_t>(n), 1, 1, 1});
    std::vector<float> values(static_cast<size_t>(n));
    dequantize_row(tensor.type, tensor.data, values.data(), n);
    Vector placed(*backend_, Place::device, n, name.c_str());
    backend_->upload(placed.data(), values.data(), placed.n_bytes());
    return placed;
  }

 private:
  const uint8_t* place(const GgufTensor& tensor, size_t n_part_bytes) {
    uint8_t* to = backend_->alloc_weights(place_, tensor.n_bytes, n_part_bytes);
    loader_.add(tensor, *backend_, place_, to);
    return to;
  }

  const GgufTensor& find(const std::string& name, const std::array<uint64_t, 4>& ne) {
    const GgufTensor* tensor = file_.find_tensor(name);
    if (!tensor)
      fail(ErrorKind::model, format("%s: tensor %s is missing", visible(file_.path()).c_str(), name.c_str()));
    if (tensor->ne != ne)
      fail(ErrorKind::model,
           format("%s: tensor %s at offset %llu has shape %s, expected %s", visible(file_.path()).c_str(),
                  name.c_str(), static_cast<unsigned long long>(tensor->offset),
                  shape_text(tensor->ne).c_str(), shape_text(ne).c_str()));
    n_bytes_found_ += tensor->n_bytes;
    return *tensor;
  }

  // Conversions to NVFP4 may put a factor for a whole matrix beside it, which nothing here applies.
  void refuse_scale(const std::string& name) {
    if (has(name))
      fail(ErrorKind::model,
           format("%s: tensor %s scales a whole matrix, which dsv32 does not do",
                  visible(file_.path()).c_str(), name.c_str()),
           "use a file of another type than NVFP4, or one without such scales");
  }

  const GgufFile& file_;
  Loader& loader_;
  Backend* backend_ = nullptr;
  Place place_ = Place::device;
  std::vector<std::pair<Backend*, WeightMatrix>> banded_;
  uint64_t n_bytes_found_ = 0;
};

IndexerWeights bind_indexer(Binder& bind, const std::string& blk, const ModelArgs& a) {
  IndexerWeights w;
  w.wq_b = bind.matrix(blk + "indexer.attn_q_b.weight", a.q_lora_rank, a.index_n_heads * a.index_head_dim);
  w.wk = bind.matrix(blk + "indexer.attn_k.weight", a.dim, a.index_head_dim);
  w.weights_proj = bind.matrix(blk + "indexer.proj.weight", a.dim, a.index_n_heads);
  w.k_norm = bind.vector(blk + "indexer.k_norm.weight", a.index_head_dim);
  w.k_norm_bias = bind.vector(blk + "indexer.k_norm.bias", a.index_head_dim);
  return w;
}

MlpWeights bind_mlp(Binder& bind, const std::string& blk, const char* suffix, int64_t dim,
                    int64_t inter_dim) {
  MlpWeights w;
  w.w1 = bind.matrix(blk + "ffn_gate" + suffix + ".weight", dim, inter_dim);
  w.w3 = bind.matrix(blk + "ffn_up" + suffix + ".weight", dim, inter_dim);
  w.w2 = bind.matrix(blk + "ffn_down" + suffix + ".weight", inter_dim, dim);
  return w;
}

ExpertStacks bind_stacks(Binder& bind, const std::string& blk, const ModelArgs& a) {
  ExpertStacks w;
  // Fused: per expert the gate's rows, then the up projection's.
  if (bind.has(blk + "ffn_gate_up_exps.weight")) {
    const WeightMatrix fused =
        bind.stack(blk + "ffn_gate_up_exps.weight", a.dim, 2 * a.moe_inter_dim, a.n_routed_experts, 2);
    w.w1 = w.w3 = fused;
    w.w1.n_rows = w.w3.n_rows = a.moe_inter_dim;
    w.w3.data = fused.row(0, a.moe_inter_dim);
  } else {
    w.w1 = bind.stack(blk + "ffn_gate_exps.weight", a.dim, a.moe_inter_dim, a.n_routed_experts);
    w.w3 = bind.stack(blk + "ffn_up_exps.weight", a.dim, a.moe_inter_dim, a.n_routed_experts);
  }
  w.w2 = bind.stack(blk + "ffn_down_exps.weight", a.moe_inter_dim, a.dim, a.n_routed_experts);
  return w;
}

ExpertWeights bind_experts(Binder& bind, const std::string& blk, const ModelArgs& a, Place place) {
  ExpertWeights w;
  w.gate = bind.matrix(blk + "ffn_gate_inp.weight", a.dim, a.n_routed_experts);
  if (bind.has(blk + "exp_probs_b.bias")) w.bias = bind.vector(blk + "exp_probs_b.bias", a.n_routed_experts);
  w.place = place;
  bind.place_in(place);
  w.routed = bind_stacks(bind, blk, a);
  bind.place_in(Place::device);
  if (a.n_shared_experts > 0)
    w.shared = bind_mlp(bind, blk, "_shexp", a.dim, a.n_shared_experts * a.moe_inter_dim);
  return w;
}

// GGUF name -> official name, shape. The only place where GGUF's spellings occur.
LayerWeights bind_layer(Binder& bind, int64_t layer, const ModelArgs& a, Place experts) {
  const std::string blk = format("blk.%lld.", static_cast<long long>(layer));
  LayerWeights w;
  w.attn_norm = bind.vector(blk + "attn_norm.weight", a.dim);
  w.q_norm = bind.vector(blk + "attn_q_a_norm.weight", a.q_lora_rank);
  w.kv_norm = bind.vector(blk + "attn_kv_a_norm.weight", a.kv_lora_rank);
  w.ffn_norm = bind.vector(blk + "ffn_norm.weight", a.dim);
  w.wq_a = bind.matrix(blk + "attn_q_a.weight", a.dim, a.q_lora_rank);
  w.wq_b = bind.matrix(blk + "attn_q_b.weight", a.q_lora_rank, a.n_heads * a.qk_head_dim());
  w.wkv_a = bind.matrix(blk + "attn_kv_a_mqa.weight", a.dim, a.kv_lora_rank + a.qk_rope_head_dim);
  if (bind.has(blk + "attn_kv_b.weight") && !bind.has(blk + "attn_k_b.weight"))
    fail(ErrorKind::model,
         format("tensor %sattn_kv_b.weight is in one piece, expected attn_k_b and attn_v_b", blk.c_str()),
         "convert the model again with a current converter");
  w.w_uk = bind.stack(blk + "attn_k_b.weight", a.qk_nope_head_dim, a.kv_lora_rank, a.n_heads);
  w.w_uv = bind.stack(blk + "attn_v_b.weight", a.kv_lora_rank, a.v_head_dim, a.n_heads);
  w.wo = bind.matrix(blk + "attn_output.weight", a.n_heads * a.v_head_dim, a.dim);
  if (a.has_indexer()) w.indexer = bind_indexer(bind, blk, a);
  w.is_dense = layer < a.n_dense_layers;
  if (w.is_dense)
    w.mlp = bind_mlp(bind, blk, "", a.dim, a.inter_dim);
  else
    w.experts = bind_experts(bind, blk, a, experts);
  return w;
}

}  // namespace

Weights load_weights(const GgufFile& file, const ModelArgs& args, const WeightPlaces& places,
                     const LoadProgress& progress) {
  Loader loader(file);
  Binder bind(file, loader);
  Backend& first = places.backend(0);
  Backend& last = places.backend(args.n_layers - 1);
  Weights weights;
  bind.place_on(first);
  weights.embed = bind.matrix("token_embd.weight", args.dim, args.vocab_size);
  bind.place_on(last);
  weights.norm = bind.vector("output_norm.weight", args.dim);
  weights.head = weights.embed;
  if (bind.has("output.weight"))
    weights.head = bind.matrix("output.weight", args.dim, args.vocab_size);
  else if (&first != &last)
    weights.head = bind.matrix("token_embd.weight", args.dim, args.vocab_size);
  weights.layers.reserve(static_cast<size_t>(args.n_layers));
  for (int64_t layer = 0; layer < args.n_layers; ++layer) {
    bind.place_on(places.backend(layer));
    const uint64_t n_bytes_before = bind.n_bytes_found();
    weights.layers.push_back(bind_layer(bind, layer, args, places.experts(layer)));
    weights.layers.back().n_bytes = bind.n_bytes_found() - n_bytes_before;
  }
  loader.run(progress);
  bind.put_in_bands();
  return weights;
}

Weights load_weights(const GgufFile& file, const ModelArgs& args, Backend& backend) {
  return load_weights(file, args, WeightPlaces{[&](int64_t) -> Backend& { return backend; }});
}

}  // namespace dsv32
