#include "constrain/schema.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "base/text.h"
#include "constrain/automaton.h"

namespace dsv32 {
namespace {

constexpr size_t kMostSchemaBytes = size_t{1} << 20;
constexpr size_t kMostSchemaDepth = 64;
constexpr size_t kMostChoices = 100;  // that hold for one value

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

// The fragment of a URI, with the bytes that its %XX stand for.
std::string unescaped(std::string_view fragment) {
  std::string bytes;
  for (size_t i = 0; i < fragment.size(); ++i) {
    uint8_t byte = 0;
    const char* const digits = fragment.data() + i + 1;
    const bool is_escaped = fragment[i] == '%' && i + 2 < fragment.size() &&
                            std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2;
    bytes += is_escaped ? static_cast<char>(byte) : fragment[i];
    if (is_escaped) i += 2;
  }
  return bytes;
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

bool accepts_all(const Json* schema) { return *schema == true || (schema->is_object() && schema->empty()); }

}  // namespace

Json parse_bounded_json(std::string_view text) {
  if (text.size() > kMostSchemaBytes) fail(ErrorKind::usage, "the constraint has more than 1 MB");
  try {
    Json json = parse_outside_json(text, kMostSchemaDepth);
    write_out_integers(json);
    return json;
  } catch (const Error& error) {
    fail(ErrorKind::usage, std::string("the constraint cannot be read: ") + error.what());
  }
}

SchemaReader::SchemaReader(Terms& terms, const Json& schema, std::string forbidden)
    : terms_(terms),
      root_(schema),
      forbidden_(std::move(forbidden)),
      comma_(terms.one_of(std::vector<std::string>{",", ", "})),
      colon_(terms.one_of(std::vector<std::string>{":", ": "})),
      at_(&schema) {
  std::string path;
  visit_values(root_, path, [this](const Json& value) {
    places_[&value] = std::ssize(places_);
    return false;
  });
}

// Gives the error in flight, if it names no path, such as one of Work, that of the schema that is being read.
void SchemaReader::rethrow_with_path() const try { throw; } catch (const Refusal&) {
  throw;
} catch (const Error& error) {
  std::vector<std::string> keywords;
  for (const auto& [key, value] : at_->items()) keywords.push_back(key);
  refuse(*at_, visible(joined(keywords, ", "), false, 60) + ": " + error.what());
}

Terms::Id SchemaReader::document() try {
  const Terms::Id term = term_of({&root_});
  finish();
  return term;
} catch (const Error&) {
  rethrow_with_path();
}

std::vector<SchemaReader::Property> SchemaReader::properties() try {
  const Shapes shapes = shapes_of({&root_});
  if (shapes.size() != 1 || shapes[0].types != kObject || shapes[0].values)
    refuse(root_, "it is not the schema of one kind of objects");
  std::vector<Property> all;
  for (const std::string& name : shapes[0].names()) {
    std::vector<Terms::Id> strings;
    std::vector<std::u32string> constants;
    Shapes others;
    for (Shape& shape : shapes_of(shapes[0].property(name))) {
      if ((shape.types & kString) && shape.values && shape.is_free())
        std::ranges::move(strings_of(shape), std::back_inserter(constants));
      else if ((shape.types & kString) && shape.values)
        strings.push_back(terms_.both({terms_.one_of(strings_of(shape)), shape.string_term(terms_)}));
      else if (shape.types & kString)
        strings.push_back(open_text(shape.string_term(terms_)));
      shape.types &= ~static_cast<unsigned>(kString);
      if (shape.types != 0) others.push_back(std::move(shape));
    }
    strings.push_back(terms_.one_of(std::move(constants)));
    all.push_back({name, shapes[0].is_required(name), terms_.either(strings), shapes_term(others)});
  }
  finish();
  return all;
} catch (const Error&) {
  rethrow_with_path();
}

// The strings among a shape's values, as they are.
std::vector<std::u32string> SchemaReader::strings_of(const Shape& shape) const {
  std::vector<std::u32string> strings;
  for (const auto& [meaning, value] : *shape.values)
    if (value->is_string())
      strings.push_back(characters_of(allowed(*value, value->get_ref<const std::string&>())));
  return strings;
}

// Sets the placeholders: first those of schemas within others, by reading them, which may add more; then
// those of values beside other keywords, by asking the automaton of these keywords for each value. A value's
// own placeholder was made before those of the values within it, so the last ones come first.
void SchemaReader::finish() {
  while (!unread_.empty()) {
    const auto [schemas, placeholder] = std::move(unread_.back());
    unread_.pop_back();
    const Shapes shapes = shapes_of(schemas);
    if (!schemas.empty()) at_ = schemas.front();  // shapes_of() has read others since
    terms_.set(placeholder, shapes_term(shapes));
  }
  for (; !values_.empty(); values_.pop_back()) {
    const Checked& checked = values_.back();
    Automaton automaton(terms_);
    const Automaton::State begin = terms_.joined({checked.base});
    std::vector<std::string> texts = texts_of(checked.values);
    std::erase_if(texts, [&](const std::string& text) {
      if (automaton.is_full()) automaton.forget();
      return !automaton.may_end(automaton.after(begin, without_exponent(text)));
    });
    terms_.set(checked.placeholder, terms_.one_of(texts));
  }
}

// A shape's values as they are written.
std::vector<std::string> SchemaReader::texts_of(const Shape& shape) {
  std::vector<std::string> texts;
  for (const auto& [meaning, value] : *shape.values) {
    if (shape.types & type_of(*value)) texts.push_back(allowed(*value, json_text(*value)));
    terms_.work().spend(50 + 2 * std::ssize(meaning));
  }
  return texts;
}

// The values of all shapes that ask for nothing else are one term: one_of() is made for many texts.
Terms::Id SchemaReader::shapes_term(const Shapes& shapes) {
  std::vector<Terms::Id> terms;
  std::vector<std::string> texts;
  std::set<std::pair<const Values*, unsigned>> known;
  for (const Shape& shape : shapes) {
    if (!shape.values || !shape.is_free()) {
      terms.push_back(shape_term(shape));
    } else if (known.insert({shape.values.get(), shape.types}).second) {
      std::ranges::move(texts_of(shape), std::back_inserter(texts));
    }
  }
  terms.push_back(terms_.one_of(texts));
  return terms_.either(std::move(terms));
}

Terms::Id SchemaReader::term_of(Schemas schemas) {
  std::erase_if(schemas, accepts_all);
  std::ranges::sort(schemas, {}, [&](const Json* schema) { return places_.at(schema); });
  schemas.erase(std::unique(schemas.begin(), schemas.end()), schemas.end());
  const auto known = terms_of_.find(schemas);
  if (known != terms_of_.end()) return known->second;
  const Terms::Id placeholder = terms_.placeholder();
  unread_.emplace_back(schemas, placeholder);
  return terms_of_[std::move(schemas)] = placeholder;
}

Terms::Id SchemaReader::shape_term(const Shape& shape) {
  if (shape.values) return values_term(shape);
  std::vector<Terms::Id> terms;
  if (shape.types & kNull) terms.push_back(terms_.literal("null"));
  if (shape.types & kBoolean) terms.push_back(terms_.one_of(std::vector<std::string>{"true", "false"}));
  if (shape.types & kNumber) terms.push_back(terms_.bare(shape.number_term(terms_)));
  if (shape.types & kString) terms.push_back(terms_.quoted(open_text(shape.string_term(terms_))));
  if (shape.types & kArray) terms.push_back(array_term(shape));
  if (shape.types & kObject) terms.push_back(object_term(shape));
  return terms_.either(std::move(terms));
}

// Of values beside other keywords those that these accept. finish() finds them, once the term of the other
// keywords has no unset placeholders.
Terms::Id SchemaReader::values_term(Shape shape) {
  if (!shape.of_properties.empty())
    for (const auto& [meaning, value] : *shape.values)
      if (value->is_structured() && (shape.types & type_of(*value)))
        refuse(*value, "objects and lists as values, beside keywords of their properties, are not supported");
  Shape values;
  values.types = shape.types;
  values.values = std::exchange(shape.values, nullptr);
  shape.number.most_digits = Terms::kNoLimit;
  const Terms::Id placeholder = terms_.placeholder();
  values_.push_back({placeholder, shape_term(shape), std::move(values)});
  return placeholder;
}

Terms::Id SchemaReader::open_text(Terms::Id term) {
  return forbidden_.empty() ? term : terms_.both({term, terms_.without(characters_of(forbidden_))});
}

const std::string& SchemaReader::allowed(const Json& place, const std::string& text) const {
  if (!forbidden_.empty() && text.find(forbidden_) != std::string::npos)
    refuse(place, "a text that holds " + visible(forbidden_, false, 60) + " cannot be written here");
  return text;
}

Terms::Id SchemaReader::array_term(const Shape& shape) {
  std::vector<Terms::Id> items;
  for (size_t i = 0; i < shape.n_prefix_items(); ++i) items.push_back(term_of(shape.item(i)));
  const Terms::Id rest = term_of(shape.item(items.size()));
  return terms_.sequence(
      {terms_.literal("["),
       terms_.list(std::move(items), rest, comma_, shape.n_items.least, shape.n_items.most),
       terms_.literal("]")});
}

Terms::Id SchemaReader::object_term(const Shape& shape) {
  const std::vector<std::string> names = shape.names();
  const int64_t n_looked_at = shape.n_names() + std::ssize(shape.of_properties);
  std::vector<Terms::Member> members;
  for (const std::string& name : names) {
    terms_.work().spend(n_looked_at);
    const Terms::Id value = term_of(shape.property(name));
    members.push_back({terms_.sequence({terms_.literal(allowed(*at_, json_text(name))), colon_, value}),
                       shape.is_required(name)});
  }
  return terms_.sequence({terms_.literal("{"), terms_.members(members, other_member(shape, names), comma_),
                          terms_.literal("}")});
}

// Nothing: the object has no others than `names`.
Terms::Id SchemaReader::other_member(const Shape& shape, const std::vector<std::string>& names) {
  const Schemas schemas = shape.other_properties();
  if (std::ranges::any_of(schemas, [](const Json* schema) { return *schema == false; }))
    return Terms::kNothing;
  std::vector<std::u32string> given;
  for (const std::string& name : names) given.push_back(characters_of(name));
  const Terms::Id others = terms_.other_than(terms_.one_of(std::move(given)));
  return terms_.sequence({terms_.quoted(open_text(others)), colon_, term_of(schemas)});
}

// --- Which schemas hold for a value

SchemaReader::Shapes SchemaReader::shapes_of(const Schemas& schemas) {
  std::vector<Pending> pending;
  for (const Json* schema : schemas) pending.push_back({schema, {}});
  std::ranges::reverse(pending);
  Shapes found;
  expand(std::move(pending), {}, {}, {}, found);
  return found;
}

// Adds the pending schemas and what they refer to, then, one after the other, the branches of the last
// choice: each set of branches is a shape.
void SchemaReader::expand(std::vector<Pending> pending, std::vector<Pending> choices, Shape shape,
                          std::set<const Json*> seen, Shapes& found) {
  while (!pending.empty()) {
    Pending now = std::move(pending.back());
    pending.pop_back();
    const Json& schema = *now.schema;
    if (std::ranges::find(now.trail, now.schema) != now.trail.end())
      refuse(schema, "it refers to itself without a step into the value");
    terms_.work().spend(500 + std::ssize(seen) + std::ssize(now.trail));
    if (!seen.insert(now.schema).second || schema == true) continue;
    if (schema == false) return;
    add(shape, schema);
    now.trail.push_back(now.schema);
    std::vector<Pending> more;
    for (const auto& [key, value] : schema.items()) {
      if (key == "$ref") more.push_back({referred(value), now.trail});
      if (key == "allOf")
        for (const Json& part : value) more.push_back({&part, now.trail});
      if (key == "oneOf") check_branches(value);
      if (key == "anyOf" || key == "oneOf") choices.push_back({&value, now.trail});
    }
    pending.insert(pending.end(), more.rbegin(), more.rend());  // so that the first is read first
  }
  if (shape.types == 0) return;
  if (choices.size() > kMostChoices) refuse(*choices.back().schema, "its alternatives are too many together");
  if (choices.empty()) {
    terms_.work().spend(static_cast<int64_t>(sizeof shape) + shape.n_parts() * 40);
    return found.push_back(std::move(shape));
  }
  const Pending choice = std::move(choices.back());
  choices.pop_back();
  for (const Json& branch : *choice.schema) expand({{&branch, choice.trail}}, choices, shape, seen, found);
}

void SchemaReader::add(Shape& shape, const Json& schema) {
  if (!schema.is_object()) refuse(schema, "it is no schema, expected an object, true or false");
  for (const char* key : {"allOf", "anyOf", "oneOf"})
    if (schema.contains(key) && (!schema.at(key).is_array() || schema.at(key).empty()))
      refuse(schema, format("%s is no list of schemas", key));
  at_ = &schema;
  terms_.work().spend(20 * std::ssize(schema));
  try {
    if (&schema != &root_ && schema.contains("$id"))
      fail(ErrorKind::usage, "$id is supported at the root alone");
    shape.add(terms_, schema);
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
  try {
    Json::json_pointer path(unescaped(text.substr(1)));
    const Json* const found = &root_.at(path);
    for (int64_t n_searches = 1; !path.empty(); ++n_searches) {  // in the value that the path leads to
      const Json& value = root_.at(path);
      if (value.is_object() && value.contains("$id") && value.at("$id").is_string())
        refuse(value, "$id is supported at the root alone");
      path.pop_back();
      terms_.work().spend(n_searches * (50 + std::ssize(root_.at(path)) / 2));
    }
    return found;
  } catch (const Json::exception&) {
    refuse(reference, "$ref " + visible(text, false, 60) + " points to nothing");
  }
}

void SchemaReader::refuse(const Json& schema, const std::string& why) const {
  std::string path;
  visit_values(root_, path, [&](const Json& value) { return &value == &schema; });
  throw Refusal(ErrorKind::usage,
                "the schema" + (path.empty() ? "" : " at " + visible(path, false, 200)) + ": " + why);
}

}  // namespace dsv32
