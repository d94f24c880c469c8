// The prefix tree: which token sequences have their pages remembered, in the pools of memory, on disk, or in
// both.
//
// A radix tree over token ids. A node holds a run of whole pages that share one history: one use record, one
// lock count. Whoever uses, locks or leaves the first pages of a run splits it there; a split moves page
// references and copies no page. A match counts single tokens: a prompt that leaves a page in its middle
// still has that page's first tokens, because no row depends on what comes after it. So children of a node
// may share up to kPageTokens - 1 tokens; they are sorted by their first page, and the one with the longest
// common prefix is a neighbour of the place where the prompt's own page would stand.
//
// The tree knows token ids and page numbers, neither files nor a backend. It is one more user of each pool
// page it names (PagePins). One thread at a time. A call that finds no memory throws std::bad_alloc and
// leaves the tree whole, perhaps with a part of what it was to do; giving up pages and locks needs none.
//
// Invariants, between calls:
//   1. a node other than the root holds at least one page, and kPageTokens tokens a page;
//   2. no two children of a node begin with the same page of tokens;
//   3. a parent is locked at least as often as all its children together;
//   4. a page is in the pool or on disk. Only in a locked node it may be in neither: a segment was forgotten
//      under someone who uses it. Such a hole ends every match. When the last lock goes, the hole and all
//      that is behind it leave the tree: nobody could reach it, and it must not keep pool pages. Until then
//      an insert may fill it.
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
#include "prefix/eviction_policy.h"

namespace dsv32 {

// Page `number` of a stored segment.
struct DiskPage {
  int64_t segment = -1;
  int32_t number = 0;
  bool is_there() const { return segment >= 0; }
  bool operator==(const DiskPage&) const = default;
};

struct PrefixPage {
  PoolPage pool;
  DiskPage disk;
  bool is_there() const { return pool.is_there() || disk.is_there(); }
  bool operator==(const PrefixPage&) const = default;
};

// A run of pages of a token sequence; page i holds the tokens from i * kPageTokens on.
struct PageRun {
  int64_t first_page = 0, n_pages = 0;
  bool operator==(const PageRun&) const = default;
};

class PrefixTree {
  struct Node;

 public:
  // A prompt's longest known prefix. Holds until a page leaves the tree, so lock it before anything else; a
  // stale one is a mistake of ours and stops the program.
  struct Match {
    int64_t n_tokens = 0;
    std::vector<PrefixPage> pages;  // [ceil(n_tokens / kPageTokens)]; the last one may be used in part

   private:
    friend class PrefixTree;
    Node* node = nullptr;     // the deepest one touched
    uint64_t n_removals = 0;  // of the tree, when this was found
  };

  // While it lives, a matched path stays in the pool and in the tree. Must not outlive the tree.
  class Lock {
   public:
    Lock() = default;
    Lock(Lock&& other) noexcept { swap(other); }
    Lock& operator=(Lock&& other) noexcept {
      Lock(std::move(other)).swap(*this);
      return *this;
    }
    ~Lock() {
      if (node_) tree_->unlock(*node_);
    }

   private:
    friend class PrefixTree;
    Lock(PrefixTree& tree, Node& node) : tree_(&tree), node_(&node) {}
    void swap(Lock& other) {
      std::swap(tree_, other.tree_);
      std::swap(node_, other.node_);
    }
    PrefixTree* tree_ = nullptr;
    Node* node_ = nullptr;
  };

  // A path the last pages of which are about to leave the pool.
  struct Leaving {
    std::span<const int32_t> tokens;  // from its first one on
  };
  using BeforeLeaving = std::function<void(const Leaving&)>;

  PrefixTree(PagePins& pins, EvictionPolicy policy);
  ~PrefixTree();  // releases every pool page
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;

