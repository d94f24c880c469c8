// `dsv32 bench prefixes`: the first token of a prompt that is known on disk, beside computing it, and beside
// what the disk gives.
#pragma once

#include <string>
#include <vector>

namespace dsv32 {

// args: what follows `bench prefixes`. Prints to standard output and returns the exit code. Throws Error.
int bench_prefixes_command(const std::vector<std::string>& args);

}  // namespace dsv32
