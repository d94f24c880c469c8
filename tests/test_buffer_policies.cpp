// The replayed policies: LRU against topk_buffer's own counts, FIFO against a queue, the optimal one against
// a search over everything that a buffer could hold.
#include <algorithm>
#include <bit>
#include <boost/test/unit_test.hpp>
#include <deque>
#include <map>
#include <random>
#include <vector>

#include "backend/topk_buffer.h"
#include "gguf/gguf.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"
#include "tests/tools/lab/buffer_policies.h"
#include "tests/tools/lab/recorded_steps.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(buffer_policies)

namespace {

using Steps = std::vector<SelectedRows>;

// Selections of up to `topk` of the visible rows; about `locality` of them stay from step to step.
Steps random_steps(std::mt19937& random, int32_t n_before, int32_t n_steps, size_t topk, double locality) {
  Steps steps;
  std::vector<int32_t> rows;
  for (int32_t newest = n_before; newest < n_before + n_steps; ++newest) {
    std::erase_if(rows, [&](int32_t) { return std::uniform_real_distribution<>()(random) > locality; });
    const size_t n_wanted = std::min(topk, static_cast<size_t>(newest) + 1);
    while (rows.size() < n_wanted) {
      const int32_t row = std::uniform_int_distribution<int32_t>(0, newest)(random);
      if (std::ranges::find(rows, row) == rows.end()) rows.push_back(row);
    }
    std::ranges::sort(rows);
    steps.push_back({newest, rows});
  }
  return steps;
}

int64_t misses(BufferPolicy policy, const Steps& steps, int32_t capacity) {
  const HitCounts counts = replay(policy, steps, capacity);
  return counts.n_rows - counts.n_hits;
}

// The misses of topk_buffer itself behind the first step.
int64_t buffer_misses(const Steps& steps, int32_t capacity) {
  std::vector<int32_t> slot_pos(static_cast<size_t>(capacity) + 1), order(slot_pos.size());
  const TopkBuffer buffer{capacity + 1, slot_pos.data(), order.data()};
  reset(buffer);
  int64_t n_misses = 0;
  for (const SelectedRows& step : steps) {
    std::vector<int32_t> slots(step.rows.size()), missing(step.rows.size());
    claim_newest(buffer, step.newest);
    const int32_t n = resolve(buffer, step.rows.data(), static_cast<int32_t>(step.rows.size()), slots.data(),
                              missing.data());
    if (&step != &steps.front()) n_misses += n;
  }
  return n_misses;
}

// A queue of rows; who is selected goes round the queue without losing the place in it.
int64_t queue_misses(const Steps& steps, size_t n_slots) {
  std::deque<int32_t> queue;
  int64_t n_misses = 0;
  for (const SelectedRows& step : steps) {
    if (queue.size() == n_slots) queue.pop_front();
    queue.push_back(step.newest);
    for (const int32_t row : step.rows) {
      if (std::ranges::find(queue, row) != queue.end()) continue;
      if (&step != &steps.front()) ++n_misses;
      if (queue.size() == n_slots)
        queue.erase(std::ranges::find_if(
            queue, [&](int32_t held) { return std::ranges::find(step.rows, held) == step.rows.end(); }));
      queue.push_back(row);
    }
  }
  return n_misses;
}

// The fewest misses that any way of dropping rows has: all sets of rows that a buffer could hold, step by
// step.
int64_t fewest_misses(const Steps& steps, int n_slots) {
  std::map<uint32_t, int64_t> cost_of = {{0, 0}};  // by held rows, one bit a position
  for (const SelectedRows& step : steps) {
    uint32_t selected = 0;
    for (const int32_t row : step.rows) selected |= 1u << row;
    const uint32_t wanted = selected | 1u << step.newest;
    std::map<uint32_t, int64_t> next;
    for (const auto& [held, cost] : cost_of) {
      const int n_loaded = std::popcount(selected & ~held & ~(1u << step.newest));
      const int64_t total = cost + (&step == &steps.front() ? 0 : n_loaded);
      const uint32_t others = held & ~wanted;
      for (uint32_t kept = others;; kept = (kept - 1) & others) {
        if (std::popcount(kept | wanted) <= n_slots) {
          const auto [place, is_new] = next.try_emplace(kept | wanted, total);
          if (!is_new) place->second = std::min(place->second, total);
        }
        if (kept == 0) break;
      }
    }
    cost_of = std::move(next);
  }
  return std::ranges::min_element(cost_of, {}, [](const auto& entry) { return entry.second; })->second;
}

}  // namespace

BOOST_AUTO_TEST_CASE(lru_counts_what_the_buffer_counts) {
  std::mt19937 random(1);
  for (const double locality : {0.0, 0.5, 0.9})
    for (const int32_t capacity : {8, 9, 12, 16, 32}) {
      const Steps steps = random_steps(random, 60, 200, 8, locality);
      BOOST_TEST(misses(BufferPolicy::lru, steps, capacity) == buffer_misses(steps, capacity));
    }
}

BOOST_AUTO_TEST_CASE(fifo_is_a_queue) {
  std::mt19937 random(2);
  for (const double locality : {0.0, 0.5, 0.9})
    for (const int32_t capacity : {8, 9, 12, 16, 32}) {
      const Steps steps = random_steps(random, 60, 200, 8, locality);
      BOOST_TEST(misses(BufferPolicy::fifo, steps, capacity) ==
                 queue_misses(steps, static_cast<size_t>(capacity) + 1));
    }
}

