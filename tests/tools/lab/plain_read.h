// Reading memory and doing nothing with it: what everything that has to read weights is measured against.
//
// In two ways. In order: each thread goes through its share from the beginning to the end, the plain read of
// a sum over an array. By streams: each thread follows several streams in its share at once, which keeps more
// requests under way and shows the most that the memory bus gives.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/worker_pool.h"

namespace dsv32 {

enum class ReadPattern { in_order, by_streams };

// Reads `n_bytes` with all workers, each its own contiguous share. Returns the sum, modulo 2^64, of
// the bytes as u64 words in the machine's order, the last one filled up with zeros.
uint64_t plain_read(const uint8_t* bytes, size_t n_bytes, ReadPattern pattern, WorkerPool& workers);

}  // namespace dsv32
