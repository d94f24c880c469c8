// Queries are turned by a kernel of their own where they are not beside the product with W_UK.
#include "cuda/turn.cuh"

namespace dsv32::cuda {
namespace {

// See TurnQueries. Grid (tokens, blocks of a token). Bound by latency in decode, by bytes in prefill.
__global__ void turn_queries_kernel(const __grid_constant__ TurnQueries op,
                                    const __grid_constant__ TurnBlocks blocks) {
  extern __shared__ float shared[];
  let_next_start();
  turn_block(op, blocks, blockIdx.x, static_cast<int>(blockIdx.y), shared);
}

}  // namespace

void turn_queries(const TurnQueries& op, const Launch& launch) {
  if (op.step.n_tokens == 0 || op.rope_dim < 2) return;
  if (turn_bytes(op) > 48 << 10) fail(ErrorKind::internal, "index heads of more than 1536 values");
  const TurnBlocks blocks(op);
  launch_kernel("turn_queries_kernel", turn_queries_kernel,
                {dim3(static_cast<unsigned>(op.step.n_tokens), static_cast<unsigned>(blocks.n())),
                 kTurnThreads, turn_bytes(op)},
                launch, op, blocks);
}

}  // namespace dsv32::cuda
