// See schema.h.
#include "cli/options/schema.h"

#include <algorithm>
#include <sstream>

#include "base/error.h"
#include "base/text.h"
#include "cli/options/inputs.h"
#include "constrain/constraint.h"

namespace dsv32 {
namespace {

constexpr int kSchemaDepth = 128;  // of nested JSON; compile_constraint() allows less, and says how much

bool is_field_name(const std::string& name) {
  return std::ranges::all_of(
      name, [](char c) { return is_name_character(c) || static_cast<unsigned char>(c) >= 0x80; });
}

const char* type_of_word(const std::string& word) {
  constexpr const char* kTypes[][2] = {
      {"str", "string"}, {"int", "integer"}, {"float", "number"}, {"bool", "boolean"}};
  for (const auto& [name, type] : kTypes)
    if (word == name) return type;
  fail(ErrorKind::usage,
       "the type '" + visible(word, false, 40) + "' of a field is none of str, int, float and bool");
}

// Adds "age int: in years".
void add_field(Json& schema, const std::string& field) {
  const size_t colon = std::min(field.find(':'), field.size());
  std::istringstream words(field.substr(0, colon)), about(field.substr(std::min(colon + 1, field.size())));
  std::string name, type, more, description;
  words >> name >> type >> more;
  std::getline(about >> std::ws, description, '\0');
  const std::string shown = "'" + visible(field, false, 80) + "'";
  if (name.empty() || !more.empty() || !is_field_name(name))
    fail(ErrorKind::usage, "the field " + shown + " is no name and type, such as: age int");
  Json& properties = schema["properties"];
  if (properties.contains(name)) fail(ErrorKind::usage, "the field " + shown + " is there twice");
  properties[name]["type"] = type.empty() ? "string" : type_of_word(type);
  description.resize(description.find_last_not_of(" \t\r") + 1);
  if (!description.empty()) properties[name]["description"] = description;
  schema["required"].push_back(name);
}

}  // namespace

std::string schema_constraint(const Json& schema) {
  std::string text = R"({"schema":)" + json_text(schema) + "}";
  check_constraint(text);
  return text;
}

Json parse_short_schema(const std::string& text) {
  Json schema{{"type", "object"},
              {"properties", Json::object()},
              {"required", Json::array()},
              {"additionalProperties", false}};
  for (const std::string& field : split(text, text.find('\n') == text.npos ? ',' : '\n'))
    if (field.find_first_not_of(" \t\r") != field.npos) add_field(schema, field);
  return schema;
}

std::string read_schema(const std::string& given, const Options& options) {
  GivenJson found = read_json(given, '{', options).value_or(GivenJson{});
  const bool is_file = !found.name.empty();
  if (!is_file && (given == "true" || given == "false")) found.text = given;
  try {
    if (is_file || !found.text.empty())
      return schema_constraint(parse_outside_json(found.text, kSchemaDepth));
    if (given.find_first_of(" ,\n") != given.npos) return schema_constraint(parse_short_schema(given));
  } catch (const Error& error) {
    throw Error(error.kind(), (is_file ? found.name : "the schema") + ": " + error.what(), error.hint());
  }
  fail(ErrorKind::usage, "there is no file " + visible(given, false, 80) + " with a schema",
       "the short form has a type, a comma or several lines: \"name str\", \"name, age int\"");
}

}  // namespace dsv32
