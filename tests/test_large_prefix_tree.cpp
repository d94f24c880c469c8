// The time that a prefix tree of 100 000 nodes takes: for a match, and for pages to leave.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <random>
#include <vector>

#include "tests/support/prefix_fixture.h"
#include "tests/support/sanitized.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(large_prefix_tree)

using namespace dsv32::prefix_test;

namespace {

double milliseconds(const auto& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

// A tree of 100 000 nodes of one page each, and prompts of 2000 tokens along it.
struct LargeTree : Fixture {
  static constexpr int kNodes = 100000;
  static constexpr int64_t kPromptTokens = 2000;
  std::vector<Tokens> prompts;

  // Each page goes behind one of the latest, so that paths are long; its first 60 tokens are like its
  // neighbours'.
  LargeTree() {
    std::mt19937 random(1);
    std::vector<int> parents(kNodes), depths(kNodes);
    for (int i = 0; i < kNodes; ++i) {
      const int parent = i - 1 - static_cast<int>(random() % 2000);
      parents[i] = i % 50 == 0 || parent < 0 ? -1 : parent;
      depths[i] = parents[i] < 0 ? 1 : depths[parents[i]] + 1;
      add(i, parents, depths[i]);
    }
    BOOST_REQUIRE(tree->n_pages() == kNodes);
    std::ranges::shuffle(prompts, random);
  }

 private:
  void add(int leaf, const std::vector<int>& parents, int depth) {
    Tokens tokens(static_cast<size_t>(depth * kPageTokens), 0);
    for (int64_t end = std::ssize(tokens), i = leaf; i >= 0; i = parents[i], end -= kPageTokens)
      tokens[end - 4] = i;
    Pages pages(static_cast<size_t>(depth));
    pages.back() = pins.make();
    tree->insert(tokens, pages);
    pins.release(pages.back());
    if (std::ssize(tokens) < kPromptTokens) return;
    tokens.resize(kPromptTokens);
    if (prompts.size() < 500 || leaf % 20 == 0) prompts.push_back(tokens);
  }
};

}  // namespace

// A match takes less than a millisecond, and pages leave without a walk of the tree for each, which would
// take minutes.
BOOST_AUTO_TEST_CASE(a_tree_of_100000_nodes_is_quick) {
  LargeTree large;
  BOOST_REQUIRE(large.prompts.size() >= 500);
  std::vector<double> times;
  for (const Tokens& prompt : large.prompts)
    times.push_back(
        milliseconds([&] { BOOST_REQUIRE(large.tree->match(prompt).n_tokens == LargeTree::kPromptTokens); }));
  std::ranges::sort(times);
  BOOST_TEST_MESSAGE("median of " << times.size() << " matches: " << times[times.size() / 2] << " ms");
  BOOST_TEST(times[times.size() / 2] < 1);
  int64_t n_left = 0;
  const double time = milliseconds([&] {
    while (large.tree->evict(1) == 1) ++n_left;
  });
  BOOST_TEST_MESSAGE("all pages leave one by one: " << time << " ms");
  BOOST_TEST(n_left == LargeTree::kNodes);
  BOOST_TEST(time < (kIsSanitized ? 60000 : 5000));
}

BOOST_AUTO_TEST_SUITE_END()
