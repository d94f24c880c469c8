#include "constrain/terms.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"

namespace dsv32 {
namespace {

constexpr Terms::Range kSurrogates{0xd800, 0xdfff};

// Sorted, joined where they touch, without surrogates.
std::vector<Terms::Range> normal(std::vector<Terms::Range> ranges) {
  std::vector<Terms::Range> cut, joined;
  for (const Terms::Range& range : ranges) {
    if (range.first < kSurrogates.first)
      cut.push_back({range.first, std::min(range.last, kSurrogates.first - 1)});
    if (range.last > kSurrogates.last)
      cut.push_back({std::max(range.first, kSurrogates.last + 1), range.last});
  }
  std::ranges::sort(cut);
  for (const Terms::Range& range : cut) {
    if (range.first > range.last) continue;
    if (!joined.empty() && range.first <= joined.back().last + 1)
      joined.back().last = std::max(joined.back().last, range.last);
    else
      joined.push_back(range);
  }
  return joined;
}

bool has(const std::vector<Terms::Range>& ranges, uint32_t character) {
  const auto behind = std::ranges::upper_bound(ranges, character, {}, &Terms::Range::first);
  return behind != ranges.begin() && character <= std::prev(behind)->last;
}

std::u32string characters_of(std::string_view utf8) {
  std::u32string characters;
  for (size_t i = 0; i < utf8.size();) {
    uint32_t code = 0;
    i += static_cast<size_t>(decode_utf8(utf8, i, &code));
    characters += static_cast<char32_t>(code);
  }
  return characters;
}

// How many characters of `mark` end a text that ended with `n` of them and went on with `next`.
int64_t matched(const std::vector<Terms::Range>& mark, int64_t n, uint32_t next) {
  const auto ends_with = [&](int64_t wanted) {
    for (int64_t i = 0; i < wanted - 1; ++i)
      if (mark[static_cast<size_t>(i)] != mark[static_cast<size_t>(n - wanted + 1 + i)]) return false;
    return mark[static_cast<size_t>(wanted - 1)].first == next;
  };
  int64_t wanted = n + 1;
  while (wanted > 0 && !ends_with(wanted)) --wanted;
  return wanted;
}

// The most of a repetition that has been passed once more.
int64_t one_less(int64_t n) { return n == Terms::kNoLimit ? n : std::max<int64_t>(n - 1, 0); }

}  // namespace

Terms::Terms(Work& work) : work_(work) {
  make({.kind = Kind::nothing});
  make({.kind = Kind::empty, .takes_empty = true});
  any_character_ = character({{0, kLastCharacter}});
  any_ = repeat(any_character_, 0, kNoLimit);
}

Terms::Id Terms::make(Node node) {
  node.is_finite = node.kind != Kind::without && (node.kind != Kind::repeat || node.most < kNoLimit);
  for (const Id part : node.parts) {
    node.has_filter |= nodes_[at(part)].has_filter;
    node.is_finite &= nodes_[at(part)].is_finite;
  }
  if (node.kind == Kind::other_than) node.has_filter = !node.is_finite, node.is_finite = false;
  const auto [found, is_new] = ids_.try_emplace({node.kind, node.parts, node.ranges, node.least, node.most},
                                                static_cast<Id>(nodes_.size()));
  work_.spend(20 + std::ssize(node.parts) / 4);
  if (is_new) {
    work_.take(300 +
               2 * static_cast<int64_t>(sizeof(Id) * node.parts.size() + sizeof(Range) * node.ranges.size()));
    nodes_.push_back(std::move(node));
  }
  return found->second;
}

Terms::Id Terms::character(std::vector<Range> ranges) {
  ranges = normal(std::move(ranges));
  return ranges.empty() ? kNothing : make({.kind = Kind::character, .ranges = std::move(ranges)});
}

std::vector<Terms::Range> Terms::others_than(std::vector<Range> ranges) {
  std::vector<Range> others;
  uint32_t first = 0;
  for (const Range& range : normal(std::move(ranges))) {
    if (range.first > first) others.push_back({first, range.first - 1});
    first = range.last + 1;
  }
  if (first <= kLastCharacter) others.push_back({first, kLastCharacter});
  return others;
}

Terms::Id Terms::one_of(std::vector<std::string_view> utf8) {
  std::vector<std::u32string> texts;
  for (const std::string_view text : utf8) {
    if (text.size() > kMostLiteralBytes)
      fail(ErrorKind::usage, "a name or value has more than 1,000 bytes, which is not supported");
    texts.push_back(characters_of(text));
  }
  std::ranges::sort(texts);
  return one_of(texts, 0);
}

// Of sorted texts with a common beginning of `depth` characters, what follows it.
Terms::Id Terms::one_of(std::span<const std::u32string> texts, size_t depth) {
  std::vector<Id> cases;
  while (!texts.empty()) {
    if (texts.front().size() == depth) {
      cases.push_back(kEmpty), texts = texts.subspan(1);
      continue;
    }
    const auto first = static_cast<uint32_t>(texts.front()[depth]);
    const auto other = std::ranges::find_if(texts, [&](const auto& text) { return text[depth] != first; });
    const auto n = static_cast<size_t>(other - texts.begin());
    work_.spend(static_cast<int64_t>(n));
    cases.push_back(sequence(character({{first, first}}), one_of(texts.first(n), depth + 1)));
    texts = texts.subspan(n);
  }
  return either(cases);
}

Terms::Id Terms::without(std::string_view mark) {
  Node node{.kind = Kind::without, .takes_empty = true};
  for (const uint32_t code : characters_of(mark)) node.ranges.push_back({code, code});
  return make(std::move(node));
}

Terms::Id Terms::sequence(Id a, Id b) {
  if (a == kNothing || b == kNothing) return kNothing;
  if (a == kEmpty) return b;
  if (b == kEmpty) return a;
  if (nodes_[at(a)].kind == Kind::sequence) {
    const std::vector<Id> parts = nodes_[at(a)].parts;
    return sequence(parts[0], sequence(parts[1], b));
  }
  const bool takes_empty = this->takes_empty(a) && this->takes_empty(b);
  return make({.kind = Kind::sequence, .takes_empty = takes_empty, .parts = {a, b}});
}

Terms::Id Terms::sequence(std::span<const Id> parts) {
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
  std::ranges::sort(all);
  all.erase(std::unique(all.begin(), all.end()), all.end());
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
    else if (term != kNothing)
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
  Length range{0, kNoLimit};
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
  if (range.least > 0 || range.most < kNoLimit || others.empty()) others.push_back(of_length(range));
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
  if (a == kNothing) return least == 0 ? kEmpty : kNothing;
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

Terms::Id Terms::after(Id term, uint32_t character) {
  const auto known = after_.find(static_cast<uint64_t>(term) << 32 | character);
  if (known != after_.end()) return known->second;
  const Node& node = nodes_[at(term)];
  const bool is_quick = node.kind == Kind::character ||
                        (node.kind == Kind::sequence && nodes_[at(node.parts[0])].kind == Kind::character);
  const Id derived = derive(term, character);
  if (is_quick) return derived;  // found again sooner than remembered
  after_[static_cast<uint64_t>(term) << 32 | character] = derived;
  work_.take(50);
  return derived;
}

Terms::Id Terms::derive(Id term, uint32_t character) {
  const Node& node = nodes_[at(term)];
  const auto each = [&] {
    std::vector<Id> derived;
    for (const Id part : node.parts) derived.push_back(after(part, character));
    return derived;
  };
  switch (node.kind) {
    case Kind::nothing:
    case Kind::empty: return kNothing;
    case Kind::character: return has(node.ranges, character) ? kEmpty : kNothing;
    case Kind::sequence: {
      const Id first = sequence(after(node.parts[0], character), node.parts[1]);
      return takes_empty(node.parts[0]) ? either({first, after(node.parts[1], character)}) : first;
    }
    case Kind::either: return either(each());
    case Kind::both: return both(each());
    case Kind::other_than: return other_than(after(node.parts[0], character));
    case Kind::repeat:
      return sequence(after(node.parts[0], character),
                      repeat(node.parts[0], std::max<int64_t>(node.least - 1, 0), one_less(node.most)));
    case Kind::without: {
      const int64_t n = matched(node.ranges, node.least, character);
      if (n == std::ssize(node.ranges)) return kNothing;
      return make({.kind = Kind::without, .takes_empty = true, .ranges = node.ranges, .least = n});
    }
  }
  return kNothing;
}

// The characters at which after() of the term may change, ascending, without 0.
const std::vector<uint32_t>& Terms::borders(Id term) {
  const auto known = borders_.find(term);
  if (known != borders_.end()) return known->second;
  std::vector<uint32_t> all;
  const Node& node = nodes_[at(term)];
  if (node.kind == Kind::character && term != any_character_)
    for (const Range& range : node.ranges) all.insert(all.end(), {range.first, range.last + 1});
  if (node.kind == Kind::without)
    for (const Range& range : node.ranges)
      if (matched(node.ranges, node.least, range.first) > 0)
        all.insert(all.end(), {range.first, range.first + 1});
  for (const Id part : node.parts) {
    const std::vector<uint32_t>& own = borders(part);
    all.insert(all.end(), own.begin(), own.end());
    if (node.kind == Kind::sequence && !takes_empty(part)) break;  // the other part does not begin yet
  }
  std::ranges::sort(all);
  all.erase(std::unique(all.begin(), all.end()), all.end());
  work_.take(100 + 4 * std::ssize(all));
  return borders_[term] = std::move(all);
}

bool Terms::is_uniform(Id term, Range range) {
  const std::vector<uint32_t>& all = borders(term);
  const auto border = std::ranges::upper_bound(all, range.first);
  return border == all.end() || *border > range.last;
}

bool Terms::is_possible_after(Id term, Range range) {
  const std::vector<uint32_t> all = borders(term);
  if (is_possible(after(term, range.first))) return true;
  for (auto border = std::ranges::upper_bound(all, range.first); border != all.end() && *border <= range.last;
       ++border)
    if (is_possible(after(term, *border))) return true;
  return false;
}

bool Terms::is_possible(Id term) {
  if (!nodes_[at(term)].has_filter) return term != kNothing;
  const auto known = is_possible_.find(term);
  if (known != is_possible_.end()) return known->second;
  explore(term);
  return is_possible_.at(term);
}

// Decides is_possible() for the term and for all that can follow it: those from which a term that takes the
// empty text can be reached.
void Terms::explore(Id term) {
  std::vector<Id> found{term};
  std::unordered_map<Id, std::vector<Id>> before;  // from which terms a term is reached
  before[term];
  for (size_t i = 0; i < found.size(); ++i) {
    std::vector<uint32_t> characters = borders(found[i]);
    characters.push_back(0);
    for (const uint32_t c : characters) {
      if (c > kLastCharacter || (c >= kSurrogates.first && c <= kSurrogates.last)) continue;
      const Id next = after(found[i], c);
      const auto [at_next, is_new] = before.try_emplace(next);
      at_next->second.push_back(found[i]);
      if (is_new) found.push_back(next);
    }
    n_derived_ += std::ssize(characters) * (1 + std::ssize(nodes_[at(found[i])].parts));
    if (!work_.is_over() && (++n_explored_ > kMostExplored || n_derived_ > kMostDerived))
      fail(ErrorKind::usage, "the bounds of texts and numbers together need too many states");
  }
  std::vector<Id> possible;
  for (const Id id : found)
    if (is_possible_[id] = takes_empty(id); takes_empty(id)) possible.push_back(id);
  while (!possible.empty()) {
    const Id id = possible.back();
    possible.pop_back();
    for (const Id earlier : before[id])
      if (!std::exchange(is_possible_[earlier], true)) possible.push_back(earlier);
  }
}

}  // namespace dsv32
