// Tools in OpenAI's JSON, and what they make of an answer.
#pragma once

#include <string>

#include "cli/options/json.h"
#include "cli/options/options.h"

namespace dsv32 {

// What an answer may call.
struct Tools {
  std::string json;        // OpenAI's list, for the prompt; empty: none
  std::string constraint;  // of the answer (constrain/constraint.h); empty: calls are free

  // Lets an answer call them. Throws Error{usage} when it has to be a document.
  void apply_to(GenerationOptions& options) const;
};

// Both throw Error{usage}, also as check_constraint() does.
//
// The value of --tools: OpenAI's list in a file, in standard input ("-"), or as JSON itself. Calls are free
// unless a tool is strict.
Tools read_tools(const std::string& given, const Options& options);

// The tools of a request's body, with its tool_choice and parallel_tool_calls. None: it has none, or chooses
// none.
Tools read_tools(JsonFields& body);

}  // namespace dsv32
