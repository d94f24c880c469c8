#include "engine/capacity.h"

#include "base/error.h"

namespace dsv32 {
namespace {

constexpr int64_t kMostSequences = 1 << 16;

bool fits(const ModelArgs& args, const EngineOptions& options, const Machine& machine, int64_t n) try {
  make_plan(args, options_for_batch(args, options, n), machine);
  return true;
} catch (const Error& error) {
  if (error.kind() != ErrorKind::memory) throw;
  return false;
}

}  // namespace

EngineOptions options_for_batch(const ModelArgs& args, EngineOptions options, int64_t n) {
  options.context = options.context.value_or(args.max_seq_len);
  options.max_seqs = n;
  options.pool = options.keys = n * *options.context;
  return options;
}

int64_t largest_batch(const ModelArgs& args, const EngineOptions& options, const Machine& machine) {
  int64_t n_fitting = 0, n_over = 1;
  while (n_over < kMostSequences && fits(args, options, machine, n_over)) n_fitting = n_over, n_over *= 2;
  while (n_over - n_fitting > 1) {
    const int64_t n = n_fitting + (n_over - n_fitting) / 2;
    (fits(args, options, machine, n) ? n_fitting : n_over) = n;
  }
  return n_fitting;
}

}  // namespace dsv32
