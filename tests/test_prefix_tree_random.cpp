// The prefix tree against a flat list of pages, under random operations.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/support/prefix_fixture.h"

using namespace dsv32;
using namespace dsv32::prefix_test;

namespace {

namespace ut = boost::unit_test;

struct OraclePage {
  Tokens tokens;  // of the path
  PrefixPage parts;
  UseRecord use;
  int n_locks = 0;
};

// Every page of every sequence in one map, under its whole path.
class Oracle {
 public:
  explicit Oracle(EvictionPolicy policy) : policy_(policy) {}

  std::map<std::string, OraclePage> pages;
  uint64_t time = 0;

  // Returns how many pool parts were taken.
  int64_t add(const std::string& path, const Pages& given, const UseRecord& record, bool is_use) {
    int64_t n_taken = 0;
    for (size_t i = 0; i < path.size(); ++i) {
      const std::string here = path.substr(0, i + 1);
      const bool is_known = pages.contains(here);
      if (!given[i].is_there() && !(is_known && pages[here].parts.is_there())) break;
      OraclePage& page = pages[here];
      if (!is_known) page = {tokens_of(here), {}, record, 0};
      if (is_use) page.use.last_use = record.last_use;
      if (!page.parts.pool.is_there() && given[i].pool.is_there()) page.parts.pool = given[i].pool, ++n_taken;
      if (!page.parts.disk.is_there()) page.parts.disk = given[i].disk;
    }
    return n_taken;
  }

  void attach(const std::string& path, int64_t first_page, int64_t number, const UseRecord& record) {
    time = std::max({time, record.last_use, record.created});
    Pages given(path.size());
    for (size_t i = static_cast<size_t>(first_page); i < given.size(); ++i)
      given[i].disk = {segment(number), static_cast<int32_t>(i) - static_cast<int32_t>(first_page)};
    add(path, given, record, false);
  }

  void forget(int64_t number) {
    for (auto& [path, page] : pages)
      if (page.parts.disk.segment == segment(number)) page.parts.disk = {};
    prune();
  }

  bool is_reachable(const std::string& path) const {
    for (size_t n = 1; n <= path.size(); ++n) {
      const auto found = pages.find(path.substr(0, n));
      if (found == pages.end() || !found->second.parts.is_there()) return false;
    }
    return true;
  }

  int64_t n_matched(const Tokens& prompt) const {
    int64_t longest = 0;
    for (const auto& [path, page] : pages)
      if (is_reachable(path)) longest = std::max(longest, n_common(prompt, page.tokens));
    return longest;
  }

  // Holes that no lock holds, and all behind them.
  void prune() {
    std::erase_if(pages, [&](const auto& entry) {
      for (size_t n = 1; n <= entry.first.size(); ++n) {
        const auto found = pages.find(entry.first.substr(0, n));
        if (found == pages.end()) return true;
        if (!found->second.parts.is_there() && found->second.n_locks == 0) return true;
      }
      return false;
    });
  }

  // The paths of the next n pages to leave the pool, in their order.
  std::vector<std::string> victims(int64_t n) const {
    std::vector<std::string> in_pool, gone;
    for (const auto& [path, page] : pages)
      if (page.parts.pool.is_there()) in_pool.push_back(path);
    const auto is_candidate = [&](const std::string& path) {
      return pages.at(path).n_locks == 0 && std::ranges::none_of(in_pool, [&](const std::string& other) {
               return other.size() > path.size() && other.starts_with(path);
             });
    };
    while (std::ssize(gone) < n) {
      std::string first;
      for (const std::string& path : in_pool)
        if (is_candidate(path) && (first.empty() || key(path) < key(first))) first = path;
      if (first.empty()) break;
      std::erase(in_pool, first);
      gone.push_back(first);
    }
    return gone;
  }

