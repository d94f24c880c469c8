// The prefix tree's rules one by one, on hand-made cases; and the policies.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/failing_allocations.h"
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

BOOST_AUTO_TEST_SUITE(prefix_tree)

BOOST_AUTO_TEST_CASE(an_empty_tree_and_an_empty_prompt_match_nothing) {
  Fixture fixture;
  BOOST_TEST(fixture.n_matched("ab") == 0);
  fixture.insert("ab");
  const PrefixTree::Match nothing = fixture.match("");
  BOOST_TEST(nothing.n_tokens == 0);
  BOOST_TEST(nothing.pages.empty());
  BOOST_TEST(fixture.tree->tokens_of(nothing).empty());
  fixture.tree->use(nothing);
  const PrefixTree::Lock lock = fixture.tree->lock(nothing);
  BOOST_TEST(fixture.tree->evict_pool(9) == 2);
}

BOOST_AUTO_TEST_CASE(a_match_ends_at_any_token) {
  Fixture fixture;
  fixture.insert("fdf");
  const Tokens known = tokens_of("fdf");
  for (size_t n = 0; n <= known.size(); ++n) {
    Tokens prompt(known.begin(), known.begin() + static_cast<std::ptrdiff_t>(n));
    BOOST_REQUIRE(fixture.tree->match(prompt).n_tokens == static_cast<int64_t>(n));
    prompt.resize(n + 70, 7);  // parts from what is known at token n
    const PrefixTree::Match found = fixture.tree->match(prompt);
    BOOST_REQUIRE(found.n_tokens == static_cast<int64_t>(n));
    BOOST_REQUIRE(found.pages.size() == (n + 63) / 64);
  }
}

BOOST_AUTO_TEST_CASE(of_children_with_a_common_beginning_the_nearest_is_found) {
  Fixture fixture;
  for (const char* path : {"fa", "fc", "fd", "ff"}) fixture.insert(path);
  BOOST_TEST(fixture.n_matched("fb") == 64 + 63);  // 'a' or 'c'
  BOOST_TEST(fixture.n_matched("fe") == 64 + 20);
  BOOST_TEST(path_of(fixture.tree->tokens_of(fixture.match("ff"))) == "ff");
  BOOST_TEST(fixture.tree->n_nodes() == 5);
}

BOOST_AUTO_TEST_CASE(of_two_as_good_pages_the_one_in_the_pool_is_taken) {
  for (const bool is_first_in_pool : {false, true}) {
    Fixture fixture;
    fixture.insert(is_first_in_pool ? "fa" : "fc");
    fixture.attach(is_first_in_pool ? "fc" : "fa", 1, 5);
    BOOST_TEST(fixture.where("fb") == "pp");
  }
}

BOOST_AUTO_TEST_CASE(a_run_is_split_at_every_page_border) {
  const std::string run = "abcdefab";
  for (size_t border = 1; border < run.size(); ++border) {
    Fixture fixture;
    fixture.insert(run);
    const Pages before = fixture.match(run).pages;
    std::string other = run.substr(0, border) + "ff";
    if (run[border] == 'f') other[border] = 'a';
    const PrefixTree::Inserted inserted = fixture.insert(other);
    BOOST_TEST(inserted.n_new == 2);
    BOOST_TEST(inserted.n_new_pool == 2);
    BOOST_TEST(fixture.tree->n_nodes() == 3);
    BOOST_TEST((fixture.match(run).pages == before));
    const Pages branch = fixture.match(other).pages;
    BOOST_TEST(branch.size() == border + 2);
    BOOST_TEST(
        std::equal(before.begin(), before.begin() + static_cast<std::ptrdiff_t>(border), branch.begin()));
  }
}

BOOST_AUTO_TEST_CASE(known_pages_keep_their_parts_and_take_those_they_lack) {
  Fixture fixture;
  fixture.insert("ab");
  const Pages at_first = fixture.match("ab").pages;
  const PrefixTree::Inserted again = fixture.insert("abc");
  BOOST_TEST(again.n_new == 1);
  BOOST_TEST(again.n_new_pool == 1);
  BOOST_TEST((fixture.match("ab").pages == at_first));
  BOOST_TEST(fixture.attach("abc", 1, 5) == 2);
  BOOST_TEST(fixture.attach("abc", 0, 6) == 1);
  BOOST_TEST(fixture.where("abc") == "bbb");
  const Pages pages = fixture.match("abc").pages;
  BOOST_TEST((pages[0].disk == DiskPage{6, 0}));
  BOOST_TEST((pages[2].disk == DiskPage{5, 1}));
  BOOST_TEST(fixture.tree->evict_pool(2) == 2);
  BOOST_TEST(fixture.where("abc") == "bdd");
  const PrefixTree::Inserted loaded = fixture.insert("abc");
  BOOST_TEST(loaded.n_new == 0);
  BOOST_TEST(loaded.n_new_pool == 2);
  BOOST_TEST(fixture.where("abc") == "bbb");
}

