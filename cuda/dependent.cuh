// Kernels that begin before the kernel ahead of them in the stream is done (programmatic dependent launch).
//
// On Hopper and later a kernel started by launch_kernel() may begin when every block of the kernel ahead has
// called let_next_start() or is done. What it does up to wait_for_inputs() runs beside that kernel. The rule:
//
//   Every thread of every such kernel calls wait_for_inputs() once, on every path, also with nothing to do,
//   before it reads what a kernel writes and before it writes to memory that others use.
//
// Then the kernel ahead is complete, and as its threads have waited likewise, so is every kernel before it.
// A kernel that calls let_next_start() after wait_for_inputs() lets the next one read, past the first cache
// and without waiting, what the kernels before both wrote (DecodeRows::is_known and is_x_older,
// Attend::are_queries_older). Before the wait only what no kernel of the step writes may be read: weights,
// tables, the step's tokens and positions. What kernels write is read by ordinary loads after it, not by
// __ldg or ld.global.nc: these take memory for constant while the kernel runs, and the compiler may move them
// ahead of the wait. Kernels launched by <<<>>> wait as ever for all that is before them. A thread that does
// none of this may end without a wait where others of its block wait: the block does not end before they do.
//
// One exception: a layer's top-k buffers, which resolve_kernel alone writes, are read before the wait by it
// and by what stores tokens (store.cuh). Every resolve_kernel lets the next kernel start only after its own
// wait: no kernel after another layer's begins before this layer's is complete. Of a single layer two follow
// each other in two steps, which a copy or the edge of a recorded step divides: nothing passes these.
#pragma once

#include "cuda/launch.h"

namespace dsv32::cuda {

// Until all kernels ahead are complete and what they wrote is seen.
__device__ __forceinline__ void wait_for_inputs() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The next kernel's blocks may come in where there is room: first thing in a kernel, since they can take
// nothing from it once all of its own blocks are in.
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Brings a line of constant memory near, before the wait.
__device__ __forceinline__ void prefetch_constant(const void* p) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

struct Grid {
  dim3 blocks, threads;
  size_t shared_bytes = 0;
  unsigned n_cluster = 1;                               // blocks of a cluster, along x
  int shared_percent = cudaSharedmemCarveoutMaxShared;  // of an SM's memory; the rest is its first cache
};

// Dependent launches and clusters come with Hopper.
inline bool is_hopper_or_later() {
  int device = 0, major = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  return major >= 9;
}

// Launches a kernel that keeps the rule above; on older devices, where both calls are nothing, as <<<>>>
// does. Throws Error{device} with the kernel's name. Nearly all such kernels ask for one division of an SM's
// memory: blocks that want another one do not come in before the SM is empty.
template <typename... Params, typename... Args>
void launch_kernel(const char* name, void (*kernel)(Params...), const Grid& grid, const Launch& launch,
                   Args&&... args) {
  cudaLaunchAttribute attributes[2] = {};
  cudaLaunchConfig_t config = {};
  config.gridDim = grid.blocks, config.blockDim = grid.threads;
  config.dynamicSmemBytes = grid.shared_bytes;
  config.stream = launch.stream;
  config.attrs = attributes;
  if (grid.n_cluster > 1) {
    cudaLaunchAttribute& cluster = attributes[config.numAttrs++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = grid.n_cluster;
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  }
  if (is_hopper_or_later()) {
    CUDA_CHECK(
        cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, grid.shared_percent));
    if (!launch.is_plain) {
      cudaLaunchAttribute& dependent = attributes[config.numAttrs++];
      dependent.id = cudaLaunchAttributeProgrammaticStreamSerialization;
      dependent.val.programmaticStreamSerializationAllowed = 1;
    }
  }
  const cudaError_t status = cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...);
  if (status != cudaSuccess) {
    cudaGetLastError();
    fail(ErrorKind::device, format("%s: %s", name, cudaGetErrorString(status)));
  }
}

}  // namespace dsv32::cuda
