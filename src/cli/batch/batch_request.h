// What a line of a batch file asks for, in OpenAI's form or a short one.
//
//   {"custom_id": …, "method": "POST", "url": "/v1/chat/completions", "body": {"messages": …, …}}
//   {"messages": …, …}    {"prompt": …, …}
//
// Everything that would change an answer is honoured or refused; what is not known at all
// is passed over, and its name told once. A line is refused by throwing, and the error's kind decides its
// status.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "cli/options/json.h"
#include "cli/options/prompt.h"
#include "engine/request.h"
#include "text/chat_format.h"

namespace dsv32 {

struct BatchRequest {
  std::vector<Message> messages;  // or, when there are none:
  PromptText prompt;
  bool is_raw = false;           // the prompt is rendered already
  bool is_completion = false;    // for /v1/completions: the answer has that one's form
  GenerationOptions options;     // what the line leaves out is the command's
  bool has_seed = false;         // options.sampling.seed is the line's own
  bool has_random_seed = false;  // it wants one that nothing decides
};

// The names that no line should have, each told of once. What is kept of them is bounded.
class UnknownFields {
 public:
  explicit UnknownFields(std::function<void(const std::string& name)> tell) : tell_(std::move(tell)) {}
  void note(const std::string& name);

 private:
  std::function<void(const std::string&)> tell_;
  std::set<std::string> told_;
};

// Both throw Error{usage} for what the line should not have.
std::optional<std::string> custom_id_of(JsonFields& line);
// `request`: that of a line that says nothing.
BatchRequest read_request(JsonFields& line, BatchRequest request, UnknownFields& unknown);

// 400 what is asked for is wrong or not supported, 413 too long for the context, 500 everything else.
int status_of(const Error& error);

}  // namespace dsv32
