// Picks the next token from logits: greedy, or at random after temperature, top-k, top-p and min-p, in that
// order.
//
// The same logits, options and seed give the same tokens on every machine: the generator is our own
// (SplitMix64 over a counter), and ties go to the lower id. One sampler per sequence.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace dsv32 {

struct SamplingOptions {
  float temperature = 1.0f;  // 0: greedy
  int64_t top_k = 0;         // keep the k most likely; 0: all
  float top_p = 0.95f;       // keep the fewest most likely whose probabilities reach p; 1: all
  float min_p = 0.0f;        // keep those at least min_p times as likely as the best; 0: all
  uint64_t seed = 0;

  // Throws Error{usage} naming the flag.
  void check() const;
};

struct TokenLogprob {
  int32_t id = 0;
  float logprob = 0;  // natural logarithm, of the softmax at temperature 1 over the whole vocabulary
};

class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options) : options_(options) { options_.check(); }

  // logits [vocab_size]. Throws Error{model} when one of them is not a number or infinite: the weights are
  // damaged.
  int32_t sample(std::span<const float> logits);

 private:
  struct Candidate {
    int32_t id;
    float probability;  // relative until normalised
  };
  void keep_likely(std::vector<Candidate>& candidates) const;
  double next_uniform();  // [0, 1)

  SamplingOptions options_;
  uint64_t n_drawn_ = 0;
};

// The logarithm of the probability of `id`.
TokenLogprob logprob_of(std::span<const float> logits, int32_t id);

// The k most likely tokens, best first, ties to the lower id.
std::vector<TokenLogprob> top_logprobs(std::span<const float> logits, int64_t k);

}  // namespace dsv32
