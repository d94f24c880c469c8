#include "engine/plan.h"

#include <algorithm>

#include "backend/expert_window.h"
#include "backend/host_lane.h"
#include "backend/memory_budget.h"
#include "base/error.h"
#include "engine/sampler.h"
#include "model/stage.h"
#include "weights/placement.h"

namespace dsv32 {
namespace {

constexpr int64_t kHostChunk = 512, kDeviceChunk = 2048, kLeastChunk = 64;
// All experts of a layer travel with each step: the more tokens share that, the better.
constexpr int64_t kStreamedChunk = 8192;
// So many tokens at a time are worth more than the experts of a layer on the device.
constexpr int64_t kLeastBesideExperts = 512;
// Of a device's memory, for experts on their way; attention takes as long as about so many come.
constexpr uint64_t kRingShare = 32;
// A CUDA driver rounds allocations: so much of a plan (0.4 %, one H100).
constexpr uint64_t kDriverShare = 256;

long long as_ll(int64_t value) { return value; }

uint64_t less(uint64_t from, uint64_t n_bytes) { return from - std::min(from, n_bytes); }

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

uint64_t core_bytes(const ModelBytes& model) {
  uint64_t n_bytes = model.embedding + model.head;
  for (const LayerBytes& layer : model.layers) n_bytes += layer.core;
  return n_bytes;
}

uint64_t free_device_bytes(const Machine& machine) {
  uint64_t n_bytes = 0;
  for (const MemoryInfo& device : machine.devices) n_bytes += device.n_bytes_free;
  return n_bytes;
}

// Whether experts may be the host's.
bool may_leave(const Machine& machine, const EngineOptions& options) {
  if (core_bytes(machine.weights) >= total_bytes(machine.weights)) return false;
  return total_bytes(machine.weights) > free_device_bytes(machine) || options.n_cpu_experts.value_or(0) > 0;
}

// Of the weights, what the devices will have: all that the host need not keep.
uint64_t held_bytes(const Machine& machine, const EngineOptions& options) {
  return may_leave(machine, options) ? core_bytes(machine.weights) : total_bytes(machine.weights);
}

// A dense model lists every position of every token of a step: the step is kept small enough for that. Unless
// it is given, it takes no more than a quarter of a device's memory.
int64_t choose_chunk(const ModelArgs& args, const EngineOptions& options, const Machine& machine,
                     int64_t n_suitable) {
  const int64_t context = options.context.value_or(args.max_seq_len);
  int64_t chunk = options.chunk.value_or(n_suitable);
  const uint64_t n_free =
      less(free_device_bytes(machine), held_bytes(machine, options)) / machine.devices.size();
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
    return static_cast<int64_t>(less(n_host, options.host_mem ? n_taken + kSlackBytes : 0) /
                                (row_bytes + key_bytes));
  const uint64_t window_bytes = static_cast<uint64_t>(2 * cache.layout.row_bytes()) * machine.devices.size();
  const uint64_t n_device = less(free_device_bytes(machine), n_taken) / 2;
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

// Rows of the buffers that are asked for; 0: every row is to be resident. Nothing: it is open.
std::optional<int64_t> wanted_rows(const ModelArgs& args, const EngineOptions& options,
                                   const CachePlan& cache) {
  if (!options.topk_buffer) return std::nullopt;
  if (*options.topk_buffer >= cache.max_context) return 0;
  if (!args.has_indexer())
    fail(ErrorKind::usage,
         format("--topk-buffer is %lld, but this model has no indexer and attends to every row",
                as_ll(*options.topk_buffer)),
         "leave the flag out, or say --topk-buffer full");
  if (*options.topk_buffer < args.index_topk)
    fail(ErrorKind::usage,
         format("--topk-buffer is %lld, expected at least %lld, the rows that one step selects",
                as_ll(*options.topk_buffer), as_ll(args.index_topk)));
  return *options.topk_buffer;
}

CachePlan of_layers(CachePlan cache, int64_t n_layers) {
  cache.n_layers = n_layers;
  return cache;
}

ExpertShape expert_shape(const ModelArgs& args) {
  return {args.n_routed_experts, args.n_activated_experts, args.dim, args.moe_inter_dim};
}

// With all experts of a layer on their way at most.
uint64_t expert_window_bytes(const ModelArgs& args, const Machine& machine, int64_t chunk) {
  uint64_t n_layer = 0, n_room = Machine::kEndless;
  for (const LayerBytes& layer : machine.weights.layers) n_layer = std::max(n_layer, layer.experts);
  for (const MemoryInfo& device : machine.devices) n_room = std::min(n_room, device.n_bytes_free);
  if (n_layer == 0) return 0;
  const uint64_t n_least = 4 * (n_layer / static_cast<uint64_t>(args.n_routed_experts) + 3 * kRingAlignment);
  const uint64_t n_ring = std::clamp(n_room / kRingShare, std::min(n_least, n_layer), n_layer);
  return dsv32::expert_window_bytes(expert_shape(args), chunk, n_ring);
}

// What placement goes by when the slots of all buffers of a layer take `fixed` bytes, or what it chooses of
// pages for each sequence.
PlacementInput placement_input(const MemoryPlan& plan, const EngineOptions& options, const Machine& machine,
                               bool is_open) {
  const CachePlan none = of_layers(plan.cache, 0), one = of_layers(plan.cache, 1);
  PlacementInput input;
  input.model = machine.weights;
  input.model.head += plan.stages.back().n_logit_bytes;
  for (const MemoryInfo& device : machine.devices) input.device_room.push_back(device.n_bytes_free);
  input.host_room = machine.host.n_bytes_free;
  input.device_bytes = plan.n_activation_bytes + none.table_bytes() + none.window_bytes();
  input.layer_bytes = one.key_pool_bytes() + one.table_bytes() - none.table_bytes();
  (is_open ? input.row_bytes : input.layer_bytes) += one.slot_bytes();
  input.stream_bytes = plan.expert_window_bytes;
  input.host_bytes = plan.cache.row_pool_bytes() + machine.devices.size() * kMailboxBytes;
  input.n_host_layers = options.n_cpu_experts;
  return input;
}

bool keeps_experts(const Placement& placement) {
  return std::ranges::count(placement.has_host_experts, true) > 0;
}

// Layers and experts to where the placement has them.
void take(MemoryPlan& plan, const Placement& placement, const ModelArgs& args, const Machine& machine) {
  const ModelBytes& model = machine.weights;
  const StagePlan end = plan.stages.back();
  plan.stages.clear();
  plan.has_host_experts = placement.has_host_experts;
  for (size_t i = 0; i < placement.devices.size(); ++i) {
    StagePlan stage{.first_layer = placement.devices[i].first_layer,
                    .end_layer = placement.devices[i].end_layer,
                    .n_scratch_bytes = machine.is_apart ? machine.devices[i].n_bytes_used : 0};
    bool has_host_experts = false;
    for (int64_t l = stage.first_layer; l < stage.end_layer; ++l) {
      const LayerBytes& layer = model.layers[static_cast<size_t>(l)];
      const bool is_host = plan.has_host_experts[static_cast<size_t>(l)];
      has_host_experts |= is_host;
      stage.n_weight_bytes += layer.core + (is_host ? 0 : layer.experts);
      stage.n_bytes_read += layer.core + (is_host ? 0 : layer.experts_read);
      if (is_host) plan.n_host_expert_bytes += layer.experts, plan.n_host_bytes_read += layer.experts_read;
    }
    if (i == 0) stage.n_weight_bytes += model.embedding, stage.n_bytes_read += model.embedding_read;
    if (stage.end_layer == args.n_layers) {
      stage.n_weight_bytes += model.head - (i == 0 ? model.tied : 0), stage.n_bytes_read += model.head;
      stage.n_logit_bytes = end.n_logit_bytes;
    }
    if (has_host_experts) {
      stage.n_expert_window_bytes = plan.expert_window_bytes;
      plan.n_mailbox_bytes += kMailboxBytes;
    }
    plan.stages.push_back(stage);
  }
}

void check_item(const MemoryPlan::Item& item, uint64_t& n_free) {
  if (item.n_bytes > n_free) fail_memory(item.name, item.n_bytes, n_free, item.hint);
  n_free -= item.n_bytes;
}

void check_devices(const MemoryPlan& plan, const Machine& machine) {
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    uint64_t n_free = machine.devices[i].n_bytes_free + plan.stages[i].n_scratch_bytes;
    for (const MemoryPlan::Item& item : plan.device_items(i)) check_item(item, n_free);
  }
}

void check_room(const MemoryPlan& plan, const Machine& machine) {
  if (machine.is_apart) check_devices(plan, machine);
  uint64_t n_free = machine.host.n_bytes_free + plan.n_host_scratch_bytes;
  for (const MemoryPlan::Item& item : plan.items())
    if (!machine.is_apart || item.place == Place::host) check_item(item, n_free);
}

// Everything on one device, but for the experts.
Placement on_one_device(const ModelArgs& args, bool host_has_experts, const Machine& machine) {
  Placement placement;
  placement.devices = {{0, args.n_layers, 0, 0}};
  placement.has_host_experts.assign(static_cast<size_t>(args.n_layers), false);
  if (host_has_experts)
    for (size_t l = 0; l < machine.weights.layers.size(); ++l)
      placement.has_host_experts[l] = machine.weights.layers[l].experts > 0;
  return placement;
}

// Every row resident if that needs no expert on the host; else buffers, of at least twice top-k as long as
// that serves.
void place(MemoryPlan& plan, const ModelArgs& args, const EngineOptions& options, Machine machine) {
  // What is chosen fills the memory.
  const bool leaves = may_leave(machine, options);
  for (MemoryInfo& device : machine.devices)
    device.n_bytes_free = less(device.n_bytes_free, leaves                ? device.n_bytes_free / kDriverShare
                                                    : options.topk_buffer ? 0
                                                                          : kSlackBytes);
  const std::optional<int64_t> wanted = wanted_rows(args, options, plan.cache);
  const auto place_with = [&](int64_t buffer_rows) {
    plan.cache.buffer_rows = buffer_rows;
    if (buffer_rows > 0 && options.slots)
      plan.cache.slot_tokens = std::max(*options.slots, plan.cache.buffer_pages() * kPageTokens);
    return place_layers(placement_input(plan, options, machine, false));
  };
  // Open pages of slots for each sequence.
  const auto place_open = [&](int64_t n_least_rows) {
    plan.cache.buffer_rows = 1;  // a page
    PlacementInput input = placement_input(plan, options, machine, true);
    input.most_rows = pages_for(plan.cache.max_context + 1);
    input.least_rows = std::min(pages_for(n_least_rows + 1), input.most_rows);
    const Placement placement = place_layers(input);
    plan.cache.buffer_rows =
        std::clamp(placement.buffer_rows * kPageTokens - 1, args.index_topk, plan.cache.max_context);
    return placement;
  };
  const auto try_or_none = [&](const auto& act) -> std::optional<Placement> {
    try {
      return act();
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::memory) throw;
      return std::nullopt;
    }
  };
  const bool may_have_buffers = args.has_indexer() && !wanted;
  std::optional<Placement> found = try_or_none([&] { return place_with(wanted.value_or(0)); });
  if (may_have_buffers && (!found || keeps_experts(*found))) {
    found = try_or_none([&] { return place_open(2 * args.index_topk); });
    if (!found) found = try_or_none([&] { return place_open(args.index_topk); });
    if (!found) plan.cache.buffer_rows = args.index_topk;
  }
  if (found) return take(plan, *found, args, machine);
  // The first thing that does not fit is named as an item, if one device may show it.
  if (machine.devices.size() == 1) {
    take(plan, on_one_device(args, options.n_cpu_experts != 0, machine), args, machine);
    check_devices(plan, machine);
  }
  place_layers(placement_input(plan, options, machine, false));
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
  plan.expert_window_bytes = expert_window_bytes(args, machine, plan.chunk);
  if (machine.is_apart) {
    place(plan, args, options, machine);
  } else {
    take(plan, on_one_device(args, false, machine), args, machine);
    plan.cache.buffer_rows = wanted_rows(args, options, plan.cache).value_or(0);
    if (plan.cache.has_buffers() && options.slots)
      plan.cache.slot_tokens = std::max(*options.slots, plan.cache.buffer_pages() * kPageTokens);
  }
  check_room(plan, machine);
  return plan;
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
  const int64_t first = choose_chunk(args, options, machine, machine.is_apart ? kDeviceChunk : kHostChunk);
  const int64_t last = options.chunk ? first : std::min(first, kLeastChunk);
  std::optional<MemoryPlan> largest;
  for (int64_t chunk = first; chunk >= last; chunk /= 2) {
    std::optional<MemoryPlan> plan = with(chunk);
    if (plan && (plan->n_host_expert_bytes == 0 || options.n_cpu_experts)) return *plan;
    if (plan && !largest) largest = std::move(plan);
    if (largest && chunk / 2 < kLeastBesideExperts) break;
  }
  if (!largest) return plan_with_chunk(args, options, machine, last);  // which says what is lacking
  if (options.chunk) return *largest;
  return with(choose_chunk(args, options, machine, kStreamedChunk)).value_or(*largest);
}

}  // namespace

