#include "prefix/prefix_tree.h"

#include <algorithm>
#include <cassert>
#include <optional>

namespace dsv32 {

namespace {

using Tokens = std::span<const int32_t>;

int64_t common_tokens(Tokens a, Tokens b) {
  const auto n = static_cast<std::ptrdiff_t>(std::min(a.size(), b.size()));
  return std::mismatch(a.begin(), a.begin() + n, b.begin()).first - a.begin();
}

Tokens first_page(Tokens tokens) { return tokens.first(std::min(tokens.size(), size_t{kPageTokens})); }
Tokens from_page(Tokens tokens, int64_t page) {
  return tokens.subspan(static_cast<size_t>(page * kPageTokens));
}

}  // namespace

struct PrefixTree::Node {
  // Sorts children by their first page; any tokens may be looked up, a page or less.
  struct ByFirstPage {
    using is_transparent = void;
    static Tokens key(const std::unique_ptr<Node>& node) { return first_page(node->tokens); }
    static Tokens key(Tokens tokens) { return first_page(tokens); }
    bool operator()(const auto& a, const auto& b) const {
      return std::ranges::lexicographical_compare(key(a), key(b));
    }
  };

  Node* parent = nullptr;
  int64_t first_page_number = 0;  // in the path
  std::vector<int32_t> tokens;    // [pages.size() * kPageTokens]
  std::vector<PrefixPage> pages;
  using Children = std::set<std::unique_ptr<Node>, ByFirstPage>;

  Children children;
  UseRecord use;
  int64_t n_locks = 0;
  int64_t n_pool = 0;                        // pages with a pool part
  int64_t n_pool_children = 0;               // children with pool parts, or with such children
  bool is_counted = false;                   // in the parent's n_pool_children
  std::optional<EvictionKey> candidate_key;  // as it stands in candidates_
  Candidates::node_type candidate;           // its place there while it has none, so that joining cannot fail

  int64_t n_pages() const { return std::ssize(pages); }
  bool holds_pool() const { return n_pool > 0 || n_pool_children > 0; }
  // Index of the first page in neither the pool nor on disk, n_pages() when there is none.
  int64_t hole() const { return std::ranges::find_if_not(pages, &PrefixPage::is_there) - pages.begin(); }

  // The child that begins with the first page of `tokens`, or none.
  Node* child_with_page(Tokens prompt) const {
    const auto found = children.find(prompt);
    return found == children.end() ? nullptr : found->get();
  }
  Node* best_child(Tokens prompt) const;
  std::unique_ptr<Node> take_child(const Node& child) {
    return std::move(children.extract(children.find(Tokens(child.tokens))).value());
  }

