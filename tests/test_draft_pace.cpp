// The choice of the number of guesses (engine/draft_pace.h), with made-up clocks and made-up guesses: the
// tokens a second that it reaches are compared with those of each fixed number.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <vector>

#include "engine/draft_pace.h"
#include "gguf/random_weights.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(test_draft_pace)

namespace {

struct Clock {
  int64_t n_sequences = 1;
  std::vector<double> seconds = {};  // of a step, for each number of guesses
  std::vector<double> right = {};    // the chance of each guess, if the ones before are right

  double speed(size_t n_guesses) const {
    double n_tokens = 1, all_right = 1;
    for (size_t i = 0; i < n_guesses; ++i) n_tokens += all_right *= right[i];
    return static_cast<double>(n_sequences) * n_tokens / seconds[n_guesses];
  }
  double best_speed() const {
    double best = 0;
    for (size_t n = 0; n < seconds.size(); ++n) best = std::max(best, speed(n));
    return best;
  }
};

int64_t n_guesses_of(const DraftPace& pace, int64_t n_sequences) {
  return pace.n_guesses(n_sequences, std::min(kMostGuesses, CachePlan::kMostStepGuesses / n_sequences));
}

// Runs steps. Returns the tokens a second, as a share of the best fixed number's. Times vary by a tenth; one
// step of a hundred seems to take ten times as long, as behind a pause of the machine, which is not counted.
double run(DraftPace& pace, const Clock& clock, int64_t n_steps, Rng& rng) {
  double n_tokens = 0, seconds = 0;
  for (int64_t step = 0; step < n_steps; ++step) {
    const int64_t n_guesses = n_guesses_of(pace, clock.n_sequences);
    int64_t n_won = clock.n_sequences;
    for (int64_t sequence = 0; sequence < clock.n_sequences; ++sequence) {
      int64_t n = 0;
      while (n < n_guesses && static_cast<double>(rng.uniform()) < clock.right[static_cast<size_t>(n)]) ++n;
      pace.note_guesses(n_guesses, n);
      n_won += n;
    }
    const double time =
        clock.seconds[static_cast<size_t>(n_guesses)] * (0.95 + 0.1 * static_cast<double>(rng.uniform()));
    pace.note(clock.n_sequences, n_guesses, rng.next() % 100 ? time : 10 * time);
    n_tokens += static_cast<double>(n_won), seconds += time;
  }
  return n_tokens / seconds / clock.best_speed();
}

// The number of guesses that most of the next steps have.
int64_t usual(DraftPace& pace, const Clock& clock, Rng& rng) {
  std::vector<int64_t> n_taken(kMostGuesses + 1);
  for (int i = 0; i < 200; ++i) {
    ++n_taken[static_cast<size_t>(n_guesses_of(pace, clock.n_sequences))];
    run(pace, clock, 1, rng);
  }
  return std::ranges::max_element(n_taken) - n_taken.begin();
}

}  // namespace

BOOST_AUTO_TEST_CASE(the_open_number_is_near_the_best_of_the_fixed_ones) {
  const std::vector<Clock> clocks{
      {1, {9.2, 10.5, 11.6, 12.8}, {0.85, 0.7, 0.6}},
      {1, {9.2, 10.5, 11.6, 12.8}, {0.3, 0.2, 0.1}},
      {1, {1, 1.05, 1.1, 1.15}, {0.9, 0.85, 0.8}},
      {1, {1, 1.7, 2.4, 3.1}, {0.9, 0.5, 0.5}},
      {2, {9.2, 11.5, 13.6, 15.8}, {0.85, 0.7, 0.6}},
      {2, {9.2, 11.5, 15, 19}, {0.85, 0.4, 0.3}},
      {4, {9.2, 13, 17, 21}, {0.85, 0.7, 0.6}},
      {8, {9.2, 15, 20, 25}, {0.85, 0.7, 0.6}},
      {12, {9.2, 17, 24}, {0.85, 0.7}},
      {24, {9.2, 16}, {0.85}},
      {1, {1.23, 2.46, 3.69, 4.92}, {0.85, 0.7, 0.6}},
      {24, {9.2, 18}, {0.85}},
  };
  for (const Clock& clock : clocks)
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      DraftPace pace;
      Rng rng(seed);
      BOOST_TEST_CONTEXT(clock.n_sequences << " sequences, " << clock.seconds.back() << " s, seed " << seed) {
        run(pace, clock, 2000, rng);
        BOOST_TEST(run(pace, clock, 20000, rng) >= 0.98);
      }
    }
}

