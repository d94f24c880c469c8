// `lab kernels`: which kernels GPUs run for each format, as choose.h has them.
#pragma once

#include "tests/tools/lab/lab_options.h"

namespace dsv32 {

// Prints to standard output and returns the exit code. Throws Error.
int lab_kernels(const LabOptions& options);

}  // namespace dsv32
