// `lab prefixes`: the first token of a prompt that is known on disk, beside computing it, and beside what the
// disk gives.
#pragma once

#include "tests/tools/lab/lab_options.h"

namespace dsv32 {

// Prints to standard output and returns the exit code. Throws Error.
int lab_prefixes(const LabOptions& options);

}  // namespace dsv32
