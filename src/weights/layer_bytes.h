// The bytes of a model's weights, layer by layer, and how many of them a decode token reads. Placement
// decides by these numbers; they are exactly what will be placed.
#pragma once

#include <cstdint>
#include <vector>

#include "gguf/quant.h"

namespace dsv32 {

class GgufFile;
struct ModelArgs;
struct SyntheticTypes;
struct Weights;

struct LayerBytes {
  uint64_t core = 0;          // attention, indexer, dense or shared MLP, router
  uint64_t experts = 0;       // the routed ones; 0: a dense layer
  uint64_t experts_read = 0;  // of the experts that a token chooses
  uint64_t link_read = 0;     // of these, what crosses the link if the host has the experts
  uint64_t link_window = 0;   // device memory for a round of it (backend/link_share.h)
  // The block for drafts. Its experts, which no prompt needs, stay on the device and are part of `core`; a
  // step without guesses does not read it.
  bool is_draft = false;
  uint64_t divided = 0;  // of `core`, what a team divides (weights/shares.h); experts it divides always
  // Of `core`, matrices of attention's heads, which each member has whole; and what it does not read of them
  // in an answer: the other members' heads.
  uint64_t heads = 0, heads_unread = 0;

  uint64_t core_read() const { return is_draft ? 0 : core - heads_unread; }
};

struct ModelBytes {
  std::vector<LayerBytes> layers;              // [n_all_layers]
  uint64_t embedding = 0, embedding_read = 0;  // with the first layer
  uint64_t head = 0;                           // with the last layer; read whole
  uint64_t tied = 0;                           // of the head, what lies in the embedding on the same device
  uint64_t draft = 0;                          // of the block for drafts, beside its layer
  uint64_t draft_embedding = 0;                // with it, unless its device has the embedding
  TensorType format = TensorType::f32;         // of most weights that a token reads
  // What a team divides of `head` and `draft` if it divides the rows of a head, which are vocab_size.
  uint64_t head_divided = 0, draft_divided = 0;
  int64_t vocab_size = 0;
};

ModelBytes without_draft(ModelBytes bytes);
// What each of n_members has and reads. No experts of a team lie in host memory, so nothing crosses the link.
// 1: a device alone.
ModelBytes share_of(const ModelBytes& whole, int64_t n_members);
// On a single device.
uint64_t total_bytes(const ModelBytes& bytes);
uint64_t core_bytes(const ModelBytes& bytes);  // without the routed experts
bool has_experts(const ModelBytes& bytes);

// The matrices' data may be null.
ModelBytes model_bytes(const Weights& weights, const ModelArgs& args);
// Throws as load_weights does; places nothing.
ModelBytes model_bytes(const GgufFile& file, const ModelArgs& args);
// Throws as synthetic_weights does.
ModelBytes model_bytes(const ModelArgs& args, const SyntheticTypes& types);

}  // namespace dsv32
