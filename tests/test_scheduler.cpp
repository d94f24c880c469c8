// The scheduler alone, against a flat model of the pools: requests that arrive, share prefixes, grow, wait
// for the disk and are cancelled at random, in pools from one request's size upwards.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <numeric>
#include <optional>
#include <set>
#include <vector>

#include "backend/cache_layout.h"
#include "context/cache_plan.h"
#include "engine/scheduler.h"
#include "gguf/random_weights.h"
#include "tests/support/sanitized.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(scheduler)

using What = NextStep::What;

namespace {

NextStep step_of(const std::vector<SequenceState>& requests, bool was_prompt, int64_t chunk) {
  return next_step({requests, {1000, 1000, 100}, 0, chunk, was_prompt});
}

SequenceState in_phase(Phase phase) { return {phase, false, 10, 100, 200}; }

// A world of requests that do what plans say. Its pools are flat: pages have numbers, and who holds which is
// written down.
class World {
 public:
  World(uint64_t seed, int64_t n_requests) : rng_(seed), n_left_(n_requests) {
    context_ = 64 + below(1000);
    room_.n_pages = pages_for(context_) + below(40);
    room_.n_sequences = 1 + below(12);
    buffer_pages_ = below(3) == 0 ? 0 : 2 + below(10);
    least_pages_ = buffer_pages_ ? 1 + below(buffer_pages_) : 0;
    room_.n_slot_pages = buffer_pages_ + below(10);
    chunk_ = 1 + below(128);
    disk_ = below(2) ? 3 : 60;
  }

  // One step. False: all is done.
  bool step() {
    arrive();
    find_donors();
    const SchedulerInput input{states_,     room_,       n_ended_ ? n_tokens_ / n_ended_ : 0,
                               chunk_,      was_prompt_, buffer_pages_,
                               least_pages_};
    const NextStep plan = next_step(input);
    BOOST_REQUIRE((next_step(input) == plan));
    carry_out(plan);
    check_room();
    was_prompt_ = plan.what == What::prompt;
    for (const size_t i : plan.sequences) advance(i, plan.what, plan.n_tokens);
    check_room();
    for (size_t i = 0; i < states_.size(); ++i)
      if (states_[i].phase == Phase::waits_for_disk && (plan.what == What::wait || below(disk_) == 0))
        begin(i);
    if (below(200) == 0) cancel();
    n_idle_ = plan.what == What::prompt || plan.what == What::decode ? 0 : n_idle_ + 1;
    BOOST_REQUIRE(n_idle_ < 4);  // something always goes on
    remove_done();
    return n_left_ > 0 || !states_.empty();
  }

  int64_t n_steps = 0, n_restarted = 0, n_shrunk = 0, n_overtook = 0, n_ended_once = 0;

 private:
  int64_t below(int64_t n) { return static_cast<int64_t>(rng_.next() % static_cast<uint64_t>(n)); }

  void arrive() {
    while (n_left_ > 0 && states_.size() < 40 && (states_.empty() || below(4) == 0)) {
      SequenceState state;
      state.n_prompt = 1 + below(context_ - 1);
      state.n_most = std::min(context_, state.n_prompt + below(context_));
      states_.push_back(state);
      lives_.push_back({.ends_at = state.n_prompt + below(state.n_most - state.n_prompt + 1),
                        .family = below(3),
                        .n_common = below(3) == 0 ? 0 : below(state.n_prompt)});
      --n_left_;
    }
  }

  // Pages from the front that two requests have in common, if the same prompt made them.
  int64_t n_common_pages(size_t i, size_t j) const {
    if (lives_[i].family != lives_[j].family) return 0;
    return std::min(lives_[i].n_common, lives_[j].n_common) / kPageTokens;
  }

  // What Loop tells: of those that hold pages how many are the same in fact, of others what may become so.
  void find_donors() {
    for (size_t i = 0; i < states_.size(); ++i) {
      SequenceState& state = states_[i];
      state.donor.reset(), state.n_shared_pages = 0;
      for (size_t j = 0; j < i; ++j) {
        if (states_[j].phase == Phase::is_done || n_common_pages(i, j) == 0) continue;
        state.donor = j, state.n_shared_pages = n_common_pages(i, j);
        if (!state.is_admitted() || state.phase == Phase::waits_for_disk || !states_[j].is_admitted())
          continue;
        const std::vector<int64_t>& pages = lives_[i].pages;
        state.n_shared_pages = std::ranges::mismatch(pages, lives_[j].pages).in1 - pages.begin();
      }
    }
  }

