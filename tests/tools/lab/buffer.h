// `lab buffer`: how many rows a decode step finds in the top-k buffer, by layer, size and policy, on
// conversations about passages.
#pragma once

#include "tests/tools/lab/lab_options.h"

namespace dsv32 {

// Prints to standard output and returns the exit code. Throws Error.
int lab_buffer(const LabOptions& options);

}  // namespace dsv32
