// How much memory the machine has, and how much of it is still available.
#pragma once

#include <cstdint>

namespace dsv32 {

uint64_t total_host_memory();  // bytes of physical memory; 0 when the system does not say

// Bytes that can be taken without swapping: free memory and file caches (MemAvailable).
uint64_t available_host_memory();

// The most bytes that this process may have (ulimit -v and -d), mapped files included.
uint64_t most_process_memory();

}  // namespace dsv32