BOOST_AUTO_TEST_CASE(trials_cost_little_where_guesses_do_not_pay) {
  for (const Clock& clock : {Clock{1, {1.23, 2.46, 3.69, 4.92}, {0.85, 0.7, 0.6}},
                             {24, {9.2, 18}, {0.85}},
                             {1, {9, 10, 11, 12}, {0, 0, 0}}}) {
    DraftPace pace;
    Rng rng(3);
    run(pace, clock, 500, rng);
    BOOST_TEST(run(pace, clock, 20000, rng) >= 0.99);
  }
}

BOOST_AUTO_TEST_CASE(every_number_is_tried_at_first) {
  DraftPace pace;
  std::vector<int64_t> n_steps(kMostGuesses + 1);
  for (int i = 0; i < 16; ++i) {
    const int64_t n_guesses = n_guesses_of(pace, 1);
    pace.note(1, n_guesses, 1);
    ++n_steps[static_cast<size_t>(n_guesses)];
  }
  for (const int64_t n : n_steps) BOOST_TEST(n == 4);
}

BOOST_AUTO_TEST_CASE(what_buffers_have_no_room_for_is_not_asked_for) {
  DraftPace pace;
  int64_t n_without = 0;
  for (int i = 0; i < 100; ++i) {
    const int64_t n_guesses = pace.n_guesses(1, 1);
    BOOST_REQUIRE(n_guesses <= 1);
    n_without += n_guesses == 0;
    pace.note_guesses(n_guesses, 0);
    pace.note(1, n_guesses, n_guesses == 0 ? 1 : 1.5);
  }
  BOOST_TEST(n_without > 80);
}

BOOST_AUTO_TEST_CASE(the_slow_first_step_of_a_kind_says_nothing) {
  DraftPace pace;
  std::vector<bool> is_known(kMostGuesses + 1);
  for (int i = 0; i < 100; ++i) {
    const int64_t n_guesses = n_guesses_of(pace, 1);
    pace.note_guesses(n_guesses, n_guesses);
    pace.note(1, n_guesses, is_known[static_cast<size_t>(n_guesses)] ? 1 : 1000);
    is_known[static_cast<size_t>(n_guesses)] = true;
  }
  BOOST_TEST(n_guesses_of(pace, 1) == 3);
}

BOOST_AUTO_TEST_CASE(the_choice_follows_what_changes) {
  DraftPace pace;
  Rng rng(1);
  const Clock good{1, {9.2, 10.5, 11.6, 12.8}, {0.9, 0.85, 0.8}}, bad{1, good.seconds, {0.02, 0.02, 0.02}};
  run(pace, good, 1000, rng);
  BOOST_TEST(usual(pace, good, rng) == 3);
  run(pace, bad, 2000, rng);  // a text that the block does not know
  BOOST_TEST(usual(pace, bad, rng) == 0);
  run(pace, good, 4000, rng);
  BOOST_TEST(usual(pace, good, rng) == 3);
  const Clock dear{1, {9.2, 20, 30, 40}, good.right};  // a machine that others use, too
  run(pace, dear, 4000, rng);
  BOOST_TEST(usual(pace, dear, rng) == 0);
}

BOOST_AUTO_TEST_CASE(a_growing_context_does_not_look_like_a_worse_number) {
  DraftPace pace;
  Rng rng(1);
  Clock clock{1, {9.2, 10.5, 11.6, 12.8}, {0.85, 0.7, 0.3}};
  run(pace, clock, 1000, rng);
  BOOST_TEST(usual(pace, clock, rng) == 2);
  for (int i = 0; i < 100; ++i) {
    for (double& seconds : clock.seconds) seconds *= 1.02;
    BOOST_TEST(run(pace, clock, 100, rng) >= 0.85);
  }
  BOOST_TEST(run(pace, clock, 1000, rng) >= 0.96);
  for (double& seconds : clock.seconds) seconds /= 7;  // the next talk
  run(pace, clock, 200, rng);
  BOOST_TEST(run(pace, clock, 1000, rng) >= 0.96);
}

BOOST_AUTO_TEST_CASE(equal_steps_give_equal_choices) {
  const Clock clock{3, {9.2, 13, 17, 21}, {0.85, 0.7, 0.6}};
  DraftPace one, other;
  Rng rng_of_one(1), rng_of_other(1);
  for (int i = 0; i < 1000; ++i) {
    BOOST_TEST(n_guesses_of(one, 3) == n_guesses_of(other, 3));
    run(one, clock, 1, rng_of_one), run(other, clock, 1, rng_of_other);
  }
}

BOOST_AUTO_TEST_SUITE_END()
