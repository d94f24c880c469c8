// Which function runs a command.
#pragma once

#include "cli/options/options.h"

namespace dsv32 {

// Runs options.command. Returns the exit code; throws Error.
int run_asked(const Options& options);

}  // namespace dsv32
