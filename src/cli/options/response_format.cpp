// See response_format.h. Each form is turned into its schema.
#include "cli/options/response_format.h"

#include "base/error.h"
#include "base/text.h"
#include "cli/options/schema.h"

namespace dsv32 {
namespace {

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
  try {
    if (!schema->is_string()) return schema_constraint(*schema);
    return schema_constraint(parse_outside_json(schema->get<std::string>(), kRequestDepth));
  } catch (const Error& error) {
    throw Error(error.kind(), asker + ": " + error.what(), error.hint());
  }
}

}  // namespace dsv32
