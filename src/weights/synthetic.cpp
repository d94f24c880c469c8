#include "weights/synthetic.h"

#include <cmath>
#include <cstring>
#include <memory>

#include "base/error.h"
#include "base/worker_pool.h"
#include "gguf/random_weights.h"

namespace dsv32 {
namespace {

// Of a pattern, and a block behind them, so that rows begin at all of its blocks: few rows are alike, and so
// few logits. Prime, so that no two neighbouring matrices begin alike.
constexpr int64_t kPatternRows = 61;

// Without places it makes no values.
class Maker {
 public:
  Maker(const ModelArgs& args, const SyntheticTypes& types, const WeightPlaces* places)
      : args_(args), types_(types), places_(places) {}

  Weights make() {
    Weights weights;
    place_on(0);
    weights.embed = matrix(args_.vocab_size, args_.dim, MatrixRole::embedding, 1);
    place_on(args_.n_layers - 1);
    weights.head = matrix(args_.vocab_size, args_.dim, MatrixRole::head);
    weights.norm = vector(args_.dim, 1);
    for (int64_t layer = 0; layer < args_.n_layers; ++layer) {
      place_on(layer);
      const uint64_t n_bytes_before = n_bytes_;
      weights.layers.push_back(make_layer(layer));
      weights.layers.back().n_bytes = n_bytes_ - n_bytes_before;
    }
    return weights;
  }

 private:
  void place_on(int64_t layer) {
    layer_ = layer;
    if (places_) backend_ = &places_->backend(layer);
  }

  LayerWeights make_layer(int64_t layer) {
    const ModelArgs& a = args_;
    LayerWeights w;
    w.attn_norm = vector(a.dim, 1), w.ffn_norm = vector(a.dim, 1);
    w.q_norm = vector(a.q_lora_rank, 1), w.kv_norm = vector(a.kv_lora_rank, 1);
    w.wq_a = matrix(a.q_lora_rank, a.dim);
    w.wq_b = matrix(a.n_heads * a.qk_head_dim(), a.q_lora_rank);
    w.wkv_a = matrix(a.kv_lora_rank + a.qk_rope_head_dim, a.dim);
    w.w_uk = stack(heads_type(a.qk_nope_head_dim), a.n_heads, a.kv_lora_rank, a.qk_nope_head_dim);
    w.w_uv = stack(heads_type(a.kv_lora_rank), a.n_heads, a.v_head_dim, a.kv_lora_rank);
    w.wo = matrix(a.dim, a.n_heads * a.v_head_dim, MatrixRole::attn_output);
    w.indexer.wq_b = matrix(a.index_n_heads * a.index_head_dim, a.q_lora_rank);
    w.indexer.wk = matrix(a.index_head_dim, a.dim);
    const TensorType proj = types_.mix ? type_of(MatrixRole::other, a.dim) : TensorType::f32;
    w.indexer.weights_proj = stack(proj, 1, a.index_n_heads, a.dim);
    w.indexer.k_norm = vector(a.index_head_dim, 1), w.indexer.k_norm_bias = vector(a.index_head_dim, 0);
    w.is_dense = layer < a.n_dense_layers;
    if (w.is_dense)
      w.mlp = mlp(a.inter_dim);
    else
      w.experts = experts(places_ ? places_->experts(layer) : Place::device);
    return w;
  }

  MlpWeights mlp(int64_t inter_dim) {
    return {matrix(inter_dim, args_.dim, MatrixRole::gate_or_up),
            matrix(inter_dim, args_.dim, MatrixRole::gate_or_up),
            matrix(args_.dim, inter_dim, MatrixRole::down)};
  }

  ExpertWeights experts(Place place) {
    const ModelArgs& a = args_;
    ExpertWeights w;
    w.gate = stack(TensorType::f32, 1, a.n_routed_experts, a.dim);
    w.bias = vector(a.n_routed_experts, 0);
    w.place = place_ = place;
    const TensorType in = type_of(MatrixRole::gate_or_up, a.dim);
    w.routed.w1 = stack(in, a.n_routed_experts, a.moe_inter_dim, a.dim);
    w.routed.w3 = stack(in, a.n_routed_experts, a.moe_inter_dim, a.dim);
    w.routed.w2 =
        stack(type_of(MatrixRole::down, a.moe_inter_dim), a.n_routed_experts, a.dim, a.moe_inter_dim);
    place_ = Place::device;
    w.shared = mlp(a.n_shared_experts * a.moe_inter_dim);
    return w;
  }

  TensorType type_of(MatrixRole role, int64_t n_cols) const {
    return types_.mix ? type_in(*types_.mix, role, layer_, args_.n_layers, n_cols) : types_.matrices;
  }

  TensorType heads_type(int64_t n_cols) const {
    return types_.mix ? type_of(MatrixRole::other, n_cols) : types_.heads;
  }

  WeightMatrix matrix(int64_t n_rows, int64_t n_cols, MatrixRole role = MatrixRole::other,
                      float magnitude = 0) {
    return stack(type_of(role, n_cols), 1, n_rows, n_cols, magnitude);
  }

