// The scheduler alone, against a flat model of the pools: requests that arrive, grow, wait for the disk and
// are cancelled at random, in pools from one request's size upwards.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <numeric>
#include <optional>
#include <vector>

#include "backend/cache_layout.h"
#include "context/cache_plan.h"
#include "engine/scheduler.h"
#include "gguf/random_weights.h"
#include "tests/support/sanitized.h"

using namespace dsv32;
using What = StepPlan::What;

namespace {

StepPlan step_of(const std::vector<RequestState>& requests, bool was_prompt, int64_t chunk) {
  return next_step({requests, {1000, 1000, 100}, 0, chunk, was_prompt});
}

RequestState in_phase(Phase phase) { return {phase, false, false, 10, 100, 200}; }

// A world of requests that do what plans say.
class World {
 public:
  World(uint64_t seed, int64_t n_requests) : rng_(seed), n_left_(n_requests) {
    context_ = 64 + below(1000);
    room_.n_row_pages = pages_for(context_) + below(40);
    room_.n_key_pages = std::min(room_.n_row_pages, pages_for(context_) + below(20));
    room_.n_shares = 1 + below(12);
    chunk_ = 1 + below(128);
  }

  // One step. False: all is done.
  bool step() {
    arrive();
    const SchedulerInput input{states_, room_, n_ended_ ? n_tokens_ / n_ended_ : 0, chunk_, was_prompt_};
    const StepPlan plan = next_step(input);
    BOOST_REQUIRE((next_step(input) == plan));
    carry_out(plan);
    check_room();
    was_prompt_ = plan.what == What::prompt;
    for (const size_t i : plan.requests) advance(i, plan.what);
    check_room();
    for (RequestState& state : states_)
      if (state.phase == Phase::waits_for_disk && (plan.what == What::wait || below(3) == 0))
        state.phase = Phase::reads_prompt;
    if (below(200) == 0) cancel();
    n_idle_ = plan.what == What::prompt || plan.what == What::decode ? 0 : n_idle_ + 1;
    BOOST_REQUIRE(n_idle_ < 4);  // something always goes on
    remove_done();
    return n_left_ > 0 || !states_.empty();
  }

  int64_t n_steps = 0, n_suspended = 0, n_restarted = 0, n_ended_once = 0;

 private:
  int64_t below(int64_t n) { return static_cast<int64_t>(rng_.next() % static_cast<uint64_t>(n)); }

  void arrive() {
    while (n_left_ > 0 && states_.size() < 40 && (states_.empty() || below(4) == 0)) {
      RequestState state;
      state.n_prompt = 1 + below(context_ - 1);
      state.n_most = std::min(context_, state.n_prompt + below(context_));
      states_.push_back(state);
      ends_at_.push_back(state.n_prompt + below(state.n_most - state.n_prompt + 1));
      --n_left_;
    }
  }

  void carry_out(const StepPlan& plan) {
    const bool is_pressed = !plan.suspended.empty() || !plan.restarted.empty();
    BOOST_REQUIRE((!is_pressed || (plan.resumed.empty() && plan.admitted.empty())));
    for (const size_t i : plan.suspended) {
      BOOST_REQUIRE((states_[i].is_admitted() && !states_[i].is_suspended));
      states_[i].is_suspended = true, ++n_suspended;
    }
    for (const size_t i : plan.restarted) {
      BOOST_REQUIRE(states_[i].is_admitted());
      states_[i].phase = Phase::waits_for_room, states_[i].n_held = 0, states_[i].is_suspended = false;
      ++n_restarted;
    }
    for (const size_t i : plan.resumed) {
      BOOST_REQUIRE(states_[i].is_suspended);
      states_[i].is_suspended = false;
    }
    for (const size_t i : plan.admitted) {
      BOOST_REQUIRE((states_[i].phase == Phase::waits_for_room));
      states_[i].phase = Phase::waits_for_disk;
    }
    check_order(plan);
  }

  // Nobody begins before one that came earlier and waits, or that gave way.
  void check_order(const StepPlan& plan) const {
    if (plan.admitted.empty()) return;
    for (size_t i = 0; i < states_.size(); ++i) {
      BOOST_REQUIRE(!states_[i].is_suspended);
      BOOST_REQUIRE((states_[i].phase != Phase::waits_for_room || i > plan.admitted.back()));
    }
  }

