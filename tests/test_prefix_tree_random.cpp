// The prefix tree against a flat list of pages, under random operations.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/support/prefix_fixture.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(prefix_tree_random)

using namespace dsv32::prefix_test;

namespace {

namespace ut = boost::unit_test;

struct OraclePage {
  Tokens tokens;  // of the path
  PoolPage pool;
  UseRecord use;
  int n_locks = 0;
};

// Every page of every sequence in one map, under its whole path.
class Oracle {
 public:
  explicit Oracle(EvictionPolicy policy) : policy_(policy) {}

  std::map<std::string, OraclePage> pages;
  uint64_t time = 0;

  // Returns how many pages were taken.
  int64_t insert(const std::string& path, const Pages& given) {
    int64_t n_taken = 0;
    ++time;
    for (size_t i = 0; i < path.size(); ++i) {
      const std::string here = path.substr(0, i + 1);
      const bool is_known = pages.contains(here);
      if (!is_known && !given[i].is_there()) break;
      OraclePage& page = pages[here];
      if (!is_known) page = {tokens_of(here), given[i], {time, time, 0}, 0}, ++n_taken;
      page.use.last_use = time;
    }
    return n_taken;
  }

  int64_t n_matched(const Tokens& prompt) const {
    int64_t longest = 0;
    for (const auto& [path, page] : pages) longest = std::max(longest, n_common(prompt, page.tokens));
    return longest;
  }

  // The paths of the next n pages to leave, in their order.
  std::vector<std::string> victims(int64_t n) const {
    std::vector<std::string> left, gone;
    for (const auto& [path, page] : pages) left.push_back(path);
    const auto is_candidate = [&](const std::string& path) {
      return pages.at(path).n_locks == 0 && std::ranges::none_of(left, [&](const std::string& other) {
               return other.size() > path.size() && other.starts_with(path);
             });
    };
    while (std::ssize(gone) < n) {
      std::string first;
      for (const std::string& path : left)
        if (is_candidate(path) && (first.empty() || key(path) < key(first))) first = path;
      if (first.empty()) break;
      std::erase(left, first);
      gone.push_back(first);
    }
    return gone;
  }

 private:
  EvictionKey key(const std::string& path) const { return eviction_key(policy_, pages.at(path).use); }
  EvictionPolicy policy_;
};

// Random operations on a tree and the oracle together.
class Trial {
 public:
  Trial(EvictionPolicy policy, uint32_t seed) : fixture_(policy), oracle_(policy), random_(seed) {}
  ~Trial() { locks_.clear(); }

  void run(int n_steps) {
    for (int step = 0; step < n_steps; ++step) {
      take_step();
      check_counts();
      n_known += std::ssize(oracle_.pages);
      if (step % 8 == 0) check_every_page();
    }
  }

  int64_t n_known = 0, n_evicted = 0, n_mid_page = 0;  // what has come up

 private:
  void take_step() {
    const int dice = pick(100);
    if (dice < 36)
      insert();
    else if (dice < 56)
      match();
    else if (dice < 70)
      use();
    else if (dice < 79)
      lock();
    else if (dice < 87)
      unlock();
    else
      evict();
  }

  int pick(int n) { return std::uniform_int_distribution<int>(0, n - 1)(random_); }
  std::string random_path() {
    std::string path;
    for (int n = 1 + pick(6); n > 0; --n) path += static_cast<char>('a' + pick(pick(2) ? 2 : kKinds));
    return path;
  }
  // Whole pages, or it ends in a page's middle, or one token is another.
  Tokens random_prompt() {
    Tokens prompt = tokens_of(random_path());
    if (pick(2)) prompt.resize(static_cast<size_t>(pick(static_cast<int>(prompt.size()) + 1)));
    if (pick(3) == 0 && !prompt.empty())
      prompt[static_cast<size_t>(pick(static_cast<int>(prompt.size())))] = pick(4);
    return prompt;
  }

  void insert() {
    const std::string path = random_path();
    Pages pages(path.size());
    for (PoolPage& page : pages)
      if (pick(20) < 18) page = fixture_.pins.make();
    const int64_t n_taken = oracle_.insert(path, pages);
    BOOST_REQUIRE(fixture_.insert(path, pages) == n_taken);
  }

  PrefixTree::Match match() { return match(random_prompt()); }
  PrefixTree::Match match(const Tokens& prompt) {
    const PrefixTree::Match found = fixture_.tree->match(prompt);
    const std::string path = path_of(fixture_.tree->tokens_of(found));
    BOOST_REQUIRE(found.n_tokens == oracle_.n_matched(prompt));
    BOOST_REQUIRE(std::ssize(found.pages) == (found.n_tokens + kPageTokens - 1) / kPageTokens);
    BOOST_REQUIRE(path.size() == found.pages.size());
    BOOST_REQUIRE(n_common(tokens_of(path), prompt) == found.n_tokens);
    for (size_t i = 0; i < path.size(); ++i)
      BOOST_REQUIRE(found.pages[i].pool == oracle_.pages.at(path.substr(0, i + 1)).pool);
    n_mid_page += found.n_tokens % kPageTokens != 0;
    return found;
  }

