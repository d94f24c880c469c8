// The router: which experts each token goes to, decided on the device.
#include "cuda/route.cuh"

namespace dsv32::cuda {
namespace {

constexpr int kThreads = 256;

// A block a token (route.cuh). Bound by latency.
__global__ void route_experts_kernel(const __grid_constant__ RouteExperts op) {
  extern __shared__ float shared[];
  let_next_start();
  if (op.bias)
    for (int64_t e = 32 * threadIdx.x; e < op.n_experts; e += 32 * blockDim.x) prefetch_constant(op.bias + e);
  wait_for_inputs();
  choose_experts(op, blockIdx.x, shared);
}

}  // namespace

void route_experts(const RouteExperts& op, const Launch& launch) {
  if (op.n_tokens == 0) return;
  const size_t n_bytes = route_bytes(op);
  if (n_bytes > 48 << 10) fail(ErrorKind::internal, "the router's shared memory holds some 6000 experts");
  launch_kernel("route_experts_kernel", route_experts_kernel,
                {static_cast<unsigned>(op.n_tokens), kThreads, n_bytes}, launch, op);
}

}  // namespace dsv32::cuda
