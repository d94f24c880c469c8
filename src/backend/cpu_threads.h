// When work is worth dividing over threads: waking them costs some microseconds, and far more on a busy machine.
#pragma once

#include <cstdint>

namespace dsv32 {

// n_values: values that an operation touches, each with a few instructions.
constexpr bool worth_sharing(int64_t n_values) { return n_values >= 1 << 15; }

}  // namespace dsv32
