// The commands that answer many prompts: `dsv32 batch`, and `dsv32 run` with --each or --lines.
//
// Lines come in one by one and go out as they are answered; every line is answered once, if only by saying
// why not.
#pragma once

#include "cli/options/options.h"

namespace dsv32 {

// Return the exit code: 0; 5 when a line failed, in this run or in an earlier one that is gone on with; 129 /
// 130 / 143 after a signal, with what was running then finished. Throw Error.
int batch_command(const Options& options);
int run_many(const Options& options);

}  // namespace dsv32
