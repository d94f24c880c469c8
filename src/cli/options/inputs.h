// What a command reads: the model's file, and the prompt, whose parts are gathered from the command line,
// files and standard input and put in the chat format.
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

// The file that -m or the environment variable DSV32_MODEL names, or which is meant without a name. A path is
// taken as it stands; a folder means the one model in it. A name, or a part of a file's or its folder's, is
// looked for in the folders of models and those in them: models/ here, $DSV32_MODELS and
// $XDG_DATA_HOME/dsv32/models (else ~/.local/share/dsv32/models). Without a name the only model there is
// meant, not counting demo.gguf and tiny.gguf of models/ when there are others, or for a plan's --on.
// Throws Error{usage} when nothing fits or several do, and says which with their sizes.
std::string find_model(const Options& options);
// What -m may name, of those that find_model() looks among.
std::vector<std::string> model_names();
// No model was named, and `path` came with the program: there was no other.
bool is_stopgap(const Options& options, const std::string& path);

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
