// The token sequences whose pages are in the pool, on disk, or in both.
//
// A node is one page; its parent is the page before it. A match counts single tokens: a prompt that leaves a
// page in its middle still matches the page's first tokens, because no row depends on later tokens. So
// children of a node may share up to kPageTokens - 1 tokens. They are sorted by their tokens, so the child
// with the longest common prefix is next to the place of the prompt's own page.
//
// The tree knows neither files nor a backend. It is one user of each pool page that it names (PagePins). One
// thread at a time. A call that lacks memory throws std::bad_alloc and leaves the tree whole, perhaps with a
// part of its work done; releasing pages and locks needs no memory.
//
// Invariants, between calls:
//   1. no two children of a node have the same tokens;
//   2. a parent is locked at least as often as all its children together;
//   3. a page is in the pool or on disk. Only a locked page whose segment was forgotten may be in neither.
//      Such a hole ends every match; an insert may fill it. With its last lock it leaves the tree, with all
//      pages behind it, which no match can reach and which must not keep pool pages.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "backend/cache_layout.h"
#include "base/sha256.h"
#include "context/page_pool.h"
#include "prefix/prefix_cache_options.h"

namespace dsv32 {

// Page `number` of the stored segment with this chain hash (segment.h).
struct DiskPage {
  Hash256 segment{};
  int32_t number = -1;
  bool is_there() const { return number >= 0; }
  bool operator==(const DiskPage&) const = default;
};

struct PrefixPage {
  PoolPage pool;
  DiskPage disk;
  bool is_there() const { return pool.is_there() || disk.is_there(); }
  bool operator==(const PrefixPage&) const = default;
};

inline std::span<const int32_t> first_pages(std::span<const int32_t> tokens, int64_t n_pages) {
  return tokens.first(static_cast<size_t>(n_pages * kPageTokens));
}

// A run of pages of a token sequence; page i holds the tokens from i * kPageTokens on.
struct PageRun {
  int64_t first_page = 0, n_pages = 0;
  bool operator==(const PageRun&) const = default;
};

class PrefixTree {
  struct Node;

 public:
  // A prompt's longest known prefix. Valid until a page leaves the tree, so lock it first; using a stale
  // match stops the program.
  struct Match {
    int64_t n_tokens = 0;
    std::vector<PrefixPage> pages;  // [ceil(n_tokens / kPageTokens)]; the last one may be used in part
    int64_t n_pages() const { return std::ssize(pages); }
    int64_t n_in_pool() const;  // pages, from the front

   private:
    friend class PrefixTree;
    Node* node = nullptr;     // its last page
    uint64_t n_removals = 0;  // of the tree, when this was found
  };

  // A Lock keeps a matched path in the pool and in the tree. Must not outlive the tree.
  struct Unlock {
    PrefixTree* tree = nullptr;
    void operator()(Node* node) const { tree->unlock(*node); }
  };
  using Lock = std::unique_ptr<Node, Unlock>;

  // Called with all tokens of a path whose last page is about to leave the pool.
  using BeforeLeaving = std::function<void(std::span<const int32_t> tokens)>;

  PrefixTree(PagePins& pins, EvictionPolicy policy);
  ~PrefixTree();  // releases every pool page
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;

  // The longest prefix of `tokens` whose pages are all known. No side effects. Of two pages that share
  // equally many tokens with the prompt, takes the one in the pool.
  Match match(std::span<const int32_t> tokens) const;
  // The tokens of a match's whole pages; beyond n_tokens they are the page's, not the prompt's. A page that
  // was read from disk is inserted under these tokens.
  std::vector<int32_t> tokens_of(const Match& match) const;
  // Counts one hit and one use of each page of the match.
  void use(const Match& match);
  [[nodiscard]] Lock lock(const Match& match);

  // Adds whole pages: tokens [pages.size() * kPageTokens]. A known page keeps its parts (pool, disk) and
  // takes those it lacks; the tree becomes a user of the pool pages it takes. Counts as a use, not as a hit.
  // Stops at a page that neither the tree nor the caller has.
  void insert(std::span<const int32_t> tokens, std::span<const PrefixPage> pages);
  // `segment` holds the pages of `tokens` (whole pages) from `first_page` on, as its pages 0, 1, ... Unknown
  // pages join the tree with `use`; known pages keep their record and their disk part. Stops at an unknown
  // page before `first_page`. Does not count as a use; moves the tree's logical time forward to a later
  // `use`.
  void attach_segment(std::span<const int32_t> tokens, int64_t first_page, const Hash256& segment,
                      const UseRecord& use = {});
  // A page, or the root; expired once the page has left the tree.
  using PageRef = std::weak_ptr<Node>;
  PageRef root() const { return root_; }
  // Like attach_segment(), without the walk from the root: `tokens` are the segment's own, and follow the
  // page that is `n_back` pages before `behind`. Returns the segment's last page.
  PageRef attach_behind(const PageRef& behind, int64_t n_back, std::span<const int32_t> tokens,
                        const Hash256& segment, const UseRecord& use);
  // Drops all references to a segment, and the holes that this makes (invariant 3). Walks the whole tree.
  void forget_segment(const Hash256& segment);

  // Releases up to `n_pages` pool pages, in the policy's order, and returns how many. Evicts a page only when
  // it is not locked and no page behind it has a pool part, so paths shrink from their ends. A page that is
  // on disk stays in the tree; any other leaves it, with all pages behind it. `before` may store pages that
  // would be lost: it may call only const functions, attach_segment() for known pages, and forget_segment().
  // Its exceptions are thrown on, with the tree whole.
  int64_t evict_pool(int64_t n_pages, const BeforeLeaving& before = {});

  // The longest runs of pages along `tokens` (whole pages) with a pool part and no disk part. Ends at the
  // first page that is neither on disk nor in the pool, because no page is stored before its parent.
  std::vector<PageRun> unstored(std::span<const int32_t> tokens) const;

  int64_t n_pages() const { return n_pages_; }
  int64_t n_pool_pages() const { return n_pool_pages_; }
  // Rises whenever pool pages join, or pages leave.
  uint64_t n_changes() const { return n_joined_ + n_removals_; }
  int64_t n_disk_pages() const { return n_disk_pages_; }

 private:
  using Candidates = std::set<std::pair<EvictionKey, Node*>>;

  Node& node_of(const Match& match) const;
  Node& attach(Node& from, std::span<const int32_t> tokens, int64_t first_page, const Hash256& segment,
               const UseRecord& use);
  Node& add(Node& from, std::span<const int32_t> tokens, std::span<const PrefixPage> pages,
            const UseRecord& record, bool is_use);
  Node& append(Node& parent, std::span<const int32_t> tokens, const UseRecord& record);
  void fill(Node& node, const PrefixPage& page);
  void lock(Node& node);
  void unlock(Node& node);
  void forget_segment(Node& node, const Hash256& segment);
  void prune(Node& node);
  void drop(Node& node);
  void evict(Node& node, const BeforeLeaving& before);
  void release_pool(Node& node);
  void touch(Node& node, uint64_t n_hits);
  void settle(Node& node);
  void update_candidate(Node& node);

  PagePins& pins_;
  EvictionPolicy policy_;
  std::shared_ptr<Node> root_;
  Candidates candidates_;  // unlocked nodes with a pool part and none behind them
  uint64_t time_ = 0, n_removals_ = 0, n_joined_ = 0;
  int64_t n_pages_ = 0, n_pool_pages_ = 0, n_disk_pages_ = 0;
};

}  // namespace dsv32
