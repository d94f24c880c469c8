#include "engine/sampler.h"

#include <algorithm>

#include "base/error.h"

namespace dsv32 {
namespace {

void check_range(const char* flag, double value, double least, double most) {
  if (!(value >= least && value <= most))
    fail(ErrorKind::usage, format("%s is %g, expected %g to %g", flag, value, least, most));
}

}  // namespace

void SamplingOptions::check() const {
  check_range("--temp", static_cast<double>(temperature), 0, 100);
  check_range("--top-k", static_cast<double>(top_k), 0, 1e9);
  check_range("--top-p", static_cast<double>(top_p), 0, 1);
  check_range("--min-p", static_cast<double>(min_p), 0, 1);
}

Sampler::Sampler(const SamplingOptions& options, Backend& backend)
    : options_(options),
      backend_(backend),
      drawn_(backend, Place::device, 1, "the drawn token"),
      top_(backend, Place::device, kMostTopLogprobs, "log-probabilities") {
  options_.check();
}

TokenRecord Sampler::sample(std::span<const float> logits, int64_t n_top) {
  const int64_t vocab_size = static_cast<int64_t>(logits.size());
  n_top = std::min(n_top, vocab_size);
  SampleRule rule{options_.temperature, options_.top_k, options_.top_p, options_.min_p, 0};
  if (options_.temperature != 0) rule.uniform = next_uniform();
  backend_.sample({logits.data(), 1, vocab_size, &rule, n_top, drawn_.data(), top_.data()});
  SampledToken drawn{};
  backend_.download(&drawn, drawn_.data(), sizeof drawn);
  if (!drawn.is_finite)
    fail(ErrorKind::model,
         format("the logit of token %d is %g, expected a finite number", drawn.id,
                static_cast<double>(drawn.logprob)),
         "the weights in the file are damaged");
  TokenRecord record{{drawn.id, drawn.logprob}, {}};
  if (n_top <= 0) return record;
  record.top.resize(static_cast<size_t>(n_top));
  backend_.download(record.top.data(), top_.data(), record.top.size() * sizeof(TokenLogprob));
  return record;
}

// SplitMix64 (Steele, Lea, Flood 2014), jumped to the n-th value of the seed's stream.
double Sampler::next_uniform() {
  uint64_t z = options_.seed + ++n_drawn_ * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  z ^= z >> 31;
  return static_cast<double>(z >> 11) * 0x1p-53;
}

}  // namespace dsv32
