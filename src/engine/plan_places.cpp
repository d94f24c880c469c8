#include "engine/plan_places.h"

#include <algorithm>

#include "backend/expert_window.h"
#include "backend/host_lane.h"
#include "backend/memory_budget.h"
#include "base/error.h"
#include "weights/placement.h"

namespace dsv32 {
namespace {

// Of a device's memory, for experts on their way; attention takes as long as about so many come.
constexpr uint64_t kRingShare = 32;

// Weights that leave less than this share of the devices leave too little for a step and a context.
constexpr uint64_t kLeastRest = 16;

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

// Buffers of so many rows, and of slots for all of them as many as are asked for.
void set_buffers(CachePlan& cache, const EngineOptions& options, int64_t n_rows) {
  cache.buffer_rows = n_rows;
  if (cache.has_buffers() && options.slots)
    cache.slot_tokens = std::max(*options.slots, cache.buffer_pages() * kPageTokens);
}

ExpertShape expert_shape(const ModelArgs& args) {
  return {args.n_routed_experts, args.n_activated_experts, args.dim, args.moe_inter_dim};
}

// With all experts of a layer on their way at most; beside them what a prompt's products take, or the link's
// share in decode.
uint64_t expert_window_bytes(const ModelArgs& args, const Machine& machine, int64_t chunk) {
  uint64_t n_layer = 0, n_link = 0, n_room = Machine::kEndless;
  for (const LayerBytes& layer : machine.weights.layers)
    n_layer = std::max(n_layer, layer.experts), n_link = std::max(n_link, layer.link_window);
  if (!machine.link_adds) n_link = 0;
  for (const MemoryInfo& device : machine.devices) n_room = std::min(n_room, device.n_bytes_free);
  if (n_layer == 0) return 0;
  const uint64_t n_least = 4 * (n_layer / static_cast<uint64_t>(args.n_routed_experts) + 3 * kRingAlignment);
  const uint64_t n_ring = std::clamp(n_room / kRingShare, std::min(n_least, n_layer), n_layer);
  return std::max(dsv32::expert_window_bytes(expert_shape(args), chunk, n_ring),
                  round_up(n_ring, kRingAlignment) + round_up(n_link, kRingAlignment));
}

// What placement goes by when the slots of all buffers of a layer take `fixed` bytes, or what it chooses of
// pages for each sequence.
PlacementInput placement_input(const MemoryPlan& plan, const EngineOptions& options, const Machine& machine,
                               bool is_open) {
  const CachePlan none = plan.cache.of_layers(0), one = plan.cache.of_layers(1);
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
      if (!is_host) continue;
      plan.n_host_expert_bytes += layer.experts, plan.n_host_bytes_read += layer.experts_read;
      if (machine.link_adds) plan.n_link_bytes_read += layer.link_read;
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

void place_apart(MemoryPlan& plan, const ModelArgs& args, const EngineOptions& options, Machine machine) {
  // What is chosen fills the memory.
  const bool leaves = may_leave(machine, options);
  for (MemoryInfo& device : machine.devices)
    device.n_bytes_free = less_bytes(device.n_bytes_free, leaves ? device.n_bytes_free / kDriverShare
                                                          : options.topk_buffer ? 0
                                                                                : kSlackBytes);
  const std::optional<int64_t> wanted = wanted_rows(args, options, plan.cache);
  const auto place_with = [&](int64_t buffer_rows) {
    set_buffers(plan.cache, options, buffer_rows);
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

}  // namespace

bool may_leave(const Machine& machine, const EngineOptions& options) {
  if (!has_experts(machine.weights)) return false;
  const uint64_t n_free = machine.free_device_bytes();
  return total_bytes(machine.weights) > n_free - n_free / kLeastRest || options.n_cpu_experts.value_or(0) > 0;
}

void place(MemoryPlan& plan, const ModelArgs& args, const EngineOptions& options, const Machine& machine) {
  plan.expert_window_bytes = expert_window_bytes(args, machine, plan.chunk);
  if (machine.is_apart) return place_apart(plan, args, options, machine);
  take(plan, on_one_device(args, false, machine), args, machine);
  set_buffers(plan.cache, options, wanted_rows(args, options, plan.cache).value_or(0));
}

void check_room(const MemoryPlan& plan, const Machine& machine) {
  if (machine.is_apart) check_devices(plan, machine);
  uint64_t n_free = machine.host.n_bytes_free + plan.n_host_scratch_bytes;
  for (const MemoryPlan::Item& item : plan.items())
    if (!machine.is_apart || item.place == Place::host) check_item(item, n_free);
}

}  // namespace dsv32
