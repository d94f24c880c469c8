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

// They say nothing of a value, or SchemaReader reads them.
constexpr std::string_view kOtherKeywords[] = {
    "title",   "description", "default", "examples",    "deprecated", "readOnly", "writeOnly", "$comment",
    "$schema", "$id",         "$defs",   "definitions", "$ref",       "allOf",    "anyOf",     "oneOf"};

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
  if (!(type_of(value) & kNumber)) fail_value(keyword, value, "a number");
  return {json_text(value), is_exclusive};
}

// `keyword`: min… or max….
void narrow(Terms::Length& length, const std::string& keyword, const Json& value) {
  const int64_t n = count_of(keyword, value);
  if (keyword.starts_with("min"))
    length.least = std::max(length.least, n);
  else
    length.most = std::min(length.most, n);
}

void add_types(Shape& shape, const Json& value) {
  static const std::map<std::string, Type> named{
      {"null", kNull},     {"boolean", kBoolean}, {"number", kNumber}, {"integer", kInteger},
      {"string", kString}, {"array", kArray},     {"object", kObject}};
  unsigned types = 0;
  for (const Json& name : value.is_array() ? value : Json::array({value})) {
    const auto found = name.is_string() ? named.find(name.get<std::string>()) : named.end();
    if (found == named.end())
      fail_value("type", name, "null, boolean, integer, number, string, array, object or a list of these");
    types |= found->second;
  }
  shape.types &= types;
}

std::string meaning_of(const Json& value) {
  if (!value.is_structured()) return json_text(value);
  std::vector<std::string> parts;
  for (const auto& [key, part] : value.items())
    parts.push_back((value.is_object() ? json_text(key) : "") + meaning_of(part));
  if (value.is_object()) std::ranges::sort(parts);
  return (value.is_object() ? "{" : "[") + joined(parts, ",") + "]";
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

const Json::array_t& list_of(const std::string& keyword, const Json& value) {
  if (!value.is_array()) fail_value(keyword, value, "a list");
  return value.get_ref<const Json::array_t&>();
}

void append(std::vector<const Json*>& schemas, const Json* schema) {
  if (schema) schemas.push_back(schema);
}

const Json* find(const Json* object, const std::string& key) {
  if (!object) return nullptr;
  const auto found = object->find(key);
  return found == object->end() ? nullptr : &*found;
}

size_t size_of(const Json* value) { return value ? value->size() : 0; }

void check_bounds(const Shape& shape, Terms& terms) {
  for (const auto* bounds : {&shape.number.least, &shape.number.most})
    for (const NumberBound& bound : *bounds)
      if (bound.is_long() && !terms.is_possible(shape.number_term(terms)))
        fail(ErrorKind::usage,
             "the bound " + visible(bound.number, false, 60) +
                 " has more than 20 digits, and numbers have at most 20 on either side of the point");
}

// Checks keywords that are read where items and properties are asked for.
bool is_of_parts(const std::string& key, const Json& value) {
  if (key == "prefixItems") list_of(key, value);
  if (key == "properties" && !value.is_object()) fail_value(key, value, "an object of schemas");
  if (key == "required")
    for (const Json& name : list_of(key, value))
      if (!name.is_string()) fail_value(key, value, "a list of names");
  return key == "prefixItems" || key == "items" || key == "properties" || key == "required" ||
         key == "additionalProperties";
}

// What a keyword adds; false: it is none that says something of the value itself.
bool add_keyword(Shape& shape, Terms& terms, const std::string& key, const Json& value) {
  const auto text = [&]() -> const std::string& {
    if (!value.is_string()) fail_value(key, value, "a text");
    return value.get_ref<const std::string&>();
  };
  if (key == "type") {
    add_types(shape, value);
  } else if (key == "enum") {
    add_values(shape, terms.work(), list_of(key, value));
  } else if (key == "const") {
    add_values(shape, terms.work(), {&value, 1});
  } else if (key == "minimum" || key == "exclusiveMinimum") {
    shape.number.least.push_back(bound_of(key, value, key != "minimum"));
  } else if (key == "maximum" || key == "exclusiveMaximum") {
    shape.number.most.push_back(bound_of(key, value, key != "maximum"));
  } else if (key == "minLength" || key == "maxLength") {
    narrow(shape.length, key, value);
  } else if (key == "minItems" || key == "maxItems") {
    narrow(shape.n_items, key, value);
  } else if (key == "pattern") {
    shape.texts.push_back(pattern_term(terms, text()));
  } else if (key == "format") {
    const std::optional<Terms::Id> term = format_term(terms, text());
    if (!term) fail_value(key, value, "date, date-time, time or uuid");
    shape.texts.push_back(*term);
  } else {
    return is_of_parts(key, value);
  }
  return true;
}

}  // namespace

