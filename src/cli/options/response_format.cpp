// See response_format.h. Each form is turned into the place of its schema in the line.
#include "cli/options/response_format.h"

#include "base/error.h"
#include "base/text.h"
#include "cli/options/schema.h"

namespace dsv32 {
namespace {

constexpr const char* kAnyText = "";  // in place of a schema's pointer
constexpr const char* kAnyObject = "an object";

// {"name", "schema", "strict", "description"}: only the schema changes the answer, which always keeps to it.
void read_json_schema(const ReadJson* value) {
  if (!value) fail(ErrorKind::usage, "response_format.json_schema is missing");
  JsonFields fields(*value, "response_format.json_schema", "response_format.json_schema.");
  fields.text("name"), fields.text("description"), fields.truth("strict");
  if (!fields.find("schema")) fail(ErrorKind::usage, "response_format.json_schema.schema is missing");
  fields.refuse_unknown();
}

// The pointer to the schema, kAnyText or kAnyObject.
std::string pointer_of(const ReadJson& response_format) {
  JsonFields fields(response_format, "response_format", "response_format.");
  const std::string type = fields.text("type").value_or("");
  std::string pointer = type == "json_object" ? kAnyObject : kAnyText;
  if (type == "json_schema") {
    read_json_schema(fields.find("json_schema"));
    pointer = "/response_format/json_schema/schema";
  } else if (type == "json_object" && fields.find("schema")) {  // llama.cpp's
    pointer = "/response_format/schema";
  } else if (type != "json_object" && type != "text") {
    fail(ErrorKind::usage, format("response_format.type is '%s', expected text, json_object or json_schema",
                                  visible(type, false, 40).c_str()));
  }
  fields.refuse_unknown();
  return pointer;
}

}  // namespace

std::optional<std::string> read_response_format(JsonFields& body, const InOrder& in_order) {
  std::string asker;
  std::optional<std::string> asked;
  const auto note = [&](const std::string& name, std::string pointer) {
    if (asked) fail(ErrorKind::usage, asker + " and " + name + " are both given, expected one of them");
    asker = name, asked = std::move(pointer);
  };
  if (const ReadJson* value = body.find("response_format")) note("response_format", pointer_of(*value));
  if (const ReadJson* value = body.find("format"); value && *value != "")  // ollama's
    note("format", *value == "json" ? kAnyObject : "/format");
  for (const char* key : {"json_schema", "guided_json"})  // llama.cpp's; vLLM's
    if (body.find(key)) note(key, std::string("/") + key);
  if (const ReadJson* value = body.find("structured_outputs"); value && !value->empty()) {  // vLLM's
    JsonFields fields(*value, "structured_outputs", "structured_outputs.");
    if (fields.find("json")) note("structured_outputs", "/structured_outputs/json");
    fields.refuse_unknown();
  }
  if (!asked || *asked == kAnyText) return asked;
  try {
    if (*asked == kAnyObject) return schema_constraint(Json{{"type", "object"}});
    const Json schema = in_order(*asked);
    if (!schema.is_string()) return schema_constraint(schema);
    return schema_constraint(parse_outside_json<Json>(schema.get<std::string>(), kRequestDepth));
  } catch (const Error& error) {
    throw Error(error.kind(), asker + ": " + error.what(), error.hint());
  }
}

}  // namespace dsv32