BOOST_AUTO_TEST_CASE(nothing_is_added_behind_a_page_that_nobody_has) {
  Fixture fixture;
  Pages pages(3);
  pages[0].pool = fixture.pins.make();
  pages[2].pool = fixture.pins.make();
  BOOST_TEST(fixture.insert("abc", pages).n_new == 1);
  BOOST_TEST(fixture.attach("aaaa", 2, 1) == 0);  // its second page is not known
  BOOST_TEST(fixture.tree->n_pages() == 1);
}

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

BOOST_AUTO_TEST_CASE(what_is_locked_stays_under_pressure_and_goes_afterwards) {
  Fixture fixture;
  fixture.insert("abcdef");
  fixture.insert("abff");
  fixture.insert("fff");
  {
    const PrefixTree::Lock lock = fixture.lock("abc");
    BOOST_TEST(fixture.tree->n_evictable_pages() == 8);
    BOOST_TEST(fixture.tree->evict_pool(100) == 8);
    BOOST_TEST(fixture.where("abc") == "ppp");
    BOOST_TEST(fixture.tree->n_pages() == 3);
    BOOST_TEST(fixture.tree->evict_pool(1) == 0);
  }
  BOOST_TEST(fixture.tree->evict_pool(100) == 3);
  BOOST_TEST(fixture.tree->n_nodes() == 0);
}

BOOST_AUTO_TEST_CASE(locks_hold_through_splits_and_moves) {
  Fixture fixture;
  fixture.insert("abcdef");
  PrefixTree::Lock deep = fixture.lock("abcde"), shallow = fixture.lock("ab");
  fixture.insert("aff");
  fixture.use("abc");
  PrefixTree::Lock moved = std::move(deep);
  BOOST_TEST(fixture.tree->evict_pool(100) == 3);  // "f" behind the lock, and "ff"
  BOOST_TEST(fixture.n_matched("abcdef") == 64 * 5);
  moved = PrefixTree::Lock();
  BOOST_TEST(fixture.tree->evict_pool(100) == 3);
  BOOST_TEST(fixture.where("abcdef") == "pp");
  shallow = PrefixTree::Lock();
  BOOST_TEST(fixture.tree->evict_pool(100) == 2);
}

