#include "constrain/tools.h"

#include "base/error.h"
#include "base/text.h"
#include "constrain/schema.h"
#include "text/call_parser.h"
#include "text/json.h"
#include "text/marks.h"

namespace dsv32 {
namespace {

const std::string kBegin(marks::kCalls), kEnd(marks::kEndCalls), kBeginInvoke(marks::kInvoke),
    kEndInvoke(marks::kEndInvoke), kBeginParameter(marks::kParameter),
    kEndParameter(marks::kEndParameter), kNamed = "\" string=\"";
// What ends a value: CallParser finds the tag also with space before its >.
const std::string kForbidden(marks::beginning(marks::kEndParameter));

Terms::Id line_end(Terms& terms) { return terms.literal("\n"); }

// One of these strings, as it is, or of these other values.
Terms::Id value_of(Terms& terms, Terms::Id string, Terms::Id other) {
  const Terms::Id end = terms.literal(kEndParameter);
  return terms.either({terms.sequence({terms.literal("true\">"), terms.bare(string), end}),
                       terms.sequence({terms.literal("false\">"), other, end})});
}

// The parser has to find the name in its tag.
void check_name(const std::string& name) {
  CallParser parser;
  parser.push(kBegin + kBeginInvoke + "f\">" + kBeginParameter + name + kNamed + "false\">0" + kEndParameter +
              kEndInvoke + kEnd);
  const std::vector<ToolCall>& calls = parser.found().calls;
  if (calls.size() != 1 || calls[0].arguments != "{" + json_text(name) + ": 0}")
    fail(ErrorKind::usage, "the name " + visible(name, false, 60) + " cannot stand in a tag");
}

Terms::Id parameter(Terms& terms, const std::string& name, Terms::Id value) {
  check_name(name);
  return terms.sequence({terms.literal(kBeginParameter + name + kNamed), value});
}

Terms::Id strict_parameters(Terms& terms, const Json& schema, const std::string& tool) try {
  std::vector<Terms::Member> members;
  for (const auto& [name, is_required, string, other] : SchemaReader(terms, schema, kForbidden).properties())
    members.push_back({parameter(terms, name, value_of(terms, string, other)), is_required});
  return terms.members(members, Terms::kNothing, line_end(terms));
} catch (const Error& error) {
  fail(error.kind(), "tool " + visible(tool, false, 80) + ": " + error.what(), error.hint());
}

// Of any values: those that the schema names, each once; any if it says nothing of them.
Terms::Id free_parameters(Terms& terms, const Json& schema) {
  static const Json any = true;
  const Terms::Id value = value_of(terms, terms.without(characters_of(kForbidden)),
                                   SchemaReader(terms, any, kForbidden).document());
  if (schema.contains("properties") && schema["properties"].is_object()) {
    std::vector<Terms::Member> members;
    for (const auto& property : schema["properties"].items())
      members.push_back({parameter(terms, property.key(), value), false});
    return terms.members(members, Terms::kNothing, line_end(terms));
  }
  const Terms::Id name = terms.repeat(terms.character_but({{0, 0x1f}, {'"', '"'}, {'<', '<'}}), 1, 64);
  const Terms::Id one =
      terms.sequence({terms.literal(kBeginParameter), terms.bare(name), terms.literal(kNamed), value});
  return terms.list({}, one, line_end(terms), 0, Terms::kNoLimit);
}

}  // namespace

Terms::Id tools_term(Terms& terms, const Json& spec) {
  const std::string choice = spec.at("choice").get<std::string>();
  const bool has_name = choice != "auto" && choice != "required";
  std::vector<Terms::Id> invokes;
  for (const Json& tool : spec.at("tools")) {
    const std::string name = tool.at("name").get<std::string>();
    if (has_name && name != choice) continue;
    const Json& schema = tool.at("parameters");
    const Terms::Id parameters = tool.at("strict").get<bool>() ? strict_parameters(terms, schema, name)
                                                               : free_parameters(terms, schema);
    invokes.push_back(terms.sequence(
        {terms.literal(kBeginInvoke + name + "\">\n"), parameters, terms.literal("\n" + kEndInvoke)}));
  }
  if (invokes.empty())
    fail(ErrorKind::usage, "tool_choice names " + visible(choice, false, 80) + ", which is no tool");
  const bool is_one = has_name || !spec.at("parallel").get<bool>();
  const Terms::Id begin = terms.literal(kBegin), between = line_end(terms);
  const Terms::Id any = terms.list({}, terms.either(invokes), between, 1, is_one ? 1 : Terms::kNoLimit);
  const Terms::Id calls = terms.sequence({between, any, between, terms.literal(kEnd)});
  if (choice == "auto")
    return terms.sequence({terms.without(bytes_of(kBegin)), terms.optional(terms.sequence(begin, calls))});
  return terms.sequence({terms.optional(terms.literal("\n\n")), begin, calls});
}

}  // namespace dsv32
