// What becomes of the prefix tree when segments are forgotten, under locks too, or memory is lacking.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <new>
#include <string>
#include <tuple>
#include <vector>

#include "tests/support/failing_allocations.h"
#include "tests/support/prefix_fixture.h"

using namespace dsv32;
using namespace dsv32::prefix_test;

BOOST_AUTO_TEST_SUITE(prefix_tree_holes)

// Storing a page may evict others from the disk, those of the path itself among them.
BOOST_AUTO_TEST_CASE(segments_may_be_forgotten_while_pages_leave) {
  for (const int64_t forgotten : {1, 2, 3}) {
    Fixture fixture;
    fixture.attach("abc", 0, 1);
    Pages pages(6);
    for (size_t i = 3; i < 6; ++i) pages[i].pool = fixture.pins.make();
    fixture.insert("abcdef", pages);
    fixture.attach("abcde", 4, 2);
    fixture.attach("abff", 2, 3);
    const auto forget = [&](std::span<const int32_t>) { fixture.forget(forgotten); };
    BOOST_TEST(fixture.tree->evict_pool(1, forget) == (forgotten == 1 ? 3 : 1));
    BOOST_TEST(fixture.where("abcdef") == (forgotten == 1 ? "" : forgotten == 2 ? "dddpp" : "dddpb"));
    BOOST_TEST(fixture.where("abff") == (forgotten == 1 ? "" : forgotten == 2 ? "dddd" : "dd"));
  }
}

BOOST_AUTO_TEST_CASE(what_is_behind_a_forgotten_page_leaves) {
  Fixture fixture;
  fixture.attach("abcd", 0, 1);
  fixture.attach("abcdef", 4, 2);
  fixture.insert("ab");
  fixture.insert("abcff");
  fixture.tree->evict_pool(3);  // f, f and then c: on disk
  fixture.forget(1);
  BOOST_TEST(fixture.where("abcdef") == "pp");
  BOOST_TEST(fixture.tree->n_pages() == 2);
  fixture.forget(2);
  fixture.forget(77);
  BOOST_TEST(fixture.where("abcdef") == "pp");
}

BOOST_AUTO_TEST_CASE(pool_pages_behind_a_forgotten_page_are_given_back) {
  Fixture fixture;
  fixture.attach("ab", 0, 1);
  Pages pages(4);
  pages[2].pool = fixture.pins.make();
  pages[3].pool = fixture.pins.make();
  fixture.insert("abcd", pages);
  fixture.forget(1);
  BOOST_TEST(fixture.tree->n_pages() == 0);
  BOOST_TEST(fixture.pins.n_pages() == 0);
}

BOOST_AUTO_TEST_CASE(a_locked_hole_ends_matches_until_it_is_filled) {
  Fixture fixture;
  fixture.insert("abcd");
  fixture.attach("abcd", 0, 1);
  fixture.tree->evict_pool(2);
  {
    const PrefixTree::Lock lock = fixture.lock("abc");
    fixture.forget(1);
    BOOST_TEST(fixture.where("abcd") == "pp");
    BOOST_TEST(fixture.tree->n_pages() == 3);  // d was not locked, and is nowhere
    BOOST_TEST(fixture.tree->evict_pool(9) == 0);
    BOOST_TEST(fixture.insert("abc") == 1);
    BOOST_TEST(fixture.where("abc") == "ppp");
  }
  BOOST_TEST(fixture.where("abc") == "ppp");
}

BOOST_AUTO_TEST_CASE(nothing_is_added_behind_a_locked_hole) {
  Fixture fixture;
  fixture.attach("abcd", 0, 1);
  Pages all_but_b = fixture.match("abcd").pages;
  for (const size_t i : {0, 2, 3}) all_but_b[i].disk = {segment(2), 0};
  const PrefixTree::Lock lock = fixture.lock("abcd");
  fixture.forget(1);
  all_but_b[1] = {};
  fixture.insert("abcd", all_but_b);
  BOOST_TEST(fixture.where("abcd") == "d");
  fixture.attach("abcdef", 2, 3);
  fixture.attach("abef", 2, 3);
  BOOST_TEST(fixture.tree->n_disk_pages() == 1);
  fixture.attach("abcd", 0, 3);
  BOOST_TEST(fixture.where("abcd") == "dddd");
  BOOST_TEST((fixture.match("abcd").pages[0].disk == DiskPage{segment(2), 0}));
  BOOST_TEST((fixture.match("abcd").pages[2].disk == DiskPage{segment(3), 2}));
}

