// Picks the next tokens from logits: greedy, or at random after temperature, top-k, top-p and min-p, in that
// order.
//
// The backend draws where the logits are (backend/sampling.h), all rows of a step at once. Draws are
// repeatable: random numbers are SplitMix64 over a counter. Ties go to the lower id.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"

namespace dsv32 {

// One drawn token, and the likeliest ones in its place.
struct TokenRecord {
  TokenLogprob chosen;  // the log-probability is 0 when none was asked for
  std::vector<TokenLogprob> top;
  // False: `chosen` is the first id whose logit is not a number or infinite, and that logit.
  bool is_finite = true;

  // Throws Error{model} if is_finite is false: weights, or a remembered prefix, are damaged.
  void check() const;
};

// Draws a token from each row of logits.
class RowSampler {
 public:
  // The backend has the logits and must outlive the sampler. Throws Error{memory}.
  RowSampler(Backend& backend, int64_t max_rows);
  static uint64_t n_bytes(int64_t max_rows);

  // logits [rules.size(), vocab_size] of the backend's memory, max_rows of them at most. n_top: -1 for no
  // log-probabilities, else how many alternatives to list (at most kMostTopLogprobs; no more than there are).
  std::vector<TokenRecord> sample(const float* logits, int64_t vocab_size, std::span<const SampleRule> rules,
                                  int64_t n_top = -1);

 private:
  Backend& backend_;
  Buffer<SampledToken> drawn_;  // [max_rows]
  Buffer<TokenLogprob> top_;    // [max_rows, kMostTopLogprobs]
};

}  // namespace dsv32
