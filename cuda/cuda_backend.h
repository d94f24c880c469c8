// The NVIDIA GPU as a Backend: the only header of cuda/ that src/ sees.
#pragma once

#include <memory>
#include <string>

#include "backend/backend.h"
#include "backend/memory_budget.h"

namespace dsv32 {

class HostLane;

// The backend of that GPU, or Error{device} that says what is missing: a driver, one new enough, a GPU that
// this build has code for. n_threads: that compute experts in host memory; 0: one for each core but one.
// lane: computes these, for several devices at once; null: one of this backend's own, when there are such
// experts.
std::unique_ptr<Backend> make_cuda_backend(int device, const MemoryLimits& limits = {}, int n_threads = 0,
                                           std::shared_ptr<HostLane> lane = nullptr);

// How many GPUs there are; 0 without a driver.
int n_cuda_devices();

// Why that GPU cannot be used, for who goes on without; empty when it can. Never throws.
std::string why_no_cuda(int device);

}  // namespace dsv32
