// Which token sequences have their pages remembered, in the pools of memory, on disk, or in both.
//
// A node is one page: its parent is the page before it. A match counts single tokens: a prompt that leaves a
// page in its middle still has that page's first tokens, because no row depends on what comes after it. So
// children of a node may share up to kPageTokens - 1 tokens; they are sorted by their tokens, and the one
// with the longest common prefix is a neighbour of the place of the prompt's own page.
//
// The tree knows neither files nor a backend. It is one more user of each pool page it names (PagePins). One
// thread at a time. A call that finds no memory throws std::bad_alloc and leaves the tree whole, perhaps with
// a part of what it was to do; giving up pages and locks needs none.
//
// Invariants, between calls:
//   1. no two children of a node have the same tokens;
//   2. a parent is locked at least as often as all its children together;
//   3. a page is in the pool or on disk. Only while it is locked it may be in neither, when its segment was
//      forgotten. Such a hole ends every match; an insert may fill it. With the last lock it leaves the tree,
//      and all that is behind it, which cannot be reached and must not keep pool pages.
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

// Page `number` of a stored segment, which its chain hash (segment.h) names.
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
  // A prompt's longest known prefix. Holds until a page leaves the tree, so lock it first; a stale one stops
  // the program.
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

  // While it lives, a matched path stays in the pool and in the tree. Must not outlive the tree.
  struct Unlock {
    PrefixTree* tree = nullptr;
    void operator()(Node* node) const { tree->unlock(*node); }
  };
  using Lock = std::unique_ptr<Node, Unlock>;

  // Sees the tokens, from the first one on, of a path whose last page is about to leave the pool.
  using BeforeLeaving = std::function<void(std::span<const int32_t> tokens)>;

  PrefixTree(PagePins& pins, EvictionPolicy policy);
  ~PrefixTree();  // releases every pool page
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;

  // The longest prefix of `tokens` whose pages are all there. No side effects. Of two pages that share as
  // much with the prompt, one in the pool is taken first.
  Match match(std::span<const int32_t> tokens) const;
  // The tokens of a match's pages, whole pages: beyond n_tokens those of the page, not of the prompt.
  // insert() takes a page that was read from disk under these.
  std::vector<int32_t> tokens_of(const Match& match) const;
  // Counts one hit and one use of each page of the match.
  void use(const Match& match);
  [[nodiscard]] Lock lock(const Match& match);

  // Adds whole pages: tokens [pages.size() * kPageTokens]. A known page keeps its parts and takes those it
  // lacks; the tree becomes a user of the pool pages it takes. Counts as a use, not as a hit. Stops at a page
  // of which neither the tree nor the caller has a part.
  void insert(std::span<const int32_t> tokens, std::span<const PrefixPage> pages);
  // `segment` holds the pages of `tokens` (whole pages) from `first_page` on, as its pages 0, 1, ... Unknown
  // pages join the tree with `use`; known ones keep their record and the disk part that they have. Stops at
  // an unknown page before `first_page`. Not a use; the tree's logical time moves on to a later `use`.
  void attach_segment(std::span<const int32_t> tokens, int64_t first_page, const Hash256& segment,
                      const UseRecord& use = {});
  // A page, or the place ahead of all prompts; nothing once that has left the tree.
  using Place = std::weak_ptr<Node>;
  Place root() const { return root_; }
  // The same for one of many segments: `tokens` are its own, and follow the page that is `n_back` pages
  // before `place`. Returns the place of its last page.
  Place attach_behind(const Place& place, int64_t n_back, std::span<const int32_t> tokens,
                      const Hash256& segment, const UseRecord& use);
  // Drops all that refers to a segment, and the holes that this makes (invariant 3). Walks the whole tree.
  void forget_segment(const Hash256& segment);

  // Gives back up to `n_pages` pool pages, in the policy's order, and returns how many. A page goes only when
  // it is not locked and no page behind it has a pool part; so paths shrink from their ends. What is on disk
  // stays known; the rest leaves the tree, with what is behind it. `before` may store pages that would be
  // lost so: it calls only const functions, attach_segment() for known pages, and forget_segment(). What it
  // throws is thrown on, with the tree whole.
  int64_t evict_pool(int64_t n_pages, const BeforeLeaving& before = {});

  // The longest runs of pages along `tokens` (whole pages) with a pool part and no disk part. Ends at the
  // first page that is neither stored nor in a run, for no page is stored before the one ahead of it.
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
  Candidates candidates_;  // nodes with a pool part, none behind them, and no lock
  uint64_t time_ = 0, n_removals_ = 0, n_joined_ = 0;
  int64_t n_pages_ = 0, n_pool_pages_ = 0, n_disk_pages_ = 0;
};

}  // namespace dsv32
