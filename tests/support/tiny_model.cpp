// The keys and tensors of a V3.2 file in the converter's order, and the mixture of storage types.
//
// Magnitudes: embeddings and norms of 1 and projections of 1/sqrt(n_cols) keep every activation and the
// residual stream near 1; the head is three times that, so that the distribution over tokens is neither flat
// nor a single spike.
#include "tests/support/tiny_model.h"

#include <cmath>
#include <utility>
#include <vector>

#include "gguf/random_weights.h"
#include "tests/support/tiny_vocabulary.h"

namespace dsv32 {
namespace {

using enum TensorType;

// Storage types that matrices of one kind take in turn. Large matrices get few bits, to keep the file small.
struct TypeCycle {
  std::vector<TensorType> types;
  size_t n_used = 0;
  TensorType next() { return types[n_used++ % types.size()]; }
};

class ModelWriter {
 public:
  explicit ModelWriter(const TinyModel& shape)
      : shape_(shape), rng_(shape.seed), only_types_{shape.only_types} {}

  GgufWriter write() {
    add_general_keys();
    add_attention_keys();
    add_feed_forward_keys();
    add_tokenizer_keys();
    add_matrix("token_embd.weight", attention_types_, {shape_.dim, n_vocab_}, 1.0f);
    add_norm("output_norm.weight", shape_.dim);
    add_matrix("output.weight", output_types_, {shape_.dim, n_vocab_}, 3 / std::sqrt(float(shape_.dim)));
    for (layer_ = 0; layer_ < n_blocks(); ++layer_) add_layer();
    return std::move(writer_);
  }

 private:
  uint32_t n_blocks() const { return shape_.n_layers + shape_.has_mtp; }
  uint32_t head_dim() const { return shape_.qk_nope_head_dim + shape_.qk_rope_head_dim; }
  std::string block(const std::string& name) const { return "blk." + std::to_string(layer_) + "." + name; }

  template <typename T>
  void add_key(const std::string& key, T value) {
    if (shape_.without.count(key)) return;
    if constexpr (std::is_same_v<T, uint32_t>)
      if (const auto found = shape_.replace_u32.find(key); found != shape_.replace_u32.end())
        value = found->second;
    writer_.add(key, value);
  }
  template <typename T>
  void add_shape_key(const std::string& key, T value) {
    add_key(shape_.architecture + "." + key, value);
  }

  void add_tensor(const std::string& name, TensorType type, std::vector<uint64_t> ne, Bytes data) {
    if (!shape_.without.count(name)) writer_.add_tensor(name, type, std::move(ne), std::move(data));
  }
  void add_norm(const std::string& name, uint64_t n) { add_tensor(name, f32, {n}, random_vector(n, 1)); }
  void add_bias(const std::string& name, uint64_t n) { add_tensor(name, f32, {n}, random_vector(n, 0)); }
  Bytes random_vector(uint64_t n, float mean) {
    std::vector<float> values;
    for (uint64_t i = 0; i < n; ++i) values.push_back(mean + 0.1f * rng_.unit());
    const auto* bytes = reinterpret_cast<const uint8_t*>(values.data());
    return {bytes, bytes + n * sizeof(float)};
  }

  TensorType choose_type(const std::string& name, TypeCycle& cycle, uint64_t n_cols) {
    TypeCycle& types = !shape_.only_types.empty()  ? only_types_
                       : layer_ >= shape_.n_layers ? mtp_types_
                                                   : cycle;
    TensorType type = types.next();
    if (const auto found = shape_.types.find(name); found != shape_.types.end()) type = found->second;
    if (n_cols % traits(type).block_values == 0) return type;
    return n_cols % 32 == 0 ? q8_0 : f16;
  }
  // ne = {n_cols, n_rows} or {n_cols, n_rows, n_mats}
  void add_matrix(const std::string& name, TypeCycle& cycle, std::vector<uint64_t> ne, float stddev) {
    const TensorType type = choose_type(name, cycle, ne[0]);
    const uint64_t n_rows = ne[1] * (ne.size() > 2 ? ne[2] : 1);
    Bytes data = random_weights(type, n_rows, ne[0], rng_, stddev);
    add_tensor(name, type, std::move(ne), std::move(data));
  }
  // The usual magnitude: outputs as large as inputs.
  void add_matrix(const std::string& name, TypeCycle& cycle, std::vector<uint64_t> ne) {
    const float stddev = 1 / std::sqrt(static_cast<float>(ne[0]));
    add_matrix(name, cycle, std::move(ne), stddev);
  }