  // With the pages of one that has read what they have in common, with others, or with nothing.
  void begin(size_t i) {
    SequenceState& state = states_[i];
    state.phase = Phase::reads_prompt;
    for (size_t j = 0; j < states_.size(); ++j) {
      const auto n =
          static_cast<size_t>(std::min<int64_t>(n_common_pages(i, j), std::ssize(lives_[j].pages)));
      if (j == i || !states_[j].is_admitted() || n == 0 || below(4) == 0) continue;
      if (state.n_held >= static_cast<int64_t>(n) * kPageTokens ||
          n * kPageTokens >= static_cast<size_t>(state.n_prompt))
        continue;
      state.n_held = static_cast<int64_t>(n) * kPageTokens;
      const std::vector<int64_t>& pages = lives_[j].pages;
      lives_[i].pages.assign(pages.begin(), pages.begin() + static_cast<std::ptrdiff_t>(n));
    }
    // The disk has more of it; where it does not share as expected there may be no room for that.
    const bool is_as_expected = std::ssize(lives_[i].pages) >= state.n_shared_pages;
    if (is_as_expected && below(3) == 0) state.n_held = std::max(state.n_held, below(state.n_prompt));
    hold(i);
    check_room();
  }

  // As many pages as the tokens want; whole ones only are shared, so that the others are its own.
  void hold(size_t i) {
    const auto n = static_cast<size_t>(states_[i].n_held / kPageTokens);
    while (lives_[i].pages.size() < n) lives_[i].pages.push_back(n_pages_++);
  }

  void carry_out(const NextStep& plan) {
    BOOST_REQUIRE((plan.restarted.empty() || plan.admitted.empty()));
    for (const size_t i : plan.restarted) {
      BOOST_REQUIRE(states_[i].is_admitted());
      states_[i].phase = Phase::waits_for_room, states_[i].n_held = 0;
      states_[i].is_shrunk = false;
      lives_[i].pages.clear();
      ++n_restarted;
    }
    for (const size_t i : plan.admitted) {
      BOOST_REQUIRE((states_[i].phase == Phase::waits_for_room));
      states_[i].phase = Phase::waits_for_disk;
    }
    for (const size_t i : plan.shrunk) {
      BOOST_REQUIRE((states_[i].is_admitted() && !states_[i].is_shrunk));
      states_[i].is_shrunk = true, ++n_shrunk;
    }
    for (const size_t i : plan.grown) {
      BOOST_REQUIRE(states_[i].is_shrunk);
      states_[i].is_shrunk = false;
    }
    check_order(plan);
  }

  // Before one that came earlier and waits, only who shares pages begins, and few of those.
  void check_order(const NextStep& plan) {
    if (plan.admitted.empty()) return;
    for (size_t i = 0; i < states_.size(); ++i) {
      if (states_[i].phase != Phase::waits_for_room) continue;
      for (const size_t later : plan.admitted) {
        if (later < i) continue;
        BOOST_REQUIRE((states_[later].donor && states_[later].n_shared_pages > 0));
        ++states_[i].n_overtaken, ++n_overtook;
      }
      BOOST_REQUIRE(states_[i].n_overtaken <= kMostOvertaken);
    }
  }

  void advance(size_t i, What what, int64_t n_tokens) {
    SequenceState& state = states_[i];
    BOOST_REQUIRE((state.phase == (what == What::prompt ? Phase::reads_prompt : Phase::decodes)));
    if (what == What::prompt) {
      BOOST_REQUIRE((n_tokens == std::min(chunk_, state.n_prompt - state.n_held)));
      state.n_held += n_tokens;
      if (state.n_held == state.n_prompt) state.phase = Phase::decodes;
    } else {
      ++state.n_held;
    }
    hold(i);
    if (state.phase == Phase::decodes && state.n_held >= lives_[i].ends_at) state.phase = Phase::is_done;
  }

  // Each page once, whoever holds it, and those that are begun.
  void check_room() const {
    std::set<int64_t> pages;
    Room taken;
    for (size_t i = 0; i < states_.size(); ++i) {
      const SequenceState& state = states_[i];
      if (!state.is_admitted()) continue;
      pages.insert(lives_[i].pages.begin(), lives_[i].pages.end());
      taken.n_pages += state.n_held % kPageTokens > 0;
      taken.n_slot_pages += std::min(pages_for(state.n_held), state.is_shrunk ? least_pages_ : buffer_pages_);
      ++taken.n_sequences;
    }
    taken.n_pages += std::ssize(pages);
    BOOST_REQUIRE(room_.holds(taken));
  }

