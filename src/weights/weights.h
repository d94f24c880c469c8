// The weights: named tensors per layer, each where its backend can use it.
//
// The one table from GGUF names and shapes to the official names is in weights.cpp. A matrix lies in memory
// of its backend, or stays in the mapped file if the backend works in host memory (the GgufFile must outlive
// the Weights); one-dimensional tensors are converted to f32 and owned here. Every shape is checked against
// ModelArgs. A member of a team has some matrices' rows in part (weights/shares.h): shapes below are those of
// whole matrices. Immutable after loading.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "gguf/gguf.h"
#include "weights/config.h"
#include "weights/loader.h"

namespace dsv32 {

struct IndexerWeights {
  WeightMatrix wq_b;           // [index_n_heads * index_head_dim, q_lora_rank], per head rope first
  WeightMatrix wk;             // [index_head_dim, dim]
  WeightMatrix weights_proj;   // [index_n_heads, dim]
  Vector k_norm, k_norm_bias;  // [index_head_dim]
};

struct MlpWeights {
  WeightMatrix w1, w3;  // [inter_dim, dim]  gate, up
  WeightMatrix w2;      // [dim, inter_dim]  down
  Vector scales = {};   // [2], factors of W1 x and of W3 x; absent: 1
};

struct ExpertWeights {
  WeightMatrix gate;  // [n_routed_experts, dim]
  Vector bias;        // [n_routed_experts]
  ExpertStacks routed;
  Vector scales;                   // [n_routed_experts, 2], factors of W1 x and of W3 x; absent: 1
  std::vector<float> host_scales;  // the same, on the host
  Vector output_scales;            // [n_routed_experts], factors of W2's products; absent: 1
  Place place = Place::device;     // of `routed`
  MlpWeights shared;  // inter dimension n_shared_experts * moe_inter_dim; absent when there are none
};

struct LayerWeights {
  Vector attn_norm, q_norm, kv_norm, ffn_norm;
  WeightMatrix wq_a;   // [q_lora_rank, dim]
  WeightMatrix wq_b;   // [n_heads * qk_head_dim, q_lora_rank], per head nope first
  WeightMatrix wkv_a;  // [kv_lora_rank + qk_rope_head_dim, dim]
  WeightMatrix w_uk;   // [n_heads, kv_lora_rank, qk_nope_head_dim]  (attn_k_b, transposed in the file)
  WeightMatrix w_uv;   // [n_heads, v_head_dim, kv_lora_rank]        (attn_v_b)
  WeightMatrix wo;     // [dim, n_heads * v_head_dim]
  IndexerWeights indexer;
  bool is_dense = false;
  MlpWeights mlp;         // when dense
  ExpertWeights experts;  // otherwise
  uint64_t n_bytes = 0;   // of all of the above, as stored
};

// The block for drafts, beside its layer: x = eh_proj [RMSNorm_e(embed(token)); RMSNorm_h(h)]. On the last
// backend; empty without a block.
struct DraftWeights {
  WeightMatrix embed;    // [vocab_size, dim]; the model's own unless the block has one
  WeightMatrix head;     // [vocab_size, dim]; likewise
  WeightMatrix eh_proj;  // [dim, 2 dim]
  Vector enorm, hnorm;   // [dim]
  Vector norm;           // [dim] before the head; the model's own unless the block has one
};

struct Weights {
  WeightMatrix embed;                // [vocab_size, dim]
  WeightMatrix head;                 // [vocab_size, dim]; the embedding again when the file ties them
  Vector norm;                       // [dim]
  std::vector<LayerWeights> layers;  // [n_all_layers]
  DraftWeights draft;
};

// Which backend has a layer's weights, and where its routed experts lie. The embedding goes with the first
// layer, the final norm and the head with the last. A member of a team has all on one backend.
struct WeightPlaces {
  std::function<Backend&(int64_t layer)> backend;
  std::function<Place(int64_t layer)> experts = [](int64_t) { return Place::device; };
  Member member = {};  // whose share of rows it is
};

// The weights of each member of a team, or of one place; the file is read once from its beginning to its end.
// Throws Error{model} naming the tensor that is missing, has a wrong shape or an unsupported type, or belongs
// to a layer but is not read.
std::vector<Weights> load_weights(const GgufFile& file, const ModelArgs& args,
                                  std::span<const WeightPlaces> members, const LoadProgress& progress = {});

}  // namespace dsv32
