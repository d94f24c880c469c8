// `lab experts`: the routed experts of a layer on the CPU, as decode leaves them to it.
#pragma once

#include "tests/tools/lab/lab_options.h"

namespace dsv32 {

// Prints to standard output and returns the exit code. Throws Error{usage} for columns that do not fit a
// format, Error{memory} when the experts do not fit.
int lab_experts(const LabOptions& options);

}  // namespace dsv32
