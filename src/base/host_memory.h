// How much memory the machine has, and how much of it a program can still have.
#pragma once

#include <cstdint>

namespace dsv32 {

uint64_t total_host_memory();  // bytes of physical memory; 0 when the system does not say

// Bytes that can be taken without swapping: what is free and what caches of files hold (MemAvailable).
uint64_t available_host_memory();

// Bytes that this process may have in all (ulimit -v and -d), mapped files among them.
uint64_t most_process_memory();

}  // namespace dsv32
