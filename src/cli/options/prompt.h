// The prompt: its parts gathered from the command line, files and standard input, then put in the chat
// format.
//
// Standard input comes first, then the files, then the prompt: the same document with a second question keeps
// its beginning. A part that does not end its line gets a newline before the next one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/options/options.h"
#include "text/tokenizer.h"

namespace dsv32 {

// A text file or, for "-", standard input, 64 MiB at most; says so when it reads standard input. Throws
// Error{usage} when it cannot be read.
std::string read_input(const std::string& path, const Options& options);

struct PromptText {
  std::string system, user;
};

// Reads everything to its end, 64 MiB at most; standard input unless it is a terminal or --no-stdin says
// otherwise, and where `-` names it. Throws Error{usage} when there is no text at all, or when a file cannot
// be read.
PromptText read_prompt(const Options& options, bool is_in_terminal);

// The system prompt alone, as `chat` needs it. Empty when there is none.
std::string read_system(const Options& options);

struct Prompt {
  std::vector<int32_t> ids;
  std::string rendered;   // the same as text, special tokens by name
  bool thinking = false;  // it ends with <think>
  bool is_raw = false;    // it was rendered already
};

// With `is_raw`, and when the text begins with the name of the BOS token, the text is the rendered prompt.
// Throws Error{usage} for a system prompt beside such a text, Error{model} when the vocabulary lacks a mark.
Prompt make_prompt(const Tokenizer& tokenizer, const PromptText& text, bool is_raw, bool thinking);

}  // namespace dsv32
