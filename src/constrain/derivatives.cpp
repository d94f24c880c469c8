// What follows a symbol in the texts of a term, and which characters have the same that follows.
#include <algorithm>
#include <map>

#include "constrain/terms.h"

namespace dsv32 {
namespace {

constexpr size_t kMostBranches = 32;  // characters after one term that is_ambiguous() looks at

bool has(const std::vector<Terms::Range>& ranges, uint32_t symbol) {
  const auto next = std::ranges::upper_bound(ranges, symbol, {}, &Terms::Range::first);
  return next != ranges.begin() && symbol <= std::prev(next)->last;
}

// How many symbols of `mark` end a text that ended with `n` of them and went on with `next`.
int64_t matched(const std::u32string& mark, int64_t n, char32_t next) {
  std::u32string end = mark.substr(0, static_cast<size_t>(n)) + next;
  while (!mark.starts_with(end)) end.erase(0, 1);
  return std::ssize(end);
}

// The most of a repetition that has been passed once more.
int64_t one_less(int64_t n) { return n == Terms::kNoLimit ? n : std::max<int64_t>(n - 1, 0); }

// The symbol after the first n of a text; -1: it ends there.
auto symbol_at(int64_t n) {
  return [n](const std::u32string& text) {
    return n < std::ssize(text) ? int64_t{text[static_cast<size_t>(n)]} : -1;
  };
}

}  // namespace

void Terms::derive(Id term, uint32_t symbol, std::vector<Id>& next) {
  const Node* node = &nodes_[at(term)];
  const auto derive_before = [&](Id first, Id rest) {
    size_t i = next.size();
    derive(first, symbol, next);
    for (; i < next.size(); ++i) next[i] = sequence(next[i], rest);
  };
  while (!node->is_nothing) switch (node->kind) {
      case Kind::character:
        if (has(node->ranges, symbol)) next.push_back(kEmpty);
        return;
      case Kind::one_of: return next.push_back(after_of_one_of(*node, symbol));
      case Kind::sequence:
        derive_before(node->parts[0], node->parts[1]);
        if (!takes_empty(node->parts[0])) return;
        node = &nodes_[at(node->parts[1])];
        break;
      case Kind::either:  // a box is the first part, as it is the oldest: long chains of them do not recurse
        for (size_t i = 1; i < node->parts.size(); ++i) derive(node->parts[i], symbol, next);
        node = &nodes_[at(node->parts[0])];
        break;
      case Kind::both: {
        std::vector<Id> all;
        for (const Id part : node->parts) all.push_back(after(part, symbol));
        return next.push_back(both(std::move(all)));
      }
      case Kind::other_than: return next.push_back(other_than(after(node->parts[0], symbol)));
      case Kind::repeat:
        return derive_before(node->parts[0], repeat(node->parts[0], std::max<int64_t>(node->least - 1, 0),
                                                    one_less(node->most)));
      case Kind::without: {
        const std::u32string& mark = list_at(node->least).front();
        const int64_t n = matched(mark, node->most, symbol);
        if (n < std::ssize(mark))
          next.push_back(make({.kind = Kind::without, .takes_empty = true, .least = node->least, .most = n}));
        return;
      }
      case Kind::placeholder: node = &nodes_[at(node->parts[0])]; break;
      case Kind::nothing:
      case Kind::empty: return;
      default: return derive_string(*node, static_cast<uint8_t>(symbol), next);
    }
}

Terms::Id Terms::after_of_one_of(const Node& node, uint32_t symbol) {
  const std::vector<std::u32string>& texts = list_at(node.least);
  const auto begin = texts.begin(), first = begin + node.ranges[0].first, last = begin + node.ranges[0].last;
  const auto left = std::ranges::lower_bound(first, last, int64_t{symbol}, {}, symbol_at(node.most));
  const auto right = std::ranges::upper_bound(left, last, int64_t{symbol}, {}, symbol_at(node.most));
  return made_one_of(node.least, {static_cast<uint32_t>(left - begin), static_cast<uint32_t>(right - begin)},
                     node.most + 1);
}

Terms::Id Terms::after(Id term, uint32_t character) {
  const uint64_t key = static_cast<uint64_t>(term) << 32 | character;
  const auto known = after_.find(key);
  if (known != after_.end()) return known->second;
  std::vector<Id> next;
  derive(term, character, next);
  work_.keep(50);
  return after_[key] = either(std::move(next));
}

std::vector<Terms::Id> Terms::joined(std::vector<Id> terms) {
  std::map<Id, std::vector<Id>> tails;  // by what they follow
  while (!terms.empty()) {
    const Id term = terms.back();
    terms.pop_back();
    const Node& node = nodes_[at(term)];
    work_.spend(10);
    if (node.is_nothing) continue;
    if (node.kind == Kind::either)
      terms.insert(terms.end(), node.parts.begin(), node.parts.end());
    else if (node.kind == Kind::sequence)
      tails[node.parts[0]].push_back(node.parts[1]);
    else
      tails[term].push_back(kEmpty);
  }
  for (auto& [first, rest] : tails) terms.push_back(sequence(first, either(std::move(rest))));
  std::ranges::sort(terms);
  return terms;
}

// The characters at which after() of the term may change, ascending, without 0.
const std::vector<uint32_t>& Terms::borders(Id term) {
  const auto known = borders_.find(term);
  if (known != borders_.end()) return known->second;
  std::vector<uint32_t> all;
  const Node& node = nodes_[at(term)];
  const auto add = [&](uint32_t first, uint32_t last) { all.insert(all.end(), {first, last + 1}); };
  if (node.kind == Kind::character && term != any_character_)
    for (const Range& range : node.ranges) add(range.first, range.last);
  if (node.kind == Kind::without)
    for (const uint32_t symbol : list_at(node.least).front())
      if (matched(list_at(node.least).front(), node.most, symbol) > 0) add(symbol, symbol);
  if (node.kind == Kind::one_of)
    for (uint32_t i = node.ranges[0].first; i < node.ranges[0].last; ++i)
      if (const int64_t symbol = symbol_at(node.most)(list_at(node.least)[i]);
          symbol >= 0 && (all.empty() || all.back() != symbol + 1))
        add(static_cast<uint32_t>(symbol), static_cast<uint32_t>(symbol));
  for (const Id part : node.parts) {
    const std::vector<uint32_t>& own = borders(part);
    all.insert(all.end(), own.begin(), own.end());
    if (node.kind == Kind::sequence && !takes_empty(part)) break;  // the other part does not begin yet
  }
  sort_and_unite(all);
  work_.keep(100 + 4 * std::ssize(all));
  return borders_[term] = std::move(all);
}

// Characters of which each stands for those that lead from the term to the same one, or some of them; the
// first n_most.
std::vector<uint32_t> Terms::representatives(Id term, size_t n_most) {
  std::vector<uint32_t> characters = borders(term);
  characters.insert(characters.begin(), 0);
  std::erase_if(characters, [](uint32_t c) { return !is_character(c); });
  if (characters.size() > n_most) characters.resize(n_most);
  return characters;
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
  if (!is_possible_.contains(term)) explore(term);
  return is_possible_.at(term);
}

// Decides is_possible() for the term and for all that can follow it: those from which a term that takes the
// empty text can be reached.
void Terms::explore(Id term) {
  std::vector<Id> found{term};
  std::unordered_map<Id, std::vector<Id>> before;  // from which terms a term is reached
  before[term];
  for (size_t i = 0; i < found.size(); ++i) {
    for (const uint32_t c : representatives(found[i])) {
      const Id next = after(found[i], c);
      const auto [at_next, is_new] = before.try_emplace(next);
      at_next->second.push_back(found[i]);
      if (is_new) found.push_back(next);
      work_.spend(50 * (1 + std::ssize(nodes_[at(found[i])].parts)));
    }
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

// How many terms derive() asks about a string's next character.
int64_t Terms::n_open(Id term) {
  int64_t n = 0;
  for (std::vector<Id> open{term}; !open.empty();) {
    const Node& node = nodes_[at(open.back())];
    open.pop_back();
    const bool has_parts =
        node.kind == Kind::either || node.kind == Kind::both || node.kind == Kind::other_than;
    if (has_parts)
      open.insert(open.end(), node.parts.begin(), node.parts.end());
    else if (node.kind != Kind::sequence)
      ++n;
    else if (open.push_back(node.parts[0]); takes_empty(node.parts[0]))
      open.push_back(node.parts[1]);
  }
  work_.spend(20 + 4 * n);
  return n;
}

// Along one text: of the characters that lead to a term not seen before, always the one with most open.
Terms::Id Terms::most_open(Id string) {
  constexpr int64_t kMostLooked = 256;
  std::unordered_set<Id> seen{string};
  Id most = string;
  int64_t n_most = n_open(string);
  for (Id term = string, next = kNothing; std::ssize(seen) < kMostLooked; seen.insert(term = next)) {
    int64_t n_next = 0;
    for (const uint32_t c : representatives(term, kMostBranches)) {
      const Id reached = after(term, c);
      const int64_t n = n_open(reached);
      if (n > n_next && !seen.contains(reached)) next = reached, n_next = n;
    }
    if (n_next == 0) break;
    if (n_next > n_most) most = next, n_most = n_next;
  }
  return most;
}

bool Terms::is_ambiguous(Id string) {
  constexpr int64_t kMostOpen = 100'000;
  const auto [known, is_new] = n_ahead_.try_emplace(string, 0);
  if (is_new) n_open_together_ += known->second = n_open_ahead(string, kMostOpen);
  return known->second > kMostOpen || n_open_together_ > 4 * kMostOpen;
}

// How many terms are open in all those together that the next characters, as many as a token has, lead to
// where most are open. Stops behind n_most.
int64_t Terms::n_open_ahead(Id string, int64_t n_most) {
  constexpr int kCharacters = 8;
  std::vector<Id> found{most_open(string)};
  std::unordered_set<Id> seen{found[0]};
  int64_t n = n_open(found[0]);
  size_t i = 0;
  for (int depth = 0; depth < kCharacters; ++depth)
    for (const size_t end = found.size(); i < end && n <= n_most; ++i)
      for (const uint32_t c : representatives(found[i], kMostBranches)) {
        const Id reached = after(found[i], c);
        if (!seen.insert(reached).second) continue;
        found.push_back(reached);
        n += n_open(reached);
      }
  return n;
}

}  // namespace dsv32
