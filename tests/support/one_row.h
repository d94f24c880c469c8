// One sequence's draws, row by row.
#pragma once

#include <span>

#include "engine/sampler.h"

namespace dsv32 {

struct OneRow {
  Sampler rules;
  RowSampler rows;
  OneRow(const SamplingOptions& options, Backend& backend) : rules(options), rows(backend, 1) {}
  // Throws what TokenRecord::check() throws.
  TokenRecord sample(std::span<const float> logits, int64_t n_top = -1) {
    const SampleRule rule = rules.next();
    TokenRecord record = rows.sample(logits.data(), std::ssize(logits), {&rule, 1}, n_top).front();
    record.check();
    return record;
  }
};

}  // namespace dsv32
