// A request's one form in JSON: the body of a batch's line, the file of --messages, and what a warm process
// is asked.
//
//   {"messages": [...], ...}    {"prompt": "...", ...}    {"prompt": [1, 2, 3], ...}: tokens
//
// It is OpenAI's body with this program's options beside it. A field that is not known is refused by its
// name, unless it is null or empty. Other programs' fields that change nothing are a short list.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "cli/options/inputs.h"
#include "cli/options/json.h"
#include "engine/request.h"
#include "text/chat_format.h"

namespace dsv32 {

struct ChatRequest {
  std::vector<Message> messages;  // or, when there are none:
  std::vector<int32_t> ids;       // or:
  PromptText prompt;
  bool is_raw = false;                    // the prompt is rendered already
  bool is_completion = false;             // for /v1/completions, whose form the answer has
  GenerationOptions options;              // the body's, with the defaults for those that it lacks
  const ChatKind* chat_format = nullptr;  // the command's
  bool is_thinking_asked = false;         // the body itself says whether to think
  bool has_seed = false;                  // options.sampling.seed is the body's own
  bool has_random_seed = false;           // the body asks for a random seed
  std::vector<TokenRun> decoded = {};     // of ids: Request::decoded
};

// Reads a line with a body in an envelope {"method", "url", "body"}, perhaps without the first two, or the
// body itself. `request`: the defaults. Throws Error{usage} naming the field.
ChatRequest read_request(JsonFields& line, ChatRequest request);

// The request that a command's flags make of a text. The JSON of --messages may be the list of messages
// alone; its fields win over flags. Throws as read_request() does.
ChatRequest request_of(PromptText text, const Options& options);

// The body that asks for these tokens with these options.
Json request_json(const Request& request);

// [[begin, end], ...]
Json runs_json(const std::vector<TokenRun>& runs);
std::vector<TokenRun> parse_runs(const Json& list);

struct Prompt {
  std::vector<int32_t> ids;
  std::string rendered;   // the ids as text, special tokens by name; empty where they were given
  bool thinking = false;  // it ends in thinking
  bool is_raw = false;    // it was rendered already
};

// The prompt of a request. A text with is_raw, or one that begins with the BOS token's name, is rendered
// already. `n_most`: as for Tokenizer::encode(). Throws Error{usage} for a system prompt or tools beside a
// rendered text, and when the chat format has no tools or leaves no choice of thinking; Error{model} when the
// vocabulary lacks a token of the format.
Prompt prompt_of(const ChatRequest& request, const Tokenizer& tokenizer, size_t n_most = SIZE_MAX);

}  // namespace dsv32