  // Outputs as large as inputs, unless a magnitude is named.
  WeightMatrix stack(TensorType type, int64_t n_mats, int64_t n_rows, int64_t n_cols, float magnitude = 0) {
    if (n_cols % traits(type).block_values != 0)
      fail(ErrorKind::usage, format("rows of %lld values are no whole blocks of %s",
                                    static_cast<long long>(n_cols), type_name(type)));
    WeightMatrix m{nullptr, type, n_rows, n_cols, n_mats, row_bytes(type, n_cols), 0};
    m.mat_bytes = m.row_bytes * static_cast<size_t>(n_rows);
    const int64_t n_all_rows = n_mats * n_rows;
    const size_t n_bytes = m.row_bytes * static_cast<size_t>(n_all_rows);
    n_bytes_ += n_bytes;
    if (!backend_) return m;
    const float stddev = magnitude > 0 ? magnitude : 1 / std::sqrt(static_cast<float>(n_cols));
    std::vector<uint8_t> pattern =
        random_weights(type, kPatternRows, static_cast<uint64_t>(n_cols), rng_, stddev);
    const std::vector<uint8_t> block(pattern.begin(), pattern.begin() + traits(type).block_bytes);
    pattern.insert(pattern.end(), block.begin(), block.end());
    uint8_t* to = backend_->alloc_weights(place_, n_bytes, m.mat_bytes);
    fill(to, n_bytes, pattern);
    m.data = to;
    if (place_ == Place::device && backend_->keeps_bands())
      m.step_bytes = band_step_bytes(type, n_rows, n_cols);
    if (m.step_bytes > 0) backend_->put_in_bands(m);
    return m;
  }

  void fill(uint8_t* to, size_t n_bytes, const std::vector<uint8_t>& pattern) {
    if (place_ == Place::host) backend_->await_weights(to);
    if (place_ == Place::host || backend_->works_in_host_memory()) return repeat(to, n_bytes, pattern);
    const std::span<uint8_t> staging = backend_->staging();
    backend_->download(nullptr, nullptr, 0);  // nothing is read there any more
    const size_t n_staged = std::min(staging.size() / pattern.size() * pattern.size(), n_bytes);
    repeat(staging.data(), n_staged, pattern);
    for (size_t at = 0; at < n_bytes; at += n_staged)
      backend_->upload(to + at, staging.data(), std::min(n_staged, n_bytes - at));
  }

  void repeat(uint8_t* to, size_t n_bytes, const std::vector<uint8_t>& pattern) {
    const size_t n = pattern.size();
    workers_.parallel_for(static_cast<int64_t>((n_bytes + n - 1) / n), true, [&](int64_t i) {
      const size_t at = static_cast<size_t>(i) * n;
      std::memcpy(to + at, pattern.data(), std::min(n, n_bytes - at));
    });
  }

  Vector vector(int64_t n, float value) {
    n_bytes_ += static_cast<uint64_t>(n) * sizeof(float);
    if (!backend_) return {};
    const std::vector<float> values(static_cast<size_t>(n), value);
    Vector placed(*backend_, Place::device, n, "synthetic weights");
    backend_->upload(placed.data(), values.data(), placed.n_bytes());
    return placed;
  }

  const ModelArgs& args_;
  const SyntheticTypes& types_;
  const WeightPlaces* places_;
  int64_t layer_ = 0;
  Backend* backend_ = nullptr;
  Place place_ = Place::device;
  Rng rng_{1};
  WorkerPool workers_{0};
  uint64_t n_bytes_ = 0;
};

}  // namespace

ModelArgs full_size_args(int64_t n_layers, int64_t n_dense) {
  ModelArgs a;
  a.architecture = "deepseek32";
  a.vocab_size = 129280, a.dim = 7168, a.inter_dim = 18432, a.moe_inter_dim = 2048;
  a.n_layers = n_layers, a.n_dense_layers = n_dense, a.n_heads = 128;
  a.n_routed_experts = 256, a.n_shared_experts = 1, a.n_activated_experts = 8;
  a.n_expert_groups = 8, a.n_limited_groups = 4, a.route_scale = 2.5f;
  a.q_lora_rank = 1536, a.kv_lora_rank = 512;
  a.qk_nope_head_dim = 128, a.qk_rope_head_dim = 64, a.v_head_dim = 128;
  a.index_n_heads = 64, a.index_head_dim = 128, a.index_topk = 2048;
  a.rope_factor = 40, a.original_seq_len = 4096, a.mscale = 1;
  a.max_seq_len = 1 << 20;
  return a;
}

Weights synthetic_weights(const ModelArgs& args, const SyntheticTypes& types, const WeightPlaces& places) {
  return Maker(args, types, &places).make();
}

Weights synthetic_shapes(const ModelArgs& args, const SyntheticTypes& types) {
  return Maker(args, types, nullptr).make();
}

}  // namespace dsv32
