// The NVIDIA GPU as a Backend: the only header of cuda/ that src/ sees.
#pragma once

#include <memory>

#include "backend/backend.h"

namespace dsv32 {

// The backend of that GPU, or Error{device} that says what is missing: a driver, one new enough, a GPU that this build has
// code for.
std::unique_ptr<Backend> make_cuda_backend(int device);

// Whether a GPU answers; never throws.
bool has_cuda_device();

}  // namespace dsv32
