#include "engine/draft_pace.h"

#include <algorithm>
#include <bit>

#include "context/cache_plan.h"

namespace dsv32 {
namespace {

// Before a time counts as known: the first step of a kind is slow, and the fastest of three others counts.
constexpr int64_t kFirstSteps = 4;
constexpr double kGain = 5e-4;        // of speed, for each step that a number was not taken
constexpr double kMostChange = 1.5;   // a step that took longer was disturbed, and counts as so long
constexpr double kRemembered = 512;   // guesses that shares of right ones follow from
constexpr double kLeastShare = 1e-3;  // of right ones, and of wrong ones
// Steps since the last of a number, after which its time may have changed: the next one's takes its place.
constexpr int64_t kOldSteps = 200;
// The newest step's part in the smoothed time: of the fastest number, and of another.
constexpr double kNewest = 1. / 32, kNewestTrial = 1. / 4;

size_t class_of(int64_t n_sequences) { return std::bit_width(static_cast<uint64_t>(n_sequences - 1)); }

}  // namespace

bool DraftPace::Entry::is_known() const { return n_steps >= kFirstSteps; }

int64_t DraftPace::n_guesses(int64_t n_sequences, int64_t n_most) const {
  const auto entries = std::span(table_[class_of(n_sequences)]).first(static_cast<size_t>(n_most) + 1);
  const auto unknown = std::ranges::find_if_not(entries, &Entry::is_known);
  return unknown != entries.end() ? unknown - entries.begin() : best(entries, kGain);
}

int64_t DraftPace::best(std::span<const Entry> entries, double gain) const {
  int64_t best = 0;
  double most = 0, n_tokens = 1, all_right = 1;
  for (size_t n = 0; n < entries.size(); ++n) {
    if (n > 0) n_tokens += all_right *= right_[n - 1];
    const double speed =
        n_tokens / entries[n].seconds * (1 + gain * static_cast<double>(entries[n].n_left_out));
    if (entries[n].is_known() && speed > most) most = speed, best = static_cast<int64_t>(n);
  }
  return best;
}

// What follows the first wrong guess says nothing.
void DraftPace::note_guesses(int64_t n_guesses, int64_t n_right) {
  for (int64_t n = 0; n < std::min(n_right + 1, n_guesses); ++n) {
    const auto i = static_cast<size_t>(n);
    weight_[i] = std::min(weight_[i] + 1, kRemembered);
    right_[i] += ((n < n_right ? 1 : 0) - right_[i]) / weight_[i];
    right_[i] = std::clamp(right_[i], kLeastShare, 1 - kLeastShare);
  }
}

void DraftPace::note(int64_t n_sequences, int64_t n_guesses, double seconds) {
  if (n_sequences > CachePlan::kMostStepGuesses) return;
  Entries& entries = table_[class_of(n_sequences)];
  Entry& entry = entries[static_cast<size_t>(n_guesses)];
  const bool is_old = entry.n_left_out >= kOldSteps;
  for (Entry& other : entries) ++other.n_left_out;
  entry.n_left_out = 0;
  if (!entry.is_known()) {
    entry.seconds = ++entry.n_steps <= 2 ? seconds : std::min(entry.seconds, seconds);
    return;
  }
  const bool is_best = best(entries, 0) == n_guesses;
  const double newest = is_best ? kNewest : is_old ? 1 : kNewestTrial;
  const double change = 1 + newest * (std::min(seconds / entry.seconds, kMostChange) - 1);
  for (Entry& other : entries)
    if (is_best || &other == &entry) other.seconds *= change;
}

}  // namespace dsv32
