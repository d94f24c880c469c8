// The routed experts on threads of the CPU: an operation of CpuBackend, and what a device leaves to the host
// (backend/host_lane.h).
#pragma once

#include <vector>

#include "backend/backend.h"
#include "base/worker_pool.h"

namespace dsv32 {

// As RunExperts says; all pointers are to host memory, and every id is below the number of experts. The bits
// depend neither on the number of threads nor on the other tokens. scratch: the caller keeps it, so that it
// is not allocated at every step.
void cpu_run_experts(const RunExperts& op, WorkerPool& workers, std::vector<float>& scratch);

}  // namespace dsv32
