// `dsv32 bench`: prefill and decode at context frontiers, for a model file or for synthetic weights of any shape.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dsv32 {

// Numbers of tokens up to 1048576 with commas between them, sorted. Throws Error{usage}.
std::vector<int64_t> parse_contexts(const std::string& text);

// args: what follows `bench`. Prints to standard output and returns the exit code. Throws Error.
int bench_model_command(const std::vector<std::string>& args);

}  // namespace dsv32