Type type_of(const Json& value) {
  if (value.is_number_float()) {
    const auto number = value.get<double>();
    return std::trunc(number) == number ? kInteger : kFraction;
  }
  return value.is_null()      ? kNull
         : value.is_boolean() ? kBoolean
         : value.is_string()  ? kString
         : value.is_array()   ? kArray
         : value.is_object()  ? kObject
                              : kInteger;
}

void Shape::add(Terms& terms, const Json& schema) {
  for (const auto& [key, value] : schema.items()) {
    const bool says_nothing = (key == "uniqueItems" && value == false) || key.starts_with("x-") ||
                              (key == "discriminator" && schema.contains("oneOf")) ||
                              std::ranges::count(kOtherKeywords, key) > 0;
    if (!says_nothing && !add_keyword(*this, terms, key, value))
      fail(ErrorKind::usage, format("the keyword %s is not supported", visible(key, false, 60).c_str()));
  }
  if ((types & kNumber) && !values) check_bounds(*this, terms);
  const auto has = [&](const char* key) { return schema.contains(key); };
  if (has("prefixItems") || has("items")) of_items.push_back(&schema);
  if (has("properties") || has("required") || has("additionalProperties")) of_properties.push_back(&schema);
}

bool Shape::is_free() const {
  return number.least.empty() && number.most.empty() && texts.empty() && length == Terms::Length{} &&
         of_items.empty() && n_items == Terms::Length{} && of_properties.empty();
}

Terms::Id Shape::number_term(Terms& terms) const {
  return dsv32::number_term(terms, number, !(types & kFraction));
}

Terms::Id Shape::string_term(Terms& terms) const {
  std::vector<Terms::Id> all = texts;
  all.push_back(terms.of_length(length));
  const Terms::Id term = terms.both(all);
  if (!texts.empty() && terms.is_ambiguous(term))
    fail(ErrorKind::usage,
         "pattern keeps too many ways to read a text open, expected one that is less ambiguous");
  return term;
}

std::vector<const Json*> Shape::item(size_t index) const {
  std::vector<const Json*> schemas;
  for (const Json* part : of_items) {
    const Json* const prefix = find(part, "prefixItems");
    append(schemas, index < size_of(prefix) ? &(*prefix)[index] : find(part, "items"));
  }
  return schemas;
}

size_t Shape::n_prefix_items() const {
  size_t n = 0;
  for (const Json* part : of_items) n = std::max(n, size_of(find(part, "prefixItems")));
  return n;
}

std::vector<const Json*> Shape::property(const std::string& name) const {
  std::vector<const Json*> schemas;
  for (const Json* part : of_properties) {
    const Json* const own = find(find(part, "properties"), name);
    append(schemas, own ? own : find(part, "additionalProperties"));
  }
  return schemas;
}

std::vector<const Json*> Shape::other_properties() const {
  std::vector<const Json*> schemas;
  for (const Json* part : of_properties) append(schemas, find(part, "additionalProperties"));
  return schemas;
}

std::vector<std::string> Shape::names() const {
  std::vector<std::string> all;
  std::unordered_set<std::string> known;
  const auto add_name = [&](const std::string& name) {
    if (known.insert(name).second) all.push_back(name);
  };
  for (const Json* part : of_properties)
    if (const Json* properties = find(part, "properties"))
      for (const auto& property : properties->items()) add_name(property.key());
  for (const Json* part : of_properties)
    if (const Json* required = find(part, "required"))
      for (const Json& name : *required) add_name(name.get<std::string>());
  return all;
}

int64_t Shape::n_names() const {
  size_t n = 0;
  for (const Json* part : of_properties)
    n += size_of(find(part, "properties")) + size_of(find(part, "required"));
  return static_cast<int64_t>(n);
}

bool Shape::is_required(const std::string& name) const {
  return std::ranges::any_of(of_properties, [&](const Json* part) {
    const Json* const required = find(part, "required");
    return required && std::find(required->begin(), required->end(), name) != required->end();
  });
}

}  // namespace dsv32
