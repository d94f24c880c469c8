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
#include "backend/host_lane.h"
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
  warnings.insert(warnings.end(), args.warnings.begin(), args.warnings.end());
  if (!args.has_indexer())
    warnings.push_back(
        format("%s has architecture deepseek2 and no indexer: attention runs dense, answers may be a little "
               "worse and long "
               "contexts slower",
               visible(file.path()).c_str()));
  return warnings;
}

// Keeps the backends, which have its memory: a thread that hangs in a read or write keeps the cache.
std::shared_ptr<LatentCache> make_cache(const Backends& backends, std::span<const StageLayers> stages,
                                        const CachePlan& plan) {
  return std::shared_ptr<LatentCache>(new LatentCache(stages, plan),
                                      [backends](LatentCache* cache) { delete cache; });
}

std::vector<StageLayers> stages_of(const Backends& backends, const MemoryPlan& plan) {
  std::vector<StageLayers> stages;
  for (size_t i = 0; i < plan.stages.size(); ++i)
    stages.push_back({backends[i].get(), plan.stages[i].end_layer});
  return stages;
}

WeightPlaces places_of(const Backends& backends, const MemoryPlan& plan) {
  return {[&](int64_t layer) -> Backend& {
            size_t i = 0;
            while (layer >= plan.stages[i].end_layer) ++i;
            return *backends[i];
          },
          [&](int64_t layer) {
            return plan.has_host_experts[static_cast<size_t>(layer)] ? Place::host : Place::device;
          }};
}

Weights load_placed(const Backends& backends, const MemoryPlan& plan, const ModelArgs& args,
                    const Engine::LoadWeights& load) {
  for (size_t i = 0; i < plan.stages.size(); ++i) backends[i]->expect_weights(plan.stages[i].n_weight_bytes);
  return load(args, places_of(backends, plan));
}

// All that decides bits: the backends, as often as they differ, and in decode which experts the host
// computes.
std::string numerics_of(const Backends& backends, const MemoryPlan& plan) {
  std::string names;
  for (const auto& backend : backends)
    if (names.find(backend->numerics()) == std::string::npos)
      names += (names.empty() ? "" : " ") + backend->numerics();
  if (plan.n_host_expert_bytes == 0) return names;
  names += " " + CpuBackend(1).numerics() + (plan.n_link_bytes_read > 0 ? " and link" : "") + " experts";
  for (size_t l = 0; l < plan.has_host_experts.size(); ++l)
    if (plan.has_host_experts[l]) names += format(" %zu", l);
  return names;
}

std::unique_ptr<PrefixCache> make_prefix_cache(std::shared_ptr<LatentCache> cache, const MemoryPlan& plan,
                                               const EngineOptions& options, const Engine::Identify& identify,
                                               const Backends& backends) {
  if (!options.cache || !identify) return nullptr;
  if (most_process_memory() < plan.n_weight_bytes + plan.n_bytes(Place::host) + kPrefixBytes) {
    options.cache->warn("prefix cache: ulimit leaves too little memory for it; going on without it");
    return nullptr;
  }
  try {
    PrefixCache::Identity identity = identify(cache->plan().layout, numerics_of(backends, plan));
    return std::make_unique<PrefixCache>(std::move(cache), std::move(identity), *options.cache);
  } catch (const Error&) {
    throw;
  } catch (const std::exception&) {
    return nullptr;  // without it there may be memory and threads enough
  }
}

// Beside computing on the CPU, which wants the cores and reads the same memory, or on a device.
int hashing_threads(bool computes_on_cpu) {
  const int n_cores = static_cast<int>(std::thread::hardware_concurrency());
  return computes_on_cpu ? std::clamp(n_cores / 16, 1, 4) : std::clamp(n_cores / 2, 1, 8);
}

PrefixCache::Identity identity_of(const GgufFile& file, const PrefixCacheOptions& options,
                                  const CacheLayout& layout, const std::string& numerics) {
  if (options.directory.empty()) return {};
  const auto digest = std::make_shared<ModelDigest>(
      file.files(), ModelDigestOptions{.directory = options.directory,
                                       .files = options.files,
                                       .most_hashed_first = options.most_hashed_first,
                                       .n_threads = hashing_threads(numerics.starts_with("cpu/"))});
  return [digest, layout, numerics, &file] {
    const std::optional<Hash256> model = file.is_unchanged() ? digest->value() : std::nullopt;
    return model ? std::optional(fingerprint(*model, layout, numerics)) : std::nullopt;
  };
}

// What a number of sequences that is open adds is left out: it follows the machine.
EngineOptions one_sequence(EngineOptions options) {
  options.max_seqs = std::max<int64_t>(options.max_seqs, 1);
  return options;
}

}  // namespace

Backends make_backends(const EngineOptions& options, [[maybe_unused]] const Suffices& suffices) {
#ifdef DSV32_CUDA
  if (options.backend == "cuda" || (options.backend == "auto" && why_no_gpu(options).empty())) {
    std::vector<int> gpus = options.gpus;
    for (int i = 0; options.gpus.empty() && i < std::max(1, n_cuda_devices()); ++i) gpus.push_back(i);
    // One device makes its own when there are experts for it.
    const auto lane = gpus.size() > 1
                          ? std::make_shared<HostLane>(options.n_threads, static_cast<int>(gpus.size()))
                          : nullptr;
    Backends backends;
    for (size_t i = 0; i < gpus.size(); ++i) {
      backends.push_back(make_cuda_backend(gpus[i], options.limits(i), options.n_threads, lane));
      if (options.gpus.empty() && suffices && suffices(backends)) break;
    }
    return backends;
  }
#endif
  if (options.backend == "cpu" || options.backend == "auto")
    return {std::make_shared<CpuBackend>(options.n_threads, options.limits(0))};
  if (options.backend == "cuda")
    fail(ErrorKind::usage, "--backend is 'cuda', which this build does not have", "build with CUDA=1");
  fail(ErrorKind::usage,
       format("--backend is '%s', expected cpu, cuda or auto", visible(options.backend).c_str()));
}