BOOST_AUTO_TEST_CASE(a_lock_ends_at_its_page_at_every_border) {
  const std::string run = "abcdefab";
  for (size_t n = 1; n <= run.size(); ++n) {
    Fixture fixture;
    fixture.insert(run);
    Tokens prompt = tokens_of(run.substr(0, n));
    prompt.pop_back();  // a page that is used in part is locked whole
    const PrefixTree::Lock lock = fixture.tree->lock(fixture.tree->match(prompt));
    BOOST_TEST(fixture.tree->evict_pool(100) == static_cast<int64_t>(run.size() - n));
    BOOST_TEST(fixture.where(run) == std::string(n, 'p'));
  }
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
                                                          {EvictionPolicy::slru, "bfdc"},
                                                          {EvictionPolicy::priority, "dbcf"}};
  for (const auto& [policy, order] : expected) {
    Fixture fixture(policy);
    fixture.insert("f", 3);
    fixture.insert("b", 0);
    fixture.insert("c", 2);
    fixture.insert("d", -5);
    for (const char* used : {"d", "d", "d", "f", "c", "c"}) fixture.use(used);
    BOOST_TEST_CONTEXT(name_of(policy)) { BOOST_TEST(order_of_leaving(fixture, "fbcd") == order); }
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

BOOST_AUTO_TEST_CASE(a_new_insert_is_a_use_and_raises_the_priority) {
  Fixture by_use, by_priority(EvictionPolicy::priority);
  for (Fixture* fixture : {&by_use, &by_priority}) {
    fixture->insert("a", 1);
    fixture->insert("f", 1);
    fixture->insert("a", fixture == &by_use ? 0 : 2);
    fixture->use("f");
    fixture->insert("a", 0);  // does not lower it
    BOOST_TEST(fixture->tree->evict_pool(1) == 1);
    BOOST_TEST(fixture->where("a") == "p");
  }
}

BOOST_AUTO_TEST_CASE(the_runs_to_store_have_no_gap_before_them) {
  Fixture fixture;
  fixture.insert("aabbccdd");
  fixture.attach("aab", 1, 3);
  const auto runs = [&] { return fixture.tree->unstored(tokens_of("aabbccdd")); };
  BOOST_TEST((runs() == std::vector<PageRun>{{0, 1}, {3, 5}}));
  fixture.attach("aabbccdd", 3, 4);
  fixture.attach("a", 0, 5);
  BOOST_TEST(runs().empty());
}

BOOST_AUTO_TEST_CASE(no_page_is_to_be_stored_behind_one_that_is_not) {
  Fixture fixture;
  fixture.insert("a");
  fixture.attach("ab", 1, 3, {.last_use = 1, .created = 1, .n_hits = 3, .priority = 0});
  fixture.insert("ab");
  fixture.tree->forget_segment(3);
  BOOST_TEST(fixture.where("ab") == "pp");
  BOOST_TEST((fixture.tree->unstored(tokens_of("ab")) == std::vector<PageRun>{{0, 2}}));
}

BOOST_AUTO_TEST_CASE(stored_segments_fill_a_tree_with_their_records) {
  Fixture fixture(EvictionPolicy::lfu);
  BOOST_TEST(fixture.attach("aab", 0, 1, {.last_use = 90, .created = 7, .n_hits = 3, .priority = 0}) == 3);
  BOOST_TEST(fixture.attach("aabcc", 3, 2, {.last_use = 80, .created = 8, .n_hits = 1, .priority = 0}) == 2);
  BOOST_TEST(fixture.attach("aabcc", 3, 2) == 0);
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
  fixture.attach("f", 0, 1, {.last_use = 1000, .created = 999, .n_hits = 0, .priority = 0});
  fixture.insert("a");
  Fixture later;
  later.insert("a");
  later.attach("f", 0, 1, {.last_use = 1000, .created = 999, .n_hits = 0, .priority = 0});
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
  const auto store = [&](const PrefixTree::Leaving& leaving) {
    ++n_calls;
    BOOST_TEST(path_of(leaving.tokens) == "abcdef");
    BOOST_TEST(leaving.first_page == 2);
    BOOST_TEST((fixture.match("abcdef").pages == Pages(leaving.pages.begin(), leaving.pages.end())));
    BOOST_TEST(fixture.attach("abcd", 0, 9) == 4);
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
  const auto fail_always = [](const PrefixTree::Leaving&) { throw std::runtime_error("the disk is full"); };
  BOOST_CHECK_THROW(fixture.tree->evict_pool(2, fail_always), std::runtime_error);
  BOOST_TEST(fixture.where("abc") == "ppp");
  BOOST_TEST(fixture.tree->n_evictable_pages() == 3);
  BOOST_TEST(fixture.tree->evict_pool(2) == 2);
}

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
    const auto forget = [&](const PrefixTree::Leaving&) { fixture.tree->forget_segment(forgotten); };
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
  fixture.tree->forget_segment(1);
  BOOST_TEST(fixture.where("abcdef") == "pp");
  BOOST_TEST(fixture.tree->n_pages() == 2);
  BOOST_TEST(fixture.tree->n_disk_pages() == 0);
  fixture.tree->forget_segment(2);
  fixture.tree->forget_segment(77);
  BOOST_TEST(fixture.where("abcdef") == "pp");
}

BOOST_AUTO_TEST_CASE(pool_pages_behind_a_forgotten_page_are_given_back) {
  Fixture fixture;
  fixture.attach("ab", 0, 1);
  Pages pages(4);
  pages[2].pool = fixture.pins.make();
  pages[3].pool = fixture.pins.make();
  fixture.insert("abcd", pages);
  fixture.tree->forget_segment(1);
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
    fixture.tree->forget_segment(1);
    BOOST_TEST(fixture.where("abcd") == "pp");
    BOOST_TEST(fixture.tree->n_pages() == 3);  // d was not locked, and is nowhere
    BOOST_TEST(fixture.tree->evict_pool(9) == 0);
    BOOST_TEST(fixture.insert("abc").n_new_pool == 1);
    BOOST_TEST(fixture.where("abc") == "ppp");
  }
  BOOST_TEST(fixture.where("abc") == "ppp");
}