MemoryLimits EngineOptions::limits(size_t i) const {
  if (gpu_mem.empty()) return {std::nullopt, host_mem};
  return {gpu_mem[std::min(i, gpu_mem.size() - 1)], host_mem};
}

std::vector<MemoryPlan::Item> MemoryPlan::device_items(size_t stage) const {
  constexpr const char* kLessContext = "a smaller context (-c) needs less";
  constexpr const char* kLessRows =
      "a smaller context (-c) or --topk-buffer needs less, a larger --gpu-mem allows more";
  const StagePlan& s = stages[stage];
  const CachePlan part = of_layers(cache, s.end_layer - s.first_layer);
  std::vector<Item> items;
  if (cache.is_apart)
    items.push_back({"weight_bytes", "the weights", Place::device, s.n_weight_bytes,
                     "a larger --gpu-mem may allow more; --backend cpu runs without a GPU"});
  items.insert(
      items.end(),
      {{"scratch_bytes", "scratch memory", Place::device, s.n_scratch_bytes, ""},
       {"activation_bytes", "the activations of a step", Place::device, n_activation_bytes,
        "a smaller --chunk needs less"},
       {"logit_bytes", "logits", Place::device, s.n_logit_bytes, ""},
       {"expert_window_bytes", "the window of the host's experts", Place::device, s.n_expert_window_bytes,
        "a smaller --chunk needs less"},
       {"index_key_bytes", "the index keys and scales", Place::device, part.key_pool_bytes(), kLessContext},
       {"page_table_bytes", "the page tables", Place::device, part.table_bytes(), kLessContext},
       {"window_bytes", "the windows of prefill", Place::device, part.window_bytes(), kLessContext},
       {"topk_buffer_bytes", "the top-k buffers", Place::device, part.has_buffers() ? part.slot_bytes() : 0,
        kLessRows},
       {"resident_row_bytes", "the resident latent rows", Place::device,
        part.has_buffers() ? 0 : part.slot_bytes(), kLessRows}});
  return items;
}

