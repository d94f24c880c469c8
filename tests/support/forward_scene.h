// A forward pass on a backend that may have others, with one sequence that holds a prompt longer than top-k;
// and selections that tests force on its steps.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/forward.h"
#include "tests/support/load_weights.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"
#include "tests/support/tiny_sequence.h"

namespace dsv32 {

struct ForwardScene {
  static constexpr int64_t kTopk = 64, kPrompt = 120, kContext = 256;

  TempDir dir;
  GgufFile file{write_model(dir)};
  Backend& backend;
  const ModelArgs args = read_model_args(file).without_draft();
  const Weights weights = load_weights(file, args, backend);
  const StageLayers stage{&backend, args.n_layers};
  LatentCache cache;
  std::unique_ptr<Forward> forward;
  std::unique_ptr<CachedSequence> sequence;

  explicit ForwardScene(Backend& backend_, int64_t buffer_rows = 0)
      : backend(backend_),
        cache({&stage, 1}, plan(buffer_rows)),
        forward(std::make_unique<Forward>(std::span(&stage, 1), args, std::span(&weights, 1), cache,
                                          StageSizes{kPrompt, kContext})),
        sequence(cache.open()) {
    run(random_tokens(kPrompt, 1), Role::prefill);
  }
  CachePlan plan(int64_t buffer_rows) const {
    CachePlan plan;
    plan.layout = {KvType::fp8, args.kv_lora_rank, args.qk_rope_head_dim, args.index_head_dim};
    plan.is_apart = !backend.works_in_host_memory(), plan.n_layers = args.n_layers;
    plan.pool_tokens = plan.max_context = kContext, plan.buffer_rows = buffer_rows;
    return plan;
  }
  ~ForwardScene() { cache.close(*sequence); }

  static std::string write_model(const TempDir& dir) {
    TinyModel shape;
    shape.n_layers = 2, shape.n_dense_layers = 1, shape.index_topk = kTopk;
    write_tiny_model(dir.file("tiny.gguf"), shape);
    return dir.file("tiny.gguf");
  }

  // Appends tokens; returns the logits after the last, [vocab_size].
  std::vector<float> run(const std::vector<int32_t>& tokens, Role role) {
    forward->run({role, {sequence.get()}, tokens, 1});
    return forward->logits();
  }
  std::vector<float> step(int32_t token) { return run({token}, Role::decode); }

  // Logits of the same step with each of these selections [n_layers, kTopk]; null: the indexer's.
  std::vector<std::vector<float>> logits_by_selection(const std::vector<const int32_t*>& selections) {
    std::vector<std::vector<float>> all;
    for (const int32_t* selection : selections) {
      forward->set_forced(0, {selection, nullptr, 1});
      all.push_back(step(7));
      cache.truncate(*sequence, kPrompt);
    }
    forward->set_forced(0, {});
    return all;
  }
};

// A selection of the kTopk positions from `first` on, for every layer.
class ForcedPositions {
 public:
  ForcedPositions(const ForwardScene& scene, int32_t first)
      : positions_(scene.backend, Place::device, scene.args.n_layers * ForwardScene::kTopk, "a selection") {
    std::vector<int32_t> all;
    for (int64_t layer = 0; layer < scene.args.n_layers; ++layer)
      for (int32_t i = 0; i < ForwardScene::kTopk; ++i) all.push_back(first + i);
    scene.backend.upload(positions_.data(), all.data(), positions_.n_bytes());
  }
  const int32_t* data() const { return positions_.data(); }

 private:
  Buffer<int32_t> positions_;
};

}  // namespace dsv32
