// The token sequences whose pages are in the pool.
//
// A node is one page; its parent is the page before it. A match counts single tokens: a prompt that leaves a
// page in its middle still matches the page's first tokens, because no row depends on later tokens. So
// children of a node may share up to kPageTokens - 1 tokens.
//
// The tree is one user of each pool page that it names (PagePins). One thread at a time. A call that lacks
// memory throws std::bad_alloc and leaves the tree whole, perhaps with a part of its work done; releasing
// pages and locks needs no memory.
//
// Invariants, between calls:
//   1. no two children of a node have the same tokens;
//   2. a parent is locked at least as often as all its children together;
//   3. the candidates are the nodes without children and without locks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "backend/cache_layout.h"
#include "context/page_pool.h"
#include "prefix/page_file.h"
#include "prefix/prefix_cache_options.h"

namespace dsv32 {

struct PrefixPage {
  PoolPage pool;
  PageHash hash{};  // its name on disk, which stands for all tokens up to its end
  bool operator==(const PrefixPage&) const = default;
};

inline std::span<const int32_t> first_pages(std::span<const int32_t> tokens, int64_t n_pages) {
  return tokens.first(static_cast<size_t>(n_pages * kPageTokens));
}
inline std::span<const int32_t> page_of(std::span<const int32_t> tokens, size_t page) {
  return tokens.subspan(page * kPageTokens, kPageTokens);
}

class PrefixTree {
  struct Node;

 public:
  // A prompt's longest known prefix. Valid until a page leaves the tree, so lock it first; using a stale
  // match stops the program.
  struct Match {
    int64_t n_tokens = 0;
    std::vector<PrefixPage> pages;  // [ceil(n_tokens / kPageTokens)]; the last one may be used in part
    int64_t n_whole() const { return n_tokens / kPageTokens; }  // pages

   private:
    friend class PrefixTree;
    Node* node = nullptr;     // its last page
    uint64_t n_removals = 0;  // of the tree, when this was found
  };

  // A Lock keeps a matched path in the tree. Must not outlive the tree.
  struct Unlock {
    PrefixTree* tree = nullptr;
    void operator()(Node* node) const { tree->unlock(*node); }
  };
  using Lock = std::unique_ptr<Node, Unlock>;

  // Called with a page that is about to leave, and all tokens up to its end. Must not change the tree.
  using BeforeLeaving = std::function<void(const PageHash& page, std::span<const int32_t> path)>;

  PrefixTree(PagePins& pins, EvictionPolicy policy);
  ~PrefixTree();  // releases every pool page
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;

  // The longest known prefix of `tokens`. No side effects.
  Match match(std::span<const int32_t> tokens) const;
  // The tokens of a match's pages; beyond n_tokens they are the page's, not the prompt's.
  std::vector<int32_t> tokens_of(const Match& match) const;
  // Counts one hit and one use of each page of the match.
  void use(const Match& match);
  [[nodiscard]] Lock lock(const Match& match);

  // Adds whole pages: tokens [pages.size() * kPageTokens]. A known page stays as it is; the tree becomes a
  // user of the others. Counts as a use, not as a hit. Stops at a page that neither the tree nor the caller
  // has.
  void insert(std::span<const int32_t> tokens, std::span<const PoolPage> pages);

  // Releases up to `n_pages` pool pages, in the policy's order, and returns how many. A page leaves only when
  // it is not locked and no page is behind it, so paths shrink from their ends. Exceptions of `before` are
  // thrown on, with the tree whole.
  int64_t evict(int64_t n_pages, const BeforeLeaving& before = {});

  int64_t n_pages() const { return static_cast<int64_t>(n_joined_ - n_removals_); }
  uint64_t n_changes() const { return n_joined_ + n_removals_; }  // pages that came or went

 private:
  using Candidates = std::set<std::pair<EvictionKey, Node*>>;

  Node& node_of(const Match& match) const;
  Node& append(Node& parent, std::span<const int32_t> tokens, const PoolPage& page);
  void unlock(Node& end);
  Node& drop(Node& leaf);
  void touch(Node& node, uint64_t n_hits);
  void update_candidate(Node& node);

  PagePins& pins_;
  EvictionPolicy policy_;
  std::unique_ptr<Node> root_;
  Candidates candidates_;
  uint64_t time_ = 0, n_removals_ = 0, n_joined_ = 0;
};

}  // namespace dsv32