BOOST_AUTO_TEST_CASE(no_way_of_dropping_rows_has_fewer_misses_than_the_optimal_policy) {
  std::mt19937 random(3);
  int64_t n_misses = 0;
  for (int i = 0; i < 300; ++i) {
    const auto topk = static_cast<size_t>(1 + i % 3);
    const int32_t capacity = static_cast<int32_t>(topk) + i / 3 % 3;
    const Steps steps = random_steps(random, 5, 7, topk, 0.1 * (i % 8));
    const int64_t fewest = fewest_misses(steps, capacity + 1);
    BOOST_TEST(misses(BufferPolicy::optimal, steps, capacity) == fewest);
    n_misses += fewest;
  }
  BOOST_TEST(n_misses > 300);  // the traces are no easy ones
}

BOOST_AUTO_TEST_CASE(the_optimal_policy_is_never_behind_the_others) {
  std::mt19937 random(4);
  for (int i = 0; i < 60; ++i) {
    const auto topk = static_cast<size_t>(1 + i % 20);
    const Steps steps = random_steps(random, 100, 80, topk, 0.1 * (i % 10));
    for (const int32_t factor : {2, 3, 4, 8}) {
      const int32_t capacity = static_cast<int32_t>(topk) * factor / 2;
      const int64_t fewest = misses(BufferPolicy::optimal, steps, capacity);
      BOOST_TEST(fewest <= misses(BufferPolicy::lru, steps, capacity));
      BOOST_TEST(fewest <= misses(BufferPolicy::fifo, steps, capacity));
    }
  }
}

// Three slots. When 11 comes, LRU knows that 0 was just used and lets 10 go; FIFO lets 0 go, which came
// before it, and must load it again.
BOOST_AUTO_TEST_CASE(the_policies_differ_where_they_should) {
  const Steps steps = {{9, {0, 1}}, {10, {0, 2}}, {11, {0, 9}}, {12, {0, 1}}};
  BOOST_TEST(misses(BufferPolicy::lru, steps, 2) == 3);      // 2; 9; 1
  BOOST_TEST(misses(BufferPolicy::fifo, steps, 2) == 4);     // 2; 0 and 9; 1
  BOOST_TEST(misses(BufferPolicy::optimal, steps, 2) == 3);  // two wanted rows and the newest fill the buffer
  BOOST_TEST(misses(BufferPolicy::optimal, steps, 3) == 2);
}

BOOST_AUTO_TEST_CASE(a_buffer_that_holds_the_context_has_every_row) {
  std::mt19937 random(5);
  const Steps steps = random_steps(random, 30, 10, 8, 0.3);
  for (const BufferPolicy policy : kBufferPolicies) {
    BOOST_TEST(misses(policy, steps, 40) == 0);
    BOOST_TEST(misses(policy, steps, 39) > 0);  // one row less, and rows must be loaded when first selected
    BOOST_TEST(replay(policy, steps, 40).n_rows == 9 * 8);
  }
}

BOOST_AUTO_TEST_CASE(the_first_step_and_none_at_all_count_nothing) {
  const Steps none, one = {{9, {0, 1}}};
  for (const BufferPolicy policy : kBufferPolicies) {
    BOOST_TEST(replay(policy, none, 2).n_rows == 0);
    BOOST_TEST(replay(policy, one, 2).n_rows == 0);
    BOOST_TEST(replay(policy, one, 2).rate() == 1.0);
  }
}

BOOST_AUTO_TEST_CASE(repeated_rows_are_counted) {
  const Steps steps = {{4, {0, 1, 2}}, {5, {1, 2, 5}}, {6, {0, 3, 6}}};
  BOOST_TEST(count_repeated(steps).n_rows == 6);
  BOOST_TEST(count_repeated(steps).n_hits == 2);
}

// What is recorded and replayed is what a small buffer really did in the same steps.
BOOST_AUTO_TEST_CASE(replayed_lru_equals_the_tally_of_the_forward_pass) {
  constexpr int32_t kCapacity = 63;  // and the newest: a page of slots
  const TempDir dir;
  TinyModel shape;
  shape.n_layers = 3, shape.n_dense_layers = 1, shape.index_topk = 32;
  write_tiny_model(dir.file("tiny.gguf"), shape);
  const GgufFile file(dir.file("tiny.gguf"));
  EngineOptions options;
  options.context = 256, options.n_threads = 1, options.topk_buffer = kCapacity;
  Engine engine(file, options);
  ByHand sequence(engine);
  std::vector<int32_t> prompt(100);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(i * 31 % 250);
  sequence.sync(prompt);
  RecordedSteps steps(engine, sequence);
  steps.step(7);
  const Forward::BufferTally warm = engine.forward().buffer_tally();
  for (int32_t token = 50; token < 90; ++token) steps.step(token);
  const Forward::BufferTally end = engine.forward().buffer_tally();
  HitCounts counts;
  for (int64_t layer = 0; layer < 3; ++layer) {
    BOOST_TEST(steps.layer(layer).size() == 41u);
    BOOST_TEST(steps.layer(layer).back().newest == 140);
    counts += replay(BufferPolicy::lru, steps.layer(layer), kCapacity);
  }
  BOOST_TEST(counts.n_rows == end.n_rows - warm.n_rows);
  BOOST_TEST(counts.n_rows - counts.n_hits == end.n_misses - warm.n_misses);
  BOOST_TEST(end.n_misses > warm.n_misses);
}

BOOST_AUTO_TEST_SUITE_END()
