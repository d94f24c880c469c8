#include "constrain/tools.h"

#include "base/error.h"
#include "base/text.h"
#include "constrain/schema.h"
#include "text/call_parser.h"
#include "text/json.h"

namespace dsv32 {
namespace {

using NodeId = Automaton::NodeId;

const std::string kBegin = "<｜DSML｜function_calls>", kEnd = "</｜DSML｜function_calls>",
                  kEndInvoke = "</｜DSML｜invoke>", kEndParameter = "</｜DSML｜parameter>",
                  kBeginParameter = "<｜DSML｜parameter name=\"", kNamed = "\" string=\"";
// What ends a value: CallParser finds the tag also with space before its >.
const std::string kBarred = kEndParameter.substr(0, kEndParameter.size() - 1);

class ToolGrammar {
 public:
  explicit ToolGrammar(Automaton& automaton) : automaton_(automaton), line_end_(automaton.literal("\n")) {}

  NodeId calls(const std::vector<NodeId>& invokes, int64_t most) {
    const NodeId any = automaton_.choice(invokes);
    return automaton_.sequence(
        {line_end_, automaton_.list({}, any, line_end_, 1, most), line_end_, automaton_.literal(kEnd)});
  }

  NodeId invoke(const std::string& name, NodeId parameters) {
    return automaton_.sequence({automaton_.literal("<｜DSML｜invoke name=\"" + name + "\">\n"), parameters,
                                automaton_.literal("\n" + kEndInvoke)});
  }

  NodeId strict_parameters(const Json& schema, const std::string& tool) {
    try {
      std::vector<Automaton::Member> members;
      for (const SchemaReader::Property& property : SchemaReader(automaton_, schema, kBarred).properties()) {
        check_name(property.name);
        members.push_back({parameter(property), property.is_required});
      }
      return automaton_.members(members, -1, line_end_);
    } catch (const Error& error) {
      fail(error.kind(), "tool " + visible(tool, false, 80) + ": " + error.what(), error.hint());
    }
  }

  // Of any values: those that the schema names, each once; any if it says nothing of them.
  NodeId free_parameters(const Json& schema) {
    static const Json any = true;
    const NodeId json = automaton_.sequence({automaton_.literal("false\">"),
                                             SchemaReader(automaton_, any, kBarred).document(),
                                             automaton_.literal(kEndParameter)});
    const NodeId value = automaton_.choice(
        {automaton_.sequence({automaton_.literal("true\">"), text(automaton_.terms().without(kBarred))}),
         json});
    if (schema.contains("properties") && schema["properties"].is_object()) {
      std::vector<Automaton::Member> members;
      for (const auto& property : schema["properties"].items()) {
        check_name(property.key());
        members.push_back({named(property.key(), value), false});
      }
      return automaton_.members(members, -1, line_end_);
    }
    Terms& terms = automaton_.terms();
    const Terms::Id name = terms.repeat(terms.character_but({{0, 0x1f}, {'"', '"'}, {'<', '<'}}), 1, 64);
    const NodeId one = automaton_.sequence(
        {automaton_.literal(kBeginParameter), automaton_.bare(name), automaton_.literal(kNamed), value});
    return automaton_.list({}, one, line_end_, 0, Terms::kNoLimit);
  }

 private:
  // The parser has to find the name in its tag.
  static void check_name(const std::string& name) {
    CallParser parser;
    parser.push(kBegin + "<｜DSML｜invoke name=\"f\">" + kBeginParameter + name + kNamed + "false\">0" +
                kEndParameter + kEndInvoke + kEnd);
    const std::vector<ToolCall>& calls = parser.found().calls;
    if (calls.size() != 1 || calls[0].arguments != "{" + json_text(name) + ": 0}")
      fail(ErrorKind::usage, "the name " + visible(name, false, 60) + " cannot stand in a tag");
  }

  NodeId named(const std::string& name, NodeId value) {
    return automaton_.sequence({automaton_.literal(kBeginParameter + name + kNamed), value});
  }

  NodeId parameter(const SchemaReader::Property& property) {
    std::vector<NodeId> values;
    if (property.text)
      values.push_back(automaton_.sequence({automaton_.literal("true\">"), text(*property.text)}));
    if (property.other)
      values.push_back(automaton_.sequence(
          {automaton_.literal("false\">"), *property.other, automaton_.literal(kEndParameter)}));
    return named(property.name, automaton_.choice(values));
  }

  NodeId text(Terms::Id term) {
    return automaton_.sequence({automaton_.bare(term), automaton_.literal(kEndParameter)});
  }

  Automaton& automaton_;
  NodeId line_end_;
};

}  // namespace

Automaton::NodeId tools_node(Automaton& automaton, const Json& spec) {
  const std::string choice = spec.at("choice").get<std::string>();
  const bool has_name = choice != "auto" && choice != "required";
  ToolGrammar grammar(automaton);
  std::vector<NodeId> invokes;
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
  const NodeId calls = grammar.calls(invokes, is_one ? 1 : Terms::kNoLimit);
  if (choice == "auto") return automaton.sequence({automaton.up_to(kBegin), calls});
  return automaton.sequence(
      {automaton.choice({automaton.literal(kBegin), automaton.literal("\n\n" + kBegin)}), calls});
}

}  // namespace dsv32
