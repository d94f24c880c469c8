// Which GPUs there are, and why one of them cannot be used: no driver, an old one, or no code for it in this
// build.
#pragma once

#include <string>

namespace dsv32 {

// An empty message: it can be used.
struct DeviceProblem {
  std::string message, hint;
};
DeviceProblem find_problem(int device);

}  // namespace dsv32