  void cancel() {
    if (!states_.empty()) states_[static_cast<size_t>(below(std::ssize(states_)))].phase = Phase::is_done;
  }

  void remove_done() {
    for (size_t i = states_.size(); i-- > 0;) {
      if (states_[i].phase != Phase::is_done) continue;
      ++n_ended_once, ++n_ended_;
      n_tokens_ += std::max<int64_t>(0, states_[i].n_held - states_[i].n_prompt);
      states_.erase(states_.begin() + static_cast<std::ptrdiff_t>(i));
      lives_.erase(lives_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    ++n_steps;
  }

  Rng rng_;
  int64_t n_left_, context_ = 0, chunk_ = 1, n_idle_ = 0, n_ended_ = 0, n_tokens_ = 0, n_pages_ = 0;
  int64_t buffer_pages_ = 0, least_pages_ = 0, disk_ = 1;  // steps that it takes, about
  Room room_;
  bool was_prompt_ = false;
  std::vector<SequenceState> states_;
  struct Life {
    int64_t ends_at = 0;               // how long it becomes
    int64_t family = 0, n_common = 0;  // tokens that it has in common with others of its family
    std::vector<int64_t> pages = {};   // the whole ones that it holds
  };
  std::vector<Life> lives_;
};

}  // namespace

BOOST_AUTO_TEST_CASE(prompts_and_answers_take_turns) {
  const std::vector<SequenceState> both = {in_phase(Phase::decodes), in_phase(Phase::reads_prompt),
                                           in_phase(Phase::decodes), in_phase(Phase::reads_prompt)};
  BOOST_TEST((step_of(both, false, 8).what == What::prompt));
  BOOST_TEST((step_of(both, false, 8).sequences == std::vector<size_t>{1}));  // the first that came
  BOOST_TEST((step_of(both, true, 8).what == What::decode));
  BOOST_TEST((step_of(both, true, 8).sequences == std::vector<size_t>{0, 2}));
  const std::vector<SequenceState> disk = {in_phase(Phase::waits_for_disk), in_phase(Phase::is_done)};
  BOOST_TEST((step_of(disk, false, 8).what == What::wait));
  const std::vector<SequenceState> reads = {in_phase(Phase::waits_for_disk), in_phase(Phase::reads_prompt)};
  BOOST_TEST((step_of(reads, true, 8).what == What::prompt));  // nobody decodes
  BOOST_TEST((step_of({}, false, 8).what == What::nothing));
}

BOOST_AUTO_TEST_CASE(who_has_a_place_of_its_own_never_gives_way) {
  std::vector<SequenceState> requests(3, {Phase::decodes, true, 100, 100, 200});
  const NextStep plan = next_step({requests, {2, 2, 1}, 0, 8, false});
  BOOST_TEST(plan.restarted.empty());
  BOOST_TEST(plan.sequences.size() == 3u);
}

// Answers turn out longer than those before: the last to come gives way, and is the first to begin anew.
BOOST_AUTO_TEST_CASE(the_youngest_gives_way_and_begins_anew_before_later_ones) {
  std::vector<SequenceState> requests(2, {Phase::decodes, false, 128, 100, 500});
  requests.push_back({Phase::waits_for_room, false, 0, 10, 20});
  const Room room{5, 100, 4};
  NextStep plan = next_step({requests, room, 10, 8, true});
  BOOST_TEST((plan.restarted == std::vector<size_t>{1}));
  BOOST_TEST((plan.sequences == std::vector<size_t>{0}));
  requests[1].phase = Phase::waits_for_room, requests[1].n_held = 0;
  plan = next_step({requests, room, 10, 8, true});
  BOOST_TEST(plan.admitted.empty());
  requests[0].phase = Phase::is_done;
  plan = next_step({requests, room, 10, 8, true});
  BOOST_TEST((plan.admitted == std::vector<size_t>{1, 2}));
}

BOOST_AUTO_TEST_CASE(no_pool_is_ever_over_its_room_and_every_request_ends) {
  const int64_t n_least = kIsSanitized ? 20'000 : 1'000'000;
  int64_t n_steps = 0, n_restarted = 0, n_shrunk = 0, n_overtook = 0;
  for (uint64_t seed = 0; n_steps < n_least; ++seed) {
    constexpr int64_t kRequests = 60;
    World world(seed, kRequests);
    while (world.step()) {
    }
    BOOST_REQUIRE(world.n_ended_once == kRequests);
    n_steps += world.n_steps, n_restarted += world.n_restarted;
    n_shrunk += world.n_shrunk, n_overtook += world.n_overtook;
  }
  BOOST_TEST(n_restarted > n_least / 10'000);
  BOOST_TEST(n_shrunk > n_least / 10'000);
  BOOST_TEST(n_overtook > n_least / 10'000);
}

// Three stages: at most three groups of a third of the sequences are under way, each sequence in one of them.
BOOST_AUTO_TEST_CASE(groups_of_sequences_go_through_the_stages) {
  std::vector<SequenceState> states(7, in_phase(Phase::decodes));
  SchedulerInput input{states, {1000, 1000, 100}, 0, 8, false};
  input.n_stages = 3;
  std::vector<std::vector<size_t>> groups;
  for (NextStep next = next_step(input); next.what == What::decode; next = next_step(input)) {
    BOOST_TEST(next.is_group);
    for (const size_t i : next.sequences) {
      BOOST_TEST(!states[i].is_under_way);
      states[i].is_under_way = true;
    }
    groups.push_back(next.sequences);
    ++input.n_under_way;
  }
  BOOST_TEST((groups == std::vector<std::vector<size_t>>{{0, 1, 2}, {3, 4, 5}, {6}}));
  BOOST_TEST((next_step(input).what == What::take_one));
  for (const size_t i : groups.front()) states[i].is_under_way = false;
  --input.n_under_way;
  BOOST_TEST((next_step(input).sequences == groups.front()));
  for (const Phase phase : {Phase::waits_for_room, Phase::waits_for_disk, Phase::reads_prompt}) {
    states.push_back(in_phase(phase));
    input.sequences = states;
    NextStep all;
    all.what = What::take_all;
    BOOST_TEST((next_step(input) == all));
    states.pop_back();
  }
  for (SequenceState& state : states) state.is_under_way = false;
  states.push_back(in_phase(Phase::waits_for_disk));
  input.sequences = states, input.n_under_way = 0;
  const NextStep all = next_step(input);  // together, as their tokens would have to be taken at once
  BOOST_TEST((all.sequences.size() == 7u && !all.is_group));
}

BOOST_AUTO_TEST_CASE(guesses_are_as_many_as_pay_and_can_be_used) {
  std::vector<SequenceState> states(2, in_phase(Phase::decodes));
  SchedulerInput input{states, {1000, 1000, 100}, 0, 8, false};
  BOOST_TEST(next_step(input).n_guesses == 0);
  input.n_guesses = 3;
  BOOST_TEST(next_step(input).n_guesses == 0);
  states[1].n_possible_guesses = 2;
  BOOST_TEST(next_step(input).n_guesses == 2);
  states[0].n_possible_guesses = 100;
  BOOST_TEST(next_step(input).n_guesses == 3);
  input.n_stages = 2;
  BOOST_TEST(next_step(input).n_guesses == 0);
  input.n_stages = 1;
  DraftPace pace;
  input.pace = &pace;
  BOOST_TEST(next_step(input).n_guesses == pace.n_guesses(2, 3));
  for (int i = 0; i < 100; ++i) {
    const int64_t n = next_step(input).n_guesses;
    pace.note_guesses(n, 0), pace.note(2, n, 1 + static_cast<double>(n));
  }
  BOOST_TEST(next_step(input).n_guesses == 0);  // none was right
}

BOOST_AUTO_TEST_CASE(a_step_has_room_for_so_many_guesses) {
  for (const auto& [n_sequences, n_guesses] : {std::pair{1, 3}, {8, 3}, {9, 2}, {13, 1}, {24, 1}, {25, 0}}) {
    std::vector<SequenceState> states(static_cast<size_t>(n_sequences), in_phase(Phase::decodes));
    for (SequenceState& state : states) state.n_possible_guesses = 100;
    SchedulerInput input{states, {1000, 1000, 100}, 0, 8, false};
    input.n_guesses = 3;
    BOOST_TEST(next_step(input).n_guesses == n_guesses, n_sequences << " sequences");
    DraftPace pace;
    input.pace = &pace;  // knows nothing yet: tries all numbers, the smallest first
    BOOST_TEST(next_step(input).n_guesses == 0);
  }
}

BOOST_AUTO_TEST_SUITE_END()
