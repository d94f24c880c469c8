// What prefill's products on Hopper share: two groups of four warps multiply, each 128 rows by the tokens of
// a tile, and other warps bring in what they multiply.
//
// They meet at stages, each 64 columns of two tiles of rows and of one of tokens, whose barriers tell when a
// stage is full and when it is empty again. Sums lie in registers as gemm_tile.cuh says (Sums).
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
__device__ __forceinline__ void init_stages(StageBarriers<kStages>* barriers, int n_filling_warps) {
  if (threadIdx.x >= kStages) return;
  init_barrier(&barriers->full[threadIdx.x], n_filling_warps);
  init_barrier(&barriers->empty[threadIdx.x], kProductThreads / 32);
  publish_barriers();
}

// Until all who multiply are here.
__device__ __forceinline__ void sync_products() {
  asm volatile("bar.sync 1, %0;" ::"n"(kProductThreads) : "memory");
}

// Where in the stages somebody is: the same steps for those who fill them and those who empty them.
template <int kStages>
struct StageWalk {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

// The sums over the next n_steps of a tile of rows and one of tokens. rows(), tokens(): the shared addresses
// of the tiles of stage i. Of many stages one step's products are always under way; of two a stage is given
// back as soon as its products are done, since the next cannot be full before.
template <int kTokens, int kStages, class Rows, class Tokens>
__device__ __forceinline__ void multiply_stages(int n_steps, StageWalk<kStages>& walk,
                                                StageBarriers<kStages>* barriers, const Rows& rows,
                                                const Tokens& tokens, Sums& sums) {
  constexpr int kUnderWay = kStages > 2 ? 1 : 0;
  const bool tells = threadIdx.x % 32 == 0;
#pragma unroll
  for (int i = 0; i < kTokens / 2; ++i) sums.of[0][i] = sums.of[1][i] = 0;
  StageWalk<kStages> done = walk;
  for (int step = 0; step < n_steps; ++step, walk.advance()) {
    const uint64_t a = wgmma_operand(rows(walk.stage)), b = wgmma_operand(tokens(walk.stage, step));
    wait_for_phase(&barriers->full[walk.stage], walk.parity);
    __syncwarp();
    start_products<kTokens>(sums, a, b);
    wgmma_wait<kUnderWay>();
    if (step < kUnderWay) continue;
    if (tells) arrive(&barriers->empty[done.stage]);
    done.advance();
  }
  wgmma_wait<0>();
#pragma unroll
  for (int i = 0; i < kTokens / 2; ++i) asm volatile("" : "+f"(sums.of[0][i]), "+f"(sums.of[1][i])::"memory");
  if (kUnderWay && n_steps > 0 && tells) arrive(&barriers->empty[done.stage]);
}

// Calls work(token, row, sum) for each of this thread's sums.
template <int kTokens, class Work>
__device__ __forceinline__ void for_each_sum(const Sums& sums, int n_tokens, const Work& work) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
#pragma unroll
  for (int j = 0; j < kTokens / 8; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int token = 8 * j + lane % 4 * 2 + e % 2;
      if (token >= n_tokens) continue;
#pragma unroll
      for (int i = 0; i < 2; ++i)
        work(token, 64 * i + 16 * warp + lane / 4 + e / 2 * 8, sums.of[i][4 * j + e]);
    }
}

#endif

}  // namespace dsv32::cuda