  std::string path_of_match(const PrefixTree::Match& found) {
    return path_of(fixture_.tree->tokens_of(found));
  }

  void use() {
    const PrefixTree::Match found = match();
    const std::string path = path_of_match(found);
    fixture_.tree->use(found);
    ++oracle_.time;
    for (size_t n = 1; n <= path.size(); ++n) {
      UseRecord& record = oracle_.pages.at(path.substr(0, n)).use;
      record.last_use = oracle_.time;
      ++record.n_hits;
    }
  }

  // A match stays good while pages come and nodes are split.
  void lock() {
    if (locks_.size() >= 8 || oracle_.pages.empty()) return;
    const auto known = std::next(oracle_.pages.begin(), pick(static_cast<int>(oracle_.pages.size())));
    const PrefixTree::Match found = match(pick(3) ? known->second.tokens : random_prompt());
    const std::string path = path_of_match(found);
    if (pick(2)) insert();
    locks_.emplace_back(path, fixture_.tree->lock(found));
    for (size_t n = 1; n <= path.size(); ++n) ++oracle_.pages.at(path.substr(0, n)).n_locks;
  }

  void unlock() {
    if (locks_.empty()) return;
    const auto place = locks_.begin() + pick(static_cast<int>(locks_.size()));
    const std::string path = place->first;
    for (size_t n = 1; n <= path.size(); ++n) --oracle_.pages.at(path.substr(0, n)).n_locks;
    locks_.erase(place);
  }

  void evict() {
    const int64_t n_pages = pick(24);
    const std::vector<std::string> victims = oracle_.victims(n_pages);
    std::vector<PoolPage> expected;
    std::vector<std::string> shown;
    for (const std::string& path : victims) expected.push_back(oracle_.pages.at(path).pool);
    fixture_.pins.released.clear();
    const int64_t n = fixture_.tree->evict(n_pages, [&](const PageHash&, std::span<const int32_t> leaving) {
      shown.push_back(path_of(leaving));
    });
    BOOST_REQUIRE(n == std::ssize(victims));
    BOOST_REQUIRE((fixture_.pins.released == expected));
    BOOST_REQUIRE((shown == victims));
    for (const std::string& path : victims) oracle_.pages.erase(path);
    n_evicted += n;
  }

  void check_counts() const {
    for (const auto& [path, page] : oracle_.pages) BOOST_REQUIRE(fixture_.pins.n_users(page.pool) == 1);
    BOOST_REQUIRE(fixture_.tree->n_pages() == std::ssize(oracle_.pages));
    BOOST_REQUIRE(fixture_.pins.n_pages() == std::ssize(oracle_.pages));
  }

  void check_every_page() const {
    for (const auto& [path, page] : oracle_.pages) {
      const PrefixTree::Match found = fixture_.tree->match(page.tokens);
      BOOST_REQUIRE(found.n_tokens == std::ssize(page.tokens));
      BOOST_REQUIRE(found.pages.back().pool == page.pool);
    }
  }

  Fixture fixture_;
  Oracle oracle_;
  std::mt19937 random_;
  std::vector<std::pair<std::string, PrefixTree::Lock>> locks_;
};

void run_trials(uint32_t n_seeds, int n_steps) {
  for (const auto& [name, policy] : kPolicies) {
    int64_t n_known = 0, n_evicted = 0, n_mid_page = 0;
    for (uint32_t seed = 1; seed <= n_seeds; ++seed) BOOST_TEST_CONTEXT(name << ", seed " << seed) {
        Trial trial(policy, seed);
        trial.run(n_steps);
        n_known += trial.n_known / n_steps;
        n_evicted += trial.n_evicted, n_mid_page += trial.n_mid_page;
      }
    BOOST_TEST_MESSAGE(name << ": pages " << n_known / n_seeds << ", evicted " << n_evicted
                            << ", matches in mid-page " << n_mid_page);
    // Each kind of event must have come up often, or the trial tells nothing.
    BOOST_TEST(n_evicted > 500);
    BOOST_TEST(n_mid_page > 200);
  }
}

}  // namespace

BOOST_AUTO_TEST_CASE(follows_the_flat_list) { run_trials(8, 1500); }

BOOST_AUTO_TEST_CASE(follows_the_flat_list_for_long, *ut::label("long") * ut::disabled()) {
  run_trials(60, 5000);
}

BOOST_AUTO_TEST_SUITE_END()
