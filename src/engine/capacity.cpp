#include "engine/plan.h"

#include <algorithm>
#include <optional>

#include "base/error.h"

namespace dsv32 {
namespace {

constexpr int64_t kMostSequences = 1 << 16;
constexpr int64_t kUsualTokens = 16384;
// One H100, 671B's dimensions: from 64 to 128 sequences a step gains 1 % in tokens a second.
constexpr int64_t kMostOnDevice = 64, kMostOnHost = 8;

// The layers whose experts the host keeps then; nothing: it does not fit.
std::optional<int64_t> host_layers(const ModelArgs& args, const EngineOptions& options, Machine machine) {
  machine.leave(kSlackBytes);
  return if_it_fits([&] { return make_plan(args, options, machine).n_host_expert_layers(); });
}

// Of the numbers that fit, the largest up to n_most; they are all that are smaller. 0: none.
template <typename Fits>
int64_t largest_fitting(int64_t n_most, const Fits& fit) {
  int64_t n_fitting = 0, n_over = 1;
  while (n_over <= n_most && fit(n_over)) n_fitting = n_over, n_over *= 2;
  n_over = std::min(n_over, n_most + 1);
  while (n_over - n_fitting > 1) {
    const int64_t n = n_fitting + (n_over - n_fitting) / 2;
    (fit(n) ? n_fitting : n_over) = n;
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
  const std::optional<int64_t> of_one = host_layers(args, options_for_batch(args, options, 1), machine);
  if (!of_one) return 0;
  EngineOptions same_step = options;
  same_step.chunk = make_plan(args, options_for_batch(args, options, 1), machine).chunk;
  return largest_fitting(kMostSequences, [&](int64_t n) {
    const auto found = host_layers(args, options_for_batch(args, same_step, n), machine);
    return found && *found <= *of_one;
  });
}

EngineOptions with_suitable_batch(const ModelArgs& args, EngineOptions options, Machine machine) {
  if (options.max_seqs != kAsManyAsSuit) return options;
  for (MemoryInfo& device : machine.devices) device.n_bytes_free -= device.n_bytes_free / kDriverShare;
  options.max_seqs = 1;
  const MemoryPlan one = make_plan(args, options, machine);
  const int64_t context = one.cache.max_context;
  options.context = context, options.chunk = one.chunk;
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
  const std::optional<int64_t> of_one = host_layers(args, batch_of(1, n_least), machine);
  const auto fit = [&](int64_t n, int64_t n_slot_pages) {
    const auto found = host_layers(args, batch_of(n, n_slot_pages), machine);
    return found && *found <= *of_one;
  };
  const int64_t n = largest_fitting(machine.is_apart ? kMostOnDevice : kMostOnHost,
                                    [&](int64_t seqs) { return fit(seqs, seqs * n_least); });
  if (n == 0) return options;
  const bool may_be_resident = !options.topk_buffer || n_buffer == 0;
  if (may_be_resident && fit(n, 0)) return batch_of(n, 0);
  const int64_t n_more = largest_fitting(n * (n_buffer - n_least),
                                         [&](int64_t n_pages) { return fit(n, n * n_least + n_pages); });
  return batch_of(n, n * n_least + n_more);
}

}  // namespace dsv32
