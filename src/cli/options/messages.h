// Conversations in OpenAI's JSON, as lines of a batch and --messages have them.
//
// An assistant's message may have tool_calls, and beside them calls_text, which is byte for byte what the
// model wrote, so that the prompt is the one from before. A tool's message is the result of a call of the
// message before it. Results are put in the calls' order.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/options/json.h"
#include "cli/options/options.h"
#include "cli/options/tools.h"
#include "text/chat_format.h"

namespace dsv32 {

// Gets the name of each field that is not known and changes nothing.
using TellUnknown = std::function<void(const std::string& name)>;
void tell_unknown(const JsonFields& fields, const TellUnknown& tell);

// The messages of a list whose last one is to be answered: the user's, or the result of the last call of the
// message before. Throws Error{usage} naming the field.
std::vector<Message> parse_messages(const ReadJson& list, const TellUnknown& tell);

// OpenAI's form of calls: [{"id", "type", "function": {"name", "arguments"}}]. A call without an id gets one.
Json calls_json(const std::vector<ToolCall>& calls);

// The conversation of --messages.
struct GivenMessages {
  std::vector<Message> messages;
  Tools tools;  // the file's own; they are among the messages too, as those of --tools are
};
// Says which fields of messages are not known, unless --quiet. Throws Error{usage}, also for tools beside a
// schema.
GivenMessages read_messages(const Options& options);

}  // namespace dsv32
