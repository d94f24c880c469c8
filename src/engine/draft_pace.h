// How many guesses of each sequence a decode step verifies: those that bring the most tokens a second.
//
// A table has the seconds of a step, for each number of guesses and each class of numbers of sequences (1, 2,
// 3-4, ...). The speed of a number is: tokens that a step wins / its seconds, where the share of right
// guesses, which is one for all steps, says how many are won. The fastest number is taken. Contexts grow, and
// all steps slow down with them: when the fastest number's time changes, the other times change by the same
// factor. A number that is not taken gains 0.05 % of speed with every step, so all are tried again, a good
// one often and a bad one seldom. No answer depends on the choice.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "engine/plan.h"

namespace dsv32 {

class DraftPace {
 public:
  // Guesses of each sequence for the next decode step of n_sequences: at most n_most, 1 to kMostGuesses; all
  // together at most CachePlan::kMostStepGuesses.
  int64_t n_guesses(int64_t n_sequences, int64_t n_most) const;

  // Of a sequence's guesses in that step the first n_right were right.
  void note_guesses(int64_t n_guesses, int64_t n_right);
  // The step, with its guessing, took so long. n_guesses: the most of a sequence.
  void note(int64_t n_sequences, int64_t n_guesses, double seconds);

 private:
  // Steps with one number of guesses.
  struct Entry {
    int64_t n_steps = 0;
    int64_t n_left_out = 0;  // steps of the class since the last of these
    double seconds = 0;      // smoothed
    bool is_known() const;
  };
  using Entries = std::array<Entry, kMostGuesses + 1>;

  // The known one with the most tokens a second, with `gain` for each step that it was not taken.
  int64_t best(std::span<const Entry> entries, double gain) const;

  std::array<Entries, 6> table_{};  // 1, 2, 3-4, 5-8, 9-16, 17-24 sequences
  // The share of right ones among the i-th guesses behind right ones, and how many guesses it follows from.
  // At first it is taken to be high, so that all numbers are tried.
  std::array<double, kMostGuesses> right_{0.9, 0.9, 0.9};
  std::array<double, kMostGuesses> weight_{4, 4, 4};
};

}  // namespace dsv32
