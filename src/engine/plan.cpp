#include "engine/plan.h"

#include <algorithm>

#include "backend/memory_budget.h"
#include "base/error.h"
#include "engine/sampler.h"
#include "model/stage.h"

namespace dsv32 {
namespace {

constexpr int64_t kHostChunk = 512, kDeviceChunk = 2048, kLeastChunk = 64;

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

// A dense model lists every position of every token of a step: the step is kept small enough for that. Unless
// it is given, it takes no more than a quarter of a device's memory.
int64_t choose_chunk(const ModelArgs& args, const EngineOptions& options, const Machine& machine) {
  const int64_t context = options.context.value_or(args.max_seq_len);
  int64_t chunk = options.chunk.value_or(machine.is_apart ? kDeviceChunk : kHostChunk);
  const uint64_t n_free = less(machine.device.n_bytes_free, machine.n_weight_bytes);
  while (!options.chunk && machine.is_apart && chunk > kLeastChunk &&
         activation_bytes(args, chunk, context) > n_free / 4)
    chunk /= 2;
  constexpr int64_t kMostListed = int64_t{1} << 25;
  const int64_t n_attended = args.has_indexer() ? std::min(args.index_topk, context) : context;
  return std::max<int64_t>(1, std::min({chunk, context, kMostListed / n_attended}));
}

// Tokens that both memories hold: host rows in half of what is free there (all of a limit that was set);
// keys, and windows for prefill, in half of what weights and a step leave of the device.
int64_t fitting_context(const CachePlan& cache, const EngineOptions& options, const Machine& machine,
                        uint64_t n_taken) {
  const int64_t n_layers = cache.n_layers;
  const auto row_bytes = static_cast<uint64_t>(n_layers * cache.layout.row_bytes());
  const auto key_bytes = static_cast<uint64_t>(n_layers * cache.layout.key_page_bytes() / kPageTokens);
  const uint64_t n_host = machine.host.n_bytes_free / (options.memory.host ? 1 : 2);
  if (!machine.is_apart)
    return static_cast<int64_t>(less(n_host, options.memory.host ? n_taken + kSlackBytes : 0) /
                                (row_bytes + key_bytes));
  const auto window_bytes = static_cast<uint64_t>(2 * cache.layout.row_bytes());
  const uint64_t n_device = less(machine.device.n_bytes_free, n_taken) / 2;
  return static_cast<int64_t>(std::min(n_host / row_bytes, n_device / (key_bytes + window_bytes)));
}

int64_t choose_context(const ModelArgs& args, const CachePlan& cache, const EngineOptions& options,
                       const Machine& machine, uint64_t n_taken) {
  if (options.context) return *options.context;
  const int64_t n_fitting = fitting_context(cache, options, machine, n_taken) / kPageTokens * kPageTokens;
  return std::clamp(n_fitting, std::min<int64_t>(kPageTokens, args.max_seq_len), args.max_seq_len);
}

int64_t choose_pool(const MemoryPlan& plan, const EngineOptions& options, const Machine& machine) {
  const CachePlan& cache = plan.cache;
  if (options.pool != kAllContexts) return std::max(options.pool.value_or(0), cache.max_context);
  const uint64_t n_taken = (machine.is_apart ? machine.n_weight_bytes : 0) + plan.n_logit_bytes +
                           plan.n_activation_bytes + cache.table_bytes();
  const int64_t n_rounding = cache.max_seqs * kPageTokens;  // of CachePlan::n_pages
  return std::clamp(fitting_context(cache, options, machine, n_taken) - n_rounding, cache.max_context,
                    cache.max_seqs * cache.max_context);
}

// Rows of a buffer that the memory holds once everything else has its place; 0 when all rows fit.
int64_t fitting_buffer_rows(const ModelArgs& args, MemoryPlan plan, const Machine& machine) {
  plan.cache.buffer_rows = 0;
  const uint64_t n_room = less(machine.device.n_bytes_free + plan.n_device_scratch_bytes, kSlackBytes);
  if (!machine.is_apart || !args.has_indexer() || plan.n_bytes(Place::device) <= n_room) return 0;
  plan.cache.buffer_rows = 1;  // a page of slots
  const uint64_t n_page_bytes = plan.cache.slot_bytes();
  const uint64_t n_left = less(n_room, plan.n_bytes(Place::device) - n_page_bytes);
  const int64_t n_rows = static_cast<int64_t>(n_left / n_page_bytes) * kPageTokens - 1;
  return std::clamp(n_rows, args.index_topk, plan.cache.max_context);
}

int64_t choose_buffer_rows(const ModelArgs& args, const EngineOptions& options, const MemoryPlan& plan,
                           const Machine& machine) {
  if (!options.topk_buffer) return fitting_buffer_rows(args, plan, machine);
  if (*options.topk_buffer >= plan.cache.max_context) return 0;
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

void check_room(const MemoryPlan& plan, const Machine& machine) {
  uint64_t n_device = machine.device.n_bytes_free + plan.n_device_scratch_bytes;
  uint64_t n_host = machine.host.n_bytes_free + plan.n_host_scratch_bytes;
  for (const MemoryPlan::Item& item : plan.items()) {
    uint64_t& n_free = item.place == Place::device && machine.is_apart ? n_device : n_host;
    if (item.n_bytes > n_free) fail_memory(item.name, item.n_bytes, n_free, item.hint);
    n_free -= item.n_bytes;
  }
}

MemoryPlan plan_with_chunk(const ModelArgs& args, const EngineOptions& options, const Machine& machine,
                           int64_t chunk) {
  MemoryPlan plan;
  plan.n_weight_bytes = machine.n_weight_bytes;
  plan.n_device_scratch_bytes = machine.is_apart ? machine.device.n_bytes_used : 0;
  plan.n_host_scratch_bytes = machine.host.n_bytes_used;
  plan.n_logit_bytes = Stage::logit_bytes(args, options.max_seqs) + RowSampler::n_bytes(options.max_seqs);
  plan.cache.layout = layout_of(args, options.kv_type);
  plan.cache.is_apart = machine.is_apart;
  plan.cache.n_layers = args.n_layers;
  plan.cache.max_seqs = options.max_seqs;
  plan.chunk = chunk;
  const uint64_t n_taken = (machine.is_apart ? machine.n_weight_bytes : 0) + plan.n_logit_bytes +
                           activation_bytes(args, std::max(plan.chunk, options.max_seqs), args.max_seq_len);
  plan.cache.max_context = choose_context(args, plan.cache, options, machine, n_taken);
  plan.chunk = std::max(std::min(plan.chunk, plan.cache.max_context), options.max_seqs);
  plan.n_activation_bytes = activation_bytes(args, plan.chunk, plan.cache.max_context);
  plan.cache.pool_tokens = choose_pool(plan, options, machine);
  plan.cache.key_tokens = std::clamp(options.keys.value_or(plan.cache.pool_tokens), plan.cache.max_context,
                                     plan.cache.pool_tokens);
  plan.cache.buffer_rows = choose_buffer_rows(args, options, plan, machine);
  if (plan.cache.has_buffers() && options.slots)
    plan.cache.slot_tokens = std::max(*options.slots, plan.cache.buffer_pages() * kPageTokens);
  check_room(plan, machine);
  return plan;
}

}  // namespace

std::vector<MemoryPlan::Item> MemoryPlan::items() const {
  constexpr const char* kLessContext = "a smaller context (-c) needs less";
  constexpr const char* kLessRows =
      "a smaller context (-c) or --topk-buffer needs less, a larger --gpu-mem allows more";
  std::vector<Item> items;
  if (cache.is_apart)
    items.push_back({"weight_bytes", "the weights", Place::device, n_weight_bytes,
                     "a larger --gpu-mem may allow more; --backend cpu runs without a GPU"});
  items.insert(
      items.end(),
      {{"scratch_bytes", "scratch memory", Place::device, n_device_scratch_bytes, ""},
       {"activation_bytes", "the activations of a step", Place::device, n_activation_bytes,
        "a smaller --chunk needs less"},
       {"logit_bytes", "logits", Place::device, n_logit_bytes, ""},
       {"index_key_bytes", "the index keys and scales", Place::device, cache.key_pool_bytes(), kLessContext},
       {"page_table_bytes", "the page tables", Place::device, cache.table_bytes(), kLessContext},
       {"window_bytes", "the windows of prefill", Place::device, cache.window_bytes(), kLessContext},
       {"topk_buffer_bytes", "the top-k buffers", Place::device, cache.has_buffers() ? cache.slot_bytes() : 0,
        kLessRows},
       {"resident_row_bytes", "the resident latent rows", Place::device,
        cache.has_buffers() ? 0 : cache.slot_bytes(), kLessRows},
       {"host_scratch_bytes", "staging memory", Place::host, n_host_scratch_bytes, ""},
       {"latent_row_bytes", "the latent rows", Place::host, cache.row_pool_bytes(),
        "a smaller context (-c) needs less, a larger --host-mem allows more"}});
  return items;
}

uint64_t MemoryPlan::n_bytes(Place place) const {
  uint64_t n = 0;
  for (const Item& item : items())
    if (item.place == place) n += item.n_bytes;
  return n;
}

MemoryPlan make_plan(const ModelArgs& args, const EngineOptions& options, const Machine& machine) {
  check_flags(args, options);
  for (int64_t chunk = choose_chunk(args, options, machine);; chunk /= 2) try {
      return plan_with_chunk(args, options, machine, chunk);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::memory || options.chunk || chunk <= kLeastChunk) throw;
    }
}

}  // namespace dsv32
