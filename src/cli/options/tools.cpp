// See tools.h. A constraint is set only where something has to hold; calls without one are as the model
// likes.
#include "cli/options/tools.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "cli/options/inputs.h"
#include "constrain/constraint.h"

namespace dsv32 {
namespace {

constexpr size_t kMostToolName = 64;

bool is_tool_name(const std::string& name) {
  return !name.empty() && name.size() <= kMostToolName && std::ranges::all_of(name, is_name_character);
}

// A tool of the constraint.
Json parse_tool(const Json& json, std::set<std::string>& names) {
  JsonFields tool(json, "a tool", "tools.");
  if (const std::string type = tool.text("type").value_or(""); type != "function")
    fail(ErrorKind::usage, format("tools.type is '%s', expected function", visible(type, false, 40).c_str()));
  JsonFields fields(tool.needed("function"), "tools.function", "tools.function.");
  const std::string name = fields.text("name").value_or("");
  const std::string shown = "'" + visible(name, false, 80) + "'";
  if (!is_tool_name(name))
    fail(ErrorKind::usage, "tools.function.name is " + shown + ", expected 1 to 64 letters, digits, _ or -");
  if (!names.insert(name).second) fail(ErrorKind::usage, "two tools have the name " + shown);
  fields.text("description");
  const Json* parameters = fields.find("parameters");
  if (parameters && (!parameters->is_object() || parameters->value("type", Json("object")) != "object"))
    fail(ErrorKind::usage, "the parameters of the tool " + shown + " are no schema of an object");
  Json schema{{"type", "object"}, {"properties", Json::object()}};
  if (parameters) schema = *parameters;
  return {
      {"name", name}, {"parameters", std::move(schema)}, {"strict", fields.truth("strict").value_or(false)}};
}

// "auto", "required", "none", or the name of the only tool that may be called.
std::string parse_choice(const Json& json) {
  const bool is_word = json == "auto" || json == "required" || json == "none";
  if (is_word) return json.get<std::string>();
  if (!json.is_object())
    fail(ErrorKind::usage, "tool_choice is " + JsonFields::shown(json) +
                               ", expected \"auto\", \"required\", \"none\" or an object of type function");
  JsonFields fields(json, "tool_choice", "tool_choice.");
  const Json* function = fields.find("function");
  if (fields.text("type").value_or("") != "function" || !function)
    fail(ErrorKind::usage, "tool_choice is neither none, auto, required nor of type function");
  JsonFields chosen(*function, "tool_choice.function", "tool_choice.function.");
  return chosen.text("name").value_or("");
}

Tools make_tools(const Json& list, const std::string& choice, bool is_parallel) {
  if (!list.is_array()) fail(ErrorKind::usage, "tools is no list");
  std::set<std::string> names;
  Json tools = Json::array();
  for (const Json& tool : list) tools.push_back(parse_tool(tool, names));
  if (choice != "auto" && choice != "required" && !names.contains(choice))
    fail(ErrorKind::usage,
         format("tool_choice is '%s', which is no tool", visible(choice, false, 80).c_str()));
  if (choice == "required" && list.empty())
    fail(ErrorKind::usage, "tool_choice is required, and there are no tools");
  Tools made;
  if (!list.empty()) made.json = json_text(list);
  const bool is_strict = std::ranges::any_of(tools, [](const Json& tool) { return tool["strict"] == true; });
  if (list.empty() || (!is_strict && choice == "auto" && is_parallel)) return made;
  made.constraint = json_text({{"tools", std::move(tools)}, {"choice", choice}, {"parallel", is_parallel}});
  check_constraint(made.constraint);
  return made;
}

}  // namespace

void Tools::apply_to(GenerationOptions& options) const {
  if (json.empty()) return;
  if (!options.constraint.empty())
    fail(ErrorKind::usage, "an answer that may call tools is no document, expected a schema or tools");
  options.tools = true;
  options.constraint = constraint;
}

Tools read_tools(const std::string& given, const Options& options) {
  const std::optional<GivenJson> found = read_json(given, '[', options);
  if (!found) fail(ErrorKind::usage, "there is no file " + visible(given, false, 80) + " with tools");
  return naming(found->name,
                [&] { return make_tools(parse_outside_json(found->text, kRequestDepth), "auto", true); });
}

Tools read_tools(JsonFields& body) {
  const Json* choice = body.find("tool_choice");
  const std::string chosen = choice ? parse_choice(*choice) : "auto";
  const bool is_parallel = body.truth("parallel_tool_calls").value_or(true);
  const Json* list = body.find("tools");
  return chosen == "none" ? Tools{} : make_tools(list ? *list : Json::array(), chosen, is_parallel);
}

}  // namespace dsv32
