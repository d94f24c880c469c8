// Drawing tokens from logits on the CPU.
//
// Top-k and top-p keep the first tokens in order of likelihood, so the last kept token describes the set: the
// draw runs over the ids in ascending order and needs no list. Weights are integers (see Sample in
// sampling.h). A mask leaves tokens out of the draw; log-probabilities are of the row without it.
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

// The logits of one token.
struct Row {
  const float* logits;
  int32_t n;
  const uint32_t* mask = nullptr;  // null: all tokens are allowed

  Candidate at(int32_t id) const { return {logits[id], id}; }
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

double log_sum_exp(const Row& row, float largest) {
  double sum = 0;
  for (int32_t id = 0; id < row.n; ++id)
    sum += std::exp(static_cast<double>(row.logits[id]) - static_cast<double>(largest));
  return static_cast<double>(largest) + std::log(sum);
}

// The least likely token that top-k and top-p keep.
Candidate last_kept(const Row& row, const SampleRule& rule, float largest) {
  std::vector<Candidate> candidates = row.allowed();
  if (rule.top_k > 0 && rule.top_k < std::ssize(candidates)) {
    std::ranges::nth_element(candidates, candidates.begin() + (rule.top_k - 1), is_likelier);
    candidates.resize(static_cast<size_t>(rule.top_k));
  }
  if (!(rule.top_p < 1)) return *std::ranges::max_element(candidates, is_likelier);
  std::ranges::sort(candidates, is_likelier);
  const auto weight = [&](const Candidate& candidate) {
    return weight_of(probability(candidate.logit, largest, rule.temperature));
  };
  uint64_t total = 0, reached = 0;
  for (const Candidate& candidate : candidates) total += weight(candidate);
  const double wanted = static_cast<double>(rule.top_p) * static_cast<double>(total);
  const uint64_t need = std::clamp(static_cast<uint64_t>(std::ceil(wanted)), uint64_t{1}, total);
  for (const Candidate& candidate : candidates) {
    reached += weight(candidate);
    if (reached >= need) return candidate;
  }
  return candidates.back();
}

int32_t draw(const Row& row, const SampleRule& rule, float largest) {
  const bool keeps_all = (rule.top_k == 0 || rule.top_k >= row.n) && !(rule.top_p < 1);
  const Candidate last = keeps_all ? Candidate{-INFINITY, row.n} : last_kept(row, rule, largest);
  std::vector<uint64_t> weights(static_cast<size_t>(row.n));  // 0: not kept
  uint64_t total = 0;
  for (int32_t id = 0; id < row.n; ++id) {
    if (!row.allows(id) || is_likelier(last, row.at(id))) continue;
    const float p = probability(row.logits[id], largest, rule.temperature);
    total += weights[static_cast<size_t>(id)] = weight_of(rule, p);
  }
  uint64_t left = std::min(static_cast<uint64_t>(rule.uniform * static_cast<double>(total)), total - 1);
  int32_t id = 0;
  for (; left >= weights[static_cast<size_t>(id)]; ++id) left -= weights[static_cast<size_t>(id)];
  return id;
}

void write_top(const Row& row, double normalizer, int64_t n_top, TokenLogprob* top) {
  std::vector<Candidate> candidates = row.allowed();
  std::ranges::partial_sort(candidates, candidates.begin() + n_top, is_likelier);
  for (int64_t i = 0; i < n_top; ++i) {
    const Candidate& candidate = candidates[static_cast<size_t>(i)];
    top[i] = {candidate.id, static_cast<float>(static_cast<double>(candidate.logit) - normalizer)};
  }
}

SampledToken sample_row(const Row& row, const uint32_t* mask, const SampleRule& rule, int64_t n_top,
                        TokenLogprob* top) {
  Candidate best = row.at(0);
  for (int32_t id = 0; id < row.n; ++id) {
    if (!std::isfinite(row.logits[id])) return {id, row.logits[id], 0};
    if (is_likelier(row.at(id), best)) best = row.at(id);
  }
  const Row masked{row.logits, row.n, mask};
  const Candidate first = mask ? std::ranges::min(masked.allowed(), is_likelier) : best;
  const int32_t id = rule.temperature == 0 ? first.id : draw(masked, rule, first.logit);
  if (n_top < 0) return {id, 0, 1};
  const double normalizer = log_sum_exp(row, best.logit);
  write_top(row, normalizer, n_top, top);
  return {id, static_cast<float>(static_cast<double>(row.logits[id]) - normalizer), 1};
}

}  // namespace

void CpuBackend::sample(const Sample& op) {
  if (op.n_top > std::min(op.vocab_size, kMostTopLogprobs))
    fail(ErrorKind::internal,
         format("sample: the %lld likeliest of %lld tokens", as_ll(op.n_top), as_ll(op.vocab_size)));
  workers_.parallel_for(op.n_tokens, op.n_tokens > 1, [&](int64_t t) {
    const Row row{op.logits + t * op.vocab_size, static_cast<int32_t>(op.vocab_size)};
    const SampleRule& rule = op.rules[t];
    const uint32_t* mask = rule.is_masked ? op.masks + t * n_mask_words(op.vocab_size) : nullptr;
    op.out[t] = sample_row(row, mask, rule, op.n_top, op.n_top > 0 ? op.top + t * op.n_top : nullptr);
  });
}

}  // namespace dsv32