std::vector<MemoryPlan::Item> MemoryPlan::items() const {
  std::vector<Item> items = device_items(0);
  for (size_t i = 1; i < stages.size(); ++i) {
    const std::vector<Item> more = device_items(i);
    for (size_t k = 0; k < items.size(); ++k) items[k].n_bytes += more[k].n_bytes;
  }
  items.push_back({"host_scratch_bytes", "staging memory", Place::host, n_host_scratch_bytes, ""});
  items.push_back({"latent_row_bytes", "the latent rows", Place::host, cache.row_pool_bytes(),
                   "a smaller context (-c) needs less, a larger --host-mem allows more"});
  items.push_back({"mailbox_bytes", "mailboxes of the host's experts", Place::host, n_mailbox_bytes, ""});
  items.push_back({"host_expert_bytes", "the experts that the host keeps", Place::host, n_host_expert_bytes,
                   "a larger --host-mem or more GPUs allow more"});
  return items;
}

uint64_t MemoryPlan::n_bytes(Place place) const {
  uint64_t n = 0;
  for (const Item& item : items())
    if (item.place == place) n += item.n_bytes;
  return n;
}

uint64_t MemoryPlan::n_device_bytes_read() const {
  uint64_t n = 0;
  for (const StagePlan& stage : stages) n += stage.n_bytes_read;
  return n;
}

uint64_t MemoryPlan::n_device_bytes(size_t stage) const {
  uint64_t n = 0;
  for (const Item& item : device_items(stage)) n += item.n_bytes;
  return n;
}

MemoryPlan make_plan(const ModelArgs& args, const EngineOptions& options, const Machine& machine) {
  check_flags(args, options);
  const size_t n_most = std::min(machine.devices.size(), static_cast<size_t>(args.n_layers));
  for (size_t n = machine.is_apart && options.gpus.empty() ? 1 : n_most;; ++n) try {
      Machine some = machine;
      some.devices.resize(n);
      some.weights.layers.resize(static_cast<size_t>(args.n_layers));
      MemoryPlan plan = plan_on(args, options, some);
      if (n == n_most || plan.n_host_expert_bytes == 0 || options.n_cpu_experts) return plan;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::memory || n == n_most) throw;
    }
}

}  // namespace dsv32
