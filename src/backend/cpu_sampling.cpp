// Drawing tokens from logits on the CPU.
//
// Top-k and top-p keep the first tokens in order of likelihood, so the last kept token describes the set: the
// draw runs over the ids in ascending order and needs no list. Weights are integers (see Sample in
// sampling.h). A mask leaves tokens out of the draw; log-probabilities are of all tokens.
#include <algorithm>
#include <cmath>
#include <vector>

#include "backend/cpu_backend.h"
#include "base/error.h"

namespace dsv32 {
namespace {

struct Candidate {
  float logit;
  int32_t id;
};

bool is_likelier(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

// The logits of one token over the vocabulary.
struct TokenLogits {
  const float* values;
  int32_t n;
  const uint32_t* mask = nullptr;  // null: all tokens are allowed

  Candidate at(int32_t id) const { return {values[id], id}; }
  bool allows(int32_t id) const { return !mask || (mask[id / 32] >> (id % 32) & 1); }
  std::vector<Candidate> allowed() const {
    std::vector<Candidate> candidates;
    candidates.reserve(static_cast<size_t>(n));
    for (int32_t id = 0; id < n; ++id)
      if (allows(id)) candidates.push_back(at(id));
    return candidates;
  }
};

// Relative to the likeliest token's probability.
float probability(float logit, float largest, float temperature) {
  return std::exp((logit - largest) / temperature);
}

double log_sum_exp(const TokenLogits& logits, float largest) {
  double sum = 0;
  for (int32_t id = 0; id < logits.n; ++id)
    sum += std::exp(static_cast<double>(logits.values[id]) - static_cast<double>(largest));
  return static_cast<double>(largest) + std::log(sum);
}

// The least likely token that top-k and top-p keep.
Candidate last_kept(const TokenLogits& logits, const SampleRule& rule, float largest) {
  std::vector<Candidate> candidates = logits.allowed();
  if (rule.has_top_k(std::ssize(candidates))) {
    std::ranges::nth_element(candidates, candidates.begin() + (rule.top_k - 1), is_likelier);
    candidates.resize(static_cast<size_t>(rule.top_k));
  }
  if (!rule.has_top_p()) return *std::ranges::max_element(candidates, is_likelier);
  std::ranges::sort(candidates, is_likelier);
  const auto weight = [&](const Candidate& candidate) {
    return weight_of(probability(candidate.logit, largest, rule.temperature));
  };
  uint64_t total = 0, reached = 0;
  for (const Candidate& candidate : candidates) total += weight(candidate);
  const uint64_t need = rule.kept_weight(total);
  for (const Candidate& candidate : candidates) {
    reached += weight(candidate);
    if (reached >= need) return candidate;
  }
  return candidates.back();
}

int32_t draw(const TokenLogits& logits, const SampleRule& rule, float largest) {
  const bool keeps_all = !rule.has_top_k(logits.n) && !rule.has_top_p();
  const Candidate last = keeps_all ? Candidate{-INFINITY, logits.n} : last_kept(logits, rule, largest);
  std::vector<uint64_t> weights(static_cast<size_t>(logits.n));  // 0: not kept
  uint64_t total = 0;
  for (int32_t id = 0; id < logits.n; ++id) {
    if (!logits.allows(id) || is_likelier(last, logits.at(id))) continue;
    const float p = probability(logits.values[id], largest, rule.temperature);
    total += weights[static_cast<size_t>(id)] = weight_of(rule, p);
  }
  uint64_t left = rule.drawn_weight(total);
  int32_t id = 0;
  for (; left >= weights[static_cast<size_t>(id)]; ++id) left -= weights[static_cast<size_t>(id)];
  return id;
}

void write_top(const TokenLogits& logits, double normalizer, int64_t n_top, TokenLogprob* top) {
  std::vector<Candidate> candidates = logits.allowed();
  std::ranges::partial_sort(candidates, candidates.begin() + n_top, is_likelier);
  for (int64_t i = 0; i < n_top; ++i) {
    const Candidate& candidate = candidates[static_cast<size_t>(i)];
    top[i] = {candidate.id, static_cast<float>(static_cast<double>(candidate.logit) - normalizer)};
  }
}

SampledToken sample_token(const TokenLogits& logits, const uint32_t* mask, const SampleRule& rule,
                          int64_t n_top, TokenLogprob* top) {
  Candidate best = logits.at(0);
  for (int32_t id = 0; id < logits.n; ++id) {
    if (!std::isfinite(logits.values[id])) return {id, logits.values[id], 0};
    if (is_likelier(logits.at(id), best)) best = logits.at(id);
  }
  const TokenLogits allowed{logits.values, logits.n, mask};
  const Candidate first = mask ? std::ranges::min(allowed.allowed(), is_likelier) : best;
  const int32_t id = rule.temperature == 0 ? first.id : draw(allowed, rule, first.logit);
  if (n_top < 0) return {id, 0, 1};
  const double normalizer = log_sum_exp(logits, best.logit);
  write_top(logits, normalizer, n_top, top);
  return {id, static_cast<float>(static_cast<double>(logits.values[id]) - normalizer), 1};
}

}  // namespace

void CpuBackend::sample(const Sample& op) {
  if (op.n_top > std::min(op.vocab_size, kMostTopLogprobs))
    fail(ErrorKind::internal,
         format("sample: the %lld likeliest of %lld tokens", as_ll(op.n_top), as_ll(op.vocab_size)));
  workers_.parallel_for(op.n_tokens, op.n_tokens > 1, [&](int64_t t) {
    const TokenLogits logits{op.logits + t * op.vocab_size, static_cast<int32_t>(op.vocab_size)};
    const SampleRule& rule = op.rules[t];
    const uint32_t* mask = rule.is_masked ? op.masks + t * n_mask_words(op.vocab_size) : nullptr;
    op.out[t] = sample_token(logits, mask, rule, op.n_top, op.n_top > 0 ? op.top + t * op.n_top : nullptr);
  });
}

}  // namespace dsv32
