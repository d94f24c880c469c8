// Reading memory and doing nothing with it: the ceiling of everything that has to read weights.
//
// It has to be as fast as the machine can, or it would flatter what is compared with it: each thread follows
// several streams in its share of the bytes, because one stream does not keep enough requests under way to
// fill the memory bus.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dsv32 {

// Reads `n_bytes` with all OpenMP threads, each its own contiguous share. Returns the sum, modulo 2^64, of
// the bytes as u64 words in the machine's order, the last one filled up with zeros.
uint64_t plain_read(const uint8_t* bytes, size_t n_bytes);

}  // namespace dsv32
