// `lab matvec`: products on the CPU, beside a plain read of the same bytes.
#pragma once

#include "tests/tools/lab/lab_options.h"

namespace dsv32 {

// Prints to standard output and returns the exit code. Throws Error{usage} for columns that do not fit a
// format, Error{memory} when a matrix does not fit.
int lab_matvec(const LabOptions& options);

// What instruments of the CPU's products share: every storage format, and the middle of some timings.
std::vector<TensorType> all_types();
double median(std::vector<double> values);

}  // namespace dsv32
