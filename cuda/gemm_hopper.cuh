// What prefill's products on Hopper share: eight warps multiply, and others bring in what they multiply.
//
// They meet at stages, each 64 columns of rows and of tokens, whose barriers tell when a stage is full and
// when it is empty again. Copies tell by themselves that they are done, so that whoever loads asks for as
// many steps ahead as there are stages.
#pragma once

#include "cuda/gemm_tile.cuh"

namespace dsv32::cuda {

constexpr int kProductThreads = 256;
constexpr int kMostSharedBytes = 227 * 1024;

template <int kStages>
struct StageBarriers {
  uint64_t full[kStages], empty[kStages];
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int kStages>
__device__ __forceinline__ void init_stages(StageBarriers<kStages>* barriers, int n_load_threads) {
  if (threadIdx.x >= kStages) return;
  init_barrier(&barriers->full[threadIdx.x], n_load_threads + n_load_threads / 32);
  init_barrier(&barriers->empty[threadIdx.x], kProductThreads / 32);
  publish_barriers();
}

// In a stage's barrier: what the thread has stored is there, and what it has asked for tells when it comes.
// All of a warp that loads. Who waits for the stage needs fence_async_proxy() before products.
__device__ __forceinline__ void fill_stage(uint64_t* full) {
  arrive_when_copied(full);
  __syncwarp();
  if (threadIdx.x % 32 == 0) arrive(full);
}

#endif

}  // namespace dsv32::cuda
