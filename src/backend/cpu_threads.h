// When work is worth dividing over threads: waking them costs some microseconds, so a piece of work must be
// worth some tens of them.
#pragma once

#include <cstdint>

namespace dsv32 {

// n_values: values that an operation touches, each with a few instructions.
constexpr bool worth_sharing(int64_t n_values) { return n_values >= 1 << 16; }

// n_products: multiplications and additions in vectors, some sixteen an instruction.
constexpr bool products_worth_sharing(int64_t n_products) { return n_products >= 1 << 20; }

}  // namespace dsv32
