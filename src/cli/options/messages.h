// Messages in OpenAI's JSON, as lines of a batch, --messages and talks on disk have them.
//
// An assistant's message may have tool_calls, and beside them calls_text, which is byte for byte what the
// model wrote, so that the prompt is the one from before. A tool's message is the result of a call of the
// message before it. Results are put in the calls' order.
#pragma once

#include <string>
#include <vector>

#include "cli/options/json.h"
#include "text/chat_format.h"

namespace dsv32 {

const char* role_name(Message::Role role);  // "system", "user", "assistant", "tool"

// One message, and of a result which call's it is. `where` names it in errors, as "messages[3]". Throws
// Error{usage} naming the field.
struct ParsedMessage {
  Message message;
  std::string call_id;
};
ParsedMessage parse_message(const Json& json, const std::string& where);
Json message_json(const Message& message);

// The messages of a list whose last one is to be answered: the user's, or the result of the last call of the
// message before. Throws Error{usage} naming the field.
std::vector<Message> parse_messages(const Json& list);

// OpenAI's form of calls: [{"id", "type", "function": {"name", "arguments"}}]. with_ids(): a call without an
// id gets one.
Json calls_json(const std::vector<ToolCall>& calls);
std::vector<ToolCall> parse_calls(const Json& list, const std::string& where);
std::vector<ToolCall> with_ids(std::vector<ToolCall> calls);

}  // namespace dsv32
