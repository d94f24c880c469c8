#include "constrain/schema.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "base/text.h"

namespace dsv32 {
namespace {

constexpr size_t kMostSchemaBytes = size_t{1} << 20;
constexpr size_t kMostSchemaDepth = 64;
constexpr int64_t kMostSpread = 200000;  // schemas looked at for all alternatives together
constexpr size_t kMostChoices = 100;     // that hold for one value

// Writes whole numbers of at most 20 digits as integers are written: 1.0 is 1, and 1e16 has 17 digits.
void write_out_integers(Json& value) {
  if (value.is_structured())
    for (Json& part : value) write_out_integers(part);
  const double number = value.is_number_float() ? value.get<double>() : 0.5;
  if (std::trunc(number) != number || std::abs(number) >= 1e20) return;
  if (std::abs(number) < 0x1p63)
    value = static_cast<int64_t>(number);
  else if (number > 0 && number < 0x1p64)
    value = static_cast<uint64_t>(number);
  else
    value = large_number(format("%.0f", number));
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

// Calls for each value inside `value` until one returns true, whose path is then put before `path`.
template <typename Visit>
bool visit_values(const Json& value, std::string& path, const Visit& visit) {
  if (visit(value)) return true;
  if (value.is_structured())
    for (const auto& [key, part] : value.items())
      if (visit_values(part, path, visit)) {
        path.insert(0, "/" + replaced(replaced(key, "~", "~0"), "/", "~1"));
        return true;
      }
  return false;
}

struct Refusal : Error {  // that names a path
  using Error::Error;
};

bool asks_nothing(const Json* schema) { return *schema == true || (schema->is_object() && schema->empty()); }

}  // namespace

Json parse_bounded_json(std::string_view text, const std::string& name) {
  if (text.size() > kMostSchemaBytes) fail(ErrorKind::usage, name + " has more than 1 MB");
  try {
    Json json = parse_outside_json<Json>(text, kMostSchemaDepth);
    write_out_integers(json);
    return json;
  } catch (const Error& error) {
    fail(ErrorKind::usage, name + " cannot be read: " + error.what());
  }
}

SchemaReader::SchemaReader(Automaton& automaton, const Json& schema, std::string barred)
    : automaton_(automaton), root_(schema), barred_(std::move(barred)), at_(&schema) {
  std::string path;
  visit_values(root_, path, [this](const Json& value) {
    places_[&value] = std::ssize(places_);
    return false;
  });
}

// Refuses in the name of the schema that is read what is too large.
template <typename Read>
auto SchemaReader::named(const Read& read) try {
  return read();
} catch (const Refusal&) {
  throw;
} catch (const Error& error) {
  std::vector<std::string> keywords;
  for (const auto& [key, value] : at_->items()) keywords.push_back(key);
  refuse(*at_, visible(joined(keywords, ", "), false, 60) + ": " + error.what());
}

SchemaReader::NodeId SchemaReader::document() {
  return named([&] {
    const NodeId node = node_of({&root_});
    finish();
    return node;
  });
}

std::vector<SchemaReader::Property> SchemaReader::properties() {
  return named([&] { return read_properties(); });
}

std::vector<SchemaReader::Property> SchemaReader::read_properties() {
  const Shapes shapes = shapes_of({&root_});
  if (shapes.size() != 1 || shapes[0].types != kObject || shapes[0].values)
    refuse(root_, "it is not the schema of one kind of objects");
  std::vector<Property> all;
  for (const std::string& name : shapes[0].names()) {
    Property property{name, shapes[0].is_required(name), {}, {}};
    std::vector<Terms::Id> texts;
    std::vector<std::string_view> constants;
    Shapes others;
    for (Shape& shape : shapes_of(shapes[0].property(name))) {
      if ((shape.types & kString) && !shape.values)
        texts.push_back(open_text(shape.string_term(automaton_.terms())));
      if (shape.values)
        for (const auto& [meaning, value] : *shape.values)
          if (value->is_string() && (shape.types & kString))
            constants.push_back(allowed(*value, value->get_ref<const std::string&>()));
      shape.types &= ~static_cast<unsigned>(kString);
      if (shape.types != 0) others.push_back(std::move(shape));
    }
    if (!constants.empty()) texts.push_back(automaton_.terms().one_of(std::move(constants)));
    if (!texts.empty()) property.text = automaton_.terms().either(texts);
    if (!others.empty()) property.other = shapes_node(others);
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
    const Shapes shapes = shapes_of(schemas);
    if (!schemas.empty()) at_ = schemas.front();  // no longer a part of it
    automaton_.set(placeholder, shapes_node(shapes));
  }
  for (const Checked& checked : values_) {
    std::vector<std::string> texts = texts_of(checked.values);
    std::erase_if(texts,
                  [&](const std::string& text) { return !accepts(checked.base, without_exponent(text)); });
    automaton_.set(checked.placeholder, automaton_.one_of(std::move(texts)));
  }
  values_.clear();
}

// A shape's values as they are written.
std::vector<std::string> SchemaReader::texts_of(const Shape& shape) {
  std::vector<std::string> texts;
  for (const auto& [meaning, value] : *shape.values) {
    if (shape.types & type_of(*value)) texts.push_back(allowed(*value, json_text(*value)));
    automaton_.work().spend(50 + 2 * std::ssize(meaning));
  }
  return texts;
}

// Values on which nothing else bears are one node together.
SchemaReader::NodeId SchemaReader::shapes_node(const Shapes& shapes) {
  std::vector<NodeId> nodes;
  std::vector<std::string> texts;
  std::set<std::pair<const Values*, unsigned>> known;
  for (const Shape& shape : shapes) {
    if (!shape.values || !shape.is_free()) {
      nodes.push_back(shape_node(shape));
    } else if (known.insert({shape.values.get(), shape.types}).second) {
      std::ranges::move(texts_of(shape), std::back_inserter(texts));
    }
  }
  if (!texts.empty()) nodes.push_back(automaton_.one_of(std::move(texts)));
  return automaton_.choice(nodes);
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
    case kNumber: return automaton_.bare(explored(shape.number_term(automaton_.terms())));
    case kString: return automaton_.quoted(explored(open_text(shape.string_term(automaton_.terms()))));
    case kArray: return array_node(shape);
    default: return object_node(shape);
  }
}

// Values beside other keywords: those that the other keywords accept. finish() finds them, when the automaton
// of these keywords is complete.
SchemaReader::NodeId SchemaReader::values_node(Shape shape) {
  if (!shape.properties.empty())
    for (const auto& [meaning, value] : *shape.values)
      if (value->is_structured() && (shape.types & type_of(*value)))
        refuse(*value, "objects and lists as values, beside keywords of their properties, are not supported");
  Shape values;
  values.types = shape.types;
  values.values = std::exchange(shape.values, nullptr);
  shape.number.most_digits = Terms::kNoLimit;
  const NodeId placeholder = automaton_.placeholder();
  values_.push_back({placeholder, shape_node(shape), std::move(values)});
  return placeholder;
}

Terms::Id SchemaReader::open_text(Terms::Id term) {
  Terms& terms = automaton_.terms();
  return barred_.empty() ? term : terms.both({term, terms.without(barred_)});
}

const std::string& SchemaReader::allowed(const Json& place, const std::string& text) const {
  if (!barred_.empty() && text.find(barred_) != std::string::npos)
    refuse(place, "a text that holds " + visible(barred_, false, 60) + " cannot be written here");
  return text;
}

// Whether it has texts is decided at once, where it can be told which schema asks too much.
Terms::Id SchemaReader::explored(Terms::Id term) {
  automaton_.terms().is_possible(term);
  return term;
}

bool SchemaReader::accepts(NodeId node, const std::string& bytes) {
  const std::vector<Automaton::CellId> places = automaton_.begin(node);
  if (places.empty()) return false;
  if (automaton_.is_full()) automaton_.forget_states();
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
    for (const PropertySchemas& part : shape.properties)  // in which it is looked for
      automaton_.work().spend(static_cast<int64_t>((part.properties ? part.properties->size() : 0) +
                                                   (part.required ? part.required->size() : 0)) +
                              1);
    const NodeId value = node_of(shape.property(name));
    members.push_back(
        {automaton_.sequence({automaton_.literal(allowed(*at_, json_text(name))), colon(), value}),
         shape.is_required(name)});
  }
  return automaton_.sequence({automaton_.literal("{"),
                              automaton_.members(members, other_member(shape, names), comma()),
                              automaton_.literal("}")});
}

