// The command `dsv32 bench`: measurements against a ceiling that is measured in the same run.
#pragma once

#include <string>
#include <vector>

namespace dsv32 {

// args: what follows `bench` on the command line. Prints to standard output and returns the exit code; throws
// Error{usage} for a wrong flag and Error{memory} when a matrix does not fit.
int bench_command(const std::vector<std::string>& args);

}  // namespace dsv32
