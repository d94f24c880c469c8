#include "constrain/automaton.h"

#include <algorithm>

#include "base/error.h"

namespace dsv32 {
namespace {

constexpr int32_t kHasMember = 1 << 30;  // in `b` of a `members` node: one of them has been read

int32_t counted(int64_t n) { return static_cast<int32_t>(std::min<int64_t>(n, kHasMember - 1)); }

// How much of `mark` is matched after `n_matched` of its bytes and then `byte`.
int32_t next_match(std::string_view mark, int32_t n_matched, uint8_t byte) {
  const std::string text =
      std::string(mark.substr(0, static_cast<size_t>(n_matched))) + static_cast<char>(byte);
  size_t n = std::min(text.size(), mark.size());
  while (!text.ends_with(mark.substr(0, n))) --n;
  return static_cast<int32_t>(n);
}

}  // namespace

// --- Making the grammar

Automaton::NodeId Automaton::add(Node node) {
  if (n_nodes() == kMostNodes)
    fail(ErrorKind::usage, "it needs more than 10,000 states, which is not supported");
  work_.take(static_cast<int64_t>(sizeof(Node) + node.bytes.size() + sizeof(Branch) * node.tree.size() +
                                  sizeof(NodeId) * node.parts.size()));
  nodes_.push_back(std::move(node));
  return static_cast<NodeId>(nodes_.size() - 1);
}

Automaton::NodeId Automaton::one_of(std::vector<std::string> texts) {
  struct Part {
    size_t first, last, depth;  // of the texts, those that go through a branch
  };
  std::ranges::sort(texts);
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  Node node{.kind = Node::Kind::one_of, .tree = {{}}};
  std::vector<Part> parts{{0, texts.size(), 0}};
  for (size_t i = 0; i < parts.size(); ++i) {
    auto [first, last, depth] = parts[i];
    work_.spend(static_cast<int64_t>(last - first));
    if (first < last && texts[first].size() == depth) node.tree[i].may_end = true, ++first;
    node.tree[i].first = static_cast<int32_t>(parts.size());
    for (; first < last; first = parts.back().last, ++node.tree[i].n) {
      size_t end = first + 1;
      while (end < last && texts[end][depth] == texts[first][depth]) ++end;
      parts.push_back({first, end, depth + 1});
      node.tree.push_back({.byte = static_cast<uint8_t>(texts[first][depth])});
    }
  }
  return add(std::move(node));
}
Automaton::NodeId Automaton::sequence(std::vector<NodeId> parts) {
  return add({.kind = Node::Kind::sequence, .parts = std::move(parts)});
}
Automaton::NodeId Automaton::choice(std::vector<NodeId> parts) {
  return parts.size() == 1 ? parts.front() : add({.kind = Node::Kind::choice, .parts = std::move(parts)});
}
Automaton::NodeId Automaton::quoted(Terms::Id text) {
  return sequence({literal("\""), add({.kind = Node::Kind::quoted, .text = text})});
}
Automaton::NodeId Automaton::bare(Terms::Id text) { return add({.kind = Node::Kind::bare, .text = text}); }

Automaton::NodeId Automaton::list(std::vector<NodeId> items, NodeId rest, NodeId separator, int64_t least,
                                  int64_t most) {
  return add({.kind = Node::Kind::list,
              .parts = std::move(items),
              .rest = rest,
              .separator = separator,
              .least = least,
              .most = most});
}

Automaton::NodeId Automaton::members(std::vector<Member> members, NodeId others, NodeId separator) {
  Node node{.kind = Node::Kind::members, .rest = others, .separator = separator};
  for (const Member& member : members) {
    node.parts.push_back(member.node);
    node.required.push_back(member.is_required);
  }
  return add(std::move(node));
}

Automaton::NodeId Automaton::up_to(std::string mark) {
  return add({.kind = Node::Kind::up_to, .bytes = std::move(mark)});
}

Automaton::NodeId Automaton::placeholder() { return add({.kind = Node::Kind::placeholder}); }
void Automaton::set(NodeId placeholder, NodeId node) {
  nodes_[static_cast<size_t>(placeholder)].parts = {node};
}

bool Automaton::has_document(const Node& node) const {
  const auto has = [&](NodeId id) { return id >= 0 && nodes_[static_cast<size_t>(id)].has_document; };
  switch (node.kind) {
    case Node::Kind::one_of: return node.tree.front().may_end || node.tree.front().n > 0;
    case Node::Kind::up_to: return true;
    case Node::Kind::sequence: return std::ranges::all_of(node.parts, has);
    case Node::Kind::placeholder:
    case Node::Kind::choice: return std::ranges::any_of(node.parts, has);
    case Node::Kind::quoted:
    case Node::Kind::bare: return node.has_document;  // asked when prune() begins
    case Node::Kind::list: {
      const auto n_own = std::min(node.least, std::ssize(node.parts));
      return node.least <= node.most && std::all_of(node.parts.begin(), node.parts.begin() + n_own, has) &&
             (node.least == n_own || has(node.rest));
    }
    case Node::Kind::members:
      for (size_t i = 0; i < node.parts.size(); ++i)
        if (node.required[i] && !has(node.parts[i])) return false;
      return true;
  }
  return false;
}

// Removes the parts without a document.
void Automaton::cut(Node& node) const {
  const auto has = [&](NodeId id) { return id >= 0 && nodes_[static_cast<size_t>(id)].has_document; };
  if (node.kind == Node::Kind::choice) std::erase_if(node.parts, [&](NodeId id) { return !has(id); });
  if (node.kind == Node::Kind::list) {
    const int64_t n_good = std::ranges::find_if_not(node.parts, has) - node.parts.begin();
    if (n_good < std::ssize(node.parts) || !has(node.rest)) node.most = std::min(node.most, n_good);
  }
  if (node.kind != Node::Kind::members) return;
  if (!has(node.rest)) node.rest = -1;
  for (size_t i = node.parts.size(); i-- > 0;) {
    if (has(node.parts[i])) continue;
    node.parts.erase(node.parts.begin() + static_cast<int64_t>(i));
    node.required.erase(node.required.begin() + static_cast<int64_t>(i));
  }
}

bool Automaton::prune(NodeId root) {
  for (Node& node : nodes_)
    if (node.kind == Node::Kind::quoted || node.kind == Node::Kind::bare)
      node.has_document = terms_.is_possible(node.text);
  for (bool has_changed = true; has_changed;) {
    has_changed = false;
    for (auto node = nodes_.rbegin(); node != nodes_.rend(); ++node) {  // parts mostly come later
      work_.spend(std::ssize(node->parts) + 2);
      if (!node->has_document && has_document(*node)) node->has_document = has_changed = true;
    }
  }
  for (Node& node : nodes_)
    if (node.has_document) cut(node);
  forget_states();
  return nodes_[static_cast<size_t>(root)].has_document;
}

// --- Reading

size_t Automaton::CellHash::operator()(const Cell& cell) const {
  uint64_t hash = static_cast<uint64_t>(cell.kind) << 1 | cell.is_quoted;
  for (const int32_t part : {cell.a, cell.b, cell.tail})
    hash = (hash ^ static_cast<uint32_t>(part)) * 0x9e3779b97f4a7c15u, hash ^= hash >> 29;
  return hash;
}

Automaton::CellId Automaton::cell(const Cell& wanted) {
  const auto [found, is_new] = cell_ids_.try_emplace(wanted, static_cast<CellId>(cells_.size()));
  if (is_new) cells_.push_back(wanted), work_.take(100);
  return found->second;
}

Automaton::CellId Automaton::text_cell(Terms::Id term, bool is_quoted, Tail tail) {
  return cell({is_quoted ? Cell::Kind::quoted : Cell::Kind::bare, is_quoted, term, 0, tail});
}

std::span<const Automaton::CellId> Automaton::cells_of(const Tail& tail) const {
  if (tail >= 0) return {&tail, 1};
  return *tail_cells_[static_cast<size_t>(~tail)];
}

Automaton::Tail Automaton::tail_of(std::vector<CellId> cells) {
  std::ranges::sort(cells);
  cells.erase(std::unique(cells.begin(), cells.end()), cells.end());
  if (cells.size() == 1) return cells.front();
  const auto [found, is_new] = tails_.try_emplace(std::move(cells), ~static_cast<Tail>(tails_.size()));
  if (is_new) tail_cells_.push_back(&found->first), work_.take(100 + 4 * std::ssize(found->first));
  return found->second;
}

std::vector<Automaton::CellId> Automaton::begin(NodeId root) {
  return opened({cell({Cell::Kind::node, false, root, 0, kEnd})});
}

// Whether the next byte is read here, rather than by what is in it or behind it.
bool Automaton::is_reading(const Cell& at) const {
  if (at.kind != Cell::Kind::node) return true;
  const Node& node = nodes_[static_cast<size_t>(at.a)];
  return node.kind == Node::Kind::up_to ||
         (node.kind == Node::Kind::one_of && node.tree[static_cast<size_t>(at.b)].n > 0);
}

// Whether what follows may be next without a byte.
bool Automaton::may_pass(const Cell& at) const {
  if (at.kind != Cell::Kind::node) return at.kind == Cell::Kind::bare && terms_.takes_empty(at.a);
  const Node& node = nodes_[static_cast<size_t>(at.a)];
  const auto done = static_cast<size_t>(at.b & ~kHasMember);
  switch (node.kind) {
    case Node::Kind::one_of: return node.tree[done].may_end;
    case Node::Kind::sequence: return done == node.parts.size();
    case Node::Kind::list: return at.b >= node.least;
    case Node::Kind::members:
      return std::find(node.required.begin() + static_cast<int64_t>(done), node.required.end(), true) ==
             node.required.end();
    default: return false;
  }
}

// The cells that read the next byte, ascending, among all that may be next where one of `cells` is. The end
// of the document is one of them. Cells with one head become one with all their tails.
std::vector<Automaton::CellId> Automaton::opened(const std::vector<CellId>& cells) {
  openings_.clear(), next_.clear();
  may_end_ = false;
  for (const CellId id : cells) enter(id);
  while (!to_do_.empty()) {
    const auto [at, tail] = to_do_.back();
    to_do_.pop_back();
    if (!tail) {
      open(at);
      continue;
    }
    for (const size_t follower : std::vector(openings_[at].followers)) add_tail(follower, *tail);
    if (openings_[at].is_next && may_pass(openings_[at].head)) enter(*tail);
  }
  std::vector<CellId> reading;
  if (may_end_) reading.push_back(kEnd);
  for (size_t i = 0; i < openings_.size(); ++i)
    if (openings_[i].is_next && is_reading(openings_[i].head)) reading.push_back(made(i));
  std::ranges::sort(reading);
  return reading;
}

// The opening of what may be next.
size_t Automaton::next_at(const Cell& head) {
  const auto [found, is_new] =
      next_.try_emplace({head.kind, head.is_quoted, head.a, head.b, 0}, openings_.size());
  if (is_new) openings_.push_back({head, true}), to_do_.push_back({found->second, std::nullopt});
  return found->second;
}

// The opening of what follows a part of the opening `like`, and has its tails.
size_t Automaton::behind(const Cell& head, size_t like) {
  openings_.push_back({head, false});
  follow(openings_.size() - 1, like);
  return openings_.size() - 1;
}

// What follows may be next.
void Automaton::enter(Tail tail) {
  if (tail == kEnd) {
    may_end_ = true;
  } else if (tail >= 0) {
    const Cell at = cells_[static_cast<size_t>(tail)];
    const size_t next = next_at(at);
    for (const CellId id : cells_of(at.tail)) add_tail(next, id);
  } else {
    follow(next_at(Cell(openings_[static_cast<size_t>(~tail)].head)), static_cast<size_t>(~tail));
  }
}

void Automaton::follow(size_t follower, size_t opening) {
  openings_[opening].followers.push_back(follower);
  for (const Tail tail : std::vector(openings_[opening].tails)) add_tail(follower, tail);
}

void Automaton::add_tail(size_t opening, Tail tail) {
  std::vector<Tail>& tails = openings_[opening].tails;
  work_.spend(4 + std::ssize(tails) / 16);
  if (std::ranges::find(tails, tail) != tails.end()) return;
  tails.push_back(tail);
  to_do_.push_back({opening, tail});
}

// The cell of an opening whose tails are all there.
Automaton::CellId Automaton::made(size_t opening) {
  if (openings_[opening].made >= 0) return openings_[opening].made;
  std::vector<CellId> cells;
  for (const Tail tail : openings_[opening].tails)
    cells.push_back(tail >= 0 ? tail : made(static_cast<size_t>(~tail)));
  Cell wanted = openings_[opening].head;
  wanted.tail = tail_of(std::move(cells));
  return openings_[opening].made = cell(wanted);
}

// An item and the rest of its list, behind the separator if there is one.
void Automaton::open_item(size_t opening, NodeId item, NodeId separator, int32_t b) {
  const auto of = [](NodeId id) { return Cell{Cell::Kind::node, false, id, 0, 0}; };
  Cell head = openings_[opening].head;
  head.b = b;
  Tail tail = ~static_cast<Tail>(behind(head, opening));
  if (separator >= 0) {
    openings_.push_back({of(item), false, -1, {tail}});
    tail = ~static_cast<Tail>(openings_.size() - 1);
  }
  add_tail(next_at(of(separator >= 0 ? separator : item)), tail);
}

// What a cell begins with.
void Automaton::open(size_t opening) {
  const Cell at = openings_[opening].head;
  if (at.kind != Cell::Kind::node) return;
  const Node& node = nodes_[static_cast<size_t>(at.a)];
  work_.spend(10 + std::ssize(node.parts));
  switch (node.kind) {
    case Node::Kind::one_of: return;
    case Node::Kind::sequence:
      if (at.b < std::ssize(node.parts))
        open_item(opening, node.parts[static_cast<size_t>(at.b)], -1, at.b + 1);
      return;
    case Node::Kind::choice:
    case Node::Kind::placeholder:
      for (const NodeId part : node.parts) follow(next_at({Cell::Kind::node, false, part, 0, 0}), opening);
      return;
    case Node::Kind::quoted:
    case Node::Kind::bare: {
      const bool is_quoted = node.kind == Node::Kind::quoted;
      return follow(next_at({is_quoted ? Cell::Kind::quoted : Cell::Kind::bare, is_quoted, node.text, 0, 0}),
                    opening);
    }
    case Node::Kind::list: {
      const bool is_own = at.b < std::ssize(node.parts);
      const NodeId id = is_own ? node.parts[static_cast<size_t>(at.b)] : node.rest;
      // Without a limit, all counts from n_distinct on allow the same, so they are one count.
      const int64_t n_distinct = std::max({std::ssize(node.parts), node.least, int64_t{1}});
      const int64_t n_next =
          node.most == Terms::kNoLimit ? std::min<int64_t>(at.b + 1, n_distinct) : at.b + 1;
      if (at.b < node.most && id >= 0)
        open_item(opening, id, at.b == 0 ? -1 : node.separator, counted(n_next));
      return;
    }
    case Node::Kind::members: {
      const NodeId separator = at.b & kHasMember ? node.separator : -1;
      auto i = static_cast<size_t>(at.b & ~kHasMember);
      for (; i < node.parts.size(); ++i) {
        open_item(opening, node.parts[i], separator, static_cast<int32_t>(i + 1) | kHasMember);
        if (node.required[i]) return;
      }
      if (node.rest >= 0) open_item(opening, node.rest, separator, static_cast<int32_t>(i) | kHasMember);
      return;
    }
    case Node::Kind::up_to: may_end_ = true;
  }
}

Automaton::StateId Automaton::state_of(const std::vector<CellId>& places) {
  const auto [found, is_new] = state_ids_.try_emplace(places, static_cast<StateId>(states_.size()));
  if (!is_new) return found->second;
  State& state = *states_.emplace_back(std::make_unique<State>());
  state.places = places;
  state.next.fill(kUnknown);
  n_places_ += std::ssize(places);
  return found->second;
}

void Automaton::forget_states() {
  states_.clear();
  state_ids_.clear();
  n_places_ = 0;
}

Automaton::StateId Automaton::find_step(StateId state, uint8_t byte) {
  std::vector<CellId> next;
  for (const CellId id : std::vector(places(state)))
    if (id != kEnd) {
      const Cell at = cells_[static_cast<size_t>(id)];  // a copy, since cells_ grows
      read(at, byte, next);
    }
  work_.spend(10 * std::ssize(next));
  const std::vector<CellId> reached = opened(next);
  return states_[static_cast<size_t>(state)]->next[byte] = reached.empty() ? -1 : state_of(reached);
}

// What follows is next.
void Automaton::leave(const Cell& at, std::vector<CellId>& next) const {
  const std::span<const CellId> cells = cells_of(at.tail);
  next.insert(next.end(), cells.begin(), cells.end());
}

void Automaton::read_node(const Cell& at, uint8_t byte, std::vector<CellId>& next) {
  const Node& node = nodes_[static_cast<size_t>(at.a)];
  int32_t b = 0;
  if (node.kind == Node::Kind::up_to) {
    b = next_match(node.bytes, at.b, byte);
    if (b == std::ssize(node.bytes)) return leave(at, next);
  } else {
    const Branch& from = node.tree[static_cast<size_t>(at.b)];
    const auto first = node.tree.begin() + from.first;
    const auto found = std::ranges::lower_bound(first, first + from.n, byte, {}, &Branch::byte);
    if (found == first + from.n || found->byte != byte) return;
    b = static_cast<int32_t>(found - node.tree.begin());
  }
  next.push_back(cell({Cell::Kind::node, false, at.a, b, at.tail}));
}

}  // namespace dsv32
