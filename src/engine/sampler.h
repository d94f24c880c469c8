// Picks the next tokens from logits: greedy, or at random after temperature, top-k, top-p and min-p, in that
// order.
//
// The backend draws where the logits are (backend/sampling.h), all rows of a step at once. Draws are
// repeatable: random numbers are SplitMix64 over a counter. Ties go to the lower id. A row may have a mask of
// the tokens that may be drawn; masks are written in pinned memory, while the device computes the logits.
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
  // Of the host's and the device's memory. n_mask_bytes of it are masks, which a device that does not work in
  // host memory has there too.
  static uint64_t n_bytes(int64_t max_rows, int64_t vocab_size);
  static uint64_t n_mask_bytes(int64_t max_rows, int64_t vocab_size);

  // The mask [n_mask_words] of a row that is drawn next, to be written if the row's rule is masked, with one
  // token at least. Call it after take() of the row's last drawing has returned; vocab_size is always the
  // same. Does not wait for the device, except that the first call takes the memory for masks. Throws
  // Error{memory}.
  std::span<uint32_t> mask_of(int64_t row, int64_t vocab_size);

  // Tokens that are being drawn: of the rows [first_row, first_row + n_rows).
  struct Drawing {
    int64_t first_row = 0, n_rows = 0, n_top = 0;
    std::unique_ptr<Milestone> drawn;
  };
  // Enqueues the drawing. logits [rules.size(), vocab_size] of the backend's memory, for the rows from
  // first_row on, less than max_rows, of no other drawing under way. n_top: -1 for no log-probabilities, else
  // how many alternatives to list (at most kMostTopLogprobs; no more than there are).
  Drawing begin(const float* logits, int64_t vocab_size, std::span<const SampleRule> rules, int64_t n_top,
                int64_t first_row);
  // Waits for the drawing.
  std::vector<TokenRecord> take(const Drawing& drawing) const;

 private:
  const uint32_t* upload_masks(std::span<const SampleRule> rules, int64_t vocab_size, int64_t first_row);

  Backend& backend_;
  Buffer<SampledToken> drawn_;  // [max_rows]
  Buffer<TokenLogprob> top_;    // [max_rows, kMostTopLogprobs]
  // [max_rows, n_mask_words], made at the first mask. Pinned; and on the device, if that is elsewhere.
  Buffer<uint32_t> masks_, device_masks_;
};

}  // namespace dsv32
