// Templates are cut into text and marks; what comes from outside is always text.
#include "text/dsml.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "base/error.h"
#include "text/json.h"
#include "text/marks.h"

namespace dsv32 {
namespace {

constexpr const char* kToolsBegin = R"(

## Tools
You have access to a set of tools you can use to answer the user's question.
You can invoke functions by writing a "<｜DSML｜function_calls>" block like the following as part of your reply to the user:
<｜DSML｜function_calls>
<｜DSML｜invoke name="$FUNCTION_NAME">
<｜DSML｜parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜parameter>
...
</｜DSML｜invoke>
<｜DSML｜invoke name="$FUNCTION_NAME2">
...
</｜DSML｜invoke>
</｜DSML｜function_calls>
String and scalar parameters should be specified as is without any escaping or quotes, while lists and objects should use JSON format. The "string" attribute should be set to "true" for string type parameters and "false" for other types (numbers, booleans, arrays, objects).
If the thinking_mode is enabled, then after function results you should strongly consider outputting a thinking block. Here is an example:
<｜DSML｜function_calls>
...
</｜DSML｜function_calls>
<function_results>
...
</function_results>
<think>...thinking about results</think>
Here are the functions available in JSONSchema format:
<functions>
)";
constexpr const char* kToolsEnd = "\n</functions>\n";

class Parts {
 public:
  Parts& text(std::string text) {
    parts_.push_back({std::move(text)});
    return *this;
  }

  // Text in which `marks` are marks.
  Parts& marked(std::string_view text, std::initializer_list<std::string_view> marks = {marks::kDsml}) {
    for (;;) {
      std::string_view first;
      size_t at = text.size();
      for (const std::string_view mark : marks)
        if (const size_t found = text.find(mark); found < at) at = found, first = mark;
      parts_.push_back({std::string(text.substr(0, at))});
      if (first.empty()) return *this;
      parts_.push_back({std::string(first), PromptPart::Kind::mark});
      text.remove_prefix(at + first.size());
    }
  }

  std::vector<PromptPart> take() { return std::move(parts_); }

 private:
  std::vector<PromptPart> parts_;
};

Json parse(const std::string& text, const char* name) try {
  constexpr size_t kMostDepth = 128;
  return parse_outside_json(text, kMostDepth);
} catch (const Error& error) {
  fail(ErrorKind::usage, std::string(name) + " cannot be read: " + error.what());
}

// One line of JSON for each function.
std::string functions_of(const std::string& tools) {
  std::string lines;
  const Json list = parse(tools, "the list of tools");
  if (!list.is_array()) fail(ErrorKind::usage, "the list of tools must be a JSON array");
  for (const Json& tool : list) {
    if (!tool.contains("function")) fail(ErrorKind::usage, "a tool has no field \"function\"");
    lines += (lines.empty() ? "" : "\n") + python_text(tool["function"]);
  }
  return lines;
}

void add_tools(Parts& parts, const std::string& tools) {
  const std::string functions = functions_of(tools);
  if (functions.empty()) return;
  parts.marked(kToolsBegin, {marks::kDsml, marks::kThink, marks::kEndThink}).text(functions).text(kToolsEnd);
}

void add_call(Parts& parts, const ToolCall& call) {
  const Json arguments = parse(call.arguments, "the arguments of a tool call");
  if (!arguments.is_object()) fail(ErrorKind::usage, "the arguments of a tool call must be a JSON object");
  parts.text("\n").marked(marks::kInvoke).text(call.name).text("\">\n");
  const char* line_end = "";
  for (const auto& [name, value] : arguments.items()) {
    parts.text(std::exchange(line_end, "\n"))
        .marked(marks::kParameter)
        .text(name)
        .text(value.is_string() ? "\" string=\"true\">" : "\" string=\"false\">")
        .text(value.is_string() ? value.get<std::string>() : python_text(value))
        .marked(marks::kEndParameter);
  }
  parts.text("\n").marked(marks::kEndInvoke);
}

void add_calls(Parts& parts, const Message& message) {
  if (!message.calls_text.empty()) return static_cast<void>(parts.marked(message.calls_text));
  if (message.calls.empty()) return;
  parts.text("\n\n").marked(marks::kCalls);
  for (const ToolCall& call : message.calls) add_call(parts, call);
  parts.text("\n").marked(marks::kEndCalls);
}

// Results answer the calls in their order. Those of a turn that was broken off end with the last one there
// is.
void add_result(Parts& parts, std::span<const Message> messages, size_t i, bool thinks) {
  const auto is_result = [&](size_t k) { return messages[k].role == Message::Role::tool; };
  size_t first = i;
  while (first > 0 && is_result(first - 1)) --first;
  const size_t n_calls = first > 0 ? messages[first - 1].calls.size() : 0, n_results = i - first + 1;
  if (n_results > n_calls)
    fail(ErrorKind::usage, format("message %zu is a tool's result, but no call before it lacks one", i + 1),
         "results follow the message with the calls, one for each call");
  if (i == first) parts.text("\n\n<function_results>");
  parts.text("\n<result>" + messages[i].content + "</result>");
  if (i + 1 == messages.size() || !is_result(i + 1))
    parts.text("\n</function_results>\n\n")
        .marked(thinks ? marks::kThink : marks::kEndThink, {marks::kThink, marks::kEndThink});
}

}  // namespace

std::vector<PromptPart> dsml_parts(std::span<const Message> messages, size_t i, bool thinks) {
  Parts parts;
  const Message& message = messages[i];
  if (message.role == Message::Role::system && !message.tools.empty()) add_tools(parts, message.tools);
  if (message.role == Message::Role::assistant) add_calls(parts, message);
  if (message.role == Message::Role::tool) add_result(parts, messages, i, thinks);
  return parts.take();
}

}  // namespace dsv32