  void advance(size_t i, What what) {
    RequestState& state = states_[i];
    BOOST_REQUIRE(!state.is_suspended);
    BOOST_REQUIRE((state.phase == (what == What::prompt ? Phase::reads_prompt : Phase::decodes)));
    if (what == What::prompt) {
      state.n_held = std::min(state.n_prompt, state.n_held + chunk_);
      if (state.n_held == state.n_prompt) state.phase = Phase::decodes;
    } else {
      ++state.n_held;
    }
    if (state.phase == Phase::decodes && state.n_held >= ends_at_[i]) state.phase = Phase::is_done;
  }

  void check_room() const {
    Room taken;
    for (const RequestState& state : states_) {
      if (!state.is_admitted()) continue;
      const Room room = room_of(state, state.n_held);
      taken.n_row_pages += room.n_row_pages, taken.n_key_pages += room.n_key_pages;
      taken.n_shares += room.n_shares;
    }
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
      ends_at_.erase(ends_at_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    ++n_steps;
  }

  Rng rng_;
  int64_t n_left_, context_ = 0, chunk_ = 1, n_idle_ = 0, n_ended_ = 0, n_tokens_ = 0;
  Room room_;
  bool was_prompt_ = false;
  std::vector<RequestState> states_;
  std::vector<int64_t> ends_at_;  // how long each becomes
};

}  // namespace

BOOST_AUTO_TEST_SUITE(scheduler)

BOOST_AUTO_TEST_CASE(prompts_and_answers_take_turns) {
  const std::vector<RequestState> both = {in_phase(Phase::decodes), in_phase(Phase::reads_prompt),
                                          in_phase(Phase::decodes), in_phase(Phase::reads_prompt)};
  BOOST_TEST((step_of(both, false, 8).what == What::prompt));
  BOOST_TEST((step_of(both, false, 8).requests == std::vector<size_t>{1}));  // the first that came
  BOOST_TEST((step_of(both, true, 8).what == What::decode));
  BOOST_TEST((step_of(both, true, 8).requests == std::vector<size_t>{0, 2}));
  BOOST_TEST((step_of(both, true, 1).requests == std::vector<size_t>{0}));
  const std::vector<RequestState> disk = {in_phase(Phase::waits_for_disk), in_phase(Phase::is_done)};
  BOOST_TEST((step_of(disk, false, 8).what == What::wait));
  const std::vector<RequestState> reads = {in_phase(Phase::waits_for_disk), in_phase(Phase::reads_prompt)};
  BOOST_TEST((step_of(reads, true, 8).what == What::prompt));  // nobody decodes
  BOOST_TEST((step_of({}, false, 8).what == What::nothing));
}

BOOST_AUTO_TEST_CASE(who_has_a_place_of_its_own_never_gives_way) {
  std::vector<RequestState> requests(3, {Phase::decodes, false, true, 100, 100, 200});
  const StepPlan plan = next_step({requests, {2, 2, 1}, 0, 8, false});
  BOOST_TEST(plan.suspended.empty());
  BOOST_TEST(plan.restarted.empty());
  BOOST_TEST(plan.requests.size() == 3u);
}

// Answers turn out longer than those before: the last to come gives way, and is the first to go on.
BOOST_AUTO_TEST_CASE(the_youngest_gives_way_and_goes_on_before_anyone_begins) {
  std::vector<RequestState> requests(2, {Phase::decodes, false, false, 128, 100, 500});
  requests.push_back({Phase::waits_for_room, false, false, 0, 10, 20});
  const Room room{100, 5, 4};
  StepPlan plan = next_step({requests, room, 10, 8, true});
  BOOST_TEST((plan.suspended == std::vector<size_t>{1}));
  BOOST_TEST((plan.requests == std::vector<size_t>{0}));
  requests[1].is_suspended = true;
  plan = next_step({requests, room, 10, 8, true});
  BOOST_TEST(plan.admitted.empty());
  requests[0].phase = Phase::is_done;
  plan = next_step({requests, room, 10, 8, true});
  BOOST_TEST((plan.resumed == std::vector<size_t>{1}));
}

BOOST_AUTO_TEST_CASE(no_pool_is_ever_over_its_room_and_every_request_ends) {
  const int64_t n_least = kIsSanitized ? 20'000 : 1'000'000;
  int64_t n_steps = 0, n_suspended = 0, n_restarted = 0;
  for (uint64_t seed = 0; n_steps < n_least; ++seed) {
    constexpr int64_t kRequests = 60;
    World world(seed, kRequests);
    while (world.step()) {
    }
    BOOST_REQUIRE(world.n_ended_once == kRequests);
    n_steps += world.n_steps, n_suspended += world.n_suspended, n_restarted += world.n_restarted;
  }
  BOOST_TEST(n_suspended > n_least / 10'000);
  BOOST_TEST(n_restarted > n_least / 10'000);
}

BOOST_AUTO_TEST_SUITE_END()
