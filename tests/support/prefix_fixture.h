// For the prefix tree's tests: pages of a few kinds that begin alike, pool pages that count their users, and
// a tree with both.
//
// A path of pages is written as a string of kinds.
#pragma once

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "prefix/prefix_tree.h"

namespace dsv32::prefix_test {

using Tokens = std::vector<int32_t>;
using Pages = std::vector<PoolPage>;

constexpr int kKinds = 6;

struct NamedPolicy {
  const char* name;
  EvictionPolicy policy;
};
constexpr NamedPolicy kPolicies[] = {{"lru", EvictionPolicy::lru},
                                     {"lfu", EvictionPolicy::lfu},
                                     {"fifo", EvictionPolicy::fifo},
                                     {"slru", EvictionPolicy::slru}};

// 'a': zeros; 'b', 'c': differ from it in the last token; 'd', 'e': from token 20 on; 'f': from the first.
inline const Tokens& page_of(char kind) {
  static const std::map<char, Tokens> pages = [] {
    std::map<char, Tokens> made;
    for (char each = 'a'; each < 'a' + kKinds; ++each) {
      const int64_t first_other[] = {64, 63, 63, 20, 20, 0};
      Tokens page(kPageTokens, 0);
      std::fill(page.begin() + first_other[each - 'a'], page.end(), each == 'c' || each == 'e' ? 2 : 1);
      made[each] = page;
    }
    return made;
  }();
  return pages.at(kind);
}

inline Tokens tokens_of(const std::string& path) {
  Tokens tokens;
  for (const char kind : path) tokens.insert(tokens.end(), page_of(kind).begin(), page_of(kind).end());
  return tokens;
}

inline std::string path_of(std::span<const int32_t> tokens) {
  std::string path;
  for (; !tokens.empty(); tokens = tokens.subspan(kPageTokens))
    for (char kind = 'a'; kind < 'a' + kKinds; ++kind)
      if (std::ranges::equal(tokens.first(kPageTokens), page_of(kind))) path += kind;
  return path;
}

inline int64_t n_common(std::span<const int32_t> a, std::span<const int32_t> b) {
  return std::ranges::mismatch(a, b).in1 - a.begin();
}

// Pool pages that count their users. A page without users is gone; a test that touches it fails.
class FakePins : public PagePins {
 public:
  PoolPage make() {
    const PoolPage page{n_made_++};
    n_users_[page.number] = 1;
    return page;
  }
  void retain(const PoolPage& page) override {
    check(page);
    ++n_users_[page.number];
  }
  void release(const PoolPage& page) override {
    check(page);
    if (--n_users_[page.number] == 0) n_users_.erase(page.number);
    released.push_back(page);
  }
  int n_users(const PoolPage& page) const {
    const auto found = n_users_.find(page.number);
    return found == n_users_.end() ? 0 : found->second;
  }
  int64_t n_pages() const { return std::ssize(n_users_); }
  std::vector<PoolPage> released;  // in this order

 private:
  void check(const PoolPage& page) const { BOOST_REQUIRE(n_users_.contains(page.number)); }
  int32_t n_made_ = 0;
  std::map<int32_t, int> n_users_;
};

// A tree and operations on it. When it is destroyed, no page may have a user left.
struct Fixture {
  explicit Fixture(EvictionPolicy policy = EvictionPolicy::lru)
      : tree(std::make_unique<PrefixTree>(pins, policy)) {}
  ~Fixture() {
    tree.reset();
    BOOST_TEST(pins.n_pages() == 0);
  }

  // Inserts the path like a sequence that computed it and then ends: the tree remains the only user. Returns
  // how many of the pages the tree took.
  int64_t insert(const std::string& path) {
    Pages pages(path.size());
    for (PoolPage& page : pages) page = pins.make();
    return insert(path, pages);
  }
  int64_t insert(const std::string& path, const Pages& pages) {
    const int64_t n_before = tree->n_pages();
    tree->insert(tokens_of(path), pages);
    for (const PoolPage& page : pages)
      if (page.is_there()) pins.release(page);
    pins.released.clear();
    return tree->n_pages() - n_before;
  }
  PrefixTree::Match match(const std::string& path) const { return tree->match(tokens_of(path)); }
  int64_t n_matched(const std::string& path) const { return match(path).n_tokens; }
  void use(const std::string& path) { tree->use(match(path)); }
  [[nodiscard]] PrefixTree::Lock lock(const std::string& path) { return tree->lock(match(path)); }
  size_t n_known(const std::string& path) const { return match(path).pages.size(); }

  FakePins pins;
  std::unique_ptr<PrefixTree> tree;
};

}  // namespace dsv32::prefix_test
