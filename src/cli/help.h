// What is said without being asked anything: the screenful of help, the version, how an error looks.
//
// Flags are not listed here; each command's own help comes from the table of flags.
#pragma once

#include <string>
#include <vector>

namespace dsv32 {

std::string exit_codes();  // one line
std::string overview();    // examples first, then the commands, then the exit codes

// What `help`, `--help`, `-h`, `version`, `--version` and `-V` as a command ask for, and `--help` behind a
// group such as `inspect`; empty when `words` are anything else.
std::string general_text(const std::vector<std::string>& words);

// "dsv32: message\n" and, when there is one, "hint: ...\n"; escaped.
std::string error_text(const std::string& message, const std::string& hint = {});

}  // namespace dsv32