  void add_general_keys();
  void add_attention_keys();
  void add_feed_forward_keys();
  void add_tokenizer_keys();
  void add_layer();
  void add_attention();
  void add_indexer();
  void add_dense_mlp();
  void add_experts();
  void add_fused_gate_up();
  void add_mtp();

  const TinyModel& shape_;
  Rng rng_;
  GgufWriter writer_;
  uint32_t layer_ = 0;
  uint64_t n_vocab_ = 0;
  TypeCycle only_types_;
  TypeCycle small_types_{{bf16, f16, q8_0, f32, bf16, f16, f32}};
  TypeCycle attention_types_{{q8_0, q4_k, q6_k, q5_0, q5_k, q4_0, iq4_xs, q5_1, q3_k, iq4_nl, q2_k}};
  TypeCycle head_types_{{q5_0, q5_1, q8_0, q4_0, iq4_nl}};  // blocks of 32 values: the rows have 128
  TypeCycle expert_types_{{iq2_xxs, q2_k, iq3_xxs, q3_k, q4_k, iq4_xs, q2_k}};
  TypeCycle output_types_{{q6_k}};
  TypeCycle mtp_types_{{q4_k, iq4_xs, q5_0}};  // with fewer bits there is a warning
};

void ModelWriter::add_general_keys() {
  add_key("general.architecture", shape_.architecture.c_str());
  add_key("general.type", "model");
  add_key("general.name", "tiny random DeepSeek-V3.2");
  add_key("general.file_type", uint32_t{15});
  add_key("general.quantization_version", uint32_t{2});
  add_shape_key("block_count", n_blocks());
  if (shape_.has_mtp) add_shape_key("nextn_predict_layers", uint32_t{1});
  add_shape_key("context_length", shape_.context_length);
  add_shape_key("embedding_length", shape_.dim);
  add_shape_key("feed_forward_length", shape_.inter_dim);
}

void ModelWriter::add_attention_keys() {
  add_shape_key("attention.head_count", shape_.n_heads);
  add_shape_key("attention.head_count_kv", uint32_t{1});
  add_shape_key("attention.key_length", shape_.kv_lora_rank + shape_.qk_rope_head_dim);
  add_shape_key("attention.value_length", shape_.kv_lora_rank);
  add_shape_key("attention.key_length_mla", head_dim());
  add_shape_key("attention.value_length_mla", shape_.v_head_dim);
  add_shape_key("attention.q_lora_rank", shape_.q_lora_rank);
  add_shape_key("attention.kv_lora_rank", shape_.kv_lora_rank);
  add_shape_key("attention.layer_norm_rms_epsilon", 1e-6f);
  if (shape_.has_indexer) {
    add_shape_key("attention.indexer.head_count", shape_.index_n_heads);
    add_shape_key("attention.indexer.key_length", shape_.index_head_dim);
    add_shape_key("attention.indexer.top_k", shape_.index_topk);
  }
  add_shape_key("rope.dimension_count", shape_.qk_rope_head_dim);
  add_shape_key("rope.freq_base", 10000.0f);
  add_shape_key("rope.scaling.type", "yarn");
  add_shape_key("rope.scaling.factor", 40.0f);
  add_shape_key("rope.scaling.original_context_length", shape_.original_seq_len);
  add_shape_key("rope.scaling.yarn_log_multiplier", 0.1f);
  add_shape_key("rope.scaling.yarn_beta_fast", 32.0f);
  add_shape_key("rope.scaling.yarn_beta_slow", 1.0f);
}

void ModelWriter::add_feed_forward_keys() {
  add_shape_key("leading_dense_block_count", shape_.n_dense_layers);
  add_shape_key("expert_count", shape_.n_routed_experts);
  add_shape_key("expert_used_count", shape_.n_activated_experts);
  add_shape_key("expert_shared_count", shape_.n_shared_experts);
  add_shape_key("expert_feed_forward_length", shape_.moe_inter_dim);
  add_shape_key("expert_group_count", shape_.n_expert_groups);
  add_shape_key("expert_group_used_count", shape_.n_limited_groups);
  add_shape_key("expert_gating_func", uint32_t{2});
  add_shape_key("expert_weights_scale", 2.5f);
  add_shape_key("expert_weights_norm", true);
}

void ModelWriter::add_tokenizer_keys() {
  const TinyVocabulary vocabulary = tiny_vocabulary();
  n_vocab_ = vocabulary.tokens.size();
  add_shape_key("vocab_size", static_cast<uint32_t>(n_vocab_));
  add_key("tokenizer.ggml.model", "gpt2");
  add_key("tokenizer.ggml.pre", "deepseek-v3");
  const auto add_array = [&](const std::string& key, const auto& values) {
    if (!shape_.without.count(key)) writer_.add_array(key, values);
  };
  add_array("tokenizer.ggml.tokens", vocabulary.tokens);
  add_array("tokenizer.ggml.token_type", vocabulary.types);
  add_array("tokenizer.ggml.merges", vocabulary.merges);
  add_key("tokenizer.ggml.bos_token_id", vocabulary.bos_id);
  add_key("tokenizer.ggml.eos_token_id", vocabulary.eos_id);
  add_key("tokenizer.ggml.padding_token_id", vocabulary.pad_id);
  add_key("tokenizer.ggml.add_bos_token", true);
  add_key("tokenizer.ggml.add_eos_token", false);
}

void ModelWriter::add_layer() {
  add_norm(block("attn_norm.weight"), shape_.dim);
  add_attention();
  if (shape_.has_indexer) add_indexer();
  add_norm(block("ffn_norm.weight"), shape_.dim);
  if (layer_ < shape_.n_dense_layers)
    add_dense_mlp();
  else
    add_experts();
  if (layer_ >= shape_.n_layers) add_mtp();
}

void ModelWriter::add_attention() {
  const uint64_t dim = shape_.dim, q_rank = shape_.q_lora_rank, kv_rank = shape_.kv_lora_rank,
                 n_heads = shape_.n_heads;
  add_matrix(block("attn_q_a.weight"), small_types_, {dim, q_rank});
  add_norm(block("attn_q_a_norm.weight"), q_rank);
  add_matrix(block("attn_q_b.weight"), attention_types_, {q_rank, n_heads * head_dim()});
  add_matrix(block("attn_kv_a_mqa.weight"), attention_types_, {dim, kv_rank + shape_.qk_rope_head_dim});
  add_norm(block("attn_kv_a_norm.weight"), kv_rank);
  // Stored transposed: as a projection of the latent its input has kv_rank values, which sets its magnitude.
  add_matrix(block("attn_k_b.weight"), head_types_, {shape_.qk_nope_head_dim, kv_rank, n_heads},
             1 / std::sqrt(static_cast<float>(kv_rank)));
  add_matrix(block("attn_v_b.weight"), attention_types_, {kv_rank, shape_.v_head_dim, n_heads});
  add_matrix(block("attn_output.weight"), attention_types_, {n_heads * shape_.v_head_dim, dim});
}

void ModelWriter::add_indexer() {
  add_norm(block("indexer.k_norm.weight"), shape_.index_head_dim);
  add_bias(block("indexer.k_norm.bias"), shape_.index_head_dim);
  add_matrix(block("indexer.proj.weight"), small_types_, {shape_.dim, shape_.index_n_heads});
  add_matrix(block("indexer.attn_k.weight"), small_types_, {shape_.dim, shape_.index_head_dim});
  add_matrix(block("indexer.attn_q_b.weight"), attention_types_,
             {shape_.q_lora_rank, uint64_t{shape_.index_n_heads} * shape_.index_head_dim});
}

void ModelWriter::add_dense_mlp() {
  add_matrix(block("ffn_gate.weight"), attention_types_, {shape_.dim, shape_.inter_dim});
  add_matrix(block("ffn_down.weight"), attention_types_, {shape_.inter_dim, shape_.dim});
  add_matrix(block("ffn_up.weight"), attention_types_, {shape_.dim, shape_.inter_dim});
}

void ModelWriter::add_experts() {
  const uint64_t dim = shape_.dim, inter = shape_.moe_inter_dim, n_experts = shape_.n_routed_experts;
  add_tensor(block("ffn_gate_inp.weight"), f32, {dim, n_experts},
             random_weights(f32, n_experts, dim, rng_, 2 / std::sqrt(static_cast<float>(dim))));
  add_bias(block("exp_probs_b.bias"), n_experts);
  if (shape_.fuse_gate_up) {
    add_fused_gate_up();
  } else {
    add_matrix(block("ffn_gate_exps.weight"), expert_types_, {dim, inter, n_experts});
    add_matrix(block("ffn_up_exps.weight"), expert_types_, {dim, inter, n_experts});
  }
  add_matrix(block("ffn_down_exps.weight"), expert_types_, {inter, dim, n_experts});
  if (shape_.n_shared_experts == 0) return;
  const uint64_t shared = inter * shape_.n_shared_experts;
  add_matrix(block("ffn_gate_shexp.weight"), attention_types_, {dim, shared});
  add_matrix(block("ffn_up_shexp.weight"), attention_types_, {dim, shared});
  add_matrix(block("ffn_down_shexp.weight"), attention_types_, {shared, dim});
}

// The same weights as two tensors would have: for each expert the rows of its gate, then those of its up
// projection.
void ModelWriter::add_fused_gate_up() {
  const uint64_t dim = shape_.dim, n_experts = shape_.n_routed_experts;
  const std::string name = block("ffn_gate_up_exps.weight");
  const TensorType type = choose_type(name, expert_types_, dim);
  const float stddev = 1 / std::sqrt(static_cast<float>(dim));
  const Bytes gate = random_weights(type, shape_.moe_inter_dim * n_experts, dim, rng_, stddev);
  const Bytes up = random_weights(type, shape_.moe_inter_dim * n_experts, dim, rng_, stddev);
  const int64_t n_bytes = static_cast<int64_t>(gate.size() / n_experts);
  Bytes fused;
  for (int64_t at = 0; at < static_cast<int64_t>(gate.size()); at += n_bytes) {
    fused.insert(fused.end(), gate.begin() + at, gate.begin() + at + n_bytes);
    fused.insert(fused.end(), up.begin() + at, up.begin() + at + n_bytes);
  }
  add_tensor(name, type, {dim, 2 * shape_.moe_inter_dim, n_experts}, std::move(fused));
}

void ModelWriter::add_mtp() {
  add_matrix(block("nextn.eh_proj.weight"), attention_types_, {2 * uint64_t{shape_.dim}, shape_.dim});
  add_norm(block("nextn.enorm.weight"), shape_.dim);
  add_norm(block("nextn.hnorm.weight"), shape_.dim);
  if (shape_.has_mtp_embed)
    add_matrix(block("nextn.embed_tokens.weight"), attention_types_, {shape_.dim, n_vocab_}, 1.0f);
  if (shape_.has_mtp_head)
    add_matrix(block("nextn.shared_head_head.weight"), output_types_, {shape_.dim, n_vocab_},
               3 / std::sqrt(float(shape_.dim)));
  if (shape_.has_mtp_norm) add_norm(block("nextn.shared_head_norm.weight"), shape_.dim);
}

}  // namespace

GgufWriter tiny_model(const TinyModel& shape) { return ModelWriter(shape).write(); }

void write_tiny_model(const std::string& path, const TinyModel& shape) { tiny_model(shape).write(path); }

}  // namespace dsv32