BOOST_AUTO_TEST_CASE(nothing_is_added_behind_a_locked_hole) {
  Fixture fixture;
  fixture.attach("abcd", 0, 1);
  Pages all_but_b = fixture.match("abcd").pages;
  for (const size_t i : {0, 2, 3}) all_but_b[i].disk = {2, 0};
  const PrefixTree::Lock lock = fixture.lock("abcd");
  fixture.tree->forget_segment(1);
  all_but_b[1] = {};
  fixture.insert("abcd", all_but_b);
  BOOST_TEST(fixture.where("abcd") == "d");
  BOOST_TEST(fixture.attach("abcdef", 2, 3) == 0);
  BOOST_TEST(fixture.attach("abef", 2, 3) == 0);
  BOOST_TEST(fixture.tree->n_disk_pages() == 1);
  BOOST_TEST(fixture.attach("abcd", 0, 3) == 3);
  BOOST_TEST(fixture.where("abcd") == "dddd");
}

// What is behind a hole inside a node is not looked for under that node.
BOOST_AUTO_TEST_CASE(a_hole_inside_a_node_ends_what_is_attached) {
  Fixture fixture;
  fixture.attach("abcd", 0, 1);
  fixture.attach("abcdb", 4, 2);
  const PrefixTree::Lock lock = fixture.lock("abcdb");
  fixture.tree->forget_segment(1);
  BOOST_TEST(fixture.attach("a", 0, 3) == 1);
  BOOST_TEST(fixture.attach("abc", 2, 4) == 0);
  BOOST_TEST(fixture.tree->n_pages() == 5);
}

BOOST_AUTO_TEST_CASE(a_locked_hole_goes_with_the_last_lock_and_takes_what_is_behind) {
  Fixture fixture;
  fixture.attach("abcdef", 0, 1);
  fixture.attach("abff", 2, 2);
  PrefixTree::Lock lower = fixture.lock("abcd"), upper = fixture.lock("ab"), whole = fixture.lock("abff");
  fixture.tree->forget_segment(1);
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
  fixture.tree->forget_segment(1);
  BOOST_TEST(fixture.n_matched("b") == 63);
  fixture.tree->evict_pool(2);  // a and c
  BOOST_TEST(fixture.n_matched("b") == 20);
}

BOOST_AUTO_TEST_CASE(a_match_stays_good_while_pages_come) {
  Fixture fixture;
  fixture.insert("abcdef");
  const PrefixTree::Match found = fixture.match("abc");
  fixture.insert("af");
  fixture.insert("abcf");
  BOOST_TEST(path_of(fixture.tree->tokens_of(fixture.match("abc"))) == "abc");
  const PrefixTree::Lock lock = fixture.tree->lock(found);
  BOOST_TEST(fixture.tree->evict_pool(100) == 5);
  BOOST_TEST(fixture.where("abcdef") == "ppp");
}

BOOST_AUTO_TEST_CASE(policies_have_names) {
  for (const EvictionPolicy policy : kEvictionPolicies)
    BOOST_TEST((parse_eviction_policy(name_of(policy)) == policy));
  for (const char* name : {"", "LRU", "lru ", "mru"}) BOOST_TEST(!parse_eviction_policy(name).has_value());
}

BOOST_AUTO_TEST_CASE(a_low_priority_has_a_low_key) {
  const auto key = [](int32_t priority, uint64_t last_use) {
    return eviction_key(EvictionPolicy::priority,
                        {.last_use = last_use, .created = 0, .n_hits = 0, .priority = priority});
  };
  BOOST_TEST((key(INT32_MIN, 9) < key(-1, 1)));
  BOOST_TEST((key(-1, 9) < key(0, 1)));
  BOOST_TEST((key(0, 9) < key(INT32_MAX, 1)));
  BOOST_TEST((key(5, 1) < key(5, 2)));
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
        tree.attach_segment(path, 0, 1);
        FailingAllocations failing(n, lasts);
        for (const auto& action :
             {+[](PrefixTree&t, const Tokens&tokens, const Pages&pages) { t.insert(tokens, pages); },
              +[](PrefixTree&t, const Tokens&tokens, const Pages&) { t.attach_segment(tokens, 0, 2); },
              +[](PrefixTree&t, const Tokens&tokens, const Pages&) {
                const PrefixTree::Lock lock = t.lock(t.match(std::span(tokens).first(100)));
                t.forget_segment(1);
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
        tree.forget_segment(1), tree.forget_segment(2);
        BOOST_TEST(tree.n_pages() == 0);
        BOOST_TEST(tree.n_disk_pages() == 0);
        BOOST_TEST(tree.n_nodes() == 0);
      }
      BOOST_TEST(std::ranges::count(pins.n_users, 0) == std::ssize(pins.n_users));
      if (!has_failed) break;
    }
}

BOOST_AUTO_TEST_SUITE_END()
