// A tiny model in a directory of its own, which is removed with the object.
#pragma once

#include <string>

#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace dsv32 {

struct TinyFile {
  TempDir dir;
  std::string path = dir.file("tiny.gguf");
  explicit TinyFile(const TinyModel& shape) { write_tiny_model(path, shape); }
};

// Two layers, one of them with experts, and little of everything else: for tests with many short answers.
inline TinyModel least_shape() {
  TinyModel shape;
  shape.n_layers = 2, shape.n_dense_layers = 1, shape.index_topk = 32;
  shape.n_routed_experts = 8, shape.n_heads = 2, shape.inter_dim = 256;
  return shape;
}

// The same with every width as small as it can be: for tests with thousands of answers.
inline TinyModel narrow_shape() {
  TinyModel shape;
  shape.n_layers = 2, shape.n_dense_layers = 1;
  shape.dim = 32, shape.inter_dim = 32, shape.moe_inter_dim = 32;
  shape.n_heads = 1, shape.q_lora_rank = 32, shape.kv_lora_rank = 32;
  shape.qk_nope_head_dim = 32, shape.qk_rope_head_dim = 8, shape.v_head_dim = 32;
  shape.index_n_heads = 1, shape.index_head_dim = 32, shape.index_topk = 32;
  shape.n_routed_experts = 4, shape.n_activated_experts = 2, shape.n_expert_groups = 1;
  shape.n_limited_groups = 1, shape.only_types = {TensorType::f32};
  return shape;
}

}  // namespace dsv32
