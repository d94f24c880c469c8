// The fields of a line that ask for a document: OpenAI's response_format, and what the servers of ollama,
// llama.cpp and vLLM have in its place.
#pragma once

#include <optional>
#include <string>

#include "cli/options/json.h"

namespace dsv32 {

// The constraint that the body asks for (constrain/constraint.h); empty: it asks for any text; nothing: it
// says nothing. A field of response_format that is not known is refused, because it may change the answer.
// Throws Error{usage} naming the field, also for two fields that ask, and as check_constraint() does.
std::optional<std::string> read_response_format(JsonFields& body);

}  // namespace dsv32
