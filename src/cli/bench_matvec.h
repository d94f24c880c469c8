// `dsv32 bench matvec`: products on the CPU, beside a plain read of the same bytes.
#pragma once

#include <string>
#include <vector>

namespace dsv32 {

// args: what follows `bench matvec` on the command line. Prints to standard output and returns the exit code;
// throws Error{usage} for a wrong flag and Error{memory} when a matrix does not fit.
int bench_matvec_command(const std::vector<std::string>& args);

}  // namespace dsv32
