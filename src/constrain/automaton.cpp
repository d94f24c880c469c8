#include "constrain/automaton.h"

#include <algorithm>

#include "base/error.h"

namespace dsv32 {
namespace {

constexpr int32_t kHasMember = 1 << 30;  // in `b` of a `members` node: one of them has been read
constexpr uint32_t kFirstLow = 0xdc00, kLastLow = 0xdfff, kFirstHigh = 0xd800, kLastHigh = 0xdbff;

int32_t counted(int64_t n) { return static_cast<int32_t>(std::min<int64_t>(n, kHasMember - 1)); }

// How much of `mark` is matched after `n_matched` of its bytes and then `byte`.
int32_t next_match(std::string_view mark, int32_t n_matched, uint8_t byte) {
  const std::string text =
      std::string(mark.substr(0, static_cast<size_t>(n_matched))) + static_cast<char>(byte);
  size_t n = std::min(text.size(), mark.size());
  while (!text.ends_with(mark.substr(0, n))) --n;
  return static_cast<int32_t>(n);
}

int hex_digit(uint8_t byte) {
  if (byte >= '0' && byte <= '9') return byte - '0';
  const int letter = byte | 0x20;
  return letter >= 'a' && letter <= 'f' ? letter - 'a' + 10 : -1;
}

// A character's first byte: how many bytes it has, and which characters begin so.
struct Lead {
  int n_bytes;
  uint32_t first, last;
};
Lead lead_of(uint8_t byte) {
  if (byte < 0xc2 || byte > 0xf4) return {0, 0, 0};
  const int n = byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
  const int n_bits = 6 * (n - 1);
  const uint32_t first = (byte & (0x7fu >> n)) << n_bits, last = first | ((1u << n_bits) - 1);
  if (n == 3 && byte == 0xed) return {n, first, kFirstHigh - 1};
  return {n,
          std::max(first, n == 3   ? 0x800u
                          : n == 4 ? 0x10000u
                                   : 0x80u),
          std::min(last, Terms::kLastCharacter)};
}

// Of characters beyond 16 bits: those that a range of high surrogates begins.
Terms::Range pairs(uint32_t first_high, uint32_t last_high) {
  return {0x10000 + ((first_high - kFirstHigh) << 10), 0x10000 + ((last_high - kFirstHigh) << 10) + 0x3ff};
}

// `b` of a cell within an escape. Stages: 0: behind the backslash; 1 to 4: behind u, before that digit; 5: a
// high surrogate is complete; 6: behind the second backslash; 7 to 10: before a digit of the low one.
struct Escape {
  int stage;
  uint32_t unit;  // the digits so far
  uint32_t high;  // the surrogate's ten bits

  int32_t packed() const {
    return static_cast<int32_t>(static_cast<uint32_t>(stage) | unit << 4 | high << 20);
  }
  static Escape of(int32_t b) {
    const auto bits = static_cast<uint32_t>(b);
    return {static_cast<int>(bits & 15), bits >> 4 & 0xffff, bits >> 20};
  }
};

// `b` of a cell before a character's missing bytes.
struct Partial {
  int n_bytes, n_missing;
  uint32_t bits;

