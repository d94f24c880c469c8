// How a token is drawn from its logits: the rule, the mask of allowed tokens, the operation, and its results.
#pragma once

#include <algorithm>
#include <cstdint>

namespace dsv32 {

// How one token is drawn: after mask, temperature, top-k, top-p and min-p, in that order.
struct SampleRule {
  float temperature = 1;   // 0: the likeliest token
  int32_t top_k = 0;       // keep the k likeliest; 0: all
  float top_p = 1;         // keep the fewest likeliest whose probabilities reach p; 1: all
  float min_p = 0;         // keep those at least min_p times as likely as the best; 0: all
  double uniform = 0;      // random number of this draw, [0, 1)
  bool is_masked = false;  // draw as if the row had no other tokens than those that its mask allows

  // Whether top-k, and whether top-p, keeps only some of n_tokens.
  constexpr bool has_top_k(int64_t n_tokens) const { return top_k > 0 && top_k < n_tokens; }
  constexpr bool has_top_p() const { return top_p < 1; }
  // With top-p: what the kept tokens weigh at least (weight_of), of tokens that weigh `total`.
  constexpr uint64_t kept_weight(uint64_t total) const {
    const double wanted = static_cast<double>(top_p) * static_cast<double>(total);
    const auto whole = static_cast<uint64_t>(wanted);
    const uint64_t rounded_up = static_cast<double>(whole) < wanted ? whole + 1 : whole;
    return std::min(std::max(rounded_up, uint64_t{1}), total);
  }
  // The token is drawn at which the sum of the kept weights, which is `total` in the end, exceeds this.
  constexpr uint64_t drawn_weight(uint64_t total) const {
    return std::min(static_cast<uint64_t>(uniform * static_cast<double>(total)), total - 1);
  }
};

// The weight of a kept token, from its probability relative to the likeliest one's: [0, 2^40], so that sums
// over 2^22 tokens stay far below 2^64.
constexpr uint64_t weight_of(float probability) { return static_cast<uint64_t>(probability * 0x1p40f); }

// The same in the draw itself, of a token that top-k and top-p keep. 0: it is not drawn; the likeliest
// token's is never 0.
constexpr uint64_t weight_of(const SampleRule& rule, float probability) {
  return probability >= rule.min_p ? weight_of(probability) : 0;
}

// A mask has one bit a token: bit id % 32 of word id / 32 says whether the token may be drawn. Bits past the
// vocabulary mean nothing.
constexpr int64_t n_mask_words(int64_t vocab_size) { return (vocab_size + 31) / 32; }

// The result of Sample. If a logit is not finite: the lowest id with such a logit, and that logit as
// `logprob`.
struct SampledToken {
  int32_t id;
  // Natural log of the softmax at temperature 1 over all tokens, allowed or not; 0 if n_top is -1.
  float logprob;
  int32_t is_finite;  // 1: all logits are finite numbers
};

struct TokenLogprob {
  int32_t id = 0;
  float logprob = 0;  // as in SampledToken
};

constexpr int64_t kMostTopLogprobs = 20;

// Tokens are ordered by logit, largest first, equal logits by lower id; a rule keeps the first tokens of this
// order. A kept token weighs w = floor(2^40 * exp((logit - largest) / temperature)), and the first id whose
// sum of w over the kept ids up to it exceeds uniform * (sum over all kept) is drawn. Integer sums do not
// depend on their order, so devices differ only by the rounding of exp. An operation so that a step's logits,
// half a megabyte, need not leave the device. `out` and `top` may lie in Place::host. Must not be recorded:
// the rules are on the host.
struct Sample {
  const float* logits = nullptr;  // [n_tokens, vocab_size]
  int64_t n_tokens = 0, vocab_size = 0;
  const SampleRule* rules = nullptr;  // host, [n_tokens]
  int64_t n_top = -1;  // -1: no log-probabilities; else the number of alternatives, at most vocab_size
                       // and kMostTopLogprobs
  SampledToken* out = nullptr;  // [n_tokens]
  // [n_tokens, n_top] the likeliest first, allowed or not; unwritten if a logit is not finite.
  TokenLogprob* top = nullptr;
  // [n_tokens, n_mask_words] of masked rows; each allows a token at least. Null: no row is masked.
  const uint32_t* masks = nullptr;
};

}  // namespace dsv32
