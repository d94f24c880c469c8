// The routed experts on the CPU, for the CPU's backend and for another one's experts in host memory.
//
// The bits of a token's y depend on its x, its experts and their weights alone, whatever else is in the step
// and however many threads there are.
#pragma once

#include <cmath>
#include <vector>

#include "backend/backend.h"
#include "base/worker_pool.h"

namespace dsv32 {

// scales: of both, or null.
inline float cpu_silu_mul(float gate, float up, const float* scales) {
  if (scales) gate *= scales[0], up *= scales[1];
  return gate / (1.0f + std::exp(-gate)) * up;
}

// RunExperts (backend.h), on matrices and vectors in host memory; `window` and `next` are not looked at.
// scratch: kept so that it is not allocated at every step. Throws Error{memory}.
void cpu_run_experts(const RunExperts& op, WorkerPool& workers, std::vector<float>& scratch);

}  // namespace dsv32
