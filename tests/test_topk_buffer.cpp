// The top-k buffer's policy against a model of it written with lists, and its invariants, on random and
// adversarial traces.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <list>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "backend/topk_buffer.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(topk_buffer)

namespace {

struct OwnedBuffer {
  std::vector<int32_t> slot_pos, order;
  TopkBuffer view;
  explicit OwnedBuffer(int32_t capacity)
      : slot_pos(static_cast<size_t>(capacity) + 1),
        order(slot_pos.size()),
        view{capacity + 1, slot_pos.data(), order.data()} {
    reset(view);
  }
};

// The same policy said in another way: a list of positions from the first to leave to the last; -1 is an
// empty place.
class ListModel {
 public:
  explicit ListModel(int32_t capacity) : places_(static_cast<size_t>(capacity) + 1, -1) {}

  void claim(int32_t pos) {
    const auto found = std::ranges::find(places_, pos);
    if (found != places_.end())
      places_.erase(found);
    else
      places_.pop_front();
    places_.push_back(pos);
  }

  // Returns the misses in ascending order.
  std::vector<int32_t> resolve(const std::vector<int32_t>& selected) {
    std::list<int32_t> stale, hits;
    for (const int32_t pos : places_)
      (pos >= 0 && std::ranges::binary_search(selected, pos) ? hits : stale).push_back(pos);
    std::vector<int32_t> misses;
    for (const int32_t pos : selected)
      if (std::ranges::find(hits, pos) == hits.end()) misses.push_back(pos), stale.pop_front();
    places_ = stale;
    places_.insert(places_.end(), misses.begin(), misses.end());
    places_.insert(places_.end(), hits.begin(), hits.end());
    return misses;
  }

  const std::list<int32_t>& places() const { return places_; }

 private:
  std::list<int32_t> places_;
};

void check_step(OwnedBuffer& buffer, ListModel& model, int32_t pos, const std::vector<int32_t>& selected) {
  const int32_t n = static_cast<int32_t>(selected.size());
  std::vector<int32_t> slots(selected.size()), misses(selected.size());
  const int32_t own_slot = claim_newest(buffer.view, pos);
  model.claim(pos);
  BOOST_REQUIRE(buffer.slot_pos[static_cast<size_t>(own_slot)] == pos);
  misses.resize(static_cast<size_t>(resolve(buffer.view, selected.data(), n, slots.data(), misses.data())));
  for (int32_t& miss : misses) miss = selected[static_cast<size_t>(miss)];
  const std::vector<int32_t> expected = model.resolve(selected);
  BOOST_REQUIRE(misses == expected);
  for (size_t i = 0; i < selected.size(); ++i)
    BOOST_REQUIRE(buffer.slot_pos[static_cast<size_t>(slots[i])] == selected[i]);
  BOOST_REQUIRE(buffer.slot_pos[static_cast<size_t>(own_slot)] == pos);  // the newest row is never the victim
  std::vector<int32_t> in_order;
  for (const int32_t slot : buffer.order) in_order.push_back(buffer.slot_pos[static_cast<size_t>(slot)]);
  BOOST_REQUIRE(std::ranges::equal(in_order, model.places()));
  BOOST_REQUIRE(std::set<int32_t>(buffer.order.begin(), buffer.order.end()).size() == buffer.order.size());
}

std::vector<int32_t> pick(std::mt19937& random, int32_t n_visible, int32_t n) {
  std::vector<int32_t> all(static_cast<size_t>(n_visible)), picked;
  std::iota(all.begin(), all.end(), 0);
  std::ranges::sample(all, std::back_inserter(picked), n, random);
  return picked;
}

}  // namespace

BOOST_AUTO_TEST_CASE(follows_the_list_model_on_random_traces) {
  std::mt19937 random(1);
  for (const int32_t topk : {1, 2, 7, 16})
    for (const int32_t capacity : {topk, topk + 1, 2 * topk, 4 * topk}) {
      OwnedBuffer buffer(capacity);
      ListModel model(capacity);
      for (int32_t pos = 0; pos < 400; ++pos)
        check_step(buffer, model, pos, pick(random, pos + 1, std::min(topk, pos + 1)));
    }
}

// Every step wants what the step before last did not leave: as many misses as can be.
BOOST_AUTO_TEST_CASE(follows_the_list_model_when_two_selections_alternate) {
  OwnedBuffer buffer(8);
  ListModel model(8);
  const std::vector<int32_t> low = {0, 1, 2, 3, 4, 5, 6, 7}, high = {8, 9, 10, 11, 12, 13, 14, 15};
  for (int32_t pos = 16; pos < 300; ++pos) check_step(buffer, model, pos, pos % 2 ? low : high);
}

// A window that moves by one position a step, as recency does: one miss a step at most, since the newest row
// is there.
BOOST_AUTO_TEST_CASE(a_sliding_window_never_misses_once_it_is_there) {
  OwnedBuffer buffer(8);
  std::vector<int32_t> slots(8), misses(8);
  for (int32_t pos = 0; pos < 100; ++pos) {
    claim_newest(buffer.view, pos);
    std::vector<int32_t> window;
    for (int32_t p = std::max(0, pos - 7); p <= pos; ++p) window.push_back(p);
    BOOST_TEST(resolve(buffer.view, window.data(), static_cast<int32_t>(window.size()), slots.data(),
                       misses.data()) == 0);
  }
}

BOOST_AUTO_TEST_CASE(a_hit_outlives_a_newcomer) {
  OwnedBuffer buffer(2);  // three slots
  std::vector<int32_t> slots(2), misses(2);
  const std::vector<int32_t> first = {0, 1}, second = {0, 2};
  claim_newest(buffer.view, 9);
  resolve(buffer.view, first.data(), 2, slots.data(), misses.data());  // 9 | 0 1 loaded
  BOOST_TEST(resolve(buffer.view, second.data(), 2, slots.data(), misses.data()) ==
             1);  // 9 leaves: 1 | 2 | 0
  const std::vector<int32_t> both = {1, 3};
  BOOST_TEST(resolve(buffer.view, both.data(), 2, slots.data(), misses.data()) == 1);  // 2, not 0, leaves
  BOOST_TEST((std::ranges::find(buffer.slot_pos, 0) != buffer.slot_pos.end()));
  BOOST_TEST((std::ranges::find(buffer.slot_pos, 2) == buffer.slot_pos.end()));
}

BOOST_AUTO_TEST_CASE(a_repeated_step_changes_no_slot) {
  OwnedBuffer buffer(4);
  const int32_t slot = claim_newest(buffer.view, 5);
  BOOST_TEST(claim_newest(buffer.view, 5) == slot);
}

BOOST_AUTO_TEST_SUITE_END()
