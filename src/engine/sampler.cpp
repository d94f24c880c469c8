#include "engine/sampler.h"

#include <algorithm>

#include "base/error.h"

namespace dsv32 {

void TokenRecord::check() const {
  if (!is_finite)
    fail(ErrorKind::model,
         format("the logit of token %d is %g, expected a finite number", chosen.id,
                static_cast<double>(chosen.logprob)),
         "the weights in the file are damaged");
}

RowSampler::RowSampler(Backend& backend, int64_t max_rows)
    : backend_(backend),
      drawn_(backend, Place::device, max_rows, "the drawn tokens"),
      top_(backend, Place::device, max_rows * kMostTopLogprobs, "log-probabilities") {}

uint64_t RowSampler::n_bytes(int64_t max_rows) {
  return static_cast<uint64_t>(max_rows) * (sizeof(SampledToken) + kMostTopLogprobs * sizeof(TokenLogprob));
}

std::vector<TokenRecord> RowSampler::sample(const float* logits, int64_t vocab_size,
                                            std::span<const SampleRule> rules, int64_t n_top) {
  const size_t n = rules.size();
  n_top = std::min(n_top, vocab_size);
  backend_.sample({logits, std::ssize(rules), vocab_size, rules.data(), n_top, drawn_.data(), top_.data()});
  std::vector<SampledToken> drawn(n);
  backend_.download(drawn.data(), drawn_.data(), n * sizeof(SampledToken));
  const auto n_listed = static_cast<size_t>(std::max<int64_t>(n_top, 0));
  std::vector<TokenLogprob> top(n * n_listed);
  if (!top.empty()) backend_.download(top.data(), top_.data(), top.size() * sizeof(TokenLogprob));
  std::vector<TokenRecord> records;
  for (size_t i = 0; i < n; ++i) {
    const auto listed = top.begin() + static_cast<int64_t>(i * n_listed);
    records.push_back({{drawn[i].id, drawn[i].logprob},
                       {listed, listed + static_cast<int64_t>(n_listed)},
                       drawn[i].is_finite != 0});
  }
  return records;
}

}  // namespace dsv32
