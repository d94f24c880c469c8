// See schema.h.
#include "cli/options/schema.h"

#include <algorithm>
#include <filesystem>
#include <sstream>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "cli/terminal/streams.h"
#include "constrain/constraint.h"

namespace dsv32 {
namespace {

constexpr size_t kMostSchemaBytes = size_t{1} << 20;
constexpr int kSchemaDepth = 128;  // of nested JSON; compile_constraint() allows less, and says how much

bool is_file(const std::string& name) {
  std::error_code error;
  return std::filesystem::exists(name, error) && !std::filesystem::is_directory(name, error);
}

bool is_field_name(const std::string& name) {
  return std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || static_cast<unsigned char>(c) >= 0x80;
  });
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
  std::string text = R"({"schema":)" + schema.dump() + "}";
  compile_constraint(text);
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

std::string read_schema(const std::string& given, bool is_quiet) {
  const size_t begin = std::min(given.find_first_not_of(" \t\r\n"), given.size());
  const bool is_stdin = given == "-", is_json = given.substr(begin, 1) == "{",
             is_named = is_stdin || (!is_json && is_file(given));
  const auto on_wait = [&] {
    if (is_stdin && !is_quiet) say("reading the schema from standard input");
  };
  const std::string text = is_named ? read_text(given, kMostSchemaBytes, on_wait) : given;
  try {
    if (text.size() > kMostSchemaBytes) fail(ErrorKind::usage, "it is longer than 1 MiB");
    if (is_named || is_json || given == "true" || given == "false")
      return schema_constraint(parse_outside_json<Json>(text, kSchemaDepth));
    if (given.find_first_of(" ,\n") != given.npos) return schema_constraint(parse_short_schema(given));
  } catch (const Error& error) {
    const std::string name = is_stdin ? "standard input" : is_named ? visible(given) : "the schema";
    throw Error(error.kind(), name + ": " + error.what(), error.hint());
  }
  fail(ErrorKind::usage, "there is no file " + visible(given, false, 80) + " with a schema",
       "the short form has a type, a comma or several lines: \"name str\", \"name, age int\"");
}

}  // namespace dsv32
