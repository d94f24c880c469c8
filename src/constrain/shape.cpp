#include "constrain/shape.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <unordered_set>

#include "base/error.h"
#include "base/text.h"
#include "constrain/pattern.h"

namespace dsv32 {
namespace {

constexpr int64_t kMostCount = 1'000'000'000;  // larger bounds are as good as none, or cannot be met

constexpr std::string_view kAnnotations[] = {"title",      "description", "default",   "examples",
                                             "deprecated", "readOnly",    "writeOnly", "$comment",
                                             "$schema",    "$id",         "$defs",     "definitions"};
// Of the value itself, but read elsewhere: SchemaReader.
constexpr std::string_view kCombining[] = {"$ref", "allOf", "anyOf", "oneOf"};

std::string shown(const Json& value) { return visible(json_text(value), false, 60); }

[[noreturn]] void fail_value(const std::string& keyword, const Json& value, const char* expected) {
  fail(ErrorKind::usage, format("%s is %s, expected %s", keyword.c_str(), shown(value).c_str(), expected));
}

int64_t count_of(const std::string& keyword, const Json& value) {
  double number = value.is_number() ? value.get<double>() : -1;
  if (is_large_number(value)) number = json_text(value).front() == '-' ? -1 : kMostCount;
  if (!(number >= 0 && std::trunc(number) == number)) fail_value(keyword, value, "an integer from 0 on");
  return static_cast<int64_t>(std::min(number, static_cast<double>(kMostCount)));
}

NumberBound bound_of(const std::string& keyword, const Json& value, bool is_exclusive) {
  if (type_of(value) != kNumber) fail_value(keyword, value, "a number");
  return {json_text(value), is_exclusive};
}

// A type's bit; an integer is a number that is_integer says more of.
unsigned bit_of(const Json& name, bool& is_integer) {
  static const std::map<std::string, unsigned> bits{
      {"null", kNull},     {"boolean", kBoolean}, {"number", kNumber}, {"integer", kNumber},
      {"string", kString}, {"array", kArray},     {"object", kObject}};
  const auto found = name.is_string() ? bits.find(name.get<std::string>()) : bits.end();
  if (found == bits.end())
    fail_value("type", name, "null, boolean, integer, number, string, array, object or a list of these");
  is_integer = found->first == "integer";
  return found->second;
}

void add_types(Shape& shape, const Json& value) {
  unsigned types = 0;
  bool has_integer = false, has_number = false;
  for (const Json& name : value.is_array() ? value : Json::array({value})) {
    bool is_integer = false;
    const unsigned bit = bit_of(name, is_integer);
    types |= bit;
    has_integer |= is_integer, has_number |= bit == kNumber && !is_integer;
  }
  shape.types &= types;
  shape.number.is_integer |= has_integer && !has_number;
}

void add_values(Shape& shape, Work& work, std::span<const Json> values) {
  auto all = std::make_shared<Values>();
  for (const Json& value : values) {
    std::string meaning = meaning_of(value);
    work.spend(100 + 4 * std::ssize(meaning));
    if (!shape.values || shape.values->contains(meaning)) all->emplace(std::move(meaning), &value);
  }
  shape.values = std::move(all);
}

std::span<const Json> list_of_values(const Json& value) {
  if (!value.is_array()) fail_value("enum", value, "a list");
  return value.get_ref<const Json::array_t&>();
}

const Json* list_of(const char* keyword, const Json& value) {
  if (!value.is_array()) fail_value(keyword, value, "a list");
  return &value;
}

const Json* required_of(const Json& value) {
  for (const Json& name : *list_of("required", value))
    if (!name.is_string()) fail_value("required", value, "a list of names");
  return &value;
}

void append(std::vector<const Json*>& schemas, const Json* schema) {
  if (schema) schemas.push_back(schema);
}

const Json* find(const Json* object, const std::string& key) {
  if (!object) return nullptr;
  const auto found = object->find(key);
  return found == object->end() ? nullptr : &*found;
}

const Json* at_index(const Json* list, size_t index) {
  return list && index < list->size() ? &(*list)[index] : nullptr;
}

bool has_name(const Json* names, const std::string& name) {
  return names && std::ranges::any_of(
                      *names, [&](const Json& one) { return one.get_ref<const std::string&>() == name; });
}

void check_bounds(const Shape& shape, Terms& terms) {
  for (const auto* bounds : {&shape.number.least, &shape.number.most})
    for (const NumberBound& bound : *bounds)
      if (bound.is_long() && !terms.is_possible(shape.number_term(terms)))
        fail(ErrorKind::usage,
             "the bound " + visible(bound.number, false, 60) +
                 " has more than 20 digits, and numbers have at most 20 on either side of the point");
}

// What a keyword adds, beside those of items and properties.
bool add_keyword(Shape& shape, Terms& terms, const std::string& key, const Json& value) {
  const auto least = [&](int64_t& at) { at = std::max(at, count_of(key, value)); };
  const auto most = [&](int64_t& at) { at = std::min(at, count_of(key, value)); };
  const auto text = [&]() -> const std::string& {
    if (!value.is_string()) fail_value(key, value, "a text");
    return value.get_ref<const std::string&>();
  };
  if (key == "type") {
    add_types(shape, value);
  } else if (key == "enum") {
    add_values(shape, terms.work(), list_of_values(value));
  } else if (key == "const") {
    add_values(shape, terms.work(), {&value, 1});
  } else if (key == "minimum" || key == "exclusiveMinimum") {
    shape.number.least.push_back(bound_of(key, value, key != "minimum"));
  } else if (key == "maximum" || key == "exclusiveMaximum") {
    shape.number.most.push_back(bound_of(key, value, key != "maximum"));
  } else if (key == "minLength") {
    least(shape.least_length);
  } else if (key == "maxLength") {
    most(shape.most_length);
  } else if (key == "minItems") {
    least(shape.least_items);
  } else if (key == "maxItems") {
    most(shape.most_items);
  } else if (key == "pattern") {
    shape.texts.push_back(pattern_term(terms, text()));
  } else if (key == "format") {
    const std::optional<Terms::Id> term = format_term(terms, text());
    if (!term) fail_value(key, value, "date, date-time, time or uuid");
    shape.texts.push_back(*term);
  } else {
    return false;
  }
  return true;
}

}  // namespace

std::string meaning_of(const Json& value) {
  if (!value.is_structured()) return json_text(value);
  std::vector<std::string> parts;
  for (const auto& [key, part] : value.items())
    parts.push_back((value.is_object() ? json_text(key) : "") + meaning_of(part));
  if (value.is_object()) std::ranges::sort(parts);
  return (value.is_object() ? "{" : "[") + joined(parts, ",") + "]";
}

Type type_of(const Json& value) {
  return value.is_null()      ? kNull
         : value.is_boolean() ? kBoolean
         : value.is_string()  ? kString
         : value.is_array()   ? kArray
         : value.is_object()  ? kObject
                              : kNumber;
}

void Shape::add(Terms& terms, const Json& schema) {
  ItemSchemas own_items;
  PropertySchemas own;
  for (const auto& [key, value] : schema.items()) {
    if (key == "items")
      own_items.others = &value;
    else if (key == "prefixItems")
      own_items.prefix = list_of("prefixItems", value);
    else if (key == "properties")
      own.properties = &value;
    else if (key == "additionalProperties")
      own.others = &value;
    else if (key == "required")
      own.required = required_of(value);
    else if ((key == "uniqueItems" && value == false) || (key == "discriminator" && schema.contains("oneOf")))
      continue;
    else if (!add_keyword(*this, terms, key, value) && std::ranges::count(kAnnotations, key) == 0 &&
             std::ranges::count(kCombining, key) == 0 && !key.starts_with("x-"))
      fail(ErrorKind::usage, format("the keyword %s is not supported", visible(key, false, 60).c_str()));
  }
  if (own.properties && !own.properties->is_object())
    fail_value("properties", *own.properties, "an object of schemas");
  if ((types & kNumber) && !values) check_bounds(*this, terms);
  if (own_items.prefix || own_items.others) items.push_back(own_items);
  if (own.properties || own.others || own.required) properties.push_back(own);
}

bool Shape::is_free() const {
  return !number.is_integer && number.least.empty() && number.most.empty() && texts.empty() &&
         least_length == 0 && most_length == Terms::kNoLimit && items.empty() && least_items == 0 &&
         most_items == Terms::kNoLimit && properties.empty();
}

Terms::Id Shape::string_term(Terms& terms) const {
  std::vector<Terms::Id> all = texts;
  all.push_back(terms.of_length({least_length, most_length}));
  return terms.both(all);
}

std::vector<const Json*> Shape::item(size_t index) const {
  std::vector<const Json*> schemas;
  for (const ItemSchemas& part : items) {
    const Json* own = at_index(part.prefix, index);
    append(schemas, own ? own : part.others);
  }
  return schemas;
}

std::vector<const Json*> Shape::property(const std::string& name) const {
  std::vector<const Json*> schemas;
  for (const PropertySchemas& part : properties) {
    const Json* own = find(part.properties, name);
    append(schemas, own ? own : part.others);
  }
  return schemas;
}

std::vector<const Json*> Shape::other_properties() const {
  std::vector<const Json*> schemas;
  for (const PropertySchemas& part : properties) append(schemas, part.others);
  return schemas;
}

std::vector<std::string> Shape::names() const {
  std::vector<std::string> all;
  std::unordered_set<std::string> known;
  const auto add_name = [&](const std::string& name) {
    if (known.insert(name).second) all.push_back(name);
  };
  for (const PropertySchemas& part : properties)
    if (part.properties)
      for (const auto& property : part.properties->items()) add_name(property.key());
  for (const PropertySchemas& part : properties)
    if (part.required)
      for (const Json& name : *part.required) add_name(name.get<std::string>());
  return all;
}

bool Shape::is_required(const std::string& name) const {
  return std::ranges::any_of(properties, [&](const auto& part) { return has_name(part.required, name); });
}

}  // namespace dsv32
