// `dsv32 bench`: prefill and decode at context frontiers, for a model file or for synthetic weights of any
// shape.
#pragma once

#include "cli/options/options.h"

namespace dsv32 {

// Prints to standard output and returns the exit code. Throws Error.
int bench_model_command(const Options& options);

}  // namespace dsv32
