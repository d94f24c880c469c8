// Kernels that may start before the previous kernel of the stream is done (programmatic dependent launch).
//
// On Hopper and later a kernel of launch_kernel() may start when every block of the previous kernel has
// called let_next_start() or has ended. Its code before wait_for_inputs() runs beside the previous kernel.
// The rule:
//
// Every thread of such a kernel calls wait_for_inputs() once, on every path, before it reads a kernel's
// output and before it writes memory that other kernels use.
//
// After the wait all earlier kernels are complete. Before it a kernel may read only data that no kernel of
// the step writes: weights, tables, the step's tokens and positions. One more case: if the previous kernel
// called let_next_start() after its own wait, the output of the kernels before it may be read without
// waiting, past L1 (DecodeRows::is_known and is_x_older, Attend::are_queries_older). After the wait, kernels'
// output is read by ordinary loads, not by __ldg or ld.global.nc, which the compiler may move ahead of the
// wait. A kernel of launch_plain() starts when all earlier ones are complete. A thread that does none of this
// may end without a wait if others of its block wait.
//
// One exception: only resolve_kernel writes a layer's top-k buffers; resolve_kernel and the storing of tokens
// (token_work.cuh) read them before the wait. Every resolve_kernel calls let_next_start() after its own wait,
// so kernels after another layer's resolve_kernel start only when this layer's is complete. With a single
// layer, a copy or the edge of a recorded step separates those of two steps. Within a step no two of a layer
// have the same sequence, unless a slice ends within it: then the second one reads after the wait.
#pragma once

#include <concepts>

#include "cuda/launch.h"

namespace dsv32::cuda {

// Waits until all earlier kernels are complete and their output is visible.
__device__ __forceinline__ void wait_for_inputs() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel's blocks start where there is room. Kernels call this first: the next kernel starts
// only after all blocks of this one have started, so it takes no room from them. DSV32_SLOW: a build for
// tests, in which blocks then sleep, so that a kernel that reads before its wait what it must not reads what
// was there before.
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#ifdef DSV32_SLOW
  __nanosleep(10000 * (1 + (blockIdx.x + blockIdx.y) % 4));
#endif
#endif
}

// Prefetches a line of constant data into L2, before the wait.
__device__ __forceinline__ void prefetch_constant(const void* p) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

// A number of blocks, threads or bytes, from any integer type.
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

// Enqueues a kernel. Throws Error{device} with the kernel's mangled name.
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

// Launches a kernel that keeps the rule above; on older devices as launch_plain(). All kernels ask for the
// same split of an SM's L1 and shared memory: a block with another split starts only on an empty SM.
template <typename... Params, typename... Args>
void launch_kernel(void (*kernel)(Params...), const Grid& grid, const Launch& launch, Args&&... args) {
  const bool can_depend = card().has_clusters;
  if (can_depend)
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                    cudaSharedmemCarveoutMaxShared));
  enqueue(kernel, grid, launch.stream, can_depend && !launch.is_plain, std::forward<Args>(args)...);
}

// Launches a kernel that starts when all earlier work is done.
template <typename... Params, typename... Args>
void launch_plain(void (*kernel)(Params...), const Grid& grid, const Launch& launch, Args&&... args) {
  enqueue(kernel, grid, launch.stream, false, std::forward<Args>(args)...);
}

}  // namespace dsv32::cuda
