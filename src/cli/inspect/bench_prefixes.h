// `dsv32 bench prefixes`: the first token of a prompt that is known on disk, beside computing it, and beside
// what the disk gives.
#pragma once

#include "cli/options/options.h"

namespace dsv32 {

// Prints to standard output and returns the exit code. Throws Error.
int bench_prefixes_command(const Options& options);

}  // namespace dsv32
