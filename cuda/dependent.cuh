// Kernels that begin before the kernel ahead of them in the stream is done (programmatic dependent launch).
//
// On Hopper and later a kernel of launch_kernel() may begin when every block of the kernel ahead has called
// let_next_start() or is done. What it does before wait_for_inputs() runs beside that kernel. The rule:
//
// Every thread of such a kernel calls wait_for_inputs() once, on every path, before it reads what a kernel
// writes and before it writes memory that others use.
//
// Then the kernel ahead is complete, and so is every kernel before it. Where that one called let_next_start()
// after its own wait, what the kernels before both wrote may be read without waiting, past the first cache
// (DecodeRows::is_known and is_x_older, Attend::are_queries_older). Else only what no kernel of the step
// writes may be read before the wait: weights, tables, the step's tokens and positions. What kernels write is
// read by ordinary loads after it, not by __ldg or ld.global.nc, which the compiler may move ahead of the
// wait. A kernel of launch_plain() waits for all before it. A thread that does none of this may end without a
// wait where others of its block wait.
//
// One exception: a layer's top-k buffers, which resolve_kernel alone writes, are read before the wait by it
// and by what stores tokens (token_work.cuh). Every resolve_kernel lets the next kernel start only after its
// own wait: no kernel after another layer's begins before this layer's is complete. Of a single layer two
// follow each other in two steps, which a copy or the edge of a recorded step divides.
#pragma once

#include <concepts>

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

// A count of any integer type, of blocks, threads or bytes.
struct Count {
  unsigned n;
  template <std::integral T>
  Count(T count) : n(static_cast<unsigned>(count)) {}
};
struct Extent {
  Count x, y, z;
  Extent(Count x_, Count y_ = 1, Count z_ = 1) : x(x_), y(y_), z(z_) {}
  template <std::integral T>
  Extent(T x_) : Extent(Count(x_)) {}
  operator dim3() const { return {x.n, y.n, z.n}; }
};

struct Grid {
  Extent blocks, threads;
  Count shared_bytes = 0;
  Count n_cluster = 1;  // blocks of a cluster, along x
};

// Dependent launches and clusters come with Hopper.
inline bool is_hopper_or_later() { return device_attribute(cudaDevAttrComputeCapabilityMajor) >= 9; }

// Enqueues a kernel. Throws Error{device} with its name, as the linker has it.
template <typename... Params, typename... Args>
void enqueue(void (*kernel)(Params...), const Grid& grid, cudaStream_t stream, bool is_dependent,
             Args&&... args) {
  cudaLaunchAttribute attributes[2] = {};
  cudaLaunchConfig_t config = {};
  config.gridDim = grid.blocks, config.blockDim = grid.threads;
  config.dynamicSmemBytes = grid.shared_bytes.n;
  config.stream = stream;
  config.attrs = attributes;
  if (grid.n_cluster.n > 1) {
    cudaLaunchAttribute& cluster = attributes[config.numAttrs++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {grid.n_cluster.n, 1, 1};
  }
  if (is_dependent) {
    cudaLaunchAttribute& dependent = attributes[config.numAttrs++];
    dependent.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    dependent.val.programmaticStreamSerializationAllowed = 1;
  }
  if (grid.shared_bytes.n > 0)
    CUDA_CHECK(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most_shared_bytes(kernel)));
  const cudaError_t status = cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...);
  if (status == cudaSuccess) return;
  cudaGetLastError();
  const char* name = "";
  cudaFuncGetName(&name, reinterpret_cast<const void*>(kernel));
  fail(ErrorKind::device, format("%s: %s", name, cudaGetErrorString(status)));
}

// A kernel that keeps the rule above; on older devices as launch_plain(). All ask for the same division of an
// SM's memory: blocks that want another one do not come in before the SM is empty.
template <typename... Params, typename... Args>
void launch_kernel(void (*kernel)(Params...), const Grid& grid, const Launch& launch, Args&&... args) {
  const bool is_hopper = is_hopper_or_later();
  if (is_hopper)
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                    cudaSharedmemCarveoutMaxShared));
  enqueue(kernel, grid, launch.stream, is_hopper && !launch.is_plain, std::forward<Args>(args)...);
}

// A kernel that begins when all before it is done.
template <typename... Params, typename... Args>
void launch_plain(void (*kernel)(Params...), const Grid& grid, const Launch& launch, Args&&... args) {
  enqueue(kernel, grid, launch.stream, false, std::forward<Args>(args)...);
}

}  // namespace dsv32::cuda