SchemaReader::NodeId SchemaReader::other_member(const Shape& shape, const std::vector<std::string>& names) {
  const Schemas schemas = shape.other_properties();
  if (std::ranges::any_of(schemas, [](const Json* schema) { return *schema == false; })) return -1;
  Terms& terms = automaton_.terms();
  const Terms::Id others = terms.other_than(terms.one_of({names.begin(), names.end()}));
  return automaton_.sequence({automaton_.quoted(open_text(others)), colon(), node_of(schemas)});
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
    automaton_.work().spend(100 + std::ssize(seen) + std::ssize(now.trail));
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
  if (choices.empty()) {
    automaton_.work().spend(static_cast<int64_t>(sizeof shape) + shape.n_parts() * 40);
    return found.push_back(std::move(shape));
  }
  const Choice choice = std::move(choices.back());
  choices.pop_back();
  for (const Json& branch : *choice.schemas) spread({{&branch, choice.trail}}, choices, shape, seen, found);
}

void SchemaReader::add(Shape& shape, const Json& schema) {
  if (!schema.is_object()) refuse(schema, "it is no schema, expected an object, true or false");
  for (const char* key : {"allOf", "anyOf", "oneOf"})
    if (schema.contains(key) && (!schema.at(key).is_array() || schema.at(key).empty()))
      refuse(schema, format("%s is no list of schemas", key));
  at_ = &schema;
  automaton_.work().spend(20 * std::ssize(schema));
  try {
    if (&schema != &root_ && schema.contains("$id"))
      fail(ErrorKind::usage, "$id is supported at the root alone");
    shape.add(automaton_.terms(), schema);
  } catch (const Error& error) {
    refuse(schema, error.what());
  }
}

// Where "#" or "#/…" points.
const Json* SchemaReader::referred(const Json& reference) const {
  const std::string text = reference.is_string() ? reference.get<std::string>() : "";
  if (!text.starts_with("#") || (text.size() > 1 && text[1] != '/'))
    refuse(reference, "$ref refers to " + visible(json_text(reference), false, 60) +
                          ", which is not supported; expected # or #/…");
  const Json* at = &root_;
  if (text.size() == 1) return at;
  for (const std::string& escaped : split(text.substr(2), '/')) {
    automaton_.work().spend(50 + std::ssize(*at) / 2);
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
    if (at->is_object() && at->contains("$id") && at->at("$id").is_string())
      refuse(*at, "$id is supported at the root alone");
  }
  return at;
}

void SchemaReader::refuse(const Json& schema, const std::string& why) const {
  std::string path;
  visit_values(root_, path, [&](const Json& value) { return &value == &schema; });
  throw Refusal(ErrorKind::usage,
                "the schema" + (path.empty() ? "" : " at " + visible(path, false, 200)) + ": " + why);
}

}  // namespace dsv32
