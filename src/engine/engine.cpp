#include "engine/engine.h"

#include <algorithm>
#include <thread>

#include "backend/cpu_backend.h"
#include "base/error.h"
#include "base/host_memory.h"
#include "base/text.h"
#include "engine/capacity.h"
#include "engine/loop.h"
#include "prefix/fingerprint.h"
#include "prefix/model_digest.h"
#ifdef DSV32_CUDA
#include "cuda/cuda_backend.h"
#endif

namespace dsv32 {
namespace {

// A limit of the process must leave prefixes so much beside the plan, or what they take is lacking elsewhere
// in the end. Most of it is room for their threads, each of which may reserve 128 MiB for a heap of its own.
constexpr uint64_t kPrefixBytes = uint64_t{4} << 30;

std::vector<std::string> warnings_about(const GgufFile& file, const ModelArgs& args,
                                        const EngineOptions& options) {
  std::vector<std::string> warnings;
  if (options.backend == "auto")
    if (const std::string why = why_no_gpu(options); !why.empty())
      warnings.push_back(why + ", so the CPU computes");
  if (!args.has_indexer())
    warnings.push_back(
        format("%s has architecture deepseek2 and no indexer: attention runs dense, answers may be a little "
               "worse and long "
               "contexts slower",
               visible(file.path()).c_str()));
  return warnings;
}

// Binding reads the tensors' names and shapes, and of their values only the small vectors.
struct WeightBytes {
  uint64_t n_used, n_skipped;
};
WeightBytes weight_bytes(const GgufFile& file, const ModelArgs& args) {
  CpuBackend mapped(1);
  const Weights weights = load_weights(file, args, mapped);
  return {weights.n_bytes_used, weights.n_bytes_skipped};
}

MemoryPlan plan_for(const ModelArgs& args, const EngineOptions& options, const Machine& machine) {
  return make_plan(args, with_suitable_batch(args, options, machine), machine);
}

// Keeps the backend, which has its memory: a thread that hangs in a read or write keeps the cache.
std::shared_ptr<LatentCache> make_cache(const std::shared_ptr<Backend>& backend,
                                        std::span<const StageLayers> stages, const CachePlan& plan) {
  return std::shared_ptr<LatentCache>(new LatentCache(stages, plan),
                                      [backend](LatentCache* cache) { delete cache; });
}

std::unique_ptr<PrefixCache> make_prefix_cache(std::shared_ptr<LatentCache> cache, const MemoryPlan& plan,
                                               const EngineOptions& options, const Engine::Identify& identify,
                                               const Backend& backend) {
  if (!options.cache || !identify) return nullptr;
  if (most_process_memory() < plan.n_weight_bytes + plan.n_bytes(Place::host) + kPrefixBytes) {
    options.cache->warn("prefix cache: ulimit leaves too little memory for it; going on without it");
    return nullptr;
  }
  try {
    PrefixCache::Identity identity = identify(cache->plan().layout, backend);
    return std::make_unique<PrefixCache>(std::move(cache), std::move(identity), *options.cache);
  } catch (const Error&) {
    throw;
  } catch (const std::exception&) {
    return nullptr;  // without it there may be memory and threads enough
  }
}

// Beside computing on the CPU, which wants the cores and reads the same memory, or on a device.
int hashing_threads(const Backend& backend) {
  const int n_cores = static_cast<int>(std::thread::hardware_concurrency());
  return backend.works_in_host_memory() ? std::clamp(n_cores / 16, 1, 4) : std::clamp(n_cores / 2, 1, 8);
}

PrefixCache::Identity identity_of(const GgufFile& file, const PrefixCacheOptions& options,
                                  const CacheLayout& layout, const Backend& backend) {
  if (options.directory.empty()) return {};
  const auto digest = std::make_shared<ModelDigest>(
      file.files(), ModelDigestOptions{.directory = options.directory,
                                       .files = options.files,
                                       .most_hashed_first = options.most_hashed_first,
                                       .n_threads = hashing_threads(backend)});
  return [digest, layout, numerics = backend.numerics()] {
    const std::optional<Hash256> model = digest->value();
    return model ? std::optional(fingerprint(*model, layout, numerics)) : std::nullopt;
  };
}

}  // namespace

std::unique_ptr<Backend> make_backend(const EngineOptions& options) {
#ifdef DSV32_CUDA
  if (options.backend == "cuda" || (options.backend == "auto" && why_no_cuda(options.device).empty()))
    return make_cuda_backend(options.device, options.memory, options.n_threads);
#endif
  if (options.backend == "cpu" || options.backend == "auto")
    return std::make_unique<CpuBackend>(options.n_threads, options.memory);
  if (options.backend == "cuda")
    fail(ErrorKind::usage, "--backend is 'cuda', which this build does not have", "build with CUDA=1");
  fail(ErrorKind::usage,
       format("--backend is '%s', expected cpu, cuda or auto", visible(options.backend).c_str()));
}

std::string why_no_gpu([[maybe_unused]] const EngineOptions& options) {
#ifdef DSV32_CUDA
  return why_no_cuda(options.device);
#else
  return {};
#endif
}

Machine machine_of(const Backend& backend, uint64_t n_weight_bytes) {
  return {!backend.works_in_host_memory(), n_weight_bytes, backend.memory_info(Place::device),
          backend.memory_info(Place::host)};
}

Machine machine_of(const Backend& backend, const GgufFile& file) {
  return machine_of(backend, weight_bytes(file, read_model_args(file)).n_used);
}

MemoryPlan plan_file(const GgufFile& file, const EngineOptions& options, const Backend& backend) {
  const ModelArgs args = read_model_args(file);
  const auto [n_used, n_skipped] = weight_bytes(file, args);
  MemoryPlan plan = make_plan(args, options, machine_of(backend, n_used));
  plan.n_skipped_bytes = n_skipped;
  return plan;
}

Engine::Engine(const GgufFile& file, const EngineOptions& options, const BeforeWeights& before_weights)
    : Engine(make_backend(options), file, options, before_weights) {}

Engine::Engine(std::unique_ptr<Backend> own, const GgufFile& file, const EngineOptions& options,
               const BeforeWeights& before_weights)
    : Engine(
          std::move(own), read_model_args(file), weight_bytes(file, read_model_args(file)).n_used,
          [&](const ModelArgs& args, Backend& backend) { return load_weights(file, args, backend); }, options,
          [&](const CacheLayout& layout, const Backend& backend) {
            return identity_of(file, *options.cache, layout, backend);
          },
          before_weights) {
  plan_.n_skipped_bytes = weights_.n_bytes_skipped;
  warnings_ = warnings_about(file, args_, options);
}

Engine::Engine(const ModelArgs& args, uint64_t n_weight_bytes, const LoadWeights& load,
               const EngineOptions& options, const Identify& identify, const BeforeWeights& before_weights)
    : Engine(make_backend(options), args, n_weight_bytes, load, options, identify, before_weights) {}

Engine::Engine(std::unique_ptr<Backend> backend, const ModelArgs& args, uint64_t n_weight_bytes,
               const LoadWeights& load, const EngineOptions& options, const Identify& identify,
               const BeforeWeights& before_weights)
    : args_(args),
      backend_(std::move(backend)),
      stages_{{backend_.get(), args_.n_layers}},
      plan_(plan_for(args_, options, machine_of(*backend_, n_weight_bytes))),
      cache_(make_cache(backend_, stages_, plan_.cache)),
      prefix_cache_(make_prefix_cache(cache_, plan_, options, identify, *backend_)),
      weights_((prefix_cache_ && before_weights ? before_weights(*prefix_cache_) : void(),
                load(args_, *backend_))),
      forward_(std::make_unique<Forward>(stages_, args_, weights_, *cache_,
                                         StageSizes{plan_.chunk, plan_.cache.max_context})),
      loop_(std::make_unique<Loop>(*this)) {}

Engine::~Engine() = default;

}  // namespace dsv32
