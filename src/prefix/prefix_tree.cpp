#include "prefix/prefix_tree.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <optional>

namespace dsv32 {

namespace {

using Tokens = std::span<const int32_t>;

Tokens first_page(Tokens tokens) { return tokens.first(std::min(tokens.size(), size_t{kPageTokens})); }

int64_t common_tokens(Tokens page, Tokens prompt) {
  return std::ranges::mismatch(page, prompt).in1 - page.begin();
}

}  // namespace

struct PrefixTree::Node : std::enable_shared_from_this<Node> {
  // Lookups compare the first page of any tokens, or fewer.
  struct ByTokens {
    using is_transparent = void;
    static Tokens key(const std::shared_ptr<Node>& node) { return node->tokens; }
    static Tokens key(Tokens tokens) { return first_page(tokens); }
    bool operator()(const auto& a, const auto& b) const {
      return std::ranges::lexicographical_compare(key(a), key(b));
    }
  };

  Node* parent = nullptr;
  int64_t n_pages = 0;  // of the path up to here
  std::array<int32_t, kPageTokens> tokens{};
  PrefixPage page;
  UseRecord use;
  std::set<std::shared_ptr<Node>, ByTokens> children;
  int64_t n_locks = 0;
  int64_t n_pool_children = 0;               // children with a pool part, or with such children
  bool is_counted = false;                   // in the parent's n_pool_children
  std::optional<EvictionKey> candidate_key;  // as it stands in candidates_
  Candidates::node_type candidate;           // its set node while not in the set: insertion never fails

