// Whether the branches of a oneOf exclude each other, as far as constants, types and required properties
// show.
#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "constrain/schema.h"

namespace dsv32 {

void SchemaReader::check_branches(const Json& branches) {
  if (!checked_.insert(&branches).second) return;
  std::vector<Shapes> shapes;
  for (const Json& branch : branches) shapes.push_back(shapes_of({&branch}));
  for (const auto& [j, i] : pairs_to_compare(branches, shapes))
    if (!differ(shapes[i], shapes[j], 0))
      refuse(branches, format("branches %zu and %zu of oneOf do not differ visibly, which is not supported; "
                              "anyOf accepts what fits both",
                              j, i));
}

// The branches that have to be compared: not those that have other constants at one place. That place is the
// whole value (""), or a property that the first branch names.
SchemaReader::Pairs SchemaReader::pairs_to_compare(const Json& branches, const std::vector<Shapes>& shapes) {
  std::vector<std::string> places{""};
  if (!shapes.front().empty())
    for (const std::string& name : shapes.front().front().names()) places.push_back(name);
  std::optional<Pairs> fewest;
  for (const std::string& place : places) {
    std::optional<Pairs> pairs = pairs_at(place, shapes);
    if (pairs && (!fewest || pairs->size() < fewest->size())) fewest = std::move(pairs);
    if (fewest && fewest->empty()) break;
  }
  if (!fewest) refuse(branches, "oneOf has too many branches without a constant that tells them apart");
  return *fewest;
}

// Nothing: they are too many.
std::optional<SchemaReader::Pairs> SchemaReader::pairs_at(const std::string& place,
                                                          const std::vector<Shapes>& shapes) {
  constexpr size_t kMostPairs = 20000;
  Pairs pairs;
  std::map<std::string, std::vector<size_t>> with;  // the branches with a constant
  std::vector<size_t> all, open;  // all branches, and those with other values than constants
  for (size_t i = 0; i < shapes.size() && pairs.size() <= kMostPairs; ++i) {
    const auto add = [&](const std::vector<size_t>& others) {
      for (const size_t other : others) pairs.emplace_back(other, i);
    };
    const std::optional<std::set<std::string>> own = constants(shapes[i], place);
    add(own ? open : all);
    all.push_back(i);
    if (!own) open.push_back(i);
    for (const std::string& constant : own.value_or(std::set<std::string>{})) {
      add(with[constant]);
      with[constant].push_back(i);
    }
  }
  if (pairs.size() > kMostPairs) return {};
  return pairs;
}

// The only values at the place; nothing: others may be there, or none.
std::optional<std::set<std::string>> SchemaReader::constants(const Shapes& shapes, const std::string& place) {
  std::set<std::string> all;
  for (const Shape& shape : shapes) {
    const bool has_place = !shape.values && shape.types == kObject && shape.is_required(place);
    if (!place.empty() && !has_place) return {};
    for (const Shape& own : place.empty() ? Shapes{shape} : shapes_of(shape.property(place))) {
      if (!own.values) return {};
      for (const auto& [meaning, value] : *own.values) all.insert(meaning);
      terms_.work().spend(100 * std::ssize(*own.values));
    }
  }
  return all;
}

bool SchemaReader::differ(const Shapes& a, const Shapes& b, int depth) {
  return std::ranges::all_of(a, [&](const Shape& one) {
    return std::ranges::all_of(b, [&](const Shape& other) { return differ(one, other, depth); });
  });
}

bool SchemaReader::differ(const Shape& a, const Shape& b, int depth) {
  if (a.values || b.values) return a.values ? values_differ(a, b) : values_differ(b, a);
  const unsigned types = a.types & b.types;
  if (types & (kNull | kBoolean)) return false;
  if ((types & kNumber) && terms_.is_possible(terms_.both({a.number_term(terms_), b.number_term(terms_)})))
    return false;
  if ((types & kString) && terms_.is_possible(terms_.both({a.string_term(terms_), b.string_term(terms_)})))
    return false;
  if ((types & kArray) && a.n_items.least <= b.n_items.most && b.n_items.least <= a.n_items.most)
    return false;
  return !(types & kObject) || properties_differ(a, b, depth);
}

// `a` has values.
bool SchemaReader::values_differ(const Shape& a, const Shape& b) {
  terms_.work().spend(50 * std::ssize(*a.values));
  return std::ranges::none_of(*a.values, [&](const auto& one) {
    return (a.types & b.types & type_of(*one.second)) && (!b.values || b.values->contains(one.first));
  });
}

// Whether one asks for a property that the other forbids, or both for one whose values differ.
bool SchemaReader::properties_differ(const Shape& a, const Shape& b, int depth) {
  constexpr int kMostDepth = 4;
  std::vector<std::string> names = a.names();
  for (const std::string& name : b.names()) names.push_back(name);
  return std::ranges::any_of(names, [&](const std::string& name) {
    if (!a.is_required(name) && !b.is_required(name)) return false;
    const Shapes of_a = shapes_of(a.property(name)), of_b = shapes_of(b.property(name));
    if ((a.is_required(name) && of_b.empty()) || (b.is_required(name) && of_a.empty())) return true;
    return a.is_required(name) && b.is_required(name) && depth < kMostDepth && differ(of_a, of_b, depth + 1);
  });
}

}  // namespace dsv32
