// How the driver pins host memory (backend/pinned_memory.h).
#pragma once

#include <cuda_runtime.h>

#include "backend/pinned_memory.h"

namespace dsv32::cuda {

inline PinningDriver pinning_driver(int device) {
  return {.pin =
              [device](void* memory, size_t n_bytes) {
                if (cudaSetDevice(device) == cudaSuccess &&
                    cudaHostRegister(memory, n_bytes, cudaHostRegisterPortable) == cudaSuccess)
                  return true;
                cudaGetLastError();
                return false;
              },
          .unpin = [](void* memory) { cudaHostUnregister(memory); }};
}

}  // namespace dsv32::cuda
