// A loaded model: the file, its dimensions and weights, the backend and the cache. Sessions run on it.
//
// Owns everything below it; construction does all the checks and none of the computing. Weights are used
// where the file is mapped. One thread at a time.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "context/latent_cache.h"
#include "engine/plan.h"
#include "gguf/gguf.h"
#include "model/forward.h"
#include "prefix/prefix_cache.h"
#include "weights/weights.h"

namespace dsv32 {

class Loop;

class Engine {
 public:
  // Called when prefixes can be read and weights are not there yet, if prefixes are remembered at all.
  using BeforeWeights = std::function<void(PrefixCache&)>;
  // Throws Error{model} for the file, Error{usage} for options that do not fit it, Error{memory}.
  Engine(const GgufFile& file, const EngineOptions& options, const BeforeWeights& before_weights = {});
  // The same on this backend, whatever the options name.
  Engine(std::unique_ptr<Backend> backend, const GgufFile& file, const EngineOptions& options,
         const BeforeWeights& before_weights = {});
  // A model of these dimensions whose weights, so many bytes, `load` makes; `identify` names what decides the
  // bytes of a page, on that backend.
  using LoadWeights = std::function<Weights(const ModelArgs& args, Backend& backend)>;
  using Identify = std::function<PrefixCache::Identity(const CacheLayout& layout, const Backend& backend)>;
  Engine(const ModelArgs& args, uint64_t n_weight_bytes, const LoadWeights& load,
         const EngineOptions& options, const Identify& identify = {},
         const BeforeWeights& before_weights = {});

  ~Engine();

  const ModelArgs& args() const { return args_; }
  const char* backend_name() const { return backend_->name(); }
  Backend& backend() { return *backend_; }
  const Weights& weights() const { return weights_; }
  const MemoryPlan& plan() const { return plan_; }
  // Things a user should hear once, such as "runs dense".
  const std::vector<std::string>& warnings() const { return warnings_; }
  Forward& forward() { return *forward_; }
  LatentCache& cache() { return *cache_; }
  Loop& loop() { return *loop_; }
  PrefixCache* prefix_cache() { return prefix_cache_.get(); }  // null: prefixes are not remembered

 private:
  Engine(std::unique_ptr<Backend> backend, const ModelArgs& args, uint64_t n_weight_bytes,
         const LoadWeights& load, const EngineOptions& options, const Identify& identify,
         const BeforeWeights& before_weights);

  ModelArgs args_;
  std::shared_ptr<Backend> backend_;
  std::vector<StageLayers> stages_;
  MemoryPlan plan_;
  std::shared_ptr<LatentCache> cache_;  // before the weights: its host memory is pinned while they load
  std::unique_ptr<PrefixCache> prefix_cache_;
  Weights weights_;
  std::vector<std::string> warnings_;
  std::unique_ptr<Forward> forward_;
  std::unique_ptr<Loop> loop_;
};

// What a plan of that backend is made for, with so many bytes of weights or those of that file.
Machine machine_of(const Backend& backend, uint64_t n_weight_bytes);
Machine machine_of(const Backend& backend, const GgufFile& file);

// The plan of that file on that backend, without placing anything. Throws as Engine does.
MemoryPlan plan_file(const GgufFile& file, const EngineOptions& options, const Backend& backend);

// Why this build, which has CUDA, cannot use the GPU; empty when it can, and of a build without.
std::string why_no_gpu(const EngineOptions& options);

// The backend that the options name: "cpu", "cuda", or "auto", the GPU if this build and this machine have
// one. Throws Error{usage} for another name or one that this build does not have.
std::unique_ptr<Backend> make_backend(const EngineOptions& options);

}  // namespace dsv32
