// `dsv32 bench batch`: how many sequences of given lengths a machine holds, and how fast they decode
// together.
#pragma once

#include "cli/options/options.h"

namespace dsv32 {

// Returns the exit code.
int bench_batch_command(const Options& options);

}  // namespace dsv32
