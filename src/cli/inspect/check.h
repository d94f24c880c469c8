// The command `dsv32 check`: whether this machine computes a model as it should, without any other program.
//
// Two comparisons. Decode with a small top-k buffer must give the bits of decode with every row resident, on
// each backend. A GPU's logits must be near those of the CPU, which is the oracle; where they first leave it
// is told by position, layer and stage.
#pragma once

#include "cli/options/options.h"

namespace dsv32 {

// Prints a line, or with --json one object, and returns the exit code: 0, or 1 when a comparison failed.
// Throws Error, also Error{usage} for a context or a buffer that does not fit the model.
int check_command(const Options& options);

}  // namespace dsv32
