// A loaded model: its dimensions and weights, the backends, the cache, and the loop that answers requests.
//
// Owns everything below it. The constructor does all checks and computes nothing. Weights are used where the
// file is mapped. One thread at a time.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/team.h"
#include "constrain/constraint.h"
#include "context/latent_cache.h"
#include "engine/plan.h"
#include "engine/sampler.h"
#include "gguf/gguf.h"
#include "model/forward.h"
#include "prefix/prefix_cache.h"
#include "weights/weights.h"

namespace dsv32 {

class Loop;

// What an engine is made from: a file, which must outlive the engine, or dimensions and a function that makes
// the weights.
struct ModelSource {
  using Load = std::function<Weights(const ModelArgs& args, const WeightPlaces& places)>;
  // Makes the identity for a layout of pages and the backends' numerics. Empty: prefixes are not remembered.
  using Identify =
      std::function<PrefixCache::Identity(const CacheLayout& layout, const std::string& numerics)>;

  ModelSource(const GgufFile& file_)  // throws Error{model}
      : file(&file_), args(read_model_args(file_)) {}
  ModelSource(const ModelArgs& args_, const ModelBytes& bytes_, Load load_, Identify identify_ = {})
      : args(args_), bytes(bytes_), load(std::move(load_)), identify(std::move(identify_)) {}

  const GgufFile* file = nullptr;
  ModelArgs args;
  ModelBytes bytes;  // without a file
  Load load;
  Identify identify;
};

class Engine {
 public:
  // Called when prefixes can be read, before the weights are loaded, if prefixes are remembered.
  using BeforeWeights = std::function<void(PrefixCache&)>;
  // Throws Error{model} for the file, Error{usage} for options that do not fit it, Error{memory}.
  Engine(const ModelSource& source, const EngineOptions& options, const BeforeWeights& before_weights = {});
  ~Engine();

  // Throws Error{model} when the file has been written to since it was opened: answers since then may be
  // wrong, and the prefixes that this engine stored are removed from the disk.
  void check_file();
  // Throws as check_prompt() of engine/request.h does.
  void check_prompt(std::span<const int32_t> tokens) const;

  const ModelArgs& args() const { return args_; }
  const char* backend_name() const { return backends_.front()->name(); }
  const Backends& backends() const { return backends_; }  // one for each stage, or member of the team
  Backend& backend() { return *backends_.front(); }
  const Weights& weights() const { return weights_.front(); }  // of the first member of a team
  const MemoryPlan& plan() const { return plan_; }
  // Things a user should hear once, such as "runs dense".
  const std::vector<std::string>& warnings() const { return warnings_; }
  Forward& forward() { return *forward_; }
  RowSampler& sampler() { return *sampler_; }
  // Rows of the sampler for each group of sequences, as many groups as stages.
  int64_t n_group_rows() const {
    const int64_t n_stages = plan_.n_stages();
    return (plan_.cache.max_step_tokens() + n_stages - 1) / n_stages;
  }
  Constraints& constraints() { return *constraints_; }
  LatentCache& cache() { return *cache_; }
  Loop& loop() { return *loop_; }
  PrefixCache* prefix_cache() { return prefix_cache_.get(); }  // null: prefixes are not remembered

 private:
  void make_prefix_cache(const ModelSource& source, const EngineOptions& options);
  std::vector<StageLayers> stages() const;
  void load(const ModelSource& source, const EngineOptions& options);

  const GgufFile* file_;  // null: the weights come from a function
  ModelArgs args_;
  Backends backends_;
  MemoryPlan plan_;
  std::unique_ptr<Team> team_;          // null: the devices are no team
  std::shared_ptr<LatentCache> cache_;  // made before the weights: its host memory is pinned while they load
  std::unique_ptr<PrefixCache> prefix_cache_;
  std::vector<Weights> weights_;  // of all stages, or one for each member
  std::vector<std::string> warnings_;
  std::unique_ptr<Forward> forward_;
  std::unique_ptr<RowSampler> sampler_;
  std::unique_ptr<Constraints> constraints_;
  std::unique_ptr<Loop> loop_;
};

// The machine that a plan is made for: these backends, with weights of these sizes.
Machine machine_of(const Backends& backends, const ModelBytes& bytes, const EngineOptions& options);

// Why this build cannot use the GPU; empty when it can, and when it has no CUDA.
std::string why_no_gpu(const EngineOptions& options);

// Throws Error{usage} for flags of GPUs where there is none, `why`, and for --split where there is one.
void check_gpu_flags(const EngineOptions& options, size_t n_gpus, const std::string& why = {});
// The same options for the CPU, without flags of GPUs.
EngineOptions for_cpu(EngineOptions options);

// The backends that the options name, added one by one until `suffices` returns true, at least one: "cpu",
// "cuda", or "auto" (the GPUs if this build and this machine have them, else the CPU). Throws Error{usage}
// for another name or one that this build does not have, and as check_gpu_flags() does.
using Suffices = std::function<bool(const Backends&, size_t n_all)>;
Backends make_backends(const EngineOptions& options, const Suffices& suffices = {});
// Whether make_plan() would use no more than these backends if all others were as the last of them.
Suffices suffice_for(const ModelArgs& args, const ModelBytes& bytes, EngineOptions options);

}  // namespace dsv32