  // The child with the first page of `prompt`, or none.
  Node* child(Tokens prompt) const {
    const auto found = children.find(prompt);
    return found == children.end() ? nullptr : found->get();
  }
  Node* best_child(Tokens prompt) const;
  std::vector<int32_t> path_tokens() const;  // from the root to the end of this node
};

// The child that shares most tokens is one of the two neighbours of the prompt's place among the children. A
// hole cannot be matched and is skipped.
PrefixTree::Node* PrefixTree::Node::best_child(Tokens prompt) const {
  const auto is_open = [](const auto& child) { return child->page.is_there(); };
  const auto place = children.lower_bound(prompt);
  const auto right = std::find_if(place, children.end(), is_open);
  const auto left = std::find_if(std::make_reverse_iterator(place), children.rend(), is_open);
  Node* const a = right == children.end() ? nullptr : right->get();
  Node* const b = left == children.rend() ? nullptr : left->get();
  if (!a || !b) return a ? a : b;
  const auto worth = [&](const Node& child) {
    return std::pair(common_tokens(child.tokens, prompt), child.page.pool.is_there());
  };
  return worth(*a) < worth(*b) ? b : a;
}

std::vector<int32_t> PrefixTree::Node::path_tokens() const {
  std::vector<int32_t> path(static_cast<size_t>(n_pages * kPageTokens));
  for (const Node* node = this; node->parent; node = node->parent)
    std::ranges::copy(node->tokens, path.begin() + node->parent->n_pages * kPageTokens);
  return path;
}

PrefixTree::PrefixTree(PagePins& pins, EvictionPolicy policy)
    : pins_(pins), policy_(policy), root_(std::make_shared<Node>()) {}

PrefixTree::~PrefixTree() {
  while (!root_->children.empty()) drop(**root_->children.begin());
}

PrefixTree::Match PrefixTree::match(Tokens tokens) const {
  Match found;
  found.node = root_.get();
  found.n_removals = n_removals_;
  for (int64_t n = kPageTokens; n == kPageTokens; tokens = tokens.subspan(static_cast<size_t>(n))) {
    Node* const child = found.node->best_child(tokens);
    n = child ? common_tokens(child->tokens, tokens) : 0;
    if (n == 0) break;
    found.pages.push_back(child->page);
    found.n_tokens += n;
    found.node = child;
  }
  return found;
}

int64_t PrefixTree::Match::n_in_pool() const {
  const auto is_there = [](const PrefixPage& page) { return page.pool.is_there(); };
  return std::ranges::find_if_not(pages, is_there) - pages.begin();
}

std::vector<int32_t> PrefixTree::tokens_of(const Match& match) const { return node_of(match).path_tokens(); }

void PrefixTree::use(const Match& match) {
  ++time_;
  for (Node* node = &node_of(match); node->parent; node = node->parent) touch(*node, 1);
}

PrefixTree::Lock PrefixTree::lock(const Match& match) {
  Node& node = node_of(match);
  lock(node);
  return Lock(&node, {this});
}

PrefixTree::Node& PrefixTree::node_of(const Match& match) const {
  assert(match.n_removals == n_removals_);
  return *match.node;
}

void PrefixTree::insert(Tokens tokens, std::span<const PrefixPage> pages) {
  ++time_;
  add(*root_, tokens, pages, {.last_use = time_, .created = time_, .n_hits = 0}, true);
}

void PrefixTree::attach_segment(Tokens tokens, int64_t first_page, const Hash256& segment,
                                const UseRecord& use) {
  attach(*root_, tokens, first_page, segment, use);
}

PrefixTree::PageRef PrefixTree::attach_behind(const PageRef& behind, int64_t n_back, Tokens tokens,
                                              const Hash256& segment, const UseRecord& use) {
  const std::shared_ptr<Node> last = behind.lock();
  if (!last) return {};
  Node* from = last.get();
  for (; n_back > 0; --n_back) from = from->parent;
  return attach(*from, tokens, 0, segment, use).weak_from_this();
}

PrefixTree::Node& PrefixTree::attach(Node& from, Tokens tokens, int64_t first_page, const Hash256& segment,
                                     const UseRecord& use) {
  assert(first_page >= 0);
  time_ = std::max({time_, use.last_use, use.created});
  std::vector<PrefixPage> pages(tokens.size() / kPageTokens);
  for (int64_t i = first_page; i < std::ssize(pages); ++i)
    pages[static_cast<size_t>(i)].disk = {segment, static_cast<int32_t>(i - first_page)};
  return add(from, tokens, pages, use, false);
}

// Returns the last node that was found or added.
PrefixTree::Node& PrefixTree::add(Node& from, Tokens tokens, std::span<const PrefixPage> pages,
                                  const UseRecord& record, bool is_use) {
  assert(tokens.size() == pages.size() * kPageTokens);
  Node* node = &from;
  for (const PrefixPage& page : pages) {
    Node* child = node->child(tokens);
    if (!page.is_there() && !(child && child->page.is_there())) break;
    if (!child) child = &append(*node, first_page(tokens), record);
    fill(*child, page);
    if (is_use) touch(*child, 0);
    tokens = tokens.subspan(kPageTokens);
    node = child;
  }
  return *node;
}

// Adds a leaf without parts. Allocates everything before it changes anything.
PrefixTree::Node& PrefixTree::append(Node& parent, Tokens tokens, const UseRecord& record) {
  auto leaf = std::make_shared<Node>();
  leaf->parent = &parent;
  leaf->n_pages = parent.n_pages + 1;
  std::ranges::copy(tokens, leaf->tokens.begin());
  leaf->use = record;
  Candidates alone;
  leaf->candidate = alone.extract(alone.emplace().first);
  Node& made = **parent.children.insert(std::move(leaf)).first;
  ++n_pages_;
  return made;
}

// Gives the node the parts that it lacks.
void PrefixTree::fill(Node& node, const PrefixPage& page) {
  if (!node.page.disk.is_there() && page.disk.is_there()) node.page.disk = page.disk, ++n_disk_pages_;
  if (node.page.pool.is_there() || !page.pool.is_there()) return;
  pins_.retain(page.pool);
  node.page.pool = page.pool;
  ++n_pool_pages_, ++n_joined_;
  settle(node);
}

void PrefixTree::lock(Node& end) {
  for (Node* node = &end; node->parent; node = node->parent)
    if (node->n_locks++ == 0) update_candidate(*node);
}

// Drops the holes that only this lock kept. Dropping the uppermost drops the others.
void PrefixTree::unlock(Node& end) {
  Node* first_hole = nullptr;
  for (Node* node = &end; node->parent; node = node->parent) {
    if (--node->n_locks > 0) continue;
    update_candidate(*node);
    if (!node->page.is_there()) first_hole = node;
  }
  if (first_hole) drop(*first_hole);
}

void PrefixTree::forget_segment(const Hash256& segment) { forget_segment(*root_, segment); }

// Visits children first, so that a dropped node never takes unvisited nodes with it.
void PrefixTree::forget_segment(Node& node, const Hash256& segment) {
  for (auto child = node.children.begin(); child != node.children.end();) forget_segment(**child++, segment);
  DiskPage& disk = node.page.disk;
  if (disk.is_there() && disk.segment == segment) disk = {}, --n_disk_pages_;
  if (node.parent) prune(node);
}

// Drops a hole that no lock keeps.
void PrefixTree::prune(Node& node) {
  if (node.n_locks == 0 && !node.page.is_there()) drop(node);
}

// Takes a node and all below it out of the tree, leaf by leaf.
void PrefixTree::drop(Node& node) {
  Node* const parent = node.parent;
  for (Node* leaf = &node; leaf != parent;) {
    while (!leaf->children.empty()) leaf = leaf->children.begin()->get();
    assert(leaf->n_locks == 0);
    release_pool(*leaf);
    n_disk_pages_ -= leaf->page.disk.is_there();
    --n_pages_, ++n_removals_;
    Node* const above = leaf->parent;
    above->children.erase(above->children.find(Tokens(leaf->tokens)));
    leaf = above;
  }
}

int64_t PrefixTree::evict_pool(int64_t n_pages, const BeforeLeaving& before) {
  const int64_t n_at_first = n_pool_pages_;
  while (n_at_first - n_pool_pages_ < n_pages && !candidates_.empty())
    evict(*candidates_.begin()->second, before);
  return n_at_first - n_pool_pages_;
}

// `before` may forget segments: the lock keeps the node until its page is released; its end drops the holes.
void PrefixTree::evict(Node& node, const BeforeLeaving& before) {
  Lock held;
  if (before && !node.page.disk.is_there()) {
    lock(node);
    held = Lock(&node, {this});
    before(node.path_tokens());
  }
  release_pool(node);
  if (!held) prune(node);
}

void PrefixTree::release_pool(Node& node) {
  if (!node.page.pool.is_there()) return;
  pins_.release(std::exchange(node.page.pool, {}));
  --n_pool_pages_;
  settle(node);
}

std::vector<PageRun> PrefixTree::unstored(Tokens tokens) const {
  std::vector<PageRun> runs;
  const Node* node = root_.get();
  for (; tokens.size() >= kPageTokens && (node = node->child(tokens)); tokens = tokens.subspan(kPageTokens)) {
    if (node->page.disk.is_there()) continue;
    if (!node->page.pool.is_there()) break;
    const int64_t number = node->parent->n_pages;
    if (runs.empty() || runs.back().first_page + runs.back().n_pages < number) runs.push_back({number, 0});
    ++runs.back().n_pages;
  }
  return runs;
}

void PrefixTree::touch(Node& node, uint64_t n_hits) {
  node.use.last_use = time_;
  node.use.n_hits += n_hits;
  update_candidate(node);
}

// After a node's pool part came or went: updates its ancestors' counts, as far up as they change.
void PrefixTree::settle(Node& changed) {
  for (Node* node = &changed; node->parent; node = node->parent) {
    update_candidate(*node);
    const bool holds_pool = node->page.pool.is_there() || node->n_pool_children > 0;
    if (node->is_counted == holds_pool) return;
    node->is_counted = holds_pool;
    node->parent->n_pool_children += holds_pool ? 1 : -1;
  }
}

void PrefixTree::update_candidate(Node& node) {
  std::optional<EvictionKey> key;
  if (node.n_locks == 0 && node.page.pool.is_there() && node.n_pool_children == 0)
    key = eviction_key(policy_, node.use);
  if (key == node.candidate_key) return;
  if (node.candidate_key) node.candidate = candidates_.extract({*node.candidate_key, &node});
  node.candidate_key = key;
  if (!key) return;
  node.candidate.value() = {*key, &node};
  candidates_.insert(std::move(node.candidate));
}

}  // namespace dsv32
