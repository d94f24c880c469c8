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

struct PrefixTree::Node {
  // Lookups compare the first page of any tokens, or fewer.
  struct ByTokens {
    using is_transparent = void;
    static Tokens key(const std::unique_ptr<Node>& node) { return node->tokens; }
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
  std::set<std::unique_ptr<Node>, ByTokens> children;
  int64_t n_locks = 0;
  std::optional<EvictionKey> candidate_key;  // as it stands in candidates_
  Candidates::node_type candidate;           // its set node while not in the set: insertion never fails

  // The child with the first page of `prompt`, or none.
  Node* child(Tokens prompt) const {
    const auto found = children.find(prompt);
    return found == children.end() ? nullptr : found->get();
  }
  Node* best_child(Tokens prompt) const;
};

// The child that shares most tokens is one of the two neighbours of the prompt's place among the children.
PrefixTree::Node* PrefixTree::Node::best_child(Tokens prompt) const {
  const auto right = children.lower_bound(prompt);
  Node* const a = right == children.end() ? nullptr : right->get();
  Node* const b = right == children.begin() ? nullptr : std::prev(right)->get();
  if (!a || !b) return a ? a : b;
  return common_tokens(a->tokens, prompt) < common_tokens(b->tokens, prompt) ? b : a;
}

PrefixTree::PrefixTree(PagePins& pins, EvictionPolicy policy)
    : pins_(pins), policy_(policy), root_(std::make_unique<Node>()) {}

PrefixTree::~PrefixTree() {
  for (Node* node = root_.get(); node->parent || !node->children.empty();)
    node = node->children.empty() ? &drop(*node) : node->children.begin()->get();
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

std::vector<int32_t> PrefixTree::tokens_of(const Match& match) const {
  const Node* node = &node_of(match);
  std::vector<int32_t> tokens(static_cast<size_t>(node->n_pages * kPageTokens));
  for (; node->parent; node = node->parent)
    std::ranges::copy(node->tokens, tokens.begin() + node->parent->n_pages * kPageTokens);
  return tokens;
}

void PrefixTree::use(const Match& match) {
  ++time_;
  for (Node* node = &node_of(match); node->parent; node = node->parent) touch(*node, 1);
}

PrefixTree::Lock PrefixTree::lock(const Match& match) {
  Node& end = node_of(match);
  for (Node* node = &end; node->parent; node = node->parent)
    if (node->n_locks++ == 0) update_candidate(*node);
  return Lock(&end, {this});
}

void PrefixTree::unlock(Node& end) {
  for (Node* node = &end; node->parent; node = node->parent)
    if (--node->n_locks == 0) update_candidate(*node);
}

PrefixTree::Node& PrefixTree::node_of(const Match& match) const {
  assert(match.n_removals == n_removals_);
  return *match.node;
}

void PrefixTree::insert(Tokens tokens, std::span<const PoolPage> pages) {
  assert(tokens.size() == pages.size() * kPageTokens);
  ++time_;
  Node* node = root_.get();
  for (const PoolPage& page : pages) {
    Node* child = node->child(tokens);
    if (!child && !page.is_there()) return;
    if (!child) child = &append(*node, first_page(tokens), page);
    touch(*child, 0);
    tokens = tokens.subspan(kPageTokens);
    node = child;
  }
}

// Allocates everything before it changes anything.
PrefixTree::Node& PrefixTree::append(Node& parent, Tokens tokens, const PoolPage& page) {
  auto leaf = std::make_unique<Node>();
  leaf->parent = &parent;
  leaf->n_pages = parent.n_pages + 1;
  std::ranges::copy(tokens, leaf->tokens.begin());
  leaf->page = {page, next_hash(parent.page.hash, tokens)};
  leaf->use = {.last_use = time_, .created = time_, .n_hits = 0};
  Candidates alone;
  leaf->candidate = alone.extract(alone.emplace().first);
  Node& made = **parent.children.insert(std::move(leaf)).first;
  pins_.retain(page);
  ++n_joined_;
  update_candidate(parent);
  return made;
}

// Takes a leaf out of the tree, and returns its parent.
PrefixTree::Node& PrefixTree::drop(Node& leaf) {
  assert(leaf.n_locks == 0);
  Node& parent = *leaf.parent;
  if (leaf.candidate_key) candidates_.erase({*leaf.candidate_key, &leaf});
  pins_.release(leaf.page.pool);
  ++n_removals_;
  parent.children.erase(parent.children.find(Tokens(leaf.tokens)));
  update_candidate(parent);
  return parent;
}

int64_t PrefixTree::evict(int64_t n_pages, const BeforeLeaving& before) {
  int64_t n = 0;
  for (; n < n_pages && !candidates_.empty(); ++n) {
    Node& leaf = *candidates_.begin()->second;
    Match path;
    path.node = &leaf, path.n_removals = n_removals_;
    if (before) before(leaf.page.hash, tokens_of(path));
    drop(leaf);
  }
  return n;
}

void PrefixTree::touch(Node& node, uint64_t n_hits) {
  node.use.last_use = time_;
  node.use.n_hits += n_hits;
  update_candidate(node);
}

void PrefixTree::update_candidate(Node& node) {
  std::optional<EvictionKey> key;
  if (node.parent && node.n_locks == 0 && node.children.empty()) key = eviction_key(policy_, node.use);
  if (key == node.candidate_key) return;
  if (node.candidate_key) node.candidate = candidates_.extract({*node.candidate_key, &node});
  node.candidate_key = key;
  if (!key) return;
  node.candidate.value() = {*key, &node};
  candidates_.insert(std::move(node.candidate));
}

}  // namespace dsv32
