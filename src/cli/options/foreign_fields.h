// Fields that other programs know of a request, that would change its answer, and that are not supported
// here.
//
// Those of OpenAI's interface and of the servers of vLLM, SGLang, llama.cpp, ollama and TGI, with the values
// of each that change nothing. What only says how something would be done that is itself refused, and what
// changes no answer, is not among them: it is told of as any unknown field.
#pragma once

#include <string>

#include "cli/options/json_fields.h"

namespace dsv32 {

// Throws Error{usage} that names the first of them that `fields` has with a value that changes something.
void refuse_foreign(JsonFields& fields);

bool is_foreign(const std::string& name);

}  // namespace dsv32
