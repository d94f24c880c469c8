// See draft_pace.h.
#include "engine/draft_pace.h"

#include <algorithm>
#include <bit>

#include "context/cache_plan.h"

namespace dsv32 {
namespace {

constexpr int64_t kFirstSteps = 3;    // of a kind, before its time counts as known
constexpr int64_t kOldSteps = 200;    // since the last of a kind, after which its time may have changed
constexpr double kGain = 5e-4;        // of a kind, for each step that it was not taken
constexpr double kMostChange = 1.5;   // a step that took longer was disturbed, and counts as so long
constexpr double kRemembered = 512;   // guesses that shares of right ones follow from
constexpr double kLeastShare = 1e-3;  // of right ones, and of wrong ones
// The newest step's part in the smoothed time: of the best kind, of another, of another with an old time.
constexpr double kNewest = 1. / 32, kNewestTrial = 1. / 4, kNewestOfOld = 1. / 2;

size_t class_of(int64_t n_sequences) { return std::bit_width(static_cast<uint64_t>(n_sequences - 1)); }

}  // namespace

DraftPace::DraftPace(int64_t most, bool is_open) : most_(most), is_open_(is_open) {}

int64_t DraftPace::n_guesses(int64_t n_sequences, int64_t n_possible) {
  n_most_ = std::min({most_, CachePlan::kMostStepGuesses / n_sequences, n_possible});
  if (!is_open_ || n_most_ == 0) return n_most_;
  const Kinds& kinds = classes_[class_of(n_sequences)];
  if (const auto unknown = first_unknown(kinds)) return *unknown;
  return best(kinds, kGain);
}

void DraftPace::note(int64_t n_sequences, int64_t n_guesses, const Verified& verified, double seconds) {
  if (!is_open_ || n_most_ == 0 || n_guesses > n_most_) return;
  note_right(verified);
  Kinds& kinds = classes_[class_of(n_sequences)];
  bool& is_known = is_known_[static_cast<size_t>(n_sequences)][static_cast<size_t>(n_guesses)];
  if (is_known) note_seconds(kinds, n_guesses, seconds);
  is_known = true;
}

std::optional<int64_t> DraftPace::first_unknown(const Kinds& kinds) const {
  for (int64_t n = 0; n <= n_most_; ++n)
    if (kinds[static_cast<size_t>(n)].n_steps < kFirstSteps) return n;
  return {};
}

int64_t DraftPace::best(const Kinds& kinds, double gain) const {
  int64_t best = 0;
  double most = 0, n_tokens = 1, all_right = 1;
  for (int64_t n = 0; n <= n_most_; ++n) {
    const Kind& kind = kinds[static_cast<size_t>(n)];
    const double speed = n_tokens / kind.seconds * (1 + gain * static_cast<double>(kind.n_left_out));
    if (speed > most) most = speed, best = n;
    if (n < n_most_) n_tokens += all_right *= right_[static_cast<size_t>(n)];
  }
  return best;
}

void DraftPace::note_right(const Verified& verified) {
  for (size_t i = 0; i < right_.size(); ++i) {
    if (verified.n_tried[i] == 0) return;
    const auto n = static_cast<double>(verified.n_tried[i]);
    weight_[i] = std::min(weight_[i] + n, kRemembered);
    const double share = static_cast<double>(verified.n_right[i]) / n;
    right_[i] += (share - right_[i]) * std::min(n / weight_[i], 1.);
    right_[i] = std::clamp(right_[i], kLeastShare, 1 - kLeastShare);
  }
}

void DraftPace::note_seconds(Kinds& kinds, int64_t n_guesses, double seconds) {
  Kind& kind = kinds[static_cast<size_t>(n_guesses)];
  const bool is_old = kind.n_left_out >= kOldSteps;
  for (Kind& other : kinds) ++other.n_left_out;
  kind.n_left_out = 0;
  if (kind.n_steps++ < kFirstSteps) {
    kind.seconds = kind.n_steps == 1 ? seconds : std::min(kind.seconds, seconds);
    return;
  }
  const bool is_best = !first_unknown(kinds) && best(kinds, 0) == n_guesses;
  const double newest = is_best ? kNewest : is_old ? kNewestOfOld : kNewestTrial;
  const double change = 1 + newest * (std::min(seconds / kind.seconds, kMostChange) - 1);
  for (Kind& other : kinds)
    if (is_best || &other == &kind) other.seconds *= change;
}

}  // namespace dsv32
