// `dsv32 bench buffer`: how many rows a decode step finds in the top-k buffer, by layer, size and policy, on
// conversations about passages.
#pragma once

#include <string>
#include <vector>

namespace dsv32 {

// args: what follows `bench buffer`. Prints to standard output and returns the exit code. Throws Error.
int bench_buffer_command(const std::vector<std::string>& args);

}  // namespace dsv32
