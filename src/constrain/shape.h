// What one schema without alternatives asks of a value: its keywords, read and bounded, by the kind of value
// that they are about. Several schemas that all hold are one shape.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "constrain/numbers.h"
#include "constrain/terms.h"
#include "text/json.h"

namespace dsv32 {

// Kinds of values, a bit each; of numbers two.
enum Type : unsigned {
  kNull = 1,
  kBoolean = 2,
  kInteger = 4,
  kFraction = 8,
  kNumber = kInteger | kFraction,
  kString = 16,
  kArray = 32,
  kObject = 64,
  kEveryType = 127,
};
Type type_of(const Json& value);
// By their meanings: the same text for equal values, whatever the order of their properties.
using Values = std::map<std::string, const Json*>;

struct Shape {
  unsigned types = kEveryType;
  std::shared_ptr<const Values> values;  // the only ones; null: any. Shared by the copies of a shape
  NumberBounds number;
  std::vector<Terms::Id> texts;  // a string is in all of them
  Terms::Length length, n_items;
  std::vector<const Json*> of_items, of_properties;  // schemas that have keywords of items, or of properties

  // Adds the keywords of `schema`, an object, but for those that name other schemas that hold for the same
  // value ($ref, allOf, anyOf, oneOf). Throws Error{usage} that names the keyword, for one that is not
  // supported or has a value that it cannot have.
  void add(Terms& terms, const Json& schema);

  // Without `values`, whether all values of its types are allowed.
  bool is_free() const;
  // The terms of its strings and numbers.
  Terms::Id string_term(Terms& terms) const;
  Terms::Id number_term(Terms& terms) const;
  // The schemas of the item at `index`, of the property `name`, and of properties that no schema names.
  std::vector<const Json*> item(size_t index) const;
  std::vector<const Json*> property(const std::string& name) const;
  std::vector<const Json*> other_properties() const;
  // The first items that a schema may have for themselves.
  size_t n_prefix_items() const;
  // Names that a schema gives a property or asks for, in the order of the answer; how many with repetitions.
  std::vector<std::string> names() const;
  int64_t n_names() const;
  bool is_required(const std::string& name) const;
  int64_t n_parts() const { return std::ssize(texts) + std::ssize(of_items) + std::ssize(of_properties); }
};

}  // namespace dsv32
