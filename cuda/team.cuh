// The blocks that share a row: a cluster, which sees its blocks' shared memory; one block where there are no
// clusters.
#pragma once

#include <cooperative_groups.h>

#include "cuda/launch.h"

namespace dsv32::cuda {

constexpr int kMostTeamBlocks = 8;  // of a cluster that every device with clusters takes

struct Team {
  int rank = 0, size = 1;

  __device__ Team(int own_rank, int n_blocks) : rank(own_rank), size(n_blocks) {}
  __device__ Team() {
#if __CUDA_ARCH__ >= 900
    rank = static_cast<int>(cooperative_groups::this_cluster().block_rank());
    size = static_cast<int>(cooperative_groups::this_cluster().num_blocks());
#endif
  }
  // All threads of all blocks; shared memory written before is seen after, by every block.
  __device__ void sync() const {
#if __CUDA_ARCH__ >= 900
    if (size > 1) {
      cooperative_groups::this_cluster().sync();
      return;
    }
#endif
    __syncthreads();
  }
  // The same variable in the shared memory of block `of`.
  template <typename T>
  __device__ T* of(T* shared, int block) const {
#if __CUDA_ARCH__ >= 900
    if (size > 1) return cooperative_groups::this_cluster().map_shared_rank(shared, block);
#endif
    return shared;
  }
};

}  // namespace dsv32::cuda
