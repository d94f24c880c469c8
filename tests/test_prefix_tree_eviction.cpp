// Which pages leave the prefix tree's pool, in which order, and who sees it: hand-made cases.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <map>
#include <stdexcept>
#include <string>

#include "tests/support/prefix_fixture.h"

using namespace dsv32;
using namespace dsv32::prefix_test;

namespace {

// The paths of one page in the order in which they leave the pool.
std::string order_of_leaving(Fixture& fixture, std::string leaves) {
  std::string order;
  while (fixture.tree->evict_pool(1) == 1) {
    const auto is_gone = [&](char leaf) { return fixture.n_matched({leaf}) < kPageTokens; };
    const auto gone = std::ranges::find_if(leaves, is_gone);
    BOOST_REQUIRE((gone != leaves.end()));
    order += *gone;
    leaves.erase(gone);
  }
  return order;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(prefix_tree_eviction)

BOOST_AUTO_TEST_CASE(pages_leave_from_the_ends_and_those_on_disk_stay_known) {
  Fixture fixture;
  fixture.insert("aaaa");
  fixture.insert("aab");
  fixture.attach("aaa", 0, 7);
  BOOST_TEST(fixture.tree->evict_pool(1) == 1);
  BOOST_TEST(fixture.where("aaaa") == "bbb");
  BOOST_TEST(fixture.tree->evict_pool(1) == 1);
  BOOST_TEST(fixture.where("aaaa") == "bbd");
  BOOST_TEST(fixture.tree->evict_pool(100) == 3);
  BOOST_TEST(fixture.where("aaa") == "ddd");
  BOOST_TEST(fixture.tree->n_pages() == 3);
  BOOST_TEST(fixture.pins.n_pages() == 0);
}

BOOST_AUTO_TEST_CASE(a_parent_leaves_after_its_children_whatever_its_key) {
  Fixture fixture(EvictionPolicy::fifo);
  fixture.insert("a");
  fixture.insert("abb");
  fixture.insert("f");
  BOOST_TEST(fixture.tree->evict_pool(2) == 2);
  BOOST_TEST(fixture.where("abb") == "p");
  BOOST_TEST(fixture.tree->evict_pool(1) == 1);  // its children gone, it is the oldest
  BOOST_TEST(fixture.where("a") == "");
  BOOST_TEST(fixture.where("f") == "p");
}

// The pages f, b, c, d come in this order. d is used three times, then f once, then c twice.
BOOST_AUTO_TEST_CASE(each_policy_has_its_order) {
  const std::map<EvictionPolicy, std::string> expected = {{EvictionPolicy::lru, "bdfc"},
                                                          {EvictionPolicy::lfu, "bfcd"},
                                                          {EvictionPolicy::fifo, "fbcd"},
                                                          {EvictionPolicy::slru, "bfdc"}};
  for (const auto& [name, policy] : kPolicies) {
    Fixture fixture(policy);
    for (const char* path : {"f", "b", "c", "d"}) fixture.insert(path);
    for (const char* used : {"d", "d", "d", "f", "c", "c"}) fixture.use(used);
    BOOST_TEST_CONTEXT(name) { BOOST_TEST(order_of_leaving(fixture, "fbcd") == expected.at(policy)); }
  }
}

BOOST_AUTO_TEST_CASE(a_use_covers_the_matched_pages_only) {
  Fixture fixture(EvictionPolicy::lfu);
  fixture.insert("abcd");
  fixture.insert("f");
  fixture.use("ab");
  fixture.use("ab");
  BOOST_TEST(fixture.tree->evict_pool(3) == 3);  // c, d and f have no hits
  BOOST_TEST(fixture.where("abcd") == "pp");
}

BOOST_AUTO_TEST_CASE(a_new_insert_is_a_use) {
  Fixture fixture;
  for (const char* path : {"a", "f", "a"}) fixture.insert(path);
  BOOST_TEST(fixture.tree->evict_pool(1) == 1);
  BOOST_TEST(fixture.where("a") == "p");
}

BOOST_AUTO_TEST_CASE(stored_segments_fill_a_tree_with_their_records) {
  Fixture fixture(EvictionPolicy::lfu);
  fixture.attach("aab", 0, 1, {.last_use = 90, .created = 7, .n_hits = 3});
  fixture.attach("aabcc", 3, 2, {.last_use = 80, .created = 8, .n_hits = 1});
  fixture.attach("aabcc", 3, 2);
  BOOST_TEST(fixture.where("aabcc") == "ddddd");
  BOOST_TEST(fixture.tree->evict_pool(9) == 0);
  fixture.insert("aab");  // as loaded from disk: three hits stay
  fixture.insert("f");    // later than what was stored, but no hits
  BOOST_TEST(fixture.tree->evict_pool(1) == 1);
  BOOST_TEST(fixture.where("f") == "");
  BOOST_TEST(fixture.where("aabcc") == "bbbdd");
}

BOOST_AUTO_TEST_CASE(logical_time_goes_on_after_the_stored_one) {
  Fixture fixture;
  fixture.attach("f", 0, 1, {.last_use = 1000, .created = 999, .n_hits = 0});
  fixture.insert("a");
  Fixture later;
  later.insert("a");
  later.attach("f", 0, 1, {.last_use = 1000, .created = 999, .n_hits = 0});
  later.insert("f");
  later.insert("a");
  for (Fixture* each : {&fixture, &later}) {
    each->insert("f");
    each->use("a");
    BOOST_TEST(each->tree->evict_pool(1) == 1);
    BOOST_TEST(each->where("a") == "p");
    BOOST_TEST(each->where("f") == "d");
  }
}

BOOST_AUTO_TEST_CASE(before_sees_what_would_be_lost_and_may_store_it) {
  Fixture fixture;
  fixture.insert("abcdef");
  fixture.attach("abcdef", 5, 1);  // its last page alone
  int n_calls = 0;
  const auto store = [&](std::span<const int32_t> leaving) {
    ++n_calls;
    BOOST_TEST(path_of(leaving) == "abcde");
    BOOST_TEST(fixture.where("abcdef") == "pppppd");
    fixture.attach("abcd", 0, 9);
  };
  BOOST_TEST(fixture.tree->evict_pool(4, store) == 4);
  BOOST_TEST(n_calls == 1);
  BOOST_TEST(fixture.where("abcdef") == "bbdd");  // e was lost, and f behind it
  BOOST_TEST(fixture.tree->evict_pool(2, store) == 2);
  BOOST_TEST(n_calls == 1);  // all on disk
}

BOOST_AUTO_TEST_CASE(a_failure_before_leaving_leaves_the_tree_whole) {
  Fixture fixture;
  fixture.insert("abc");
  const auto fail_always = [](std::span<const int32_t>) { throw std::runtime_error("the disk is full"); };
  BOOST_CHECK_THROW(fixture.tree->evict_pool(2, fail_always), std::runtime_error);
  BOOST_TEST(fixture.where("abc") == "ppp");
  BOOST_TEST(fixture.tree->evict_pool(9) == 3);
}

BOOST_AUTO_TEST_SUITE_END()
