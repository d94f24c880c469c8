// Draws one sequence's tokens, row by row.
#pragma once

#include <span>

#include "engine/sampler.h"

namespace dsv32 {

struct OneRow {
  SamplingOptions options;
  RowSampler rows;
  int64_t n_drawn = 0;
  OneRow(const SamplingOptions& options_, Backend& backend) : options(options_), rows(backend, 1) {}
  // Throws what TokenRecord::check() throws.
  TokenRecord sample(std::span<const float> logits, int64_t n_top = -1) {
    const SampleRule rule = options.rule(n_drawn++);
    TokenRecord record = rows.sample(logits.data(), std::ssize(logits), {&rule, 1}, n_top).front();
    record.check();
    return record;
  }
};

}  // namespace dsv32
