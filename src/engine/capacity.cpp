#include "engine/capacity.h"

#include "base/error.h"

namespace dsv32 {
namespace {

// Most tokens of a step of that plan; 0: it does not fit.
int64_t step_tokens(const ModelArgs& args, const EngineOptions& options, const Machine& machine,
                    int64_t n) try {
  return make_plan(args, options_for_batch(args, options, n), machine).chunk;
} catch (const Error& error) {
  if (error.kind() != ErrorKind::memory) throw;
  return 0;
}

}  // namespace

EngineOptions options_for_batch(const ModelArgs& args, EngineOptions options, int64_t n) {
  options.context = options.context.value_or(args.max_seq_len);
  options.max_seqs = n;
  options.pool = options.keys = n * *options.context;
  return options;
}

int64_t largest_batch(const ModelArgs& args, const EngineOptions& options, const Machine& machine) {
  int64_t n_fitting = 0, n_over = step_tokens(args, options, machine, 1) + 1;
  while (n_over - n_fitting > 1) {
    const int64_t n = n_fitting + (n_over - n_fitting) / 2;
    (step_tokens(args, options, machine, n) > 0 ? n_fitting : n_over) = n;
  }
  return n_fitting;
}

}  // namespace dsv32
