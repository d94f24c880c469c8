// The NVIDIA GPU as a Backend: the only header of cuda/ that src/ sees.
#pragma once

#include <memory>
#include <string>

#include "backend/backend.h"
#include "backend/memory_budget.h"

namespace dsv32 {

class HostLane;

// The backend of a GPU, or Error{device} that says what is missing: a driver, a newer one, code for this GPU.
// n_threads: compute experts in host memory; 0: one for each core but one. lane: computes these for several
// devices; null: one of its own, when there are such experts.
std::unique_ptr<Backend> make_cuda_backend(int device, const MemoryLimits& limits = {}, int n_threads = 0,
                                           std::shared_ptr<HostLane> lane = nullptr);

// How many GPUs there are; 0 without a driver.
int n_cuda_devices();

// Why a GPU cannot be used: no driver, an old one, or no code for it in this build. Without a message it can.
// Never throws.
struct DeviceProblem {
  std::string message, hint;
};
DeviceProblem find_problem(int device);

}  // namespace dsv32
