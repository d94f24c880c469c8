#include "engine/sampler.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace dsv32 {
namespace {

void check_finite(std::span<const float> logits) {
  for (size_t id = 0; id < logits.size(); ++id)
    if (!std::isfinite(logits[id]))
      fail(ErrorKind::model,
           format("the logit of token %zu is %g, expected a finite number", id,
                  static_cast<double>(logits[id])),
           "the weights in the file are damaged");
}

int32_t best_id(std::span<const float> logits) {
  return static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin());
}

double log_sum_exp(std::span<const float> logits) {
  const double largest = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  return largest + std::log(sum);
}

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

int32_t Sampler::sample(std::span<const float> logits) {
  check_finite(logits);
  const int32_t best = best_id(logits);
  if (options_.temperature == 0) return best;
  const float largest = logits[static_cast<size_t>(best)];
  std::vector<Candidate> candidates(logits.size());
  for (size_t id = 0; id < logits.size(); ++id)
    candidates[id] = {static_cast<int32_t>(id), std::exp((logits[id] - largest) / options_.temperature)};
  keep_likely(candidates);
  double sum = 0;
  for (const Candidate& candidate : candidates) sum += static_cast<double>(candidate.probability);
  double left = next_uniform() * sum;
  for (const Candidate& candidate : candidates) {
    left -= static_cast<double>(candidate.probability);
    if (left < 0) return candidate.id;
  }
  return candidates.front().id;  // rounding left nothing: the most likely
}

void Sampler::keep_likely(std::vector<Candidate>& candidates) const {
  std::ranges::sort(candidates, [](const Candidate& a, const Candidate& b) {
    return a.probability != b.probability ? a.probability > b.probability : a.id < b.id;
  });
  if (options_.top_k > 0 && options_.top_k < static_cast<int64_t>(candidates.size()))
    candidates.resize(static_cast<size_t>(options_.top_k));
  double sum = 0;
  for (const Candidate& candidate : candidates) sum += static_cast<double>(candidate.probability);
  double reached = 0;
  size_t n_kept = 0;
  while (n_kept < candidates.size() && (n_kept == 0 || reached < static_cast<double>(options_.top_p) * sum))
    reached += static_cast<double>(candidates[n_kept++].probability);
  candidates.resize(n_kept);
  const float least = options_.min_p * candidates.front().probability;
  std::erase_if(candidates, [&](const Candidate& candidate) { return candidate.probability < least; });
}

// SplitMix64 (Steele, Lea, Flood 2014), jumped to the n-th value of the seed's stream.
double Sampler::next_uniform() {
  uint64_t z = options_.seed + ++n_drawn_ * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  z ^= z >> 31;
  return static_cast<double>(z >> 11) * 0x1p-53;
}

TokenLogprob logprob_of(std::span<const float> logits, int32_t id) {
  return {id, static_cast<float>(static_cast<double>(logits[static_cast<size_t>(id)]) - log_sum_exp(logits))};
}

std::vector<TokenLogprob> top_logprobs(std::span<const float> logits, int64_t k) {
  const size_t n = std::min(static_cast<size_t>(k), logits.size());
  std::vector<int32_t> ids(logits.size());
  for (size_t id = 0; id < ids.size(); ++id) ids[id] = static_cast<int32_t>(id);
  const auto is_better = [&](int32_t a, int32_t b) {
    const float logit_a = logits[static_cast<size_t>(a)], logit_b = logits[static_cast<size_t>(b)];
    return logit_a != logit_b ? logit_a > logit_b : a < b;
  };
  std::partial_sort(ids.begin(), ids.begin() + static_cast<int64_t>(n), ids.end(), is_better);
  const double normalizer = log_sum_exp(logits);
  std::vector<TokenLogprob> best;
  for (size_t i = 0; i < n; ++i)
    best.push_back(
        {ids[i], static_cast<float>(static_cast<double>(logits[static_cast<size_t>(ids[i])]) - normalizer)});
  return best;
}

}  // namespace dsv32
