// A plan's items: the bytes of everything that is allocated, and the check against the limits.
#include "engine/plan.h"

namespace dsv32 {
namespace {

void check_item(const MemoryPlan::Item& item, uint64_t& n_free) {
  if (item.n_bytes > n_free) fail_memory(item.name, item.n_bytes, n_free, item.hint);
  n_free -= item.n_bytes;
}

uint64_t sum_of(const std::vector<MemoryPlan::Item>& items, Place place) {
  uint64_t n = 0;
  for (const MemoryPlan::Item& item : items) n += item.place == place ? item.n_bytes : 0;
  return n;
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
  const CachePlan part = cache.of_layers(s.end_layer - s.first_layer);
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
  items.push_back({"mask_bytes", "masks of allowed tokens", Place::host, n_mask_bytes, ""});
  items.push_back({"mailbox_bytes", "mailboxes of the host's experts", Place::host, n_mailbox_bytes, ""});
  items.push_back({"host_expert_bytes", "the experts that the host keeps", Place::host, n_host_expert_bytes,
                   "a larger --host-mem or more GPUs allow more"});
  return items;
}

uint64_t MemoryPlan::n_bytes(Place place) const { return sum_of(items(), place); }

void MemoryPlan::check_devices(const Machine& machine) const {
  for (size_t i = 0; i < stages.size(); ++i) {
    uint64_t n_free = machine.devices[i].n_bytes_free + stages[i].n_scratch_bytes;
    for (const Item& item : device_items(i)) check_item(item, n_free);
  }
}

void MemoryPlan::check_room(const Machine& machine) const {
  if (machine.is_apart) check_devices(machine);
  uint64_t n_free = machine.host.n_bytes_free + n_host_scratch_bytes;
  for (const Item& item : items())
    if (!machine.is_apart || item.place == Place::host) check_item(item, n_free);
}

bool MemoryPlan::offers_no_less(const MemoryPlan& other, int64_t n_enough) const {
  const auto rows = [](const MemoryPlan& plan) {
    return plan.cache.has_buffers() ? plan.cache.buffer_rows : kEveryRow;
  };
  return n_host_expert_bytes == 0 && stages.size() <= other.stages.size() && chunk >= other.chunk &&
         cache.max_context >= other.cache.max_context && cache.max_seqs >= other.cache.max_seqs &&
         cache.pool_tokens >= other.cache.pool_tokens && cache.slot_tokens >= other.cache.slot_tokens &&
         rows(*this) >= std::min(rows(other), n_enough);
}

uint64_t MemoryPlan::n_device_bytes_read() const {
  uint64_t n = 0;
  for (const StagePlan& stage : stages) n += stage.n_bytes_read;
  return n;
}

uint64_t MemoryPlan::n_device_bytes(size_t stage) const { return sum_of(device_items(stage), Place::device); }

}  // namespace dsv32