  std::vector<PageRun> unstored(const std::string& path) const {
    std::vector<PageRun> runs;
    for (size_t i = 0; i < path.size(); ++i) {
      const auto found = pages.find(path.substr(0, i + 1));
      if (found == pages.end()) break;
      const PrefixPage& parts = found->second.parts;
      if (parts.disk.is_there()) continue;
      if (!parts.pool.is_there()) break;
      const auto number = static_cast<int64_t>(i);
      if (runs.empty() || runs.back().first_page + runs.back().n_pages != number) runs.push_back({number, 0});
      ++runs.back().n_pages;
    }
    return runs;
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

  int64_t n_known = 0, n_holes = 0, n_filled = 0, n_evicted = 0, n_mid_page = 0;  // what has come up

 private:
  void take_step() {
    const int dice = pick(100);
    if (dice < 26)
      insert();
    else if (dice < 36)
      attach();
    else if (dice < 56)
      match();
    else if (dice < 68)
      use();
    else if (dice < 76)
      lock();
    else if (dice < 82)
      unlock();
    else if (dice < 89)
      evict();
    else if (dice < 96)
      forget();
    else
      check_unstored();
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
  UseRecord random_record() {  // times that no other record has
    const uint64_t time = ++oracle_.time;
    return {.last_use = time, .created = time, .n_hits = static_cast<uint64_t>(pick(3))};
  }

  void insert() {
    const std::string path = random_path();
    Pages pages(path.size());
    for (PrefixPage& page : pages) {
      const int dice = pick(20);  // in the pool, in both, on disk, in neither
      if (dice < 13) page.pool = fixture_.pins.make();
      if (dice >= 9 && dice < 19) page.disk = {segment(pick(40)), pick(16)};
    }
    const uint64_t time = ++oracle_.time;
    const int64_t n_before = n_absent();
    const int64_t n_taken = oracle_.add(path, pages, {.last_use = time, .created = time, .n_hits = 0}, true);
    BOOST_REQUIRE(fixture_.insert(path, pages) == n_taken);
    n_filled += n_before - n_absent();
  }

  void attach() {
    const std::string path = random_path();
    const int64_t first_page = pick(static_cast<int>(path.size())), number = pick(40);
    const UseRecord record = random_record();
    oracle_.attach(path, first_page, number, record);
    fixture_.attach(path, first_page, number, record);
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
      BOOST_REQUIRE(found.pages[i] == oracle_.pages.at(path.substr(0, i + 1)).parts);
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
    oracle_.prune();
    locks_.erase(place);
  }

  void forget() {
    const int64_t number = pick(40), n_before = n_absent();
    fixture_.forget(number);
    oracle_.forget(number);
    n_holes += n_absent() - n_before;
  }

  void evict() {
    const int64_t n_pages = pick(24);
    const std::vector<std::string> victims = oracle_.victims(n_pages);
    std::vector<PoolPage> expected;
    std::vector<std::string> lost, shown;  // shown: the paths that were
    for (const std::string& path : victims) {
      const PrefixPage& parts = oracle_.pages.at(path).parts;
      expected.push_back(parts.pool);
      if (!parts.disk.is_there()) lost.push_back(path);
    }
    const bool is_store_there = pick(2);
    fixture_.pins.released.clear();
    const int64_t n = fixture_.tree->evict_pool(
        n_pages, [&](std::span<const int32_t> leaving) { see_leaving(leaving, shown, is_store_there); });
    BOOST_REQUIRE(n == std::ssize(victims));
    BOOST_REQUIRE((fixture_.pins.released == expected));
    // Each was seen in a path that was shown. A path is shown once, and only with something that is lost.
    for (const std::string& path : lost)
      BOOST_REQUIRE((std::ranges::any_of(shown, [&](const auto& seen) { return seen.starts_with(path); })));
    for (const std::string& path : shown)
      BOOST_REQUIRE((std::ranges::any_of(lost, [&](const auto& page) { return path.starts_with(page); })));
    std::ranges::sort(shown);
    BOOST_REQUIRE((std::ranges::adjacent_find(shown) == shown.end()));
    for (const std::string& path : victims) oracle_.pages.at(path).parts.pool = {};
    oracle_.prune();
    n_evicted += n;
  }

  // Stores all of the path that is on no disk, every other time.
  void see_leaving(std::span<const int32_t> leaving, std::vector<std::string>& shown, bool is_store_there) {
    const std::string path = path_of(leaving);
    BOOST_REQUIRE(oracle_.pages.contains(path));
    shown.push_back(path);
    if (!is_store_there || pick(2)) return;
    const int64_t number = 40 + pick(20);
    fixture_.attach(path, 0, number);
    oracle_.attach(path, 0, number, {});
  }

  void check_unstored() {
    const std::string path = random_path();
    Tokens tokens = tokens_of(path);
    tokens.resize(tokens.size() + static_cast<size_t>(pick(kPageTokens)),
                  0);  // a page that is not whole counts not
    BOOST_REQUIRE((fixture_.tree->unstored(tokens) == oracle_.unstored(path)));
  }

  int64_t n_absent() const {
    return std::ranges::count_if(oracle_.pages,
                                 [](const auto& entry) { return !entry.second.parts.is_there(); });
  }

  void check_counts() const {
    int64_t n_pool = 0, n_disk = 0;
    for (const auto& [path, page] : oracle_.pages) {
      n_disk += page.parts.disk.is_there();
      if (!page.parts.pool.is_there()) continue;
      BOOST_REQUIRE(fixture_.pins.n_users(page.parts.pool) == 1);
      ++n_pool;
    }
    const PrefixTree& tree = *fixture_.tree;
    BOOST_REQUIRE(tree.n_pages() == std::ssize(oracle_.pages));
    BOOST_REQUIRE(tree.n_pool_pages() == n_pool);
    BOOST_REQUIRE(tree.n_disk_pages() == n_disk);
    BOOST_REQUIRE(fixture_.pins.n_pages() == n_pool);
  }

  void check_every_page() const {
    for (const auto& [path, page] : oracle_.pages) {
      if (!oracle_.is_reachable(path)) continue;
      const PrefixTree::Match found = fixture_.tree->match(page.tokens);
      BOOST_REQUIRE(found.n_tokens == std::ssize(page.tokens));
      BOOST_REQUIRE(found.pages.back() == page.parts);
    }
  }

  Fixture fixture_;
  Oracle oracle_;
  std::mt19937 random_;
  std::vector<std::pair<std::string, PrefixTree::Lock>> locks_;
};

void run_trials(uint32_t n_seeds, int n_steps) {
  for (const auto& [name, policy] : kPolicies) {
    int64_t n_known = 0, n_holes = 0, n_evicted = 0, n_mid_page = 0, n_filled = 0;
    for (uint32_t seed = 1; seed <= n_seeds; ++seed) BOOST_TEST_CONTEXT(name << ", seed " << seed) {
        Trial trial(policy, seed);
        trial.run(n_steps);
        n_known += trial.n_known / n_steps;
        n_holes += trial.n_holes, n_evicted += trial.n_evicted;
        n_mid_page += trial.n_mid_page, n_filled += trial.n_filled;
      }
    BOOST_TEST_MESSAGE(name << ": pages " << n_known / n_seeds << ", holes " << n_holes << ", filled "
                            << n_filled << ", evicted " << n_evicted << ", matches in mid-page "
                            << n_mid_page);
    // Each kind of event must have come up often, or the trial tells nothing.
    BOOST_TEST(n_holes > 20);
    BOOST_TEST(n_filled > 5);
    BOOST_TEST(n_evicted > 500);
    BOOST_TEST(n_mid_page > 200);
  }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(prefix_tree_random)

BOOST_AUTO_TEST_CASE(follows_the_flat_list) { run_trials(8, 1500); }

BOOST_AUTO_TEST_CASE(follows_the_flat_list_for_long, *ut::label("long") * ut::disabled()) {
  run_trials(60, 5000);
}

BOOST_AUTO_TEST_SUITE_END()
