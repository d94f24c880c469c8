// The NVIDIA GPU as a Backend: the only header of cuda/ that src/ includes.
#pragma once

#include <memory>
#include <string>

#include "backend/backend.h"
#include "backend/memory_budget.h"

namespace dsv32 {

class HostLane;

// The backend of a GPU, or Error{device} that says what is missing: a driver, a newer driver, code for this
// GPU. n_threads: compute experts in host memory; 0: one for each core but one. lane: computes these for
// several devices; null: the backend makes its own if needed.
std::unique_ptr<Backend> make_cuda_backend(int device, const MemoryLimits& limits = {}, int n_threads = 0,
                                           std::shared_ptr<HostLane> lane = nullptr);

// How many GPUs there are; 0 without a driver.
int n_cuda_devices();

// Why a GPU cannot be used: no driver, an old driver, or no code for it in this build; no message if it can
// be used. Never throws.
struct DeviceProblem {
  std::string message, hint;
};
DeviceProblem find_problem(int device);

}  // namespace dsv32
