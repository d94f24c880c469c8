// The command `dsv32 inspect`: what a model file holds, what a context costs, and how text becomes tokens.
//
// Only `inspect logits` computes (inspect_logits.h). Everything else reads headers and vocabulary.
#pragma once

#include "cli/options.h"

namespace dsv32 {

// Returns the exit code. Throws Error.
int inspect_command(const Options& options);

}  // namespace dsv32