std::string why_no_gpu([[maybe_unused]] const EngineOptions& options) {
#ifdef DSV32_CUDA
  return why_no_cuda(options.gpus.empty() ? 0 : options.gpus.front());
#else
  return {};
#endif
}

Suffices suffice_for(const ModelArgs& args, const ModelBytes& bytes, const EngineOptions& options) {
  return [=](const Backends& backends) {
    try {
      const MemoryPlan plan = make_plan(args, options, machine_of(backends, bytes));
      return plan.n_host_expert_bytes == 0 || options.n_cpu_experts;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::memory) throw;
      return false;
    }
  };
}

Machine machine_of(const Backends& backends, const ModelBytes& bytes) {
  Machine machine{
      !backends.front()->works_in_host_memory(), bytes, {}, backends.front()->memory_info(Place::host)};
  machine.link_adds = backends.front()->link_adds();
  for (const auto& backend : backends) machine.devices.push_back(backend->memory_info(Place::device));
  for (size_t i = 1; i < backends.size(); ++i) {
    const uint64_t n_used = backends[i]->memory_info(Place::host).n_bytes_used;
    machine.host.n_bytes_used += n_used;
    machine.host.n_bytes_free -= std::min(machine.host.n_bytes_free, n_used);
  }
  return machine;
}

// Backends that the plan does not use go at once, with what they have taken.
Engine::Planned Engine::plan_for(Backends backends, const ModelArgs& args, const ModelBytes& bytes,
                                 const EngineOptions& options) {
  const Machine machine = machine_of(backends, bytes);
  MemoryPlan plan = make_plan(args, with_suitable_batch(args, options, machine), machine);
  backends.resize(plan.stages.size());
  return {std::move(backends), std::move(plan)};
}

struct Engine::FileModel {
  explicit FileModel(const GgufFile& file_)
      : file(file_), args(read_model_args(file)), bytes(model_bytes(file, args)) {}
  const GgufFile& file;
  ModelArgs args;
  ModelBytes bytes;
};

Engine::Engine(const GgufFile& file, const EngineOptions& options, const BeforeWeights& before_weights)
    : Engine(FileModel(file), {}, options, before_weights) {}

Engine::Engine(Backends backends, const GgufFile& file, const EngineOptions& options,
               const BeforeWeights& before_weights)
    : Engine(FileModel(file), std::move(backends), options, before_weights) {}

// Without backends they are those that the options name.
Engine::Engine(const FileModel& model, Backends backends, const EngineOptions& options,
               const BeforeWeights& before_weights)
    : Engine(
          plan_for(!backends.empty()
                       ? std::move(backends)
                       : make_backends(options, suffice_for(model.args, model.bytes, one_sequence(options))),
                   model.args, model.bytes, options),
          model.args,
          [&](const ModelArgs& args, const WeightPlaces& places) {
            return load_weights(model.file, args, places, [&](uint64_t n_done, uint64_t n_bytes) {
              if (prefix_cache_) prefix_cache_->tend();
              if (options.on_loading) options.on_loading(n_done, n_bytes);
            });
          },
          options,
          [&](const CacheLayout& layout, const std::string& numerics) {
            return identity_of(model.file, *options.cache, layout, numerics);
          },
          before_weights) {
  file_ = &model.file;
  warnings_ = warnings_about(model.file, args_, options);
  check_file();
}

Engine::Engine(const ModelArgs& args, const ModelBytes& bytes, const LoadWeights& load,
               const EngineOptions& options, const Identify& identify, const BeforeWeights& before_weights)
    : Engine(plan_for(make_backends(options, suffice_for(args, bytes, one_sequence(options))), args, bytes,
                      options),
             args, load, options, identify, before_weights) {}

Engine::Engine(Planned planned, const ModelArgs& args, const LoadWeights& load, const EngineOptions& options,
               const Identify& identify, const BeforeWeights& before_weights)
    : args_(args),
      backends_(std::move(planned.backends)),
      plan_(std::move(planned.plan)),
      stages_(stages_of(backends_, plan_)),
      cache_(make_cache(backends_, stages_, plan_.cache)),
      prefix_cache_(make_prefix_cache(cache_, plan_, options, identify, backends_)),
      weights_((prefix_cache_ && before_weights ? before_weights(*prefix_cache_) : void(),
                load_placed(backends_, plan_, args_, load))),
      forward_(std::make_unique<Forward>(
          stages_, args_, weights_, *cache_,
          StageSizes{plan_.chunk, plan_.cache.max_context, plan_.expert_window_bytes})),
      loop_(std::make_unique<Loop>(*this)) {}

Engine::~Engine() = default;

void Engine::check_file() {
  if (!file_ || file_->is_unchanged()) return;
  if (prefix_cache_) prefix_cache_->disown();
  file_->check_unchanged();
}

}  // namespace dsv32
