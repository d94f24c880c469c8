// The command `dsv32 completion`: what bash, zsh and fish complete, and the manual page (manual.h).
//
// The scripts are made of the tables of commands and flags, so they cannot say anything else. For names of
// models and talks they ask `dsv32 completion models` and `dsv32 completion talks`.
#pragma once

#include <string>

#include "cli/options/options.h"

namespace dsv32 {

// For "bash", "zsh" or "fish" a script that the shell reads. Throws Error{usage} for another.
std::string shell_completion(const std::string& shell);

// Returns the exit code. Throws Error{usage}.
int completion_command(const Options& options);

}  // namespace dsv32
