// The command `dsv32 talks`: the talks that are kept, from outside of a chat.
#pragma once

#include "cli/options.h"

namespace dsv32 {

// Returns the exit code. Throws Error{usage, io}: there is no such talk, it is damaged, or it is held in a
// chat and was to be changed.
int talks_command(const Options& options);

}  // namespace dsv32
