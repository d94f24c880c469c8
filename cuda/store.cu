// What a step keeps of each token, by a kernel of its own where it is not beside the products with the
// queries' low rank.
#include "cuda/store.cuh"

namespace dsv32::cuda {
namespace {

// See StoreTokens.
// Grid (tokens, parts); in shared memory.
// The host pool is pinned memory that the kernel writes itself, 640 bytes over the link: nobody waits for
// them.
// Sums and stages run in one order whatever the number of threads. Bound by latency in decode, by the link in
// prefill (640 bytes a token at about 50 GB/s).
__global__ void __launch_bounds__(kStoreThreads)
    store_tokens_kernel(const __grid_constant__ StoreTokens op, StoreRoom room) {
  extern __shared__ __align__(16) uint8_t shared[];
  let_next_start();
  store_part(op, room, blockIdx.x, static_cast<StorePart>(blockIdx.y), shared);
}

}  // namespace

void store_tokens(const StoreTokens& op, const Launch& launch) {
  if (op.step.n_tokens == 0) return;
  const StoreRoom room = StoreRoom::of(op.cache.layout);
  const dim3 blocks(static_cast<unsigned>(op.step.n_tokens), op.k ? 3 : 2);
  launch_kernel("store_tokens_kernel", store_tokens_kernel,
                {blocks, kStoreThreads, static_cast<size_t>(room.n_bytes)}, launch, op, room);
}

}  // namespace dsv32::cuda