  int32_t packed() const {
    return static_cast<int32_t>(bits | static_cast<uint32_t>(n_missing) << 21 |
                                static_cast<uint32_t>(n_bytes) << 23);
  }
  static Partial of(int32_t b) {
    const auto all = static_cast<uint32_t>(b);
    return {static_cast<int>(all >> 23), static_cast<int>(all >> 21 & 3), all & 0x1fffff};
  }
};

// `b` of a cell before bytes that all lead to the same term.
int32_t within_of(int n_missing, uint32_t least, uint32_t most) {
  return static_cast<int32_t>(static_cast<uint32_t>(n_missing) | least << 8 | most << 16);
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

// Collects a few terms, and drops the kinds that lead to nothing or to further terms.
CharacterKinds Automaton::find_harmless(const std::vector<CellId>& places) {
  constexpr size_t kMostTerms = 4;
  std::vector<Terms::Id> terms{places.size() == 1 ? quoted_text_at(places.front()) : -1};
  if (terms[0] < 0) return 0;
  const Terms::Id one_on = terms_.after(terms[0], 'e'), two_on = terms_.after(one_on, 'e');
  if (two_on != one_on && two_on != terms[0]) return 0;  // a quick answer for texts that count
  CharacterKinds harmless = ~CharacterKinds{0};
  const auto look_at = [&](Terms::Id after, uint8_t byte) {
    if (std::ranges::count(terms, after) > 0) return;
    if (terms.size() < kMostTerms && terms_.is_possible(after))
      terms.push_back(after);
    else
      harmless &= ~kind_of(byte);
  };
  for (size_t i = 0; i < terms.size(); ++i) {
    for (uint8_t c = 0x20; c < 0x80; ++c)
      if (harmless & kind_of(c)) look_at(terms_.after(terms[i], c), c);
    for (const CharacterGroup& group : kCharacterGroups) {
      if (!terms_.is_uniform(terms[i], {group.first, group.last})) harmless &= ~kind_of(group.first_byte);
      if (harmless & kind_of(group.first_byte))
        look_at(terms_.after(terms[i], group.first), group.first_byte);
    }
  }
  return harmless;
}

// Appends what may be next when `byte` is read at a cell.
void Automaton::read(const Cell& at, uint8_t byte, std::vector<CellId>& next) {
  switch (at.kind) {
    case Cell::Kind::node: return read_node(at, byte, next);
    case Cell::Kind::quoted:
    case Cell::Kind::bare: return read_text(at, byte, next);
    case Cell::Kind::partial: return read_partial(at, byte, next);
    case Cell::Kind::escape: return read_escape(at, byte, next);
    case Cell::Kind::within: {
      const auto b = static_cast<uint32_t>(at.b);
      if (byte < (b >> 8 & 0xff) || byte > (b >> 16 & 0xff)) return;
      const int n_missing = static_cast<int>(b & 0xff) - 1;
      if (n_missing == 0) return next.push_back(text_cell(at.a, at.is_quoted, at.tail));
      return next.push_back(
          cell({Cell::Kind::within, at.is_quoted, at.a, within_of(n_missing, 0x80, 0xbf), at.tail}));
    }
  }
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

void Automaton::read_text(const Cell& at, uint8_t byte, std::vector<CellId>& next) {
  if (at.is_quoted && byte == '"') {
    if (terms_.takes_empty(at.a)) next.push_back(at.tail);
  } else if (at.is_quoted && byte == '\\') {
    if (terms_.is_possible_after(at.a, {0, Terms::kLastCharacter}))
      next.push_back(cell({Cell::Kind::escape, true, at.a, 0, at.tail}));
  } else if (byte >= 0x80) {
    read_lead(at, byte, next);
  } else if (!at.is_quoted || byte >= 0x20) {
    take(at, byte, next);
  }
}

void Automaton::take(const Cell& at, uint32_t character, std::vector<CellId>& next) {
  const Terms::Id term = terms_.after(at.a, character);
  if (terms_.is_possible(term)) next.push_back(text_cell(term, at.is_quoted, at.tail));
}

void Automaton::read_lead(const Cell& at, uint8_t byte, std::vector<CellId>& next) {
  const auto [n_bytes, first, last] = lead_of(byte);
  if (n_bytes == 0) return;
  if (!terms_.is_uniform(at.a, {first, last})) {
    const Partial partial{n_bytes, n_bytes - 1, byte & (0x7fu >> n_bytes)};
    if (terms_.is_possible_after(at.a, {first, last}))
      next.push_back(cell({Cell::Kind::partial, at.is_quoted, at.a, partial.packed(), at.tail}));
    return;
  }
  const Terms::Id term = terms_.after(at.a, first);
  if (!terms_.is_possible(term)) return;
  const int n_bits = 6 * (n_bytes - 2);  // behind the second byte
  const auto second = [&](uint32_t character) { return 0x80 | (character >> n_bits & 0x3f); };
  next.push_back(cell({Cell::Kind::within, at.is_quoted, term,
                       within_of(n_bytes - 1, second(first), second(last)), at.tail}));
}

void Automaton::read_partial(const Cell& at, uint8_t byte, std::vector<CellId>& next) {
  if (byte < 0x80 || byte > 0xbf) return;
  Partial partial = Partial::of(at.b);
  partial.bits = partial.bits << 6 | (byte & 0x3f);
  --partial.n_missing;
  const int n_bits = 6 * partial.n_missing;
  const uint32_t least = partial.n_bytes == 2 ? 0x80 : partial.n_bytes == 3 ? 0x800 : 0x10000;
  const uint32_t first = std::max(partial.bits << n_bits, least);
  const uint32_t last = std::min((partial.bits << n_bits) | ((1u << n_bits) - 1), Terms::kLastCharacter);
  if (first > last || (first >= kFirstHigh && first <= kLastLow)) return;
  if (partial.n_missing == 0) return take(at, first, next);
  if (terms_.is_possible_after(at.a, {first, last}))
    next.push_back(cell({Cell::Kind::partial, at.is_quoted, at.a, partial.packed(), at.tail}));
}

// Whether an escape of 16 bits in this range, perhaps the first of a pair, can stand for the next character.
bool Automaton::may_be_escaped(Terms::Id term, uint32_t first, uint32_t last) {
  const auto may = [&](uint32_t from, uint32_t to) {
    return from <= to && terms_.is_possible_after(term, {from, to});
  };
  if (may(first, std::min(last, kFirstHigh - 1)) || may(std::max(first, kLastLow + 1), last)) return true;
  const uint32_t from = std::max(first, kFirstHigh), to = std::min(last, kLastHigh);
  return from <= to && terms_.is_possible_after(term, pairs(from, to));
}

void Automaton::read_escape(const Cell& at, uint8_t byte, std::vector<CellId>& next) {
  Escape escape = Escape::of(at.b);
  const auto go_on = [&](int stage) {
    escape.stage = stage;
    next.push_back(cell({Cell::Kind::escape, true, at.a, escape.packed(), at.tail}));
  };
  if (escape.stage == 0) {
    constexpr std::string_view kLetters = "\"\\/bfnrt", kMeant = "\"\\/\b\f\n\r\t";
    if (const size_t i = kLetters.find(static_cast<char>(byte)); i != std::string_view::npos)
      take(at, static_cast<uint8_t>(kMeant[i]), next);
    else if (byte == 'u')
      go_on(1);
    return;
  }
  if (escape.stage == 5 || escape.stage == 6) {
    if (byte == (escape.stage == 5 ? '\\' : 'u')) go_on(escape.stage + 1);
    return;
  }
  const int digit = hex_digit(byte), n_left = escape.stage <= 4 ? 4 - escape.stage : 10 - escape.stage;
  if (digit < 0) return;
  escape.unit = escape.unit << 4 | static_cast<uint32_t>(digit);
  uint32_t first = escape.unit << (4 * n_left), last = first | ((1u << (4 * n_left)) - 1);
  if (escape.stage <= 4) {
    if (!may_be_escaped(at.a, first, last)) return;
    if (n_left > 0) return go_on(escape.stage + 1);
    if (first < kFirstHigh || first > kLastHigh) return take(at, first, next);
    escape.high = first - kFirstHigh, escape.unit = 0;
    return go_on(5);
  }
  first = std::max(first, kFirstLow), last = std::min(last, kLastLow);
  const uint32_t base = 0x10000 + (escape.high << 10) - kFirstLow;
  if (first > last || !terms_.is_possible_after(at.a, {base + first, base + last})) return;
  if (n_left > 0) return go_on(escape.stage + 1);
  take(at, base + first, next);
}

Terms::Id Automaton::quoted_text_at(CellId place) const {
  const Cell& at = cells_[static_cast<size_t>(place)];
  return place != kEnd && at.kind == Cell::Kind::quoted ? at.a : -1;
}

Automaton::CellId Automaton::with_length_to(CellId place, int64_t n) {
  const Terms::Id term = quoted_text_at(place);
  const std::optional<Terms::Length> length = term < 0 ? std::nullopt : terms_.length(term);
  if (!length) return place;
  const Terms::Id alike =
      terms_.of_length({std::min(length->least, n + 1), length->most > n ? Terms::kNoLimit : length->most});
  return text_cell(alike, true, cells_[static_cast<size_t>(place)].tail);
}

Automaton::CellId Automaton::alone(CellId place) { return text_cell(quoted_text_at(place), true, kEnd); }

}  // namespace dsv32