  // The longest prefix of `tokens` whose pages are all there. No side effects. Where its two
  // nearest pages share as much with the prompt, one in the pool is taken first.
  Match match(std::span<const int32_t> tokens) const;
  // The tokens of a match's pages, whole pages: beyond n_tokens they are those of the page, not of the
  // prompt. A page that was read from disk is handed to the tree by insert() under these.
  std::vector<int32_t> tokens_of(const Match& match) const;
  // Counts one hit, and one use, of each page of the match.
  void use(const Match& match);
  [[nodiscard]] Lock lock(const Match& match);

  // Adds whole pages: tokens [pages.size() * kPageTokens]. A page that is known keeps the parts it has and
  // takes those it lacks; the tree becomes a user of the pool pages it takes, and of no other. Counts as a
  // use but not as a hit. Stops at a page of which neither the tree nor the caller has a part.
  void insert(std::span<const int32_t> tokens, std::span<const PrefixPage> pages);
  // Says that `segment` holds the pages of `tokens` (whole pages) from `first_page` on, as its pages 0, 1,
  // ... Pages that are not known join the tree with `use`; known ones keep their record and a disk part that
  // they have. Nothing happens beyond a page that is not known before `first_page`. Not a use; the tree's
  // logical time moves on to `use` where that is later.
  void attach_segment(std::span<const int32_t> tokens, int64_t first_page, int64_t segment,
                      const UseRecord& use = {});
  // Drops all that refers to a segment (evicted, quarantined, vanished), and the holes that this makes as
  // said in invariant 4. Walks the whole tree.
  void forget_segment(int64_t segment);

  // Gives back up to `n_pages` pool pages, in the policy's order. A page goes only when it is not locked and
  // no page behind it has a pool part; so paths shrink from their ends. What is on disk stays known; the rest
  // leaves the tree, with what is behind it. `before`, when there is one, sees pages that would be lost that
  // way, many at a time, and may store them: it calls the const functions, attach_segment() for known pages,
  // and forget_segment(), no other. What it throws is thrown on, with the tree whole. Returns how many pool
  // pages the tree has given back.
  int64_t evict_pool(int64_t n_pages, const BeforeLeaving& before = {});

  // What a write policy stores: the longest runs of pages along `tokens` (whole pages are looked at) with a
  // pool part and no disk part. Ends at the first page that is neither stored nor in a run, for no page is
  // stored before the one ahead of it.
  std::vector<PageRun> unstored(std::span<const int32_t> tokens) const;

  int64_t n_pages() const { return n_pages_; }
  int64_t n_pool_pages() const { return n_pool_pages_; }
  // Rises whenever pool pages join, or pages leave.
  uint64_t n_changes() const { return n_joined_ + n_removals_; }
  int64_t n_disk_pages() const { return n_disk_pages_; }

 private:
  using Candidates = std::set<std::pair<EvictionKey, Node*>>;

  Node& end_of(const Match& match);
  void add(std::span<const int32_t> tokens, std::span<const PrefixPage> pages, const UseRecord& record,
           bool is_use);
  void fill(Node& node, std::span<const PrefixPage> pages);
  std::unique_ptr<Node> make_node() const;
  Node& append(Node& parent, std::span<const int32_t> tokens, const UseRecord& record);
  Node& split(Node& node, int64_t n_pages);
  void lock(Node& node);
  void unlock(Node& node);
  void forget_segment(Node& node, int64_t segment);
  void prune(Node& node);
  void drop(Node& node);
  void clear(Node& node, int64_t first);
  void evict_tail(Node& node, int64_t n_pages, const BeforeLeaving& before);
  void release_pool(Node& node, int64_t first);
  void touch(Node& node, uint64_t n_hits);
  void settle(Node& node);
  void update_candidate(Node& node);

  PagePins& pins_;
  EvictionPolicy policy_;
  std::unique_ptr<Node> root_;
  Candidates candidates_;  // nodes with pool pages of their own, none behind them, and no lock
  uint64_t time_ = 0, n_removals_ = 0, n_joined_ = 0;
  int64_t n_pages_ = 0, n_pool_pages_ = 0, n_disk_pages_ = 0;
};

}  // namespace dsv32
