// The prefix tree's rules one by one, on hand-made cases: what is found, added and locked.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <string>
#include <utility>

#include "tests/support/prefix_fixture.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(prefix_tree)

using namespace dsv32::prefix_test;

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
  BOOST_TEST(fixture.tree->evict(9) == 2);
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
}

BOOST_AUTO_TEST_CASE(a_run_is_split_at_every_page_border) {
  const std::string run = "abcdefab";
  for (size_t border = 1; border < run.size(); ++border) {
    Fixture fixture;
    fixture.insert(run);
    const std::vector<PrefixPage> before = fixture.match(run).pages;
    std::string other = run.substr(0, border) + "ff";
    if (run[border] == 'f') other[border] = 'a';
    BOOST_TEST(fixture.insert(other) == 2);
    BOOST_TEST(fixture.tree->n_pages() == std::ssize(run) + 2);
    BOOST_TEST((fixture.match(run).pages == before));
    const std::vector<PrefixPage> branch = fixture.match(other).pages;
    BOOST_TEST(branch.size() == border + 2);
    BOOST_TEST(
        std::equal(before.begin(), before.begin() + static_cast<std::ptrdiff_t>(border), branch.begin()));
  }
}

BOOST_AUTO_TEST_CASE(known_pages_stay_as_they_are) {
  Fixture fixture;
  fixture.insert("ab");
  const std::vector<PrefixPage> at_first = fixture.match("ab").pages;
  BOOST_TEST(fixture.insert("abc") == 1);
  Pages only_new(4);  // the caller need not have those that the tree has
  only_new[3] = fixture.pins.make();
  BOOST_TEST(fixture.insert("abcd", only_new) == 1);
  BOOST_TEST((fixture.match("ab").pages == at_first));
}

BOOST_AUTO_TEST_CASE(a_page_has_the_name_of_all_tokens_up_to_its_end) {
  Fixture fixture;
  fixture.insert("aba");
  fixture.insert("ba");
  const PageHash a = next_hash({}, page_of('a')), ab = next_hash(a, page_of('b'));
  BOOST_TEST((fixture.match("aba").pages[2].hash == next_hash(ab, page_of('a'))));
  BOOST_TEST((fixture.match("ba").pages[1].hash == next_hash(next_hash({}, page_of('b')), page_of('a'))));
}

BOOST_AUTO_TEST_CASE(nothing_is_added_behind_a_page_that_nobody_has) {
  Fixture fixture;
  Pages pages(3);
  pages[0] = fixture.pins.make();
  pages[2] = fixture.pins.make();
  BOOST_TEST(fixture.insert("abc", pages) == 1);
  BOOST_TEST(fixture.tree->n_pages() == 1);
}

BOOST_AUTO_TEST_CASE(a_match_stays_good_while_pages_come) {
  Fixture fixture;
  fixture.insert("abcdef");
  const PrefixTree::Match found = fixture.match("abc");
  fixture.insert("af");
  fixture.insert("abcf");
  BOOST_TEST(path_of(fixture.tree->tokens_of(fixture.match("abc"))) == "abc");
  const PrefixTree::Lock lock = fixture.tree->lock(found);
  BOOST_TEST(fixture.tree->evict(100) == 5);
  BOOST_TEST(fixture.n_known("abcdef") == 3u);
}

BOOST_AUTO_TEST_CASE(what_is_locked_stays_under_pressure_and_goes_afterwards) {
  Fixture fixture;
  fixture.insert("abcdef");
  fixture.insert("abff");
  fixture.insert("fff");
  {
    const PrefixTree::Lock lock = fixture.lock("abc");
    BOOST_TEST(fixture.tree->evict(100) == 8);
    BOOST_TEST(fixture.n_known("abc") == 3u);
    BOOST_TEST(fixture.tree->n_pages() == 3);
    BOOST_TEST(fixture.tree->evict(1) == 0);
  }
  BOOST_TEST(fixture.tree->evict(100) == 3);
  BOOST_TEST(fixture.tree->n_pages() == 0);
}

BOOST_AUTO_TEST_CASE(locks_hold_through_splits_and_moves) {
  Fixture fixture;
  fixture.insert("abcdef");
  PrefixTree::Lock deep = fixture.lock("abcde"), shallow = fixture.lock("ab");
  fixture.insert("aff");
  fixture.use("abc");
  PrefixTree::Lock moved = std::move(deep);
  BOOST_TEST(fixture.tree->evict(100) == 3);  // "f" behind the lock, and "ff"
  BOOST_TEST(fixture.n_matched("abcdef") == 64 * 5);
  moved = PrefixTree::Lock();
  BOOST_TEST(fixture.tree->evict(100) == 3);
  BOOST_TEST(fixture.n_known("abcdef") == 2u);
  shallow = PrefixTree::Lock();
  BOOST_TEST(fixture.tree->evict(100) == 2);
}

BOOST_AUTO_TEST_CASE(a_lock_ends_at_its_page_at_every_border) {
  const std::string run = "abcdefab";
  for (size_t n = 1; n <= run.size(); ++n) {
    Fixture fixture;
    fixture.insert(run);
    Tokens prompt = tokens_of(run.substr(0, n));
    prompt.pop_back();  // a page that is used in part is locked whole
    const PrefixTree::Lock lock = fixture.tree->lock(fixture.tree->match(prompt));
    BOOST_TEST(fixture.tree->evict(100) == static_cast<int64_t>(run.size() - n));
    BOOST_TEST(fixture.n_known(run) == n);
  }
}

BOOST_AUTO_TEST_SUITE_END()
