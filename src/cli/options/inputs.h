// The inputs of a command: the model's file, and the prompt's text, which is joined from standard input,
// files and the command line.
//
// Standard input comes first, then the files, then the command line's prompt: a second question about the
// same document shares its prefix. A part without a line end gets one before the next part.
#pragma once

#include <optional>
#include <string>

#include "cli/options/options.h"
#include "gguf/gguf.h"

namespace dsv32 {

// The model's file, by the name of -m, else of the environment variable DSV32_MODEL. A path is taken as it
// stands; a folder means the one model in it. Any other name is a model's, or a part of its file's or
// folder's name, in the model folders and their subfolders: models/ here, $DSV32_MODELS and
// $XDG_DATA_HOME/dsv32/models (else ~/.local/share/dsv32/models). Without a name it is the only model in
// these folders; demo.gguf and tiny.gguf of models/ do not count when there are others, or for a plan's --on,
// and *indexer*.gguf beside a larger model never.
// Throws Error{usage} when no model fits or several do, and lists them with their sizes.
std::string find_model(const Options& options);
// Whether none is named and there is none in these folders.
bool lacks_model(const Options& options);
// Opens it, with what the files of --with add, and tells of warnings. Throws as open_model() does.
GgufFile open_model(const Options& options);
// Whether `path` is a model that came with the program and was taken because none was named.
bool is_stopgap(const Options& options, const std::string& path);

// Reads a text file or, for "-", standard input (and says so). Throws Error{usage} when it cannot be read.
inline constexpr size_t kMaxTextBytes = size_t{64} << 20;
std::string read_input(const std::string& path, const Options& options, size_t max_bytes = kMaxTextBytes);

// What a flag's value means where it may be JSON itself, which begins with `first`, or else a file or "-":
// the text, at most 1 MiB, and what messages call it. Nothing when there is no such file. Throws
// Error{usage}.
struct GivenJson {
  std::string name, text;
};
std::optional<GivenJson> read_json(const std::string& given, char first, const Options& options);

struct PromptText {
  std::string system, user;
  std::string tools = {};                // of Message::tools
  std::optional<std::string> json = {};  // the file of --messages, in place of them all
};

// Reads all parts to their ends, 64 MiB together. Standard input is a part where `-` names it; unnamed, it is
// the first part unless it is a terminal or --no-stdin is given. Throws Error{usage} when there is no text at
// all, or when a file cannot be read. With --messages the parts are that file.
PromptText read_prompt(const Options& options, bool is_in_terminal);

// The system prompt alone, as `chat` needs it. Empty when there is none.
std::string read_system(const Options& options);

}  // namespace dsv32
