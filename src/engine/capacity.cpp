#include "engine/capacity.h"

#include <algorithm>

#include "base/error.h"

namespace dsv32 {
namespace {

constexpr int64_t kMostSequences = 1 << 16;
constexpr int64_t kUsualTokens = 16384;
constexpr uint64_t kDriverShare = 256;  // a CUDA driver rounds allocations: 0.4 % of a plan (one H100)
// One H100, 671B's dimensions: from 64 to 128 sequences a step gains 1 % in tokens a second.
constexpr int64_t kMostOnDevice = 64, kMostOnHost = 8;

bool fits(const ModelArgs& args, const EngineOptions& options, Machine machine) try {
  machine.leave(kSlackBytes);
  make_plan(args, options, machine);
  return true;
} catch (const Error& error) {
  if (error.kind() != ErrorKind::memory) throw;
  return false;
}

// Of the numbers that fit, the largest up to n_most; they are all that are smaller. 0: none.
template <typename Options>
int64_t largest_fitting(const ModelArgs& args, const Machine& machine, int64_t n_most, Options options) {
  int64_t n_fitting = 0, n_over = 1;
  while (n_over <= n_most && fits(args, options(n_over), machine)) n_fitting = n_over, n_over *= 2;
  n_over = std::min(n_over, n_most + 1);
  while (n_over - n_fitting > 1) {
    const int64_t n = n_fitting + (n_over - n_fitting) / 2;
    (fits(args, options(n), machine) ? n_fitting : n_over) = n;
  }
  return n_fitting;
}

}  // namespace

EngineOptions options_for_batch(const ModelArgs& args, EngineOptions options, int64_t n) {
  options.context = options.context.value_or(args.max_seq_len);
  options.max_seqs = n;
  options.pool = options.keys = n * *options.context;
  return options;
}

int64_t largest_batch(const ModelArgs& args, const EngineOptions& options, const Machine& machine) {
  if (!fits(args, options_for_batch(args, options, 1), machine)) return 0;
  const MemoryPlan one = make_plan(args, options_for_batch(args, options, 1), machine);
  EngineOptions same_step = options;
  same_step.chunk = one.chunk, same_step.n_cpu_experts = one.n_host_expert_layers();
  return largest_fitting(args, machine, kMostSequences,
                         [&](int64_t n) { return options_for_batch(args, same_step, n); });
}

EngineOptions with_suitable_batch(const ModelArgs& args, EngineOptions options, Machine machine) {
  if (options.max_seqs != kAsManyAsSuit) return options;
  for (MemoryInfo& device : machine.devices) device.n_bytes_free -= device.n_bytes_free / kDriverShare;
  options.max_seqs = 1;
  const MemoryPlan one = make_plan(args, options, machine);
  const int64_t context = one.cache.max_context;
  options.context = context, options.chunk = one.chunk;
  options.n_cpu_experts = one.n_host_expert_layers();  // more sequences drive no expert from a device
  const bool has_buffers = args.has_indexer() && (machine.is_apart || options.topk_buffer);
  const int64_t n_rows = std::min(options.topk_buffer.value_or(2 * args.index_topk), context);
  const int64_t n_buffer = has_buffers && n_rows < context ? pages_for(n_rows + 1) : 0;
  const int64_t n_least = std::min(n_buffer, least_buffer_pages(args));
  // Slots of so many pages for all; 0: every row is resident.
  const auto batch_of = [&](int64_t n, int64_t n_slot_pages) {
    EngineOptions batch = options;
    batch.max_seqs = n;
    batch.pool = batch.keys = std::max(context, n * std::min(context, kUsualTokens));
    batch.topk_buffer = n_slot_pages ? n_rows : kEveryRow;
    batch.slots = n_slot_pages * kPageTokens;
    return batch;
  };
  const int64_t n = largest_fitting(args, machine, machine.is_apart ? kMostOnDevice : kMostOnHost,
                                    [&](int64_t seqs) { return batch_of(seqs, seqs * n_least); });
  if (n == 0) return options;
  const bool may_be_resident = !options.topk_buffer || n_buffer == 0;
  if (may_be_resident && fits(args, batch_of(n, 0), machine)) return batch_of(n, 0);
  const int64_t n_more = largest_fitting(args, machine, n * (n_buffer - n_least),
                                         [&](int64_t n_pages) { return batch_of(n, n * n_least + n_pages); });
  return batch_of(n, n * n_least + n_more);
}

}  // namespace dsv32
