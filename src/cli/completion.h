// The command `dsv32 completion`: what bash, zsh and fish complete, and the manual page.
//
// All of it is made of the tables of commands and flags, so none of it can say anything else.
#pragma once

#include <string>

#include "cli/options.h"

namespace dsv32 {

// For "bash", "zsh" or "fish" a script that the shell reads. Throws Error{usage} for another.
std::string shell_completion(const std::string& shell);

// dsv32(1), for man.
std::string manual_page();

// Returns the exit code. Throws Error{usage}.
int completion_command(const Options& options);

}  // namespace dsv32
