// Draws tokens from rows of logits; OneRow one sequence's, row by row.
#pragma once

#include <span>
#include <vector>

#include "engine/sampler.h"

namespace dsv32 {

// Begins the drawing of all rows and takes it.
inline std::vector<TokenRecord> sample_rows(RowSampler& sampler, const float* logits, int64_t vocab_size,
                                            std::span<const SampleRule> rules, int64_t n_top = -1) {
  return sampler.take(sampler.begin(logits, vocab_size, rules, n_top, 0));
}

struct OneRow {
  SamplingOptions options;
  RowSampler rows;
  int64_t n_drawn = 0;
  OneRow(const SamplingOptions& options_, Backend& backend) : options(options_), rows(backend, 1) {}
  // Throws what TokenRecord::check() throws.
  TokenRecord sample(std::span<const float> logits, int64_t n_top = -1) {
    const SampleRule rule = options.rule(n_drawn++);
    TokenRecord record = sample_rows(rows, logits.data(), std::ssize(logits), {&rule, 1}, n_top).front();
    record.check();
    return record;
  }
};

}  // namespace dsv32
