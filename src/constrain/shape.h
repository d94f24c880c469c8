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

// Kinds of values, a bit each.
enum Type : unsigned {
  kNull = 1,
  kBoolean = 2,
  kNumber = 4,
  kString = 8,
  kArray = 16,
  kObject = 32,
  kEveryType = 63,
};
Type type_of(const Json& value);
// The same text for equal values, whatever the order of their properties.
std::string meaning_of(const Json& value);
using Values = std::map<std::string, const Json*>;  // by their meanings

// The schemas of an array's items, or of an object's properties, in one schema; null: none is given.
struct ItemSchemas {
  const Json *prefix = nullptr, *others = nullptr;
};
struct PropertySchemas {
  const Json *properties = nullptr, *required = nullptr, *others = nullptr;
};

struct Shape {
  unsigned types = kEveryType;
  std::shared_ptr<const Values> values;  // the only ones; null: any. Shared by the copies of a shape
  NumberKind number;
  std::vector<Terms::Id> texts;  // a string is in all of them
  int64_t least_length = 0, most_length = Terms::kNoLimit;
  std::vector<ItemSchemas> items;
  int64_t least_items = 0, most_items = Terms::kNoLimit;
  std::vector<PropertySchemas> properties;

  // Adds the keywords of `schema`, an object, but for those that name other schemas that hold for the same
  // value ($ref, allOf, anyOf, oneOf). Throws Error{usage} that names the keyword, for one that is not
  // supported or has a value that it cannot have.
  void add(Terms& terms, const Json& schema);

  // Without `values`, whether all values of its types are allowed.
  bool is_free() const;
  // The terms of its strings and numbers.
  Terms::Id string_term(Terms& terms) const;
  Terms::Id number_term(Terms& terms) const { return dsv32::number_term(terms, number); }
  // The schemas of the item at `index`, of the property `name`, and of properties that no schema names.
  std::vector<const Json*> item(size_t index) const;
  std::vector<const Json*> property(const std::string& name) const;
  std::vector<const Json*> other_properties() const;
  // Names that a schema gives a property or asks for, in the order of the answer.
  std::vector<std::string> names() const;
  bool is_required(const std::string& name) const;
  int64_t n_parts() const { return std::ssize(texts) + std::ssize(items) + std::ssize(properties); }
};

}  // namespace dsv32
