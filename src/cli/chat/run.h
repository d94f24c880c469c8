// The command `dsv32 run`: one prompt in, one answer out.
//
// Standard output is the answer and nothing else, or with --json one object. With --talk or --continue the
// prompt is a talk's next question (talk.h).
#pragma once

#include "cli/options/options.h"

namespace dsv32 {

// Returns the exit code: 0; 6 when no answer began or the full context cut it; 129 / 130 / 143 when a signal
// ended it. Throws Error.
int run_command(const Options& options);

}  // namespace dsv32
