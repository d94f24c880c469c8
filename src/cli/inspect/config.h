// The command `dsv32 config`: what holds when a command is given no flags, and from where.
#pragma once

#include <string>

#include "cli/options/commands.h"

namespace dsv32 {

std::string config_text(const CommandRow& command);

// Its words name a command; none: run. Returns the exit code. Throws Error{usage}.
int config_command(const Options& options);

}  // namespace dsv32
