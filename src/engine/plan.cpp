#include "engine/plan.h"

#include <algorithm>

#include "base/error.h"
#include "engine/plan_places.h"
#include "engine/sampler.h"
#include "model/stage.h"

namespace dsv32 {
namespace {

constexpr int64_t kHostChunk = 512, kDeviceChunk = 2048, kLeastChunk = 64;
// All experts of a layer travel with each step: the more tokens share that, the better.
constexpr int64_t kStreamedChunk = 8192;
// So many tokens at a time are worth more than the experts of a layer on the device.
constexpr int64_t kLeastBesideExperts = 512;

CacheLayout layout_of(const ModelArgs& args, KvType kv_type) {
  return {kv_type, args.kv_lora_rank, args.qk_rope_head_dim, args.has_indexer() ? args.index_head_dim : 0};
}

void check_flags(const ModelArgs& args, const EngineOptions& options) {
  if (options.context && (*options.context < 1 || *options.context > args.max_seq_len))
    fail(ErrorKind::usage, format("--ctx is %lld, expected 1 to %lld, the model's context",
                                  as_ll(*options.context), as_ll(args.max_seq_len)));
  if (options.chunk && (*options.chunk < 1 || *options.chunk > 1 << 16))
    fail(ErrorKind::usage, format("--chunk is %lld, expected 1 to 65536", as_ll(*options.chunk)));
}

// Of the weights, what the devices will have: all that the host need not keep.
uint64_t held_bytes(const Machine& machine, const EngineOptions& options) {
  return may_leave(machine, options) ? core_bytes(machine.weights) : total_bytes(machine.weights);
}

// A dense model lists every position of every token of a step: the step is kept small enough for that. Unless
// it is given, it takes no more than a quarter of what the weights that they hold leave of the devices.
int64_t choose_chunk(const ModelArgs& args, const EngineOptions& options, const Machine& machine,
                     int64_t n_suitable, uint64_t n_held) {
  const int64_t context = options.context.value_or(args.max_seq_len);
  int64_t chunk = options.chunk.value_or(n_suitable);
  const uint64_t n_free = less_bytes(machine.free_device_bytes(), n_held) / machine.devices.size();
  while (!options.chunk && machine.is_apart && chunk > kLeastChunk &&
         activation_bytes(args, chunk, context) > n_free / 4)
    chunk /= 2;
  constexpr int64_t kMostListed = int64_t{1} << 25;
  const int64_t n_attended = args.has_indexer() ? std::min(args.index_topk, context) : context;
  return std::max<int64_t>(1, std::min({chunk, context, kMostListed / n_attended}));
}

// Tokens that both memories hold: host rows in half of what is free there (all of a limit that was set);
// keys, and windows for prefill, in half of what weights and a step leave of the devices.
int64_t fitting_context(const CachePlan& cache, const EngineOptions& options, const Machine& machine,
                        uint64_t n_taken) {
  const int64_t n_layers = cache.n_layers;
  const auto row_bytes = static_cast<uint64_t>(n_layers * cache.layout.row_bytes());
  const auto key_bytes = static_cast<uint64_t>(n_layers * cache.layout.key_page_bytes() / kPageTokens);
  const uint64_t n_host = machine.host.n_bytes_free / (options.host_mem ? 1 : 2);
  if (!machine.is_apart)
    return static_cast<int64_t>(less_bytes(n_host, options.host_mem ? n_taken + kSlackBytes : 0) /
                                (row_bytes + key_bytes));
  const uint64_t window_bytes = static_cast<uint64_t>(2 * cache.layout.row_bytes()) * machine.devices.size();
  const uint64_t n_device = less_bytes(machine.free_device_bytes(), n_taken) / 2;
  return static_cast<int64_t>(std::min(n_host / row_bytes, n_device / (key_bytes + window_bytes)));
}

int64_t choose_context(const ModelArgs& args, const CachePlan& cache, const EngineOptions& options,
                       const Machine& machine, uint64_t n_taken) {
  if (options.context) return *options.context;
  const int64_t n_fitting = fitting_context(cache, options, machine, n_taken) / kPageTokens * kPageTokens;
  return std::clamp(n_fitting, std::min<int64_t>(kPageTokens, args.max_seq_len), args.max_seq_len);
}

// What is taken of the devices, or of the host where they are not apart, beside the cache.
uint64_t taken_bytes(const MemoryPlan& plan, const EngineOptions& options, const Machine& machine,
                     uint64_t n_activation_bytes) {
  const uint64_t n_logit_bytes = plan.stages.back().n_logit_bytes;
  if (!machine.is_apart) return n_logit_bytes + n_activation_bytes;
  return held_bytes(machine, options) + n_logit_bytes + machine.devices.size() * n_activation_bytes;
}

int64_t choose_pool(const MemoryPlan& plan, const EngineOptions& options, const Machine& machine) {
  const CachePlan& cache = plan.cache;
  if (options.pool != kAllContexts) return std::max(options.pool.value_or(0), cache.max_context);
  const uint64_t n_taken = taken_bytes(plan, options, machine, plan.n_activation_bytes) + cache.table_bytes();
  const int64_t n_rounding = cache.max_seqs * kPageTokens;  // of CachePlan::n_pages
  return std::clamp(fitting_context(cache, options, machine, n_taken) - n_rounding, cache.max_context,
                    cache.max_seqs * cache.max_context);
}

MemoryPlan plan_with_chunk(const ModelArgs& args, const EngineOptions& options, const Machine& machine,
                           int64_t chunk) {
  MemoryPlan plan;
  plan.n_weight_bytes = total_bytes(machine.weights);
  plan.n_host_scratch_bytes = machine.host.n_bytes_used;
  plan.stages = {
      {.end_layer = args.n_layers,
       .n_weight_bytes = plan.n_weight_bytes,
       .n_logit_bytes = Stage::logit_bytes(args, options.max_seqs) + RowSampler::n_bytes(options.max_seqs)}};
  plan.has_host_experts.assign(static_cast<size_t>(args.n_layers), false);
  plan.cache.layout = layout_of(args, options.kv_type);
  plan.cache.is_apart = machine.is_apart;
  plan.cache.n_layers = args.n_layers;
  plan.cache.max_seqs = options.max_seqs;
  const uint64_t n_step = activation_bytes(args, std::max(chunk, options.max_seqs), args.max_seq_len);
  plan.cache.max_context =
      choose_context(args, plan.cache, options, machine, taken_bytes(plan, options, machine, n_step));
  plan.chunk = std::max(std::min(chunk, plan.cache.max_context), options.max_seqs);
  plan.n_activation_bytes = activation_bytes(args, plan.chunk, plan.cache.max_context);
  plan.cache.pool_tokens = choose_pool(plan, options, machine);
  plan.cache.key_tokens = std::clamp(options.keys.value_or(plan.cache.pool_tokens), plan.cache.max_context,
                                     plan.cache.pool_tokens);
  place(plan, args, options, machine);
  check_room(plan, machine);
  return plan;
}

// Whether experts are the host's, whatever else is chosen.
bool must_leave(const Machine& machine, const EngineOptions& options) {
  return options.n_cpu_experts.value_or(0) > 0 ||
         (has_experts(machine.weights) && total_bytes(machine.weights) > machine.free_device_bytes());
}

// On all devices of the machine.
MemoryPlan plan_on(const ModelArgs& args, const EngineOptions& options, const Machine& machine) {
  const auto with = [&](int64_t chunk) -> std::optional<MemoryPlan> {
    try {
      return plan_with_chunk(args, options, machine, chunk);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::memory) throw;
      return std::nullopt;
    }
  };
  const int64_t first = choose_chunk(args, options, machine, machine.is_apart ? kDeviceChunk : kHostChunk,
                                     held_bytes(machine, options));
  const int64_t last = options.chunk ? first : std::min(first, kLeastChunk);
  std::optional<MemoryPlan> largest;
  for (int64_t chunk = first; chunk >= last; chunk /= 2) {
    std::optional<MemoryPlan> plan = with(chunk);
    if (plan && plan->n_host_expert_bytes == 0) return *plan;
    if (plan && !largest) largest = std::move(plan);
    if (largest && (must_leave(machine, options) || chunk / 2 < kLeastBesideExperts)) break;
  }
  if (!largest) return plan_with_chunk(args, options, machine, last);  // which says what is lacking
  if (options.chunk) return *largest;
  const uint64_t n_core = core_bytes(machine.weights);
  return with(choose_chunk(args, options, machine, kStreamedChunk, n_core)).value_or(*largest);
}

}  // namespace

MemoryPlan make_plan(const ModelArgs& args, const EngineOptions& options, const Machine& machine) {
  check_flags(args, options);
  const size_t n_most = std::min(machine.devices.size(), static_cast<size_t>(args.n_layers));
  for (size_t n = machine.is_apart && options.gpus.empty() ? 1 : n_most;; ++n) try {
      Machine some = machine;
      some.devices.resize(n);
      some.weights.layers.resize(static_cast<size_t>(args.n_layers));
      if (n < n_most && !options.n_cpu_experts && must_leave(some, options)) continue;
      MemoryPlan plan = plan_on(args, options, some);
      if (n == n_most || plan.n_host_expert_bytes == 0 || options.n_cpu_experts) return plan;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::memory || n == n_most) throw;
    }
}

}  // namespace dsv32
