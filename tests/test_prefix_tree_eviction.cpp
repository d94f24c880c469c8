// Which pages leave the prefix tree, in which order, and who sees it: hand-made cases; and what is left when
// memory is lacking.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <map>
#include <new>
#include <stdexcept>
#include <string>

#include "tests/support/failing_allocations.h"
#include "tests/support/prefix_fixture.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(prefix_tree_eviction)

using namespace dsv32::prefix_test;

namespace {

// The paths of one page in the order in which they leave the pool.
std::string order_of_leaving(Fixture& fixture, std::string leaves) {
  std::string order;
  while (fixture.tree->evict(1) == 1) {
    const auto is_gone = [&](char leaf) { return fixture.n_matched({leaf}) < kPageTokens; };
    const auto gone = std::ranges::find_if(leaves, is_gone);
    BOOST_REQUIRE((gone != leaves.end()));
    order += *gone;
    leaves.erase(gone);
  }
  return order;
}

}  // namespace

BOOST_AUTO_TEST_CASE(pages_leave_from_the_ends) {
  Fixture fixture;
  fixture.insert("aaaa");
  fixture.insert("aab");
  BOOST_TEST(fixture.tree->evict(1) == 1);
  BOOST_TEST(fixture.n_known("aaaa") == 3u);
  BOOST_TEST(fixture.tree->evict(1) == 1);
  BOOST_TEST(fixture.n_known("aab") == 3u);
  BOOST_TEST(fixture.tree->evict(100) == 3);
  BOOST_TEST(fixture.tree->n_pages() == 0);
  BOOST_TEST(fixture.pins.n_pages() == 0);
}

BOOST_AUTO_TEST_CASE(who_asks_sees_each_page_and_its_path_before_it_leaves) {
  Fixture fixture;
  fixture.insert("abc");
  std::string seen;
  const auto see = [&](const PageHash& page, std::span<const int32_t> path) {
    BOOST_TEST((fixture.match(path_of(path)).pages.back().hash == page));
    seen += path_of(path) + " ";
  };
  BOOST_TEST(fixture.tree->evict(2, see) == 2);
  BOOST_TEST(seen == "abc ab ");
}

BOOST_AUTO_TEST_CASE(a_parent_leaves_after_its_children_whatever_its_key) {
  Fixture fixture(EvictionPolicy::fifo);
  fixture.insert("a");
  fixture.insert("abb");
  fixture.insert("f");
  BOOST_TEST(fixture.tree->evict(2) == 2);
  BOOST_TEST(fixture.n_known("abb") == 1u);
  BOOST_TEST(fixture.tree->evict(1) == 1);  // its children gone, it is the oldest
  BOOST_TEST(fixture.n_known("a") == 0u);
  BOOST_TEST(fixture.n_matched("f") == 64);
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
  BOOST_TEST(fixture.tree->evict(3) == 3);  // c, d and f have no hits
  BOOST_TEST(fixture.n_known("abcd") == 2u);
}

BOOST_AUTO_TEST_CASE(a_new_insert_is_a_use) {
  Fixture fixture;
  for (const char* path : {"a", "f", "a"}) fixture.insert(path);
  BOOST_TEST(fixture.tree->evict(1) == 1);
  BOOST_TEST(fixture.n_matched("a") == 64);
}

BOOST_AUTO_TEST_CASE(a_failure_before_leaving_leaves_the_tree_whole) {
  Fixture fixture;
  fixture.insert("abc");
  const auto fail_always = [](const PageHash&, std::span<const int32_t>) {
    throw std::runtime_error("the disk is full");
  };
  BOOST_CHECK_THROW(fixture.tree->evict(2, fail_always), std::runtime_error);
  BOOST_TEST(fixture.n_known("abc") == 3u);
  BOOST_TEST(fixture.tree->evict(9) == 3);
}

// Any allocation fails in its turn, alone and with all that follow: nothing that the tree holds is lost.
BOOST_AUTO_TEST_CASE(without_memory_the_tree_stays_whole) {
  struct Pins : PagePins {
    std::vector<int> n_users = std::vector<int>(64);
    void retain(const PoolPage& page) override { ++n_users[static_cast<size_t>(page.number)]; }
    void release(const PoolPage& page) override { --n_users[static_cast<size_t>(page.number)]; }
  };
  const auto pages_from = [](int32_t first, size_t n) {
    Pages pages(n);
    for (PoolPage& page : pages) page = {first++};
    return pages;
  };
  const std::vector<std::pair<Tokens, Pages>> others = {{tokens_of("aabbf"), pages_from(8, 5)},
                                                        {tokens_of("fab"), pages_from(16, 3)}};
  for (const bool lasts : {false, true})
    for (int64_t n = 0;; ++n) {
      BOOST_TEST_INFO("the one that fails: " << n);
      Pins pins;
      bool has_failed = false;
      {
        PrefixTree tree(pins, EvictionPolicy::lru);
        tree.insert(tokens_of("aabbccdd"), pages_from(0, 8));
        FailingAllocations failing(n, lasts);
        for (const auto& [tokens, pages] : others) try {
            tree.insert(tokens, pages);
            const PrefixTree::Lock lock = tree.lock(tree.match(std::span(tokens).first(100)));
            tree.evict(1, [](const PageHash&, std::span<const int32_t>) {});
          } catch (const std::bad_alloc&) {
          }
        has_failed = failing.stop();
        const int64_t n_pages = tree.n_pages();
        BOOST_TEST(std::ranges::count(pins.n_users, 1) == n_pages);
        BOOST_TEST(tree.evict(1000) == n_pages);
        BOOST_TEST(tree.n_pages() == 0);
      }
      BOOST_TEST(std::ranges::count(pins.n_users, 0) == std::ssize(pins.n_users));
      if (!has_failed) break;
    }
}

BOOST_AUTO_TEST_SUITE_END()
