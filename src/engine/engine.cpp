#include "engine/engine.h"

#include <algorithm>
#include <thread>

#include "backend/cpu_backend.h"
#include "base/error.h"
#include "base/host_memory.h"
#include "base/text.h"
#include "base/worker_pool.h"
#include "engine/loop.h"
#include "prefix/model_digest.h"
#ifdef DSV32_CUDA
#include "backend/host_lane.h"
#include "cuda/cuda_backend.h"
#endif

namespace dsv32 {
namespace {

// A memory limit of the process must leave prefixes so much beside the plan; otherwise they would take memory
// that is needed elsewhere. Most of it is for their threads, each of which may reserve 128 MiB for its own
// heap.
constexpr uint64_t kPrefixBytes = uint64_t{4} << 30;

std::vector<std::string> warnings_about(const GgufFile& file, const ModelArgs& args,
                                        const EngineOptions& options) {
  std::vector<std::string> warnings;
  if (options.backend == "auto")
    if (const std::string why = why_no_gpu(options); !why.empty())
      warnings.push_back(why + ", so the CPU computes");
  warnings.insert(warnings.end(), args.warnings.begin(), args.warnings.end());
  if (args.n_draft_layers > 0)
    std::ranges::move(warnings_about_draft(file, args), std::back_inserter(warnings));
  if (options.select == SelectPolicy::model)
    std::ranges::move(warnings_about_indexer(file, args), std::back_inserter(warnings));
  return warnings;
}

// Names all that decides bits, and whether pages hold the block for drafts: the backends, from which layer on
// each computes if they differ, Quest's rows, and the layers whose experts the host computes in decode.
std::string numerics_of(const ModelArgs& args, const Backends& backends, const MemoryPlan& plan) {
  std::string names = backends.front()->numerics(), last = names;
  for (size_t i = 1; i < backends.size(); ++i) {
    const std::string numerics = backends[i]->numerics();
    if (numerics != last) names += format(" %s from layer %ld", numerics.c_str(), plan.stages[i].first_layer);
    last = numerics;
  }
  if (plan.cache.n_draft_layers > 0) names += " with drafts";
  if (args.selector() == Selector::quest) names += format(" quest %ld", args.topk());
  if (plan.n_host_expert_bytes == 0) return names;
  names += " " + CpuBackend(1).numerics() + (plan.n_link_bytes_read > 0 ? " and link" : "") + " experts";
  for (size_t l = 0; l < plan.has_host_experts.size(); ++l)
    if (plan.has_host_experts[l]) names += format(" %zu", l);
  return names;
}

// Few threads where the CPU computes, which needs the cores and the memory's bandwidth; more beside a device.
size_t hashing_threads(bool computes_on_cpu) {
  const size_t n_cores = std::thread::hardware_concurrency();
  return computes_on_cpu ? std::clamp<size_t>(n_cores / 16, 1, 4) : std::clamp<size_t>(n_cores / 2, 1, 8);
}

// The fingerprint, or another one once the files' bytes are not those that were hashed first. When only a
// ctime is new, all bytes are hashed anew: until that is done there is no fingerprint, so nothing is stored.
PrefixCache::Identity identity_of(const GgufFile& file, const PrefixCacheOptions& options,
                                  const CacheLayout& layout, const std::string& numerics) {
  if (options.directory.empty()) return {};
  const auto hash = [&file, options, n_threads = hashing_threads(numerics.starts_with("cpu/"))] {
    return std::make_shared<ModelDigest>(file.files(), options, n_threads);
  };
  return [&file, hash, layout, numerics, digest = hash(), first = std::optional<Hash256>(),
          is_told = false]() mutable -> std::optional<Hash256> {
    std::optional<Hash256> model = digest->value();
    if (!first) first = model;
    if (first && file.is_unchanged() && !digest->is_current()) {
      digest = hash();
      model = digest->value();
    }
    if (model && model != first) file.mark_changed();
    if (!file.is_unchanged()) return is_told ? std::optional(Hash256{}) : std::nullopt;
    if (!model || !digest->is_current()) return std::nullopt;
    is_told = true;
    return fingerprint(*model, layout, numerics);
  };
}

}  // namespace

Engine::Engine(const ModelSource& source, const EngineOptions& options, const BeforeWeights& before_weights)
    : file_(source.file),
      args_(with_selector(options.n_guesses == 0 ? source.args.without_draft() : source.args, options)),
      backends_(options.backends) {
  const ModelBytes bytes = file_ ? model_bytes(*file_, args_) : source.bytes;
  if (backends_.empty()) backends_ = make_backends(options, suffice_for(args_, bytes, options));
  const Machine machine = machine_of(backends_, bytes, options);
  plan_ = make_plan(args_, options, machine);
  if (plan_.cache.n_draft_layers == 0) args_ = args_.without_draft();
  backends_.resize(plan_.stages.size());  // unused backends free their memory at once
  if (plan_.is_team) team_ = std::make_unique<Team>(plan_.n_members());
  const std::vector<StageLayers> stages = this->stages();
  // A thread that hangs in a read or write keeps the cache, and the cache its backends, which own its memory.
  cache_ = {new LatentCache(stages, plan_.cache),
            [backends = backends_](LatentCache* cache) { delete cache; }};
  make_prefix_cache(source, options);
  if (prefix_cache_ && before_weights) before_weights(*prefix_cache_);
  load(source, options);
  forward_ =
      std::make_unique<Forward>(stages, args_, weights_, *cache_,
                                StageSizes{plan_.chunk, plan_.cache.max_context, plan_.expert_window_bytes});
  constraints_ = std::make_unique<Constraints>(options.n_threads);
  sampler_ = std::make_unique<RowSampler>(forward_->last_backend(), n_group_rows() * plan_.n_stages());
  loop_ = std::make_unique<Loop>(*this, !options.n_guesses);
  if (file_) warnings_ = warnings_about(*file_, args_, options);
  if (options.split == Split::automatic && plan_.n_stages() > 1 && !machine.can_team)
    warnings_.push_back(
        "the GPUs are of different kinds or cannot reach each other's memory, so each has layers of its own: "
        "an answer gets room, not speed");
  check_file();
}

Engine::~Engine() = default;

std::vector<StageLayers> Engine::stages() const {
  std::vector<StageLayers> stages;
  for (size_t i = 0; i < backends_.size(); ++i)
    stages.push_back({backends_[i].get(), plan_.stages[i].end_layer,
                      Member{team_.get(), team_ ? static_cast<int64_t>(i) : 0}});
  return stages;
}

void Engine::make_prefix_cache(const ModelSource& source, const EngineOptions& options) {
  if (!options.cache || !(file_ || source.identify)) return;
  if (most_process_memory() < plan_.n_weight_bytes + plan_.n_bytes(Place::host) + kPrefixBytes)
    return options.cache->warn("prefix cache: ulimit leaves too little memory for it; going on without it");
  try {
    const CacheLayout& layout = plan_.cache.layout;
    const std::string numerics = numerics_of(args_, backends_, plan_);
    PrefixCache::Identity identity =
        file_ ? identity_of(*file_, *options.cache, layout, numerics) : source.identify(layout, numerics);
    prefix_cache_ = std::make_unique<PrefixCache>(cache_, std::move(identity), *options.cache);
  } catch (const Error&) {
    throw;
  } catch (const std::exception&) {  // without prefixes, memory and threads may suffice
  }
}

void Engine::load(const ModelSource& source, const EngineOptions& options) {
  for (size_t i = 0; i < backends_.size(); ++i) backends_[i]->expect_weights(plan_.stages[i].n_weight_bytes);
  std::vector<WeightPlaces> places;
  for (int64_t m = 0; m < plan_.n_members(); ++m)
    places.push_back({[this, m](int64_t layer) -> Backend& {
                        auto i = static_cast<size_t>(m);
                        while (layer >= plan_.stages[i].end_layer) ++i;
                        return *backends_[i];
                      },
                      [this](int64_t layer) {
                        const bool is_host = plan_.has_host_experts[static_cast<size_t>(layer)];
                        return is_host ? Place::host : Place::device;
                      },
                      {team_.get(), m}});
  const auto on_progress = [&](uint64_t n_done, uint64_t n_bytes) {
    if (prefix_cache_) prefix_cache_->store_more();
    if (options.on_loading) options.on_loading(n_done, n_bytes);
  };
  if (file_)
    weights_ = load_weights(*file_, args_, places, on_progress);
  else
    for (const WeightPlaces& its : places) weights_.push_back(source.load(args_, its));
}

void Engine::check_file() {
  if (!file_ || file_->is_unchanged()) return;
  if (prefix_cache_) prefix_cache_->remove_stored();
  file_->check_unchanged();
}

void Engine::check_prompt(std::span<const int32_t> tokens) const {
  dsv32::check_prompt(args_.vocab_size, plan_.cache.max_context, tokens);
}

void check_gpu_flags(const EngineOptions& options, size_t n_gpus, const std::string& why) {
  const char* flag = !options.gpus.empty()               ? "--gpus"
                     : !options.gpu_mem.empty()          ? "--gpu-mem"
                     : options.n_cpu_experts             ? "--cpu-experts"
                     : options.split != Split::automatic ? "--split"
                                                         : nullptr;
  if (n_gpus == 0 && flag) fail(ErrorKind::usage, std::string(flag) + " is for GPUs, " + why);
  if (n_gpus == 1 && options.split != Split::automatic)
    fail(ErrorKind::usage, "--split says how several GPUs share the model, and there is one");
}

EngineOptions for_cpu(EngineOptions options) {
  options.backend = "cpu", options.split = Split::automatic;
  options.gpus.clear(), options.gpu_mem.clear(), options.n_cpu_experts.reset();
  return options;
}

Backends make_backends(const EngineOptions& options, [[maybe_unused]] const Suffices& suffices) {
#ifdef DSV32_CUDA
  if (options.backend == "cuda" || (options.backend == "auto" && why_no_gpu(options).empty())) {
    std::vector<int> gpus = options.gpus;
    for (int i = 0; options.gpus.empty() && i < std::max(1, n_cuda_devices()); ++i) gpus.push_back(i);
    check_gpu_flags(options, gpus.size());
    // A single device makes its own lane when the host keeps experts.
    const auto lane = gpus.size() > 1
                          ? std::make_shared<HostLane>(options.n_threads, static_cast<int>(gpus.size()))
                          : nullptr;
    Backends backends;
    for (size_t i = 0; i < gpus.size(); ++i) {
      backends.push_back(make_cuda_backend(gpus[i], options.limits(i), options.n_threads, lane));
      if (options.gpus.empty() && suffices && suffices(backends, gpus.size())) break;
    }
    return backends;
  }
#endif
  if (options.backend == "cpu" || options.backend == "auto") {
    const std::string problem = why_no_gpu(options);
    check_gpu_flags(options, 0,
                    options.backend == "cpu" ? "and --backend is cpu"
                    : problem.empty()        ? "which this build does not have, build with CUDA=1"
                                             : "and the CPU computes: " + problem);
    return {std::make_shared<CpuBackend>(options.n_threads, options.limits(0))};
  }
  if (options.backend == "cuda")
    fail(ErrorKind::usage, "--backend is 'cuda', which this build does not have", "build with CUDA=1");
  fail(ErrorKind::usage,
       format("--backend is '%s', expected cpu, cuda or auto", visible(options.backend).c_str()));
}

std::string why_no_gpu([[maybe_unused]] const EngineOptions& options) {
#ifdef DSV32_CUDA
  return find_problem(options.gpus.empty() ? 0 : options.gpus.front()).message;
#else
  return {};
#endif
}

Suffices suffice_for(const ModelArgs& some, const ModelBytes& bytes, EngineOptions options) {
  // The block for drafts is a reason for more of them only when guesses are asked for.
  const ModelArgs args = options.n_guesses ? some : some.without_draft();
  options.max_seqs = std::max<int64_t>(options.max_seqs, 1);
  return [=, n_needed = size_t{1}](const Backends& backends, size_t n_all) mutable {
    if (options.is_for_all || backends.size() < n_needed) return false;  // all can work on several answers
    Machine machine = machine_of(backends, bytes, options);
    machine.devices.resize(n_all, machine.devices.back());
    machine.gpus.resize(n_all, machine.gpus.back());
    const auto plan = if_it_fits([&] { return make_plan(args, options, machine); });
    n_needed = plan ? plan->stages.size() : n_all;
    return plan && n_needed <= backends.size();
  };
}

Machine machine_of(const Backends& backends, const ModelBytes& bytes, const EngineOptions& options) {
  const Backend& first = *backends.front();
  Machine machine{
      !first.works_in_host_memory(), bytes, {}, first.memory_info(Place::host), first.link_adds()};
  for (const auto& backend : backends) {
    machine.devices.push_back(backend->memory_info(Place::device));
    machine.gpus.push_back(&gpu_like(backend->device_name(), machine.devices.back().n_bytes_total));
  }
  machine.n_threads = WorkerPool(options.n_threads).n_threads();
  machine.can_team = std::ranges::all_of(backends, [&](const auto& one) {
    return std::ranges::all_of(backends,
                               [&](const auto& other) { return one == other || one->can_team_with(*other); });
  });
  for (size_t i = 1; i < backends.size(); ++i) {
    const uint64_t n_used = backends[i]->memory_info(Place::host).n_bytes_used;
    machine.host.n_bytes_used += n_used;
    machine.host.n_bytes_free = less_bytes(machine.host.n_bytes_free, n_used);
  }
  return machine;
}

}  // namespace dsv32
