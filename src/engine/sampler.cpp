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
      drawn_(backend, Place::host, max_rows, "the drawn tokens"),
      top_(backend, Place::host, max_rows * kMostTopLogprobs, "log-probabilities") {}

uint64_t RowSampler::n_bytes(int64_t max_rows, int64_t vocab_size) {
  return static_cast<uint64_t>(max_rows) * (sizeof(SampledToken) + kMostTopLogprobs * sizeof(TokenLogprob)) +
         n_mask_bytes(max_rows, vocab_size);
}

uint64_t RowSampler::n_mask_bytes(int64_t max_rows, int64_t vocab_size) {
  return static_cast<uint64_t>(max_rows * n_mask_words(vocab_size)) * sizeof(uint32_t);
}

std::span<uint32_t> RowSampler::mask_of(int64_t row, int64_t vocab_size) {
  const int64_t n_words = n_mask_words(vocab_size), n_all = drawn_.n() * n_words;
  if (!masks_.data()) {
    if (!backend_.works_in_host_memory()) device_masks_ = {backend_, Place::device, n_all, "masks"};
    masks_ = {backend_, Place::host, n_all, "masks"};
  }
  return {masks_.data() + row * n_words, static_cast<size_t>(n_words)};
}

// Returns the masks of the rows from first_row on where the backend works; null if no row is masked. Uploads
// those from the first masked row to the last, in one piece.
const uint32_t* RowSampler::upload_masks(std::span<const SampleRule> rules, int64_t vocab_size,
                                         int64_t first_row) {
  int64_t first = 0, end = 0;
  for (int64_t row = 0; row < std::ssize(rules); ++row) {
    if (!rules[static_cast<size_t>(row)].is_masked) continue;
    if (end == 0) first = row;
    end = row + 1;
  }
  if (end == 0) return nullptr;
  const int64_t n_words = n_mask_words(vocab_size), begin = (first_row + first) * n_words;
  if (!device_masks_.data()) return masks_.data() + first_row * n_words;
  backend_.upload(device_masks_.data() + begin, masks_.data() + begin, n_mask_bytes(end - first, vocab_size));
  return device_masks_.data() + first_row * n_words;
}

RowSampler::Drawing RowSampler::begin(const float* logits, int64_t vocab_size,
                                      std::span<const SampleRule> rules, int64_t n_top, int64_t first_row) {
  n_top = std::min(n_top, vocab_size);
  backend_.sample({logits, std::ssize(rules), vocab_size, rules.data(), n_top, drawn_.data() + first_row,
                   top_.data() + first_row * kMostTopLogprobs, upload_masks(rules, vocab_size, first_row)});
  return {first_row, std::ssize(rules), std::max<int64_t>(n_top, 0), backend_.milestone()};
}

std::vector<TokenRecord> RowSampler::take(const Drawing& drawing) const {
  drawing.drawn->wait();
  std::vector<TokenRecord> records;
  const TokenLogprob* listed = top_.data() + drawing.first_row * kMostTopLogprobs;
  for (int64_t i = 0; i < drawing.n_rows; ++i, listed += drawing.n_top) {
    const SampledToken& drawn = drawn_.data()[drawing.first_row + i];
    records.push_back({{drawn.id, drawn.logprob}, {listed, listed + drawing.n_top}, drawn.is_finite != 0});
  }
  return records;
}

}  // namespace dsv32
