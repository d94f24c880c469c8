// The command `dsv32 cache`: what is kept on disk, whether it is whole, and how it is made smaller.
//
// No model is opened. A folder that is not there is an empty cache, and stays away.
#pragma once

#include "cli/options/options.h"

namespace dsv32 {

// Returns the exit code: 1 when verify finds damage. Throws Error{usage, io}.
int cache_command(const Options& options);

}  // namespace dsv32
