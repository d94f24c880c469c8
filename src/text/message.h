// A message of a conversation, and the parts of which a prompt is put together.
#pragma once

#include <string>
#include <vector>

namespace dsv32 {

// A call that an assistant makes.
struct ToolCall {
  std::string name;
  std::string arguments;  // a JSON object
  std::string id = {};
};

struct Message {
  // OpenAI's role `developer` is `system` here. (DeepSeek's own code has a `developer` of another meaning,
  // for its search: a user's message with tools.)
  enum class Role { system, user, assistant, tool };
  Role role;
  std::string content;               // a tool's: the result
  std::string reasoning;             // of an assistant; used only if no user message follows
  std::vector<ToolCall> calls = {};  // of an assistant
  // How the model wrote its calls, with all that stands between content and the end (CallParser gives it);
  // empty: as the format writes them.
  std::string calls_text = {};
  std::string tools = {};  // of the system message: a JSON array of OpenAI's form
};

// Texts with no mark between them are encoded as one.
struct PromptPart {
  enum class Kind {
    text,   // never read as tokens' names
    mark,   // `text` is the name of a token; where the vocabulary lacks it, text like the rest
    begin,  // the vocabulary's token for the begin of a sequence
    end,    // and for its end
  };
  std::string text = {};
  Kind kind = Kind::text;
};

}  // namespace dsv32
