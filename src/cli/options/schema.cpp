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

// The constraint under which the answer is a document that `schema` accepts, its properties in the schema's
// order.
std::string schema_constraint(const Json& schema) {
  std::string text = R"({"schema":)" + json_text(schema) + "}";
  check_constraint(text);
  return text;
}

const Json& any_object() {
  static const Json schema{{"type", "object"}};
  return schema;
}

// {"name", "schema", "strict", "description"}: only the schema changes the answer, which always keeps to it.
const Json& read_json_schema(const Json& value) {
  JsonFields fields(value, "response_format.json_schema", "response_format.json_schema.");
  fields.text("name"), fields.text("description"), fields.truth("strict");
  const Json& schema = fields.needed("schema");
  fields.refuse_unknown();
  return schema;
}

// Null: any text.
const Json* schema_of(const Json& response_format) {
  JsonFields fields(response_format, "response_format", "response_format.");
  const std::string type = fields.text("type").value_or("");
  const Json* schema = type == "json_object" ? fields.find("schema") : nullptr;  // llama.cpp's
  if (type == "json_schema")
    schema = &read_json_schema(fields.needed("json_schema"));
  else if (type == "json_object" && !schema)
    schema = &any_object();
  else if (type != "json_object" && type != "text")
    fail(ErrorKind::usage, format("response_format.type is '%s', expected text, json_object or json_schema",
                                  visible(type, false, 40).c_str()));
  fields.refuse_unknown();
  return schema;
}

}  // namespace

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
  std::optional<GivenJson> found = read_json(given, '{', options);
  if (!found && (given == "true" || given == "false")) found = {"the schema", given};
  if (found)
    return naming(found->name,
                  [&] { return schema_constraint(parse_outside_json(found->text, kSchemaDepth)); });
  if (given.find_first_of(" ,\n") != given.npos)
    return naming("the schema", [&] { return schema_constraint(parse_short_schema(given)); });
  fail(ErrorKind::usage, "there is no file " + visible(given, false, 80) + " with a schema",
       "the short form has a type, a comma or several lines: \"name str\", \"name, age int\"");
}

std::optional<std::string> read_response_format(JsonFields& body) {
  std::string asker;
  const Json* schema = nullptr;
  const auto note = [&](const std::string& name, const Json* asked) {
    if (!asker.empty())
      fail(ErrorKind::usage, asker + " and " + name + " are both given, expected one of them");
    asker = name, schema = asked;
  };
  if (const Json* value = body.find("response_format")) note("response_format", schema_of(*value));
  if (const Json* value = body.find("format"); value && *value != "")  // ollama's
    note("format", *value == "json" ? &any_object() : value);
  for (const char* key : {"json_schema", "guided_json"})  // llama.cpp's; vLLM's
    if (const Json* value = body.find(key)) note(key, value);
  if (const Json* value = body.find("structured_outputs"); value && !value->empty()) {  // vLLM's
    JsonFields fields(*value, "structured_outputs", "structured_outputs.");
    if (const Json* json = fields.find("json")) note("structured_outputs", json);
    fields.refuse_unknown();
  }
  if (asker.empty()) return std::nullopt;
  if (!schema) return "";
  return naming(asker, [&] {
    return schema_constraint(
        schema->is_string() ? parse_outside_json(schema->get<std::string>(), kRequestDepth) : *schema);
  });
}

}  // namespace dsv32
