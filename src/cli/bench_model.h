// `dsv32 bench`: prefill and decode at context frontiers, for a model file or for synthetic weights of any
// shape.
#pragma once

#include <string>
#include <vector>

namespace dsv32 {

// args: what follows `bench`. Prints to standard output and returns the exit code. Throws Error.
int bench_model_command(const std::vector<std::string>& args);

}  // namespace dsv32
