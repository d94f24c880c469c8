// The block for drafts (MTP): one more layer, which guesses the token after the next one.
//
//   x_p = eh_proj [RMSNorm_e(embed(token p)); RMSNorm_h(h of position p - 1)]     p >= 1
//
// with h after the model's output norm. Then the layer, with rows, keys and a selection of its own; a norm;
// the head. (DeepSeek-V3 report, section 2.2; the paper's position is p - 1. Attention and index depend on
// distances alone, and at p a row depends on no later token, so that sequences can share pages.) Position 0
// has no h before it: its row is never selected.
//
// Each step computes rows and keys of the block for its own tokens. A guessing step computes the whole block
// for one token of each sequence. The first guess begins with the h of the sequence's last token, which stays
// on the device (act_.hidden); the second one with the first one's output after the norm, and so on. Where h
// is not known, it is 0: guesses decide speed alone.
#include <algorithm>

#include "model/stage.h"

namespace dsv32 {
namespace {

// Row i of `values` for each of the numbers, copied to `out`.
Embed gather(const float* values, int64_t width, const int32_t* numbers, int64_t n, float* out) {
  Embed op;
  op.step.n_tokens = n, op.step.tokens = numbers;
  op.table.data = reinterpret_cast<const uint8_t*>(values);
  op.table.n_cols = width, op.table.row_bytes = static_cast<size_t>(width) * sizeof(float);
  op.out = out;
  return op;
}

}  // namespace

int32_t Stage::kept_row(const CachedSequence& sequence) const {
  return static_cast<int32_t>(1 + (kept_in_second_ ? act_.max_sequences : 0) + sequence.number());
}

// The row of act_.hidden that has the h of the position before each token.
std::vector<int32_t> Stage::hidden_rows(const Step& step) const {
  std::vector<int32_t> rows;
  for (size_t i = 0; i < step.tokens.size(); ++i) {
    const auto n_kept = static_cast<int32_t>(act_.n_kept), row = n_kept + static_cast<int32_t>(i);
    if (!step.begins_sequence(i)) {
      rows.push_back(row - 1);
    } else if (step.nth_guess.value_or(0) > 0) {
      const Spot before{step.sequences[i], step.sequences[i]->n_tokens() + *step.nth_guess - 1};
      rows.push_back(n_kept + static_cast<int32_t>(std::ranges::find(spots_, before) - spots_.begin()));
    } else {
      rows.push_back(step.has_hidden[i] ? kept_row(*step.sequences[i]) : 0);
    }
  }
  return rows;
}

// Ends the model's layers; h = x of the block.
void Stage::enter_block(const LeftSum& left) {
  const DraftWeights& w = weights_.draft;
  const int64_t dim = args_.dim;
  if (!is_guess_) run_head(weights_.norm, weights_.head, left);
  backend_.embed(gather(act_.hidden.data(), dim, act_.step_ints.data() + 3 * step_.n_tokens, step_.n_tokens,
                        act_.x.data()));
  backend_.embed({step_, w.embed, act_.h.data()});
  float* joined = act_.joined();
  for (const Piece& p : pieces()) {
    const int64_t n = p.tokens.n_tokens;
    backend_.rms_norm({h(p), dim, w.enorm.data(), args_.norm_eps, joined, n, dim, 2 * dim});
    backend_.rms_norm({x(p), dim, w.hnorm.data(), args_.norm_eps, joined + dim, n, dim, 2 * dim});
    backend_.matmul({w.eh_proj, joined, 2 * dim, h(p), n, step_.role});
  }
}

// Resolves nothing: records the claims of the rows that were stored.
void Stage::claim_slots(const StepTokens& some, const CacheView& cache) {
  if (!cache.buffers || some.n_tokens == 0) return;
  backend_.resolve({some, cache, act_.selected.data(), act_.none.data(), act_.topk, act_.row_ids.data(),
                    act_.misses.data(), act_.n_misses.data(), act_.tally.data()});
}

// Keeps these rows of act_.hidden as the hidden states of the sequences with these numbers, beside those of
// all others.
void Stage::keep(std::span<const Kept> kept) {
  const int64_t n = act_.max_sequences;
  std::vector<int32_t> rows(static_cast<size_t>(n));
  for (int64_t number = 0; number < n; ++number)
    rows[static_cast<size_t>(number)] = static_cast<int32_t>(1 + (kept_in_second_ ? n : 0) + number);
  for (const Kept& one : kept) rows[static_cast<size_t>(one.sequence)] = one.row;
  kept_in_second_ = !kept_in_second_;
  backend_.upload(act_.kept.data(), rows.data(), rows.size() * sizeof(int32_t));
  backend_.embed(gather(act_.hidden.data(), args_.dim, act_.kept.data(), n,
                        act_.hidden.data() + (1 + (kept_in_second_ ? n : 0)) * args_.dim));
}

// Keeps the hidden state of each sequence's last token in the step.
void Stage::keep_last() {
  std::vector<Kept> kept;
  for (size_t i = 0; i < spots_.size(); ++i)
    if (i + 1 == spots_.size() || spots_[i + 1].sequence != spots_[i].sequence)
      kept.push_back(
          {spots_[i].sequence->number(), static_cast<int32_t>(act_.n_kept + static_cast<int64_t>(i))});
  keep(kept);
}

void Stage::cut(std::span<const Cut> cuts) {
  std::vector<Kept> kept;
  for (const Cut& one : cuts) {
    const auto last = std::ranges::find(spots_, Spot{one.sequence, one.n_tokens - 1});
    kept.push_back({one.sequence->number(), static_cast<int32_t>(act_.n_kept + (last - spots_.begin()))});
  }
  keep(kept);
}

}  // namespace dsv32
