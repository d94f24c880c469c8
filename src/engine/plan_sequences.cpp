// How many sequences suit a machine, and how many fit. Numbers are tried: whether one fits is known only from
// a whole plan.
#include "engine/plan.h"

#include <algorithm>

namespace dsv32 {
namespace {

constexpr int64_t kMostSequences = 1 << 16;
// One H100, 671B's dimensions: from 64 to 128 sequences a step gains 1 % in tokens a second.
constexpr int64_t kMostOnDevice = 64, kMostOnHost = 8;

// The largest number up to n_most that fits, where all smaller ones fit too. 0: none.
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

EngineOptions with_sequences(const ModelArgs& args, EngineOptions options, Machine machine) {
  if (options.max_seqs != kAsManyAsSuit) return options;
  for (MemoryInfo& device : machine.devices) device.n_bytes_free -= device.n_bytes_free / kDriverShare;
  options.max_seqs = 1;
  const MemoryPlan one = plan_on_all(args, options, machine);
  machine.leave(kSlackBytes);
  const int64_t context = one.cache.max_context;
  options.context = context, options.chunk = one.chunk;
  const bool has_buffers = args.topk() > 0 && (machine.is_apart || options.topk_buffer);
  const int64_t n_rows = std::min(options.topk_buffer.value_or(2 * args.topk()), context);
  const int64_t n_buffer = has_buffers && n_rows < context ? pages_for(n_rows + 1) : 0;
  const int64_t n_least = std::min(n_buffer, least_buffer_pages(args));
  // Options for n sequences with n_slot_pages in all; 0: every row is resident.
  const auto batch_of = [&](int64_t n, int64_t n_slot_pages) {
    EngineOptions batch = options;
    batch.max_seqs = n;
    batch.pool = std::max(context, n * std::min(context, kUsualTokens));
    batch.topk_buffer = n_slot_pages ? n_rows : kEveryRow;
    batch.slots = n_slot_pages * kPageTokens;
    return batch;
  };
  const auto plan_of = [&](int64_t n, int64_t n_slot_pages) {
    return if_it_fits([&] { return plan_on_all(args, batch_of(n, n_slot_pages), machine); });
  };
  const auto of_one = plan_of(1, n_least);
  const auto fit = [&](int64_t n, int64_t n_slot_pages) {
    const auto plan = plan_of(n, n_slot_pages);
    return plan && plan->n_host_expert_layers() <= of_one->n_host_expert_layers();
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

EngineOptions options_for_batch(const ModelArgs& args, EngineOptions options, int64_t n) {
  options.context = options.context.value_or(args.max_seq_len);
  options.max_seqs = n;
  options.pool = n * *options.context;
  return options;
}

int64_t largest_batch(const ModelArgs& some, const EngineOptions& options, Machine machine) {
  const ModelArgs args = options.n_guesses ? some : some.without_draft();
  machine.leave(kSlackBytes);
  EngineOptions same_step = options;
  const auto plan_of = [&](int64_t n) {
    return if_it_fits([&] { return make_plan(args, options_for_batch(args, same_step, n), machine); });
  };
  const auto one = plan_of(1);
  if (!one) return 0;
  same_step.chunk = one->chunk;
  return largest_fitting(kMostSequences, [&](int64_t n) {
    const auto plan = plan_of(n);
    return plan && plan->n_host_expert_layers() <= one->n_host_expert_layers();
  });
}

}  // namespace dsv32
