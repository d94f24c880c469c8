// What is said without being asked anything: the screenful of help, the version, how an error looks.
//
// Flags are not listed here; each command's own help comes from the table of flags.
#pragma once

#include <span>
#include <string>
#include <vector>

#include <unistd.h>

#include "cli/terminal/terminal.h"

namespace dsv32 {

std::string exit_codes();  // one line

struct Example {
  const char *command, *text;
};
std::span<const Example> examples();

std::string overview();  // examples first, then the commands, then the exit codes

// Lines that are longer than `width` columns end between words; what goes on stands under the column that the
// line's last gap of two spaces leads to. By default as wide as the terminal that standard output is,
// else 80.
std::string fitted(const std::string& text, size_t width = window_columns(STDOUT_FILENO));

// What `help`, `--help`, `-h`, `version`, `--version` and `-V` as a command ask for, and `--help` behind a
// group such as `inspect`; empty when `words` are anything else.
std::string general_text(const std::vector<std::string>& words);

// "dsv32: message\n" and, when there is one, "hint: ...\n"; escaped.
std::string error_text(const std::string& message, const std::string& hint = {});

}  // namespace dsv32
