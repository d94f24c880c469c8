// See messages.h.
#include "cli/options/messages.h"

#include <algorithm>
#include <random>
#include <set>

#include "base/error.h"
#include "base/text.h"

namespace dsv32 {
namespace {

constexpr int kArgumentsDepth = 64;  // of nested JSON

constexpr const char* kRoles[] = {"system", "user", "assistant", "tool"};

// A message's content: a text, or a list of parts that are texts.
std::string content_of(JsonFields& message) {
  const Json* content = message.find("content");
  if (!content) return {};
  if (!content->is_array()) return *message.text("content");
  std::string text;
  for (const Json& part : *content) {
    JsonFields fields(part, "a part of content", message.name_of("content."));
    if (fields.text("type").value_or("text") != "text")
      fail(ErrorKind::usage, "content has a part that is no text, which is not supported");
    const std::optional<std::string> own = fields.text("text");
    if (!own) fail(ErrorKind::usage, "content has a part without a text");
    text += *own;
    fields.refuse_unknown();
  }
  return text;
}

Message::Role parse_role(JsonFields& message) {
  const std::string role = message.text("role").value_or("");
  if (role == "developer") return Message::Role::system;
  const auto found = std::ranges::find(kRoles, role);
  if (found == std::end(kRoles))
    fail(ErrorKind::usage, format("%s is '%s', expected system, user, assistant or tool",
                                  message.name_of("role").c_str(), visible(role, false, 40).c_str()));
  return static_cast<Message::Role>(found - kRoles);
}

// The object under "function", when the type is that too.
const Json& function_of(JsonFields& fields) {
  if (const std::string type = fields.text("type").value_or("function"); type != "function")
    fail(ErrorKind::usage, format("%s is '%s', expected function", fields.name_of("type").c_str(),
                                  visible(type, false, 40).c_str()));
  return fields.needed("function");
}

ToolCall parse_call(const Json& json, const std::string& where) {
  JsonFields fields(json, "a call", where + ".");
  fields.find("index");
  JsonFields function(function_of(fields), "a call's function", where + ".function.");
  for (const char* key : {"name", "arguments"}) function.needed(key);
  ToolCall call{*function.text("name"), *function.text("arguments"), fields.text("id").value_or("")};
  if (call.arguments.empty()) call.arguments = "{}";  // of a call without arguments
  fields.refuse_unknown(), function.refuse_unknown();
  try {
    if (parse_outside_json(call.arguments, kArgumentsDepth).is_object()) return call;
  } catch (const Error& error) {
    fail(ErrorKind::usage, function.name_of("arguments") + ": " + error.what());
  }
  fail(ErrorKind::usage, function.name_of("arguments") + " is the text of no JSON object");
}

void read_calls(JsonFields& fields, Message& message) {
  const Json* list = fields.find("tool_calls");
  message.calls_text = fields.text("calls_text").value_or("");
  if (list) message.calls = parse_calls(*list, fields.name_of("tool_calls"));
  if (message.role != Message::Role::assistant && !message.calls.empty())
    fail(ErrorKind::usage, "a message has tool_calls and is not the assistant's");
  if (message.calls.empty() && !message.calls_text.empty())
    fail(ErrorKind::usage, "a message has calls_text without tool_calls");
  std::set<std::string> ids;
  for (const ToolCall& call : message.calls)
    if (!call.id.empty() && !ids.insert(call.id).second)
      fail(ErrorKind::usage, "two calls of a message have the id " + visible(call.id, false, 80));
}

// The results that follow `calls`, messages[begin, end), in the calls' order. A result without an id is the
// next call's.
void sort_results(std::vector<ParsedMessage>& messages, size_t begin, size_t end,
                  const std::vector<ToolCall>& calls) {
  std::vector<std::optional<Message>> sorted(calls.size());
  for (size_t i = begin; i < end; ++i) {
    const std::string& id = messages[i].call_id;
    size_t at = i - begin;
    if (!id.empty()) at = static_cast<size_t>(std::ranges::find(calls, id, &ToolCall::id) - calls.begin());
    if (at >= calls.size() || sorted[at])
      fail(ErrorKind::usage,
           format("the result with tool_call_id '%s' belongs to no call of the message before",
                  visible(id, false, 80).c_str()));
    sorted[at] = std::move(messages[i].message);
  }
  for (size_t i = 0; i < calls.size(); ++i)
    if (!sorted[i])
      fail(ErrorKind::usage,
           format("the call of %s has no result", visible(calls[i].name, false, 80).c_str()));
  for (size_t i = 0; i < calls.size(); ++i) messages[begin + i].message = std::move(*sorted[i]);
}

}  // namespace

const char* role_name(Message::Role role) { return kRoles[static_cast<size_t>(role)]; }

ParsedMessage parse_message(const Json& json, const std::string& where) {
  JsonFields fields(json, where, where + ".");
  Message message{parse_role(fields), content_of(fields), {}};
  for (const char* key : {"reasoning", "reasoning_content"})
    message.reasoning = fields.text(key).value_or(message.reasoning);
  read_calls(fields, message);
  const std::string id = fields.text("tool_call_id").value_or("");
  fields.text("name");
  fields.refuse_unknown();
  return {std::move(message), id};
}

Json message_json(const Message& message) {
  Json json{{"role", role_name(message.role)},
            {"content", message.content},
            {"reasoning_content", message.reasoning}};
  if (!message.calls.empty())
    json["tool_calls"] = calls_json(message.calls), json["calls_text"] = message.calls_text;
  return json;
}

std::vector<Message> parse_messages(const Json& list) {
  if (!list.is_array() || list.empty()) fail(ErrorKind::usage, "messages is no list with a message in it");
  std::vector<ParsedMessage> parsed;
  for (const Json& json : list) {
    parsed.push_back(parse_message(json, format("messages[%zu]", parsed.size())));
    if (const Message& last = parsed.back().message; last.role == Message::Role::user && last.content.empty())
      fail(ErrorKind::usage, "a message of the user has no content, expected a text or a list of texts");
  }
  for (size_t i = 0, end; i < parsed.size(); i = end) {
    const auto is_result = [&](size_t k) { return parsed[k].message.role == Message::Role::tool; };
    if (is_result(i))
      fail(ErrorKind::usage, "a tool's result follows no message of the assistant with calls");
    for (end = i + 1; end < parsed.size() && is_result(end);) ++end;
    const std::vector<ToolCall> calls = parsed[i].message.calls;
    sort_results(parsed, i + 1, end, calls);
  }
  std::vector<Message> messages;
  for (ParsedMessage& one : parsed) messages.push_back(std::move(one.message));
  const Message::Role last = messages.back().role;
  if (last != Message::Role::user && last != Message::Role::tool)
    fail(ErrorKind::usage, "the last message is neither the user's nor a tool's: there is nothing to answer");
  return messages;
}

Json calls_json(const std::vector<ToolCall>& calls) {
  Json list = Json::array();
  for (const ToolCall& call : calls) {
    Json json = Json::object();
    if (!call.id.empty()) json["id"] = call.id;
    json["type"] = "function";
    json["function"] = {{"name", sanitize_utf8(call.name)}, {"arguments", sanitize_utf8(call.arguments)}};
    list.push_back(std::move(json));
  }
  return list;
}

std::vector<ToolCall> parse_calls(const Json& list, const std::string& where) {
  if (!list.is_array()) fail(ErrorKind::usage, where + " is no list");
  std::vector<ToolCall> calls;
  for (const Json& call : list) calls.push_back(parse_call(call, where));
  return calls;
}

std::vector<ToolCall> with_ids(std::vector<ToolCall> calls) {
  std::random_device random;
  for (ToolCall& call : calls)
    if (call.id.empty()) call.id = format("call_%08x%08x%08x", random(), random(), random());
  return calls;
}

}  // namespace dsv32
