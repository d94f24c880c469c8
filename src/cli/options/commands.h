// The table of commands: their names, and what their help says first; and what the program says of itself.
//
// dispatch.h runs them. Flags are not listed here; each command's own help comes from the list of flags.
#pragma once

#include <span>
#include <string>
#include <vector>

#include <unistd.h>

#include "cli/options/options.h"
#include "cli/terminal/streams.h"

namespace dsv32 {

struct CommandRow {
  Command command;        // its number is the row's
  const char* full_name;  // "dsv32 run"
  const char* usage;
  const char* about;
  bool takes_words;

  std::string name() const;  // "run", "inspect tokens": as typed
};

std::span<const CommandRow> commands();
const CommandRow& row_of(Command command);

// The command that the first words name; `n_taken` is how many they are. Throws Error{usage} for others.
const CommandRow& find_command(const std::vector<std::string>& words, size_t& n_taken);

std::string exit_codes();  // one line

struct Example {
  const char *command, *text;
};
std::span<const Example> examples();

std::string overview();  // examples first, then the commands, then the exit codes

// Usage, flags by group, where defaults come from, and the exit codes.
std::string command_help(Command command);

// Lines that are longer than `width` columns end between words; what goes on stands under the column that the
// line's last gap of two spaces leads to. By default as wide as the terminal that standard output is,
// else 80.
std::string fitted(const std::string& text, size_t width = window_columns(STDOUT_FILENO));

// What `help`, `--help`, `-h`, `version`, `--version` and `-V` as a command ask for, and `--help` behind a
// group such as `inspect`; empty when `words` are anything else.
std::string general_text(const std::vector<std::string>& words);

// "dsv32 0.1.0 (c53694d)" in the first line; compiler, backends and libraries in the next ones.
std::string version_text();

// "dsv32: message\n" and, when there is one, "hint: ...\n"; escaped.
std::string error_text(const std::string& message, const std::string& hint = {});

}  // namespace dsv32
