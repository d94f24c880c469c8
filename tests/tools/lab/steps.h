// `lab steps`: how long each part of a decode step takes.
#pragma once

#include "tests/tools/lab/lab_options.h"

namespace dsv32 {

// Prints to standard output and returns the exit code. Throws Error.
int lab_steps(const LabOptions& options);

}  // namespace dsv32
