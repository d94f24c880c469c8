// The precondition of tests of a team.
#pragma once

#include "cuda/cuda_backend.h"
#include "cuda/gather.h"
#include "tests/gpu/gpu_test.h"

namespace dsv32 {

inline boost::test_tools::assertion_result needs_two_gpus(boost::unit_test::test_unit_id) {
  boost::test_tools::assertion_result result(n_cuda_devices() > 1 && cuda::can_reach_each_other(0, 1));
  if (!result) result.message() << "there are no two GPUs here that reach each other's memory";
  return result;
}

}  // namespace dsv32
