#include "constrain/schema.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "base/text.h"

namespace dsv32 {
namespace {

constexpr size_t kMostSchemaBytes = size_t{1} << 20;
constexpr int kMostSchemaDepth = 64;
constexpr int64_t kMostSpread = 20000;  // schemas looked at for all alternatives together
constexpr size_t kMostChoices = 100;    // that hold for one value

std::string text_of(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

// With integers as integers are written: 1.0 is 1.
Json written(Json value) {
  if (value.is_structured())
    for (Json& part : value) part = written(part);
  if (value.is_number_float())
    if (const auto number = value.get<double>(); std::trunc(number) == number && std::abs(number) < 0x1p53)
      return static_cast<int64_t>(number);
  return value;
}

// A part of a JSON pointer in a URI's fragment.
std::string unescaped(std::string_view part) {
  std::string bytes;
  for (size_t i = 0; i < part.size(); ++i) {
    uint8_t byte = 0;
    const char* const digits = part.data() + i + 1;
    const bool is_escaped = part[i] == '%' && i + 2 < part.size() &&
                            std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2;
    bytes += is_escaped ? static_cast<char>(byte) : part[i];
    if (is_escaped) i += 2;
  }
  return replaced(replaced(bytes, "~1", "/"), "~0", "~");
}

// Calls for each value inside `value` with its path, until true is returned.
template <typename Visit>
bool visit_paths(const Json& value, const std::string& path, const Visit& visit) {
  if (visit(value, path)) return true;
  if (value.is_object())
    for (const auto& [key, part] : value.items())
      if (visit_paths(part, path + "/" + replaced(replaced(key, "~", "~0"), "/", "~1"), visit)) return true;
  if (value.is_array())
    for (size_t i = 0; i < value.size(); ++i)
      if (visit_paths(value[i], path + "/" + std::to_string(i), visit)) return true;
  return false;
}

bool asks_nothing(const Json* schema) { return *schema == true || (schema->is_object() && schema->empty()); }

}  // namespace

Json parse_bounded_json(std::string_view text, const std::string& name) {
  if (text.size() > kMostSchemaBytes) fail(ErrorKind::usage, name + " has more than 1 MB");
  int depth = 0;
  bool is_in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (is_in_string && text[i] == '\\')
      ++i;
    else if (text[i] == '"')
      is_in_string = !is_in_string;
    else if (!is_in_string && (text[i] == '{' || text[i] == '['))
      ++depth;
    else if (!is_in_string && (text[i] == '}' || text[i] == ']'))
      --depth;
    if (depth > kMostSchemaDepth) fail(ErrorKind::usage, name + " is nested more than 64 levels deep");
  }
  try {
    return Json::parse(text);
  } catch (const Json::exception& error) {
    fail(ErrorKind::usage, name + " is no JSON: " + visible(error.what(), false, 200));
  }
}

SchemaReader::SchemaReader(Automaton& automaton, const Json& schema) : automaton_(automaton), root_(schema) {
  visit_paths(root_, "", [this](const Json& value, const std::string&) {
    places_[&value] = std::ssize(places_);
    return false;
  });
}

SchemaReader::NodeId SchemaReader::document() {
  const NodeId node = node_of({&root_});
  finish();
  return node;
}

std::vector<SchemaReader::Property> SchemaReader::properties() {
  const Shapes shapes = shapes_of({&root_});
  if (shapes.size() != 1 || shapes[0].types != kObject || shapes[0].values)
    refuse(root_, "it is not the schema of one kind of objects");
  std::vector<Property> all;
  for (const std::string& name : shapes[0].names()) {
    Property property{name, shapes[0].is_required(name), {}, {}};
    std::vector<Terms::Id> texts;
    std::vector<NodeId> others;
    for (Shape& shape : shapes_of(shapes[0].property(name))) {
      if ((shape.types & kString) && !shape.values) texts.push_back(shape.string_term(automaton_.terms()));
      if (shape.values)
        for (const Json* value : *shape.values)
          if (value->is_string() && (shape.types & kString))
            texts.push_back(automaton_.terms().literal(value->get_ref<const std::string&>()));
      shape.types &= ~static_cast<unsigned>(kString);
      if (shape.types != 0) others.push_back(shape_node(shape));
    }
    if (!texts.empty()) property.text = automaton_.terms().either(texts);
    if (!others.empty()) property.other = automaton_.choice(others);
    all.push_back(std::move(property));
  }
  finish();
  return all;
}

// Makes what is still missing: the nodes of schemas within others, and the values that they accept.
void SchemaReader::finish() {
  while (!unread_.empty()) {
    const auto [schemas, placeholder] = std::move(unread_.back());
    unread_.pop_back();
    std::vector<NodeId> nodes;
    for (const Shape& shape : shapes_of(schemas)) nodes.push_back(shape_node(shape));
    automaton_.set(placeholder, automaton_.choice(nodes));
  }
  for (const Values& values : values_) {
    std::vector<NodeId> nodes;
    for (const Json* value : values.values)
      if (const std::string bytes = text_of(written(*value)); accepts(values.base, bytes))
        nodes.push_back(automaton_.literal(bytes));
    automaton_.set(values.placeholder, automaton_.choice(nodes));
  }
  values_.clear();
}

SchemaReader::NodeId SchemaReader::node_of(Schemas schemas) {
  std::erase_if(schemas, asks_nothing);
  std::ranges::sort(schemas, {}, [&](const Json* schema) { return places_.at(schema); });
  schemas.erase(std::unique(schemas.begin(), schemas.end()), schemas.end());
  const auto known = nodes_.find(schemas);
  if (known != nodes_.end()) return known->second;
  const NodeId placeholder = automaton_.placeholder();
  unread_.emplace_back(schemas, placeholder);
  return nodes_[std::move(schemas)] = placeholder;
}

SchemaReader::NodeId SchemaReader::shape_node(const Shape& shape) {
  if (shape.values) return values_node(shape);
  std::vector<NodeId> nodes;
  for (const Type type : {kNull, kBoolean, kNumber, kString, kArray, kObject})
    if (shape.types & type) nodes.push_back(type_node(shape, type));
  return automaton_.choice(nodes);
}

SchemaReader::NodeId SchemaReader::type_node(const Shape& shape, Type type) {
  switch (type) {
    case kNull: return automaton_.literal("null");
    case kBoolean: return automaton_.choice({automaton_.literal("true"), automaton_.literal("false")});
    case kNumber: return automaton_.bare(shape.number_term(automaton_.terms()));
    case kString: return automaton_.quoted(shape.string_term(automaton_.terms()));
    case kArray: return array_node(shape);
    default: return object_node(shape);
  }
}

// Of the values those that the other keywords accept: they are given to the automaton of these keywords, when
// it is complete.
SchemaReader::NodeId SchemaReader::values_node(Shape shape) {
  const std::vector<const Json*> values = *std::exchange(shape.values, std::nullopt);
  std::vector<const Json*> fitting;
  std::vector<NodeId> nodes;
  for (const Json* value : values)
    if (shape.types & type_of(*value)) fitting.push_back(value);
  if (shape.is_free()) {
    for (const Json* value : fitting) nodes.push_back(automaton_.literal(text_of(written(*value))));
    return automaton_.choice(nodes);
  }
  for (const Json* value : fitting)
    if (value->is_structured() && !shape.properties.empty())
      refuse(*value, "objects and lists as values, beside keywords of their properties, are not supported");
  const NodeId placeholder = automaton_.placeholder();
  values_.push_back({placeholder, shape_node(shape), fitting});
  return placeholder;
}

bool SchemaReader::accepts(NodeId node, const std::string& bytes) {
  const std::vector<Automaton::CellId> places = automaton_.begin(node);
  if (places.empty()) return false;
  Automaton::StateId state = automaton_.state_of(places);
  for (size_t i = 0; i < bytes.size() && state >= 0; ++i)
    state = automaton_.step(state, static_cast<uint8_t>(bytes[i]));
  return state >= 0 && automaton_.may_end(state);
}

SchemaReader::NodeId SchemaReader::comma() {
  if (!comma_) comma_ = automaton_.choice({automaton_.literal(","), automaton_.literal(", ")});
  return *comma_;
}
SchemaReader::NodeId SchemaReader::colon() {
  if (!colon_) colon_ = automaton_.choice({automaton_.literal(":"), automaton_.literal(": ")});
  return *colon_;
}

SchemaReader::NodeId SchemaReader::array_node(const Shape& shape) {
  size_t n_own = 0;
  for (const ItemSchemas& part : shape.items)
    n_own = std::max(n_own, part.prefix ? part.prefix->size() : size_t{0});
  std::vector<NodeId> items;
  for (size_t i = 0; i < n_own; ++i) items.push_back(node_of(shape.item(i)));
  return automaton_.sequence(
      {automaton_.literal("["),
       automaton_.list(items, node_of(shape.item(n_own)), comma(), shape.least_items, shape.most_items),
       automaton_.literal("]")});
}

SchemaReader::NodeId SchemaReader::object_node(const Shape& shape) {
  const std::vector<std::string> names = shape.names();
  std::vector<Automaton::Member> members;
  for (const std::string& name : names) {
    const NodeId value = node_of(shape.property(name));
    members.push_back(
        {automaton_.sequence({automaton_.literal(text_of(name)), colon(), value}), shape.is_required(name)});
  }
  return automaton_.sequence({automaton_.literal("{"),
                              automaton_.members(members, other_member(shape, names), comma()),
                              automaton_.literal("}")});
}

SchemaReader::NodeId SchemaReader::other_member(const Shape& shape, const std::vector<std::string>& names) {
  const Schemas schemas = shape.other_properties();
  if (std::ranges::any_of(schemas, [](const Json* schema) { return *schema == false; })) return -1;
  Terms& terms = automaton_.terms();
  std::vector<Terms::Id> known;
  for (const std::string& name : names) known.push_back(terms.literal(name));
  const Terms::Id others = terms.other_than(terms.either(known));
  return automaton_.sequence({automaton_.quoted(others), colon(), node_of(schemas)});
}

// --- Which schemas hold for a value

SchemaReader::Shapes SchemaReader::shapes_of(const Schemas& schemas) {
  std::vector<Open> open;
  for (const Json* schema : schemas) open.push_back({schema, {}});
  std::ranges::reverse(open);
  Shapes found;
  spread(std::move(open), {}, {}, {}, found);
  return found;
}

// Adds the schemas that are open to the shape, then each branch of the last choice.
void SchemaReader::spread(std::vector<Open> open, std::vector<Choice> choices, Shape shape,
                          std::set<const Json*> seen, Shapes& found) {
  while (!open.empty()) {
    Open now = std::move(open.back());
    open.pop_back();
    const Json& schema = *now.schema;
    if (std::ranges::find(now.trail, now.schema) != now.trail.end())
      refuse(schema, "it refers to itself without a step into the value");
    if (++n_spread_ > kMostSpread) refuse(schema, "its alternatives are too many together");
    if (!seen.insert(now.schema).second || schema == true) continue;
    if (schema == false) return;
    add(shape, schema);
    now.trail.push_back(now.schema);
    std::vector<Open> more;
    for (const auto& [key, value] : schema.items()) {
      if (key == "$ref") more.push_back({referred(value), now.trail});
      if (key == "allOf")
        for (const Json& part : value) more.push_back({&part, now.trail});
      if (key == "oneOf") check_branches(value);
      if (key == "anyOf" || key == "oneOf") choices.push_back({&value, now.trail});
    }
    open.insert(open.end(), more.rbegin(), more.rend());  // so that the first is read first
  }
  if (shape.types == 0) return;
  if (choices.size() > kMostChoices)
    refuse(*choices.back().schemas, "its alternatives are too many together");
  if (choices.empty()) return found.push_back(std::move(shape));
  const Choice choice = std::move(choices.back());
  choices.pop_back();
  for (const Json& branch : *choice.schemas) spread({{&branch, choice.trail}}, choices, shape, seen, found);
}

void SchemaReader::add(Shape& shape, const Json& schema) {
  if (!schema.is_object()) refuse(schema, "it is no schema, expected an object, true or false");
  for (const char* key : {"allOf", "anyOf", "oneOf"})
    if (schema.contains(key) && (!schema.at(key).is_array() || schema.at(key).empty()))
      refuse(schema, format("%s is no list of schemas", key));
  try {
    shape.add(automaton_.terms(), schema);
  } catch (const Error& error) {
    refuse(schema, error.what());
  }
}

// Where "#" or "#/…" points.
const Json* SchemaReader::referred(const Json& reference) const {
  const std::string text = reference.is_string() ? reference.get<std::string>() : "";
  if (!text.starts_with("#") || (text.size() > 1 && text[1] != '/'))
    refuse(reference, "$ref refers to " + visible(text_of(reference), false, 60) +
                          ", which is not supported; expected # or #/…");
  const Json* at = &root_;
  if (text.size() == 1) return at;
  for (const std::string& escaped : split(text.substr(2), '/')) {
    const std::string part = unescaped(escaped);
    const Json* next = nullptr;
    size_t index = 0;
    if (at->is_object() && at->contains(part))
      next = &at->at(part);
    else if (at->is_array() &&
             std::from_chars(part.data(), part.data() + part.size(), index).ptr ==
                 part.data() + part.size() &&
             !part.empty() && index < at->size())
      next = &(*at)[index];
    if (!next) refuse(reference, "$ref " + visible(text, false, 60) + " points to nothing");
    at = next;
  }
  return at;
}

// --- Whether the branches of a oneOf exclude each other

void SchemaReader::check_branches(const Json& branches) {
  if (!checked_.insert(&branches).second) return;
  std::vector<Shapes> shapes;
  for (const Json& branch : branches) shapes.push_back(shapes_of({&branch}));
  for (size_t i = 0; i < shapes.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      if (!differ(shapes[i], shapes[j], 0))
        refuse(branches,
               format("branches %zu and %zu of oneOf do not differ visibly, which is not supported; "
                      "anyOf accepts what fits both",
                      j, i));
}

bool SchemaReader::differ(const Shapes& a, const Shapes& b, int depth) {
  return std::ranges::all_of(a, [&](const Shape& one) {
    return std::ranges::all_of(b, [&](const Shape& other) { return differ(one, other, depth); });
  });
}

bool SchemaReader::differ(const Shape& a, const Shape& b, int depth) {
  if (a.values || b.values) return a.values ? values_differ(a, b) : values_differ(b, a);
  Terms& terms = automaton_.terms();
  const unsigned types = a.types & b.types;
  if (types & (kNull | kBoolean)) return false;
  if ((types & kNumber) && terms.is_possible(terms.both({a.number_term(terms), b.number_term(terms)})))
    return false;
  if ((types & kString) && terms.is_possible(terms.both({a.string_term(terms), b.string_term(terms)})))
    return false;
  if ((types & kArray) && a.least_items <= b.most_items && b.least_items <= a.most_items) return false;
  return !(types & kObject) || properties_differ(a, b, depth);
}

// `a` has values.
bool SchemaReader::values_differ(const Shape& a, const Shape& b) {
  return std::ranges::all_of(*a.values, [&](const Json* value) {
    if (!(a.types & b.types & type_of(*value))) return true;
    return b.values &&
           std::ranges::none_of(*b.values, [&](const Json* other) { return are_equal(*other, *value); });
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

std::string SchemaReader::path_of(const Json& schema) const {
  std::string found;
  visit_paths(root_, "", [&](const Json& value, const std::string& path) {
    if (&value == &schema) found = path;
    return &value == &schema;
  });
  return found;
}

void SchemaReader::refuse(const Json& schema, const std::string& why) const {
  const std::string path = path_of(schema);
  fail(ErrorKind::usage,
       "the schema" + (path.empty() ? "" : " at " + visible(path, false, 200)) + ": " + why);
}

}  // namespace dsv32
