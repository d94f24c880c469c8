#include "weights/synthetic.h"

#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/worker_pool.h"
#include "gguf/random_weights.h"
#include "weights/layer_bytes.h"
#include "weights/weight_source.h"

namespace dsv32 {
namespace {

// Rows of a pattern. One more block follows them, so that the rows of a matrix begin at different blocks of
// the pattern: few rows are equal, and so few logits. Prime, so that neighbouring matrices begin differently.
constexpr int64_t kPatternRows = 61;

class RandomWeights : public WeightSource {
 public:
  RandomWeights(const ModelArgs& args, const SyntheticTypes& types, bool is_real)
      : WeightSource(is_real), n_layers_(args.n_all_layers()), types_(types) {}

  // Gate and up are separate tensors, a block for drafts has the model's embedding and head; there are no
  // factors.
  bool has(const std::string& name) const override {
    return name.find("gate_up") == name.npos && !name.ends_with("embed_tokens.weight") &&
           !name.ends_with("shared_head_head.weight");
  }
  std::vector<float> scales(const std::string&, int64_t) override { return {}; }

  // The deviation makes outputs as large as inputs, and embeddings of magnitude 1.
  WeightMatrix stored(const std::string& name, int64_t n_cols, StoredRows stored, int64_t n_mats,
                      Rows rows) override {
    const TensorType type = type_of(name, n_cols);
    if (n_cols % traits(type).block_values != 0)
      fail(ErrorKind::usage,
           format("rows of %lld values are no whole blocks of %s", as_ll(n_cols), type_name(type)));
    WeightMatrix m = view(shaped(nullptr, type, stored.n, n_cols, n_mats), rows);
    n_bytes_ += n_bytes_of(m);
    if (!is_real_) return m;
    const float stddev = name == "token_embd.weight" ? 1.0f : 1 / std::sqrt(static_cast<float>(n_cols));
    std::vector<uint8_t> pattern =
        random_weights(type, kPatternRows, static_cast<uint64_t>(n_cols), rng_, stddev);
    const std::vector<uint8_t> block(pattern.begin(), pattern.begin() + traits(type).block_bytes);
    pattern.insert(pattern.end(), block.begin(), block.end());
    fill(alloc_rows(m), m, pattern);
    if (m.step_bytes > 0) backend_->put_in_bands(m);
    return m;
  }
  WeightMatrix stack(const std::string& name, int64_t n_cols, StoredRows stored, int64_t n_mats,
                     Rows rows) override {
    return this->stored(name, n_cols, stored, n_mats, rows);
  }
  WeightMatrix transposed(const std::string&, int64_t, StoredRows, int64_t) override {
    fail(ErrorKind::internal, "synthetic weights have no attn_kv_b");
  }
  Vector vector(const std::string& name, int64_t n) override {
    return placed(std::vector<float>(static_cast<size_t>(n), name.ends_with(".bias") ? 0.0f : 1.0f),
                  "synthetic weights");
  }

 private:
  static MatrixRole role_of(std::string_view name) {
    const auto is = [&](const char* part) { return name.find(part) != name.npos; };
    if (is("token_embd")) return MatrixRole::embedding;
    if (name.starts_with("output")) return MatrixRole::head;
    if (is("attn_output")) return MatrixRole::attn_output;
    if (is("ffn_gate") || is("ffn_up")) return MatrixRole::gate_or_up;
    return is("ffn_down") ? MatrixRole::down : MatrixRole::other;
  }

  TensorType type_of(const std::string& name, int64_t n_cols) const {
    const auto ends = [&](const char* end) { return name.ends_with(end); };
    if (ends(".ffn_gate_inp.weight")) return TensorType::f32;
    if (types_.mix)
      return type_in(*types_.mix, role_of(name), std::max<int64_t>(block_of(name), 0), n_layers_, n_cols);
    if (ends(".indexer.proj.weight")) return TensorType::f32;
    return ends(".attn_k_b.weight") || ends(".attn_v_b.weight") ? types_.heads : types_.matrices;
  }

  // The bytes of a matrix, and where they begin in the repeated pattern.
  struct Stretch {
    uint8_t* to;
    size_t n_bytes;
    size_t first;
  };

  void fill(uint8_t* to, const WeightMatrix& m, const std::vector<uint8_t>& pattern) {
    if (place_ == Place::host) backend_->await_weights(to);
    const bool is_here = place_ == Place::host || backend_->works_in_host_memory();
    const std::span<const uint8_t> staged = is_here ? std::span<const uint8_t>() : stage(m, pattern);
    const int64_t first_row = m.n_whole_rows > 0 ? member_.begin(m.n_whole_rows) : 0;
    for (int64_t mat = 0; mat < m.n_mats; ++mat, to += m.mat_bytes) {
      const auto row = static_cast<size_t>(mat * m.whole_rows() + first_row);
      const Stretch stretch{to, m.mat_bytes, row * m.row_bytes};
      is_here ? repeat(stretch, pattern) : upload(stretch, staged, pattern.size());
    }
  }

  // Repeats the pattern in staging memory as often as the matrix needs it and there is room.
  std::span<const uint8_t> stage(const WeightMatrix& m, const std::vector<uint8_t>& pattern) {
    const std::span<uint8_t> staging = backend_->staging();
    backend_->download(nullptr, nullptr, 0);  // waits until no upload reads the staging memory
    const size_t n_most = std::min(staging.size(), n_bytes_of(m) + pattern.size());
    const size_t n_staged = n_most / pattern.size() * pattern.size();
    repeat({staging.data(), n_staged, 0}, pattern);
    return staging.first(n_staged);
  }

  // `staged` is the repeated pattern, of n_pattern bytes.
  void upload(const Stretch& stretch, std::span<const uint8_t> staged, size_t n_pattern) {
    for (size_t at = 0, n = 0; at < stretch.n_bytes; at += n) {
      const std::span<const uint8_t> from = staged.subspan((stretch.first + at) % n_pattern);
      n = std::min(from.size(), stretch.n_bytes - at);
      backend_->upload(stretch.to + at, from.data(), n);
    }
  }

  void repeat(const Stretch& stretch, const std::vector<uint8_t>& pattern) {
    const size_t n = pattern.size(), n_skipped = stretch.first % n;
    const size_t n_end = n_skipped + stretch.n_bytes;
    workers_.parallel_for(static_cast<int64_t>((n_end + n - 1) / n), true, [&](int64_t i) {
      const size_t first = static_cast<size_t>(i) * n, from = std::max(first, n_skipped);
      std::memcpy(stretch.to + (from - n_skipped), pattern.data() + (from - first),
                  std::min(first + n, n_end) - from);
    });
  }

  const int64_t n_layers_;
  const SyntheticTypes& types_;
  Rng rng_{1};
  WorkerPool workers_{0};
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
  RandomWeights source(args, types, true);
  return bind_weights(source, args, places);
}

ModelBytes model_bytes(const ModelArgs& args, const SyntheticTypes& types) {
  RandomWeights source(args, types, false);
  return model_bytes(bind_shapes(source, args), args);
}

}  // namespace dsv32