  std::vector<int32_t> path_tokens() const;  // from the root to the end of this node
};

// The child with most tokens in common is one of the two neighbours of the prompt's place among them. A child
// that begins with a hole cannot be matched: the next one then is the neighbour.
PrefixTree::Node* PrefixTree::Node::best_child(Tokens prompt) const {
  const auto is_open = [](const auto& child) { return child->pages.front().is_there(); };
  const auto place = children.lower_bound(prompt);
  const auto right = std::find_if(place, children.end(), is_open);
  const auto left = std::find_if(std::make_reverse_iterator(place), children.rend(), is_open);
  Node* const a = right == children.end() ? nullptr : right->get();
  Node* const b = left == children.rend() ? nullptr : left->get();
  if (!a || !b) return a ? a : b;
  const auto worth = [&](const Node& child) {
    return std::pair(common_tokens(first_page(child.tokens), prompt), child.pages.front().pool.is_there());
  };
  return worth(*a) < worth(*b) ? b : a;
}

std::vector<int32_t> PrefixTree::Node::path_tokens() const {
  std::vector<int32_t> path(static_cast<size_t>((first_page_number + n_pages()) * kPageTokens));
  for (const Node* node = this; node; node = node->parent)
    std::ranges::copy(node->tokens, path.begin() + node->first_page_number * kPageTokens);
  return path;
}

PrefixTree::PrefixTree(PagePins& pins, EvictionPolicy policy)
    : pins_(pins), policy_(policy), root_(std::make_unique<Node>()) {}

PrefixTree::~PrefixTree() {
  while (!root_->children.empty()) drop(**root_->children.begin());
}

PrefixTree::Match PrefixTree::match(Tokens tokens) const {
  Match found;
  found.node = root_.get();
  found.n_removals = n_removals_;
  for (bool is_whole = true; is_whole && !tokens.empty();) {
    Node* const child = found.node->best_child(tokens);
    if (!child) break;
    const int64_t n = std::min(common_tokens(child->tokens, tokens), child->hole() * kPageTokens);
    if (n == 0) break;
    const int64_t n_pages = (n + kPageTokens - 1) / kPageTokens;
    found.pages.insert(found.pages.end(), child->pages.begin(), child->pages.begin() + n_pages);
    found.n_tokens += n;
    found.node = child;
    is_whole = n == std::ssize(child->tokens);
    tokens = tokens.subspan(static_cast<size_t>(n));
  }
  return found;
}

int64_t PrefixTree::Match::n_in_pool() const {
  const auto is_there = [](const PrefixPage& page) { return page.pool.is_there(); };
  return std::ranges::find_if_not(pages, is_there) - pages.begin();
}

std::vector<int32_t> PrefixTree::tokens_of(const Match& match) const {
  assert(match.n_removals == n_removals_);
  std::vector<int32_t> tokens = match.node->path_tokens();
  tokens.resize(match.pages.size() * kPageTokens);
  return tokens;
}

void PrefixTree::use(const Match& match) {
  ++time_;
  for (Node* node = &end_of(match); node->parent; node = node->parent) touch(*node, 1);
}

PrefixTree::Lock PrefixTree::lock(const Match& match) {
  Node& node = end_of(match);
  lock(node);
  return Lock(&node, {this});
}

// The node that ends with the match's last page, which is split off if need be. Since the match was made its
// node may have become the second part of a split.
PrefixTree::Node& PrefixTree::end_of(const Match& match) {
  assert(match.n_removals == n_removals_);
  const int64_t end = std::ssize(match.pages);
  Node* node = match.node;
  while (node->parent && node->first_page_number >= end) node = node->parent;
  return split(*node, end - node->first_page_number);
}

void PrefixTree::insert(Tokens tokens, std::span<const PrefixPage> pages) {
  ++time_;
  add(tokens, pages, {.last_use = time_, .created = time_, .n_hits = 0}, true);
}

void PrefixTree::attach_segment(Tokens tokens, int64_t first_page, int64_t segment, const UseRecord& use) {
  assert(first_page >= 0);
  time_ = std::max({time_, use.last_use, use.created});
  std::vector<PrefixPage> pages(tokens.size() / kPageTokens);
  for (int64_t i = first_page; i < std::ssize(pages); ++i)
    pages[static_cast<size_t>(i)].disk = {segment, static_cast<int32_t>(i - first_page)};
  add(tokens, pages, use, false);
}

// Goes down along what is known and fills it, then appends the rest. A use covers whole nodes, so it splits
// the node in which the tokens end; else a node is split only where tokens part.
void PrefixTree::add(Tokens tokens, std::span<const PrefixPage> pages, const UseRecord& record, bool is_use) {
  assert(tokens.size() == pages.size() * kPageTokens);
  Node* node = root_.get();
  while (!pages.empty()) {
    Node* child = node->child_with_page(tokens);
    if (!child) break;
    const int64_t n_common = common_tokens(child->tokens, tokens) / kPageTokens;
    int64_t n = 0;
    while (n < n_common &&
           (child->pages[static_cast<size_t>(n)].is_there() || pages[static_cast<size_t>(n)].is_there()))
      ++n;
    if (n == 0) return;
    if (is_use || (n == n_common && n < std::ssize(pages))) child = &split(*child, n);
    fill(*child, pages.first(static_cast<size_t>(n)));
    if (is_use) touch(*child, 0);
    if (n < n_common) return;
    tokens = from_page(tokens, n);
    pages = pages.subspan(static_cast<size_t>(n));
    node = child;
  }
  const int64_t n_new = std::ranges::find_if_not(pages, &PrefixPage::is_there) - pages.begin();
  if (n_new == 0) return;
  Node& leaf = append(*node, tokens.first(static_cast<size_t>(n_new * kPageTokens)), record);
  fill(leaf, pages.first(static_cast<size_t>(n_new)));
}

std::unique_ptr<PrefixTree::Node> PrefixTree::make_node() const {
  auto node = std::make_unique<Node>();
  Candidates alone;
  node->candidate = alone.extract(alone.emplace().first);
  return node;
}

// A leaf whose pages have no parts yet.
PrefixTree::Node& PrefixTree::append(Node& parent, Tokens tokens, const UseRecord& record) {
  auto leaf = make_node();
  leaf->parent = &parent;
  leaf->first_page_number = parent.first_page_number + parent.n_pages();
  leaf->tokens.assign(tokens.begin(), tokens.end());
  leaf->pages.resize(tokens.size() / kPageTokens);
  leaf->use = record;
  Node& made = **parent.children.insert(std::move(leaf)).first;
  n_pages_ += made.n_pages();
  return made;
}

// Gives the node's first pages the parts that they lack.
void PrefixTree::fill(Node& node, std::span<const PrefixPage> pages) {
  for (size_t i = 0; i < pages.size(); ++i) {
    PrefixPage& page = node.pages[i];
    if (!page.pool.is_there() && pages[i].pool.is_there()) {
      pins_.retain(pages[i].pool);
      page.pool = pages[i].pool;
      ++node.n_pool, ++n_pool_pages_, ++n_joined_;
    }
    if (!page.disk.is_there() && pages[i].disk.is_there()) page.disk = pages[i].disk, ++n_disk_pages_;
  }
  settle(node);
}

// Makes the first pages of a node a node of their own, its parent, and returns that. The node itself keeps
// its end: so its locks still hold the deepest node of the path. Nothing to do when the node ends
// there. All that takes memory comes before anything is changed.
PrefixTree::Node& PrefixTree::split(Node& node, int64_t n_pages) {
  if (n_pages == node.n_pages()) return node;
  const auto tokens_end = node.tokens.begin() + n_pages * kPageTokens;
  const auto pages_end = node.pages.begin() + n_pages;
  Node::Children alone;
  Node& head = **alone.insert(make_node()).first;
  head.tokens.assign(node.tokens.begin(), tokens_end);
  head.pages.assign(node.pages.begin(), pages_end);

  head.parent = node.parent;
  head.first_page_number = node.first_page_number;
  head.use = node.use;
  head.n_locks = node.n_locks;
  auto lower = node.parent->children.extract(node.parent->children.find(Tokens(node.tokens)));
  node.tokens.erase(node.tokens.begin(), tokens_end);
  node.pages.erase(node.pages.begin(), pages_end);
  head.n_pool =
      std::ranges::count_if(head.pages, [](const PrefixPage& page) { return page.pool.is_there(); });
  node.n_pool -= head.n_pool;
  head.is_counted = std::exchange(node.is_counted, false);
  node.first_page_number += n_pages;
  node.parent->children.insert(alone.extract(alone.begin()));
  node.parent = &head;
  head.children.insert(std::move(lower));
  settle(node);
  settle(head);
  return head;
}

void PrefixTree::lock(Node& end) {
  for (Node* node = &end; node->parent; node = node->parent)
    if (node->n_locks++ == 0) update_candidate(*node);
}

// The holes that the lock kept go. The uppermost takes the others with it.
void PrefixTree::unlock(Node& end) {
  Node* first_with_hole = nullptr;
  for (Node* node = &end; node->parent; node = node->parent) {
    if (--node->n_locks > 0) continue;
    update_candidate(*node);
    if (node->hole() < node->n_pages()) first_with_hole = node;
  }
  if (first_with_hole) prune(*first_with_hole);
}

void PrefixTree::forget_segment(int64_t segment) { forget_segment(*root_, segment); }

// Ends first: what leaves takes no node with it that is still to be visited.
void PrefixTree::forget_segment(Node& node, int64_t segment) {
  for (auto child = node.children.begin(); child != node.children.end();) forget_segment(**child++, segment);
  for (PrefixPage& page : node.pages)
    if (page.disk.segment == segment) page.disk = {}, --n_disk_pages_;
  prune(node);
}

// Drops a node from its first hole on, and what is behind it.
void PrefixTree::prune(Node& node) {
  const int64_t hole = node.hole();
  if (node.n_locks > 0 || hole == node.n_pages()) return;
  if (hole == 0) return drop(node);
  while (!node.children.empty()) drop(**node.children.begin());
  clear(node, hole);
  settle(node);
}

// Takes a node and all below it out of the tree, leaf by leaf.
void PrefixTree::drop(Node& node) {
  Node& parent = *node.parent;
  for (Node* leaf = &node; leaf != &parent;) {
    while (!leaf->children.empty()) leaf = leaf->children.begin()->get();
    Node* const above = leaf->parent;
    above->n_pool_children -= leaf->is_counted ? 1 : 0;
    const std::unique_ptr<Node> gone = above->take_child(*leaf);
    clear(*gone, 0);
    leaf = above;
  }
  settle(parent);
}

// Gives back what the tree holds for a node's pages from `first` on, and forgets their tokens.
void PrefixTree::clear(Node& node, int64_t first) {
  assert(node.n_locks == 0);
  n_pages_ -= node.n_pages() - first;
  release_pool(node, first);
  for (; node.n_pages() > first; node.pages.pop_back()) n_disk_pages_ -= node.pages.back().disk.is_there();
  node.tokens.resize(node.pages.size() * kPageTokens);
  update_candidate(node);
  ++n_removals_;
}

int64_t PrefixTree::evict_pool(int64_t n_pages, const BeforeLeaving& before) {
  const int64_t n_at_first = n_pool_pages_;
  while (n_at_first - n_pool_pages_ < n_pages && !candidates_.empty())
    evict_tail(*candidates_.begin()->second, n_pages - (n_at_first - n_pool_pages_), before);
  return n_at_first - n_pool_pages_;
}

// The pages of a node leave in one go, for they have one key. `before` may have segments forgotten: the lock
// keeps the node until its pages are dealt with, and its end drops those that are then nowhere.
void PrefixTree::evict_tail(Node& node, int64_t n_pages, const BeforeLeaving& before) {
  lock(node);
  const Lock held(&node, {this});
  int64_t first = node.n_pages();
  bool is_lost = false;
  for (n_pages = std::min(n_pages, node.n_pool); n_pages > 0;) {
    const PrefixPage& page = node.pages[static_cast<size_t>(--first)];
    if (!page.pool.is_there()) continue;
    is_lost = is_lost || !page.disk.is_there();
    --n_pages;
  }
  if (before && is_lost) {
    const std::vector<int32_t> tokens = node.path_tokens();
    before(tokens);
    assert(node.first_page_number * kPageTokens + std::ssize(node.tokens) == std::ssize(tokens) &&
           node.n_pool_children == 0);
  }
  release_pool(node, first);
  settle(node);
}

// Those of a node from `first` on, the last one first.
void PrefixTree::release_pool(Node& node, int64_t first) {
  for (int64_t i = node.n_pages() - 1; i >= first; --i) {
    PrefixPage& page = node.pages[static_cast<size_t>(i)];
    if (!page.pool.is_there()) continue;
    pins_.release(std::exchange(page.pool, {}));
    --node.n_pool, --n_pool_pages_;
  }
}

std::vector<PageRun> PrefixTree::unstored(Tokens tokens) const {
  std::vector<PageRun> runs;
  for (const Node* node = root_->child_with_page(tokens); node;) {
    const int64_t n_common = common_tokens(node->tokens, tokens) / kPageTokens;
    for (int64_t i = 0; i < n_common; ++i) {
      const PrefixPage& page = node->pages[static_cast<size_t>(i)];
      if (page.disk.is_there()) continue;
      if (!page.pool.is_there()) return runs;
      const int64_t number = node->first_page_number + i;
      if (runs.empty() || runs.back().first_page + runs.back().n_pages < number) runs.push_back({number, 0});
      ++runs.back().n_pages;
    }
    tokens = from_page(tokens, n_common);
    node = n_common == node->n_pages() ? node->child_with_page(tokens) : nullptr;
  }
  return runs;
}

void PrefixTree::touch(Node& node, uint64_t n_hits) {
  node.use.last_use = time_;
  node.use.n_hits += n_hits;
  update_candidate(node);
}

// After pool pages of a node came or went: tells its ancestors, as far up as that changes anything.
void PrefixTree::settle(Node& changed) {
  for (Node* node = &changed; node->parent; node = node->parent) {
    update_candidate(*node);
    if (node->is_counted == node->holds_pool()) return;
    node->is_counted = node->holds_pool();
    node->parent->n_pool_children += node->is_counted ? 1 : -1;
  }
}

void PrefixTree::update_candidate(Node& node) {
  std::optional<EvictionKey> key;
  if (node.n_locks == 0 && node.n_pool > 0 && node.n_pool_children == 0)
    key = eviction_key(policy_, node.use);
  if (key == node.candidate_key) return;
  if (node.candidate_key) node.candidate = candidates_.extract({*node.candidate_key, &node});
  node.candidate_key = key;
  if (!key) return;
  node.candidate.value() = {*key, &node};
  candidates_.insert(std::move(node.candidate));
}

}  // namespace dsv32
