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

class ToolGrammar {
 public:
  explicit ToolGrammar(Terms& terms) : terms_(terms), line_end_(terms.literal("\n")) {}

  Terms::Id calls(const std::vector<Terms::Id>& invokes, int64_t most) {
    const Terms::Id any = terms_.either(invokes);
    return terms_.sequence(
        {line_end_, terms_.list({}, any, line_end_, 1, most), line_end_, terms_.literal(kEnd)});
  }

  Terms::Id invoke(const std::string& name, Terms::Id parameters) {
    return terms_.sequence(
        {terms_.literal(kBeginInvoke + name + "\">\n"), parameters, terms_.literal("\n" + kEndInvoke)});
  }

  Terms::Id strict_parameters(const Json& schema, const std::string& tool) {
    try {
      std::vector<Terms::Member> members;
      for (const SchemaReader::Property& property : SchemaReader(terms_, schema, kForbidden).properties())
        members.push_back(
            {parameter(property.name, value(property.string, property.other)), property.is_required});
      return terms_.members(members, Terms::kNothing, line_end_);
    } catch (const Error& error) {
      fail(error.kind(), "tool " + visible(tool, false, 80) + ": " + error.what(), error.hint());
    }
  }

  // Of any values: those that the schema names, each once; any if it says nothing of them.
  Terms::Id free_parameters(const Json& schema) {
    static const Json any = true;
    const Terms::Id any_value =
        value(terms_.without(characters_of(kForbidden)), SchemaReader(terms_, any, kForbidden).document());
    if (schema.contains("properties") && schema["properties"].is_object()) {
      std::vector<Terms::Member> members;
      for (const auto& property : schema["properties"].items())
        members.push_back({parameter(property.key(), any_value), false});
      return terms_.members(members, Terms::kNothing, line_end_);
    }
    const Terms::Id name = terms_.repeat(terms_.character_but({{0, 0x1f}, {'"', '"'}, {'<', '<'}}), 1, 64);
    const Terms::Id one = terms_.sequence(
        {terms_.literal(kBeginParameter), terms_.bare(name), terms_.literal(kNamed), any_value});
    return terms_.list({}, one, line_end_, 0, Terms::kNoLimit);
  }

 private:
  Terms::Id parameter(const std::string& name, Terms::Id value) {
    check_name(name);
    return terms_.sequence({terms_.literal(kBeginParameter + name + kNamed), value});
  }

  // The parser has to find the name in its tag.
  static void check_name(const std::string& name) {
    CallParser parser;
    parser.push(kBegin + kBeginInvoke + "f\">" + kBeginParameter + name + kNamed + "false\">0" +
                kEndParameter + kEndInvoke + kEnd);
    const std::vector<ToolCall>& calls = parser.found().calls;
    if (calls.size() != 1 || calls[0].arguments != "{" + json_text(name) + ": 0}")
      fail(ErrorKind::usage, "the name " + visible(name, false, 60) + " cannot stand in a tag");
  }

  // One of these strings, as it is, or of these other values.
  Terms::Id value(Terms::Id string, Terms::Id other) {
    const Terms::Id end = terms_.literal(kEndParameter);
    return terms_.either({terms_.sequence({terms_.literal("true\">"), terms_.bare(string), end}),
                          terms_.sequence({terms_.literal("false\">"), other, end})});
  }

  Terms& terms_;
  Terms::Id line_end_;
};

}  // namespace

Terms::Id tools_term(Terms& terms, const Json& spec) {
  const std::string choice = spec.at("choice").get<std::string>();
  const bool has_name = choice != "auto" && choice != "required";
  ToolGrammar grammar(terms);
  std::vector<Terms::Id> invokes;
  for (const Json& tool : spec.at("tools")) {
    const std::string name = tool.at("name").get<std::string>();
    if (has_name && name != choice) continue;
    invokes.push_back(grammar.invoke(name, tool.at("strict").get<bool>()
                                               ? grammar.strict_parameters(tool.at("parameters"), name)
                                               : grammar.free_parameters(tool.at("parameters"))));
  }
  if (invokes.empty())
    fail(ErrorKind::usage, "tool_choice names " + visible(choice, false, 80) + ", which is no tool");
  const bool is_one = has_name || !spec.at("parallel").get<bool>();
  const Terms::Id calls = grammar.calls(invokes, is_one ? 1 : Terms::kNoLimit);
  const Terms::Id begin = terms.literal(kBegin);
  if (choice == "auto")
    return terms.sequence({terms.without(bytes_of(kBegin)), terms.optional(terms.sequence(begin, calls))});
  return terms.sequence({terms.optional(terms.literal("\n\n")), begin, calls});
}

}  // namespace dsv32