// What is behind a hole inside a node is not looked for under that node.
BOOST_AUTO_TEST_CASE(a_hole_inside_a_node_ends_what_is_attached) {
  Fixture fixture;
  fixture.attach("abcd", 0, 1);
  fixture.attach("abcdb", 4, 2);
  const PrefixTree::Lock lock = fixture.lock("abcdb");
  fixture.forget(1);
  fixture.attach("a", 0, 3);
  fixture.attach("abc", 2, 4);
  BOOST_TEST(fixture.where("abcdb") == "d");
  BOOST_TEST(fixture.tree->n_pages() == 5);
}

BOOST_AUTO_TEST_CASE(a_locked_hole_goes_with_the_last_lock_and_takes_what_is_behind) {
  Fixture fixture;
  fixture.attach("abcdef", 0, 1);
  fixture.attach("abff", 2, 2);
  PrefixTree::Lock lower = fixture.lock("abcd"), upper = fixture.lock("ab"), whole = fixture.lock("abff");
  fixture.forget(1);
  BOOST_TEST(fixture.where("abcdef") == "");
  BOOST_TEST(fixture.tree->n_pages() == 6);
  lower = PrefixTree::Lock();
  BOOST_TEST(fixture.tree->n_pages() == 4);  // a and b are held
  whole = PrefixTree::Lock();
  BOOST_TEST(fixture.tree->n_pages() == 4);  // the f's are behind what may be filled
  fixture.insert("ab");
  BOOST_TEST(fixture.where("abff") == "ppdd");
  upper = PrefixTree::Lock();
  BOOST_TEST(fixture.where("abff") == "ppdd");
}

// A prompt whose own page is a hole still has the first tokens of its neighbours.
BOOST_AUTO_TEST_CASE(beside_a_hole_its_neighbours_are_found) {
  Fixture fixture;
  for (const char* path : {"a", "c", "d"}) fixture.insert(path);
  fixture.attach("b", 0, 1);
  const PrefixTree::Lock lock = fixture.lock("b");
  fixture.forget(1);
  BOOST_TEST(fixture.n_matched("b") == 63);
  fixture.tree->evict_pool(2);  // a and c
  BOOST_TEST(fixture.n_matched("b") == 20);
}

// Any allocation fails in its turn, alone and with all that follow: nothing that the tree holds is lost.
BOOST_AUTO_TEST_CASE(without_memory_the_tree_stays_whole) {
  struct Pins : PagePins {
    std::vector<int> n_users = std::vector<int>(64);
    void retain(const PoolPage& page) override { ++n_users[static_cast<size_t>(page.row)]; }
    void release(const PoolPage& page) override { --n_users[static_cast<size_t>(page.row)]; }
  };
  const auto pages_from = [](int32_t first, size_t n) {
    Pages pages(n);
    for (PrefixPage& page : pages) page.pool = {first, first}, ++first;
    return pages;
  };
  const Tokens path = tokens_of("aabbccdd"), branch = tokens_of("aabbf"), other = tokens_of("fab");
  const Pages path_pages = pages_from(0, 8), branch_pages = pages_from(8, 5), other_pages = pages_from(16, 3);
  for (const bool lasts : {false, true})
    for (int64_t n = 0;; ++n) {
      BOOST_TEST_INFO("the one that fails: " << n);
      Pins pins;
      bool has_failed = false;
      {
        PrefixTree tree(pins, EvictionPolicy::lru);
        tree.insert(path, path_pages);
        tree.attach_segment(path, 0, segment(1));
        FailingAllocations failing(n, lasts);
        for (const auto& action :
             {+[](PrefixTree&t, const Tokens&tokens, const Pages&pages) { t.insert(tokens, pages); },
              +[](PrefixTree&t, const Tokens&tokens, const Pages&) {
                t.attach_segment(tokens, 0, segment(2));
              },
              +[](PrefixTree&t, const Tokens&tokens, const Pages&) {
                const PrefixTree::Lock lock = t.lock(t.match(std::span(tokens).first(100)));
                t.forget_segment(segment(1));
              }})
          for (const auto& [tokens, pages] : {std::tie(branch, branch_pages), std::tie(other, other_pages)})
            try {
              action(tree, tokens, pages);
            } catch (const std::bad_alloc&) {
            }
        has_failed = failing.stop();
        const int64_t n_pool = tree.n_pool_pages();
        BOOST_TEST(std::ranges::count(pins.n_users, 1) == n_pool);
        BOOST_TEST(tree.evict_pool(1000) == n_pool);
        tree.forget_segment(segment(1)), tree.forget_segment(segment(2));
        BOOST_TEST(tree.n_pages() == 0);
        BOOST_TEST(tree.n_disk_pages() == 0);
      }
      BOOST_TEST(std::ranges::count(pins.n_users, 0) == std::ssize(pins.n_users));
      if (!has_failed) break;
    }
}

BOOST_AUTO_TEST_SUITE_END()
