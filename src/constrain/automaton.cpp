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
    fail(ErrorKind::usage, "the schema needs more than 10,000 states, which is not supported");
  nodes_.push_back(std::move(node));
  return static_cast<NodeId>(nodes_.size() - 1);
}

Automaton::NodeId Automaton::literal(std::string bytes) {
  return add({.kind = Node::Kind::literal, .bytes = std::move(bytes)});
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

Automaton::NodeId Automaton::up_to(std::string mark, bool may_end) {
  return add({.kind = Node::Kind::up_to, .flag = may_end, .bytes = std::move(mark)});
}

Automaton::NodeId Automaton::placeholder() { return add({.kind = Node::Kind::placeholder}); }
void Automaton::set(NodeId placeholder, NodeId node) {
  nodes_[static_cast<size_t>(placeholder)].parts = {node};
}

bool Automaton::has_document(const Node& node) const {
  const auto has = [&](NodeId id) { return id >= 0 && nodes_[static_cast<size_t>(id)].has_document; };
  switch (node.kind) {
    case Node::Kind::literal:
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
    for (Node& node : nodes_)
      if (!node.has_document && has_document(node)) node.has_document = has_changed = true;
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
  if (is_new) cells_.push_back(wanted);
  return found->second;
}

Automaton::CellId Automaton::text_cell(Terms::Id term, bool is_quoted, CellId tail) {
  return cell({is_quoted ? Cell::Kind::quoted : Cell::Kind::bare, is_quoted, term, 0, tail});
}

std::vector<Automaton::CellId> Automaton::begin(NodeId root) {
  return opened({cell({Cell::Kind::node, false, root, 0, kEnd})});
}

// Whether the next byte is read here, rather than by what is in it or behind it.
bool Automaton::is_reading(const Cell& at) const {
  if (at.kind != Cell::Kind::node) return true;
  const Node& node = nodes_[static_cast<size_t>(at.a)];
  return node.kind == Node::Kind::up_to || (node.kind == Node::Kind::literal && !node.bytes.empty());
}

// The cells that read the next byte, ascending, among all that may be next where one of `cells` is. The end
// of the document is one of them.
std::vector<Automaton::CellId> Automaton::opened(std::vector<CellId> cells) {
  ++n_opened_;
  std::vector<CellId> reading;
  while (!cells.empty()) {
    const CellId id = cells.back();
    cells.pop_back();
    if (opened_in_.size() < cells_.size()) opened_in_.resize(2 * cells_.size());
    if (std::exchange(opened_in_[static_cast<size_t>(id)], n_opened_) == n_opened_) continue;
    if (id == kEnd || is_reading(cells_[static_cast<size_t>(id)])) reading.push_back(id);
    if (id != kEnd) open(id, cells);
  }
  std::ranges::sort(reading);
  return reading;
}

void Automaton::open(CellId id, std::vector<CellId>& more) {
  const Cell at = cells_[static_cast<size_t>(id)];
  if (at.kind == Cell::Kind::bare && terms_.takes_empty(at.a)) more.push_back(at.tail);
  if (at.kind == Cell::Kind::node) open_node(nodes_[static_cast<size_t>(at.a)], at, more);
}

void Automaton::open_node(const Node& node, const Cell& at, std::vector<CellId>& more) {
  const auto before = [&](NodeId id, CellId tail) { return cell({Cell::Kind::node, false, id, 0, tail}); };
  const auto again = [&](int32_t b) { return cell({Cell::Kind::node, false, at.a, b, at.tail}); };
  // An item and the rest of its list, behind the separator if it is not the first.
  const auto item = [&](NodeId id, bool is_first, int32_t b) {
    const CellId behind = before(id, again(b));
    more.push_back(is_first ? behind : before(node.separator, behind));
  };
  switch (node.kind) {
    case Node::Kind::literal:
      if (node.bytes.empty()) more.push_back(at.tail);
      return;
    case Node::Kind::sequence: {
      CellId tail = at.tail;
      for (size_t i = node.parts.size(); i-- > 0;) tail = before(node.parts[i], tail);
      return more.push_back(tail);
    }
    case Node::Kind::choice:
    case Node::Kind::placeholder:
      for (const NodeId part : node.parts) more.push_back(before(part, at.tail));
      return;
    case Node::Kind::quoted:
    case Node::Kind::bare:
      return more.push_back(text_cell(node.text, node.kind == Node::Kind::quoted, at.tail));
    case Node::Kind::list: {
      if (at.b >= node.least) more.push_back(at.tail);
      const bool is_own = at.b < std::ssize(node.parts);
      const NodeId id = is_own ? node.parts[static_cast<size_t>(at.b)] : node.rest;
      // Without a limit, counts that allow the same are the same.
      const int64_t n_told = std::max({std::ssize(node.parts), node.least, int64_t{1}});
      const int64_t n_next = node.most == Terms::kNoLimit ? std::min<int64_t>(at.b + 1, n_told) : at.b + 1;
      if (at.b < node.most && id >= 0) item(id, at.b == 0, counted(n_next));
      return;
    }
    case Node::Kind::members: {
      const bool is_first = !(at.b & kHasMember);
      auto i = static_cast<size_t>(at.b & ~kHasMember);
      for (; i < node.parts.size(); ++i) {
        item(node.parts[i], is_first, static_cast<int32_t>(i + 1) | kHasMember);
        if (node.required[i]) return;
      }
      if (node.rest >= 0) item(node.rest, is_first, static_cast<int32_t>(i) | kHasMember);
      return more.push_back(at.tail);
    }
    case Node::Kind::up_to:
      if (node.flag) more.push_back(kEnd);
      return;
  }
}

Automaton::StateId Automaton::state_of(const std::vector<CellId>& places) {
  const auto [found, is_new] = state_ids_.try_emplace(places, static_cast<StateId>(states_.size()));
  if (!is_new) return found->second;
  State& state = *states_.emplace_back(std::make_unique<State>());
  state.places = places;
  state.next.fill(kUnknown);
  return found->second;
}

void Automaton::forget_states() {
  states_.clear();
  state_ids_.clear();
}

Automaton::StateId Automaton::find_step(StateId state, uint8_t byte) {
  std::vector<CellId> next;
  for (const CellId id : std::vector(places(state)))
    if (id != kEnd) {
      const Cell at = cells_[static_cast<size_t>(id)];  // a copy, since cells_ grows
      read(at, byte, next);
    }
  const std::vector<CellId> reached = opened(std::move(next));
  const bool is_taken = !reached.empty() && std::ssize(reached) <= kMostPlaces;
  return states_[static_cast<size_t>(state)]->next[byte] = is_taken ? state_of(reached) : -1;
}

void Automaton::read_node(const Cell& at, uint8_t byte, std::vector<CellId>& next) {
  const Node& node = nodes_[static_cast<size_t>(at.a)];
  int32_t n_read = at.b + 1;
  if (node.kind == Node::Kind::up_to)
    n_read = next_match(node.bytes, at.b, byte);
  else if (static_cast<uint8_t>(node.bytes[static_cast<size_t>(at.b)]) != byte)
    return;
  const bool is_done = n_read == std::ssize(node.bytes);
  next.push_back(is_done ? at.tail : cell({Cell::Kind::node, false, at.a, n_read, at.tail}));
}

}  // namespace dsv32
