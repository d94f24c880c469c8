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

// One a device. Who keeps one keeps its memory.
using Backends = std::vector<std::shared_ptr<Backend>>;

class Engine {
 public:
  // Called when prefixes can be read and weights are not there yet, if prefixes are remembered at all.
  using BeforeWeights = std::function<void(PrefixCache&)>;
  // Throws Error{model} for the file, Error{usage} for options that do not fit it, Error{memory}.
  Engine(const GgufFile& file, const EngineOptions& options, const BeforeWeights& before_weights = {});
  // The same on these backends, as many of them as suffice or all (plan.h), whatever the options name.
  Engine(Backends backends, const GgufFile& file, const EngineOptions& options,
         const BeforeWeights& before_weights = {});
  // A model of these dimensions whose weights `load` makes; `identify` names what decides the bytes of a
  // page, with what decides them of the backends.
  using LoadWeights = std::function<Weights(const ModelArgs& args, const WeightPlaces& places)>;
  using Identify =
      std::function<PrefixCache::Identity(const CacheLayout& layout, const std::string& numerics)>;
  Engine(const ModelArgs& args, const ModelBytes& bytes, const LoadWeights& load,
         const EngineOptions& options, const Identify& identify = {},
         const BeforeWeights& before_weights = {});

  ~Engine();

  // Throws Error{model} when the file has been written to since it was opened: what was computed meanwhile
  // may be wrong, and nothing that was stored of it stays on the disk.
  void check_file();

  const ModelArgs& args() const { return args_; }
  const char* backend_name() const { return backends_.front()->name(); }
  const Backends& backends() const { return backends_; }  // of the stages
  Backend& backend() { return *backends_.front(); }
  const Weights& weights() const { return weights_; }
  const MemoryPlan& plan() const { return plan_; }
  // Things a user should hear once, such as "runs dense".
  const std::vector<std::string>& warnings() const { return warnings_; }
  Forward& forward() { return *forward_; }
  LatentCache& cache() { return *cache_; }
  Loop& loop() { return *loop_; }
  PrefixCache* prefix_cache() { return prefix_cache_.get(); }  // null: prefixes are not remembered

 private:
  struct FileModel;  // what is read of a file once
  Engine(const FileModel& model, Backends backends, const EngineOptions& options,
         const BeforeWeights& before_weights);
  struct Planned {
    Backends backends;
    MemoryPlan plan;
  };
  Engine(Planned planned, const ModelArgs& args, const LoadWeights& load, const EngineOptions& options,
         const Identify& identify, const BeforeWeights& before_weights);
  static Planned plan_for(Backends backends, const ModelArgs& args, const ModelBytes& bytes,
                          const EngineOptions& options);

  const GgufFile* file_ = nullptr;  // null: the weights come from none
  ModelArgs args_;
  Backends backends_;
  MemoryPlan plan_;
  std::vector<StageLayers> stages_;
  std::shared_ptr<LatentCache> cache_;  // before the weights: its host memory is pinned while they load
  std::unique_ptr<PrefixCache> prefix_cache_;
  Weights weights_;
  std::vector<std::string> warnings_;
  std::unique_ptr<Forward> forward_;
  std::unique_ptr<Loop> loop_;
};

// What a plan is made for on these backends, with weights of these sizes.
Machine machine_of(const Backends& backends, const ModelBytes& bytes);

// Why this build, which has CUDA, cannot use the GPU; empty when it can, and of a build without.
std::string why_no_gpu(const EngineOptions& options);

// The backends that the options name, one after the other until `suffices` says so, at least one: "cpu",
// "cuda", or "auto", the GPUs if this build and this machine have them. Throws Error{usage} for another name
// or one that this build does not have.
using Suffices = std::function<bool(const Backends&)>;
Backends make_backends(const EngineOptions& options, const Suffices& suffices = {});
// Whether a model of these sizes needs no more of them.
Suffices suffice_for(const ModelArgs& args, const ModelBytes& bytes, const EngineOptions& options);

}  // namespace dsv32
