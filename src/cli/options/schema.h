// JSON schemas as users give them, and the text that they become in GenerationOptions::constraint.
#pragma once

#include <optional>
#include <string>

#include "cli/options/json.h"
#include "cli/options/options.h"

namespace dsv32 {

// The constraint that the value of --schema or /set schema means: "-" is standard input; what begins with a
// brace is JSON; else it is the file of this name; where there is none, `true`, `false`, or the short form. A
// schema has at most 1 MiB. Its keys keep their order, which is that of the answer's properties. Throws
// Error{usage} as check_constraint() does, and for what is none of these.
std::string read_schema(const std::string& given, const Options& options);

// The same for a request's body, which asks by OpenAI's response_format, or by what the servers of ollama,
// llama.cpp and vLLM have in its place. Empty: it asks for any text; nothing: it says nothing. A field of
// response_format that is not known is refused, because it may change the answer. Throws Error{usage} naming
// the field, also for two fields that ask.
std::optional<std::string> read_response_format(JsonFields& body);

// The schema of an object in the short form of simonw/llm: fields with commas between them, or, where there
// is more than one line, one a line. A field is a name, perhaps a type (str, the default, int, float, bool),
// and perhaps a colon and a description. All are required, and the object has no others. Throws Error{usage}.
Json parse_short_schema(const std::string& text);

}  // namespace dsv32
