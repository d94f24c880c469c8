#include "constrain/terms.h"

#include "base/text.h"

namespace dsv32 {

std::u32string characters_of(std::string_view utf8) {
  std::u32string characters;
  for (size_t i = 0; i < utf8.size();) {
    uint32_t code = 0;
    i += static_cast<size_t>(decode_utf8(utf8, i, &code));
    characters += static_cast<char32_t>(code);
  }
  return characters;
}

std::u32string bytes_of(std::string_view document) {
  std::u32string bytes;
  for (const char byte : document) bytes += static_cast<uint8_t>(byte);
  return bytes;
}

Terms::Terms(Work& work) : work_(work), ids_(0, ByNode{&nodes_}, ByNode{&nodes_}) {
  make({.kind = Kind::nothing, .is_nothing = true});
  make({.kind = Kind::empty, .takes_empty = true});
  any_character_ = character({{0, kLastCharacter}});
  any_ = repeat(any_character_, 0, kNoLimit);
}

size_t Terms::ByNode::operator()(Id id) const {
  const Node& node = (*nodes)[at(id)];
  auto hash = static_cast<uint64_t>(node.kind);
  const auto add = [&](uint64_t part) { hash = (hash ^ part) * 0x9e3779b97f4a7c15u, hash ^= hash >> 29; };
  for (const Id part : node.parts) add(static_cast<uint64_t>(part));
  for (const Range& range : node.ranges) add(static_cast<uint64_t>(range.first) << 32 | range.last);
  add(static_cast<uint64_t>(node.least)), add(static_cast<uint64_t>(node.most));
  return hash;
}

bool Terms::ByNode::operator()(Id a, Id b) const {
  const Node &x = (*nodes)[at(a)], &y = (*nodes)[at(b)];
  return x.kind == y.kind && x.least == y.least && x.most == y.most && x.parts == y.parts &&
         x.ranges == y.ranges;
}

Terms::Id Terms::make(Node node) {
  node.is_finite = node.kind != Kind::without && (node.kind != Kind::repeat || node.most < kNoLimit);
  for (const Id part : node.parts) {
    node.has_filter |= nodes_[at(part)].has_filter;
    node.is_finite &= nodes_[at(part)].is_finite;
  }
  if (node.kind == Kind::other_than) node.has_filter = !node.is_finite, node.is_finite = false;
  work_.spend(20 + std::ssize(node.parts) / 4);
  nodes_.push_back(std::move(node));
  const auto [found, is_new] = ids_.insert(static_cast<Id>(std::ssize(nodes_) - 1));
  if (!is_new) return nodes_.pop_back(), *found;
  const Node& kept = nodes_.back();
  work_.keep(250 + static_cast<int64_t>(sizeof(Id) * kept.parts.size() + sizeof(Range) * kept.ranges.size()));
  return *found;
}

Terms::Id Terms::character(std::vector<Range> ranges) {
  ranges = others_than(others_than(std::move(ranges)));  // sorted, joined where they touch, no surrogates
  return ranges.empty() ? kNothing : make({.kind = Kind::character, .ranges = std::move(ranges)});
}

std::vector<Terms::Range> Terms::others_than(std::vector<Range> ranges) {
  std::vector<Range> others;
  uint32_t first = 0;
  ranges.push_back(kSurrogates);
  std::ranges::sort(ranges);
  for (const Range& range : ranges) {
    if (range.first > first) others.push_back({first, range.first - 1});
    first = std::max(first, range.last + 1);
  }
  if (first <= kLastCharacter) others.push_back({first, kLastCharacter});
  return others;
}

// Sorted: those that begin alike are a range of the list.
int64_t Terms::list_of(std::vector<std::u32string> texts) {
  sort_and_unite(texts);
  int64_t n_bytes = 100;
  for (const std::u32string& text : texts) n_bytes += 60 + 4 * std::ssize(text);
  const auto [found, is_new] = list_ids_.try_emplace(std::move(texts), std::ssize(lists_));
  if (is_new) lists_.push_back(&found->first), work_.keep(n_bytes);
  return found->second;
}

Terms::Id Terms::one_of(std::vector<std::u32string> texts) {
  const int64_t id = list_of(std::move(texts));
  return made_one_of(id, {0, static_cast<uint32_t>(list_at(id).size())}, 0);
}

Terms::Id Terms::one_of(const std::vector<std::string>& documents) {
  std::vector<std::u32string> texts;
  for (const std::string& document : documents) texts.push_back(bytes_of(document));
  return one_of(std::move(texts));
}

// Of the texts from texts.first to before texts.last, what follows `n_symbols`, which all of them have.
Terms::Id Terms::made_one_of(int64_t id, Range texts, int64_t n_symbols) {
  if (texts.first == texts.last) return kNothing;
  const std::u32string& first = list_at(id)[texts.first];
  const bool takes_empty = std::ssize(first) == n_symbols;
  if (texts.last - texts.first == 1) {
    if (takes_empty) return kEmpty;
    if (std::ssize(first) == n_symbols + 1) return character({{first.back(), first.back()}});
  }
  return make(
      {.kind = Kind::one_of, .takes_empty = takes_empty, .ranges = {texts}, .least = id, .most = n_symbols});
}

Terms::Id Terms::without(const std::u32string& mark) {
  return make({.kind = Kind::without, .takes_empty = true, .least = list_of({mark})});
}

Terms::Id Terms::sequence(Id a, Id b) {
  if (is_nothing(a) || is_nothing(b)) return kNothing;
  if (a == kEmpty) return b;
  if (b == kEmpty) return a;
  if (nodes_[at(a)].kind == Kind::sequence) {
    const std::vector<Id> parts = nodes_[at(a)].parts;
    return sequence(parts[0], sequence(parts[1], b));
  }
  const bool takes_empty = this->takes_empty(a) && this->takes_empty(b);
  return make({.kind = Kind::sequence, .takes_empty = takes_empty, .parts = {a, b}});
}

Terms::Id Terms::sequence(const std::vector<Id>& parts) {
  Id all = kEmpty;
  for (size_t i = parts.size(); i-- > 0;) all = sequence(parts[i], all);
  return all;
}

// The terms, those of the same kind taken apart, ascending and each once.
std::vector<Terms::Id> Terms::flat(Kind kind, const std::vector<Id>& terms) const {
  std::vector<Id> all;
  for (const Id term : terms) {
    const Node& node = nodes_[at(term)];
    if (node.kind == kind)
      all.insert(all.end(), node.parts.begin(), node.parts.end());
    else
      all.push_back(term);
  }
  sort_and_unite(all);
  return all;
}

Terms::Id Terms::either(std::vector<Id> terms) {
  terms = flat(Kind::either, terms);
  if (std::ranges::binary_search(terms, any_) && any_ != kNothing) return any_;
  std::vector<Range> ranges;
  std::vector<Id> others;
  bool takes_empty = false;
  for (const Id term : terms) {
    const Node& node = nodes_[at(term)];
    takes_empty |= node.takes_empty;
    if (node.kind == Kind::character)
      ranges.insert(ranges.end(), node.ranges.begin(), node.ranges.end());
    else if (!node.is_nothing)
      others.push_back(term);
  }
  if (!ranges.empty()) others.push_back(character(std::move(ranges)));
  std::ranges::sort(others);
  if (others.size() < 2) return others.empty() ? kNothing : others.front();
  return make({.kind = Kind::either, .takes_empty = takes_empty, .parts = std::move(others)});
}

// Lengths are intersected here, since their product with each other would have many states. A text of any
// length can do without a mark.
Terms::Id Terms::both(std::vector<Id> terms) {
  terms = flat(Kind::both, terms);
  Length range;
  std::vector<Id> others;
  bool takes_empty = true;
  for (const Id term : terms) {
    if (term == kNothing) return kNothing;
    takes_empty &= this->takes_empty(term);
    if (const std::optional<Length> own = length(term))
      range = {std::max(range.least, own->least), std::min(range.most, own->most)};
    else
      others.push_back(term);
  }
  if (range.least > range.most) return kNothing;
  if (range != Length{} || others.empty()) others.push_back(of_length(range));
  std::ranges::sort(others);
  if (others.size() == 1) return others.front();
  if (std::ranges::binary_search(others, kEmpty)) return takes_empty ? kEmpty : kNothing;
  const bool is_plain = others.size() == 2 && std::ranges::all_of(others, [&](Id term) {
                          return length(term) || nodes_[at(term)].kind == Kind::without;
                        });
  return make(
      {.kind = Kind::both, .takes_empty = takes_empty, .has_filter = !is_plain, .parts = std::move(others)});
}

Terms::Id Terms::other_than(Id a) {
  if (a == kNothing) return any_;
  if (a == any_) return kNothing;
  if (nodes_[at(a)].kind == Kind::other_than) return nodes_[at(a)].parts.front();
  return make({.kind = Kind::other_than, .takes_empty = !takes_empty(a), .parts = {a}});
}

Terms::Id Terms::repeat(Id a, int64_t least, int64_t most) {
  if (takes_empty(a)) least = 0;
  if (least > most) return kNothing;
  if (most == 0 || a == kEmpty) return kEmpty;
  if (is_nothing(a)) return least == 0 ? kEmpty : kNothing;
  if (least == 1 && most == 1) return a;
  return make({.kind = Kind::repeat, .takes_empty = least == 0, .parts = {a}, .least = least, .most = most});
}

std::optional<Terms::Length> Terms::length(Id term) const {
  const Node& node = nodes_[at(term)];
  if (term == any_character_) return Length{1, 1};
  if (term == kEmpty) return Length{0, 0};
  if (node.kind != Kind::repeat || node.parts.front() != any_character_) return std::nullopt;
  return Length{node.least, node.most};
}

// --- Documents

Terms::Id Terms::list(std::vector<Id> items, Id rest, Id separator, int64_t least, int64_t most) {
  if (least > most) return kNothing;
  if (items.empty()) items.push_back(rest);
  const int64_t n = std::ssize(items);
  Id tail = kEmpty;  // the items so far, which come from the end
  if (most > n)
    tail = repeat(sequence(separator, rest), std::max<int64_t>(least - n, 0),
                  most == kNoLimit ? most : most - n);
  for (int64_t i = std::min(n, most); i-- > 0;) {
    tail = sequence({i == 0 ? kEmpty : separator, items[static_cast<size_t>(i)], tail});
    if (i >= least) tail = optional(tail);
  }
  return tail;
}

Terms::Id Terms::members(const std::vector<Member>& members, Id others, Id separator) {
  Id more = repeat(sequence(separator, others), 0, kNoLimit);  // after another member
  Id all = optional(sequence(others, more));
  for (size_t i = members.size(); i-- > 0;) {
    more = boxed(more), all = boxed(all);
    const Id from_own = sequence(members[i].term, more);
    if (members[i].is_required) more = all = kNothing;
    more = either({more, sequence(separator, from_own)});
    all = either({all, from_own});
  }
  return all;
}

// The same texts, but an either() that has it as a part does not take it apart: else n members that may be
// left out would need n * n parts.
Terms::Id Terms::boxed(Id term) {
  if (nodes_[at(term)].kind != Kind::either) return term;
  const Id box = placeholder();
  set(box, term);
  nodes_[at(box)].takes_empty = takes_empty(term);
  return box;
}

Terms::Id Terms::quoted(Id string) {
  return is_possible(string) ? sequence(literal("\""), alone(string)) : kNothing;
}

Terms::Id Terms::bare(Id string) {
  if (!is_possible(string)) return kNothing;
  return make({.kind = Kind::bare, .takes_empty = takes_empty(string), .parts = {string}});
}

Terms::Id Terms::placeholder() {
  nodes_.push_back({.kind = Kind::placeholder, .parts = {kNothing}});
  work_.keep(250);
  return static_cast<Id>(std::ssize(nodes_) - 1);
}

// By what is known of its parts.
bool Terms::has_document(const Node& node) const {
  const auto has = [&](Id part) { return !is_nothing(part); };
  switch (node.kind) {
    case Kind::nothing: return false;
    case Kind::sequence: return std::ranges::all_of(node.parts, has);
    case Kind::either:
    case Kind::placeholder: return std::ranges::any_of(node.parts, has);
    case Kind::repeat: return node.least == 0 || has(node.parts.front());
    default: return true;
  }
}

void Terms::prune() {
  std::vector<std::vector<Id>> users(nodes_.size());
  for (Id id = 0; id < std::ssize(nodes_); ++id) {
    for (const Id part : nodes_[at(id)].parts) users[at(part)].push_back(id);
    work_.spend(10 + 2 * std::ssize(nodes_[at(id)].parts));
    nodes_[at(id)].is_nothing = true;  // until something is found
  }
  std::vector<Id> found;
  const auto look_at = [&](Id id) {
    Node& node = nodes_[at(id)];
    if (!node.is_nothing || !has_document(node)) return;
    node.is_nothing = false;
    found.push_back(id);
  };
  for (Id id = 0; id < std::ssize(nodes_); ++id) look_at(id);
  while (!found.empty()) {
    const Id id = found.back();
    found.pop_back();
    for (const Id user : users[at(id)]) look_at(user);
  }
}

std::optional<Terms::Id> Terms::string_at(Id term) const {
  const Node* node = &nodes_[at(term)];
  if (node->kind == Kind::sequence) node = &nodes_[at(node->parts.front())];
  if (node->kind != Kind::quoted) return std::nullopt;
  return node->parts.front();
}

Terms::Id Terms::with_string(Id term, Id string) {
  const Node& node = nodes_[at(term)];
  return sequence(alone(string), node.kind == Kind::sequence ? node.parts[1] : kEmpty);
}

}  // namespace dsv32
