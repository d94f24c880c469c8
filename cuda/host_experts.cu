#include "cuda/host_experts.h"

#include <algorithm>

#include "backend/link_share.h"
#include "cuda/dependent.cuh"

namespace dsv32::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kMostBlocks = 16;  // enough to fill the link
constexpr int64_t kBlockValues = 8192;

unsigned blocks_for(int64_t n_values) {
  return static_cast<unsigned>(std::clamp<int64_t>(ceil_div(n_values, kBlockValues), 1, kMostBlocks));
}

// All blocks together.
__device__ __forceinline__ void copy_words(const void* from, void* to, int64_t n) {
  const auto* words = static_cast<const uint32_t*>(from);
  auto* out = static_cast<volatile uint32_t*>(to);
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += int64_t{gridDim.x} * kThreads)
    out[i] = words[i];
}

// The mailbox = the tokens, and then the word that says so.
// A few blocks; 128 bytes of the link a warp.
// The block that is done last writes the word, when what all have written is on its way before it.
// Bound by the link, and one token by launch latency.
__global__ void __launch_bounds__(kThreads)
    post_kernel(RunExperts op, Mail mail, HostExperts::State* state, uint64_t* posted, uint32_t request) {
  let_next_start();
  wait_for_inputs();
  const int64_t n_values = op.n_tokens * op.w1.n_cols, n_uses = op.n_tokens * op.n_activated;
  copy_words(op.x, mail.x, n_values);
  copy_words(op.weights, mail.weights, n_uses);
  copy_words(op.experts, mail.experts, n_uses);
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (atomicAdd(&state->n_blocks_done, 1) != gridDim.x - 1) return;
  state->n_blocks_done = 0;
  const uint32_t sequence = ++state->n_posts;
  __threadfence_system();
  *static_cast<volatile uint64_t*>(posted) = uint64_t{sequence} << 32 | request;
}

// y = the sums in the mailbox, once they are there; or y += these.
// A few blocks, each of which waits by one thread.
// Nothing of this device is waited for: these blocks hold nobody up but those that come after.
// Bound by the host's computing.
__global__ void __launch_bounds__(kThreads)
    join_kernel(const float* sums, float* y, int64_t n_values, bool adds, const HostExperts::State* state,
                const uint64_t* answered) {
  let_next_start();
  wait_for_inputs();
  if (threadIdx.x == 0) {
    const uint32_t sequence = state->n_posts;
    while (static_cast<uint32_t>(*static_cast<const volatile uint64_t*>(answered)) != sequence) {
    }
    __threadfence_system();
  }
  __syncthreads();
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n_values;
       i += int64_t{gridDim.x} * kThreads)
    y[i] = adds ? __ldcv(sums + i) + y[i] : __ldcv(sums + i);
}

}  // namespace

void HostExperts::post(const RunExperts& op, const Launch& launch) {
  launch_kernel("post_kernel", post_kernel, {blocks_for(op.n_tokens * op.w1.n_cols), kThreads}, launch, op,
                box_.place(op), state_, &box_.words().posted, box_.request(op));
  pending_ = op;
  ++n_enqueued_;
}

void HostExperts::run(const RunExperts& op, const Launch& launch) {
  if (op.w1.n_cols != op.w2.n_rows || op.w1.n_rows != op.w2.n_cols)
    fail(ErrorKind::internal, "the shapes of the experts' matrices do not match");
  const int64_t n_together = box_.most_tokens(op), n_share = op.n_link_bytes > 0 ? link_share(op) : 0;
  for (int64_t token = 0; token < op.n_tokens; token += n_together) {
    join(launch);
    RunExperts part = tokens_of(op, token, std::min(n_together, op.n_tokens - token)), host = part;
    static_cast<ExpertStacks&>(host) = host_part(host, n_share);
    host.scales = host.host_scales;
    post(host, launch);
    has_share_ = n_share > 0;
    if (has_share_) run_link_share(part, launch);
  }
  y_ = op.y;
}

void HostExperts::join(const Launch& launch) {
  if (!pending_.y) return;
  const int64_t n_values = pending_.n_tokens * pending_.w2.n_rows;
  launch_kernel("join_kernel", join_kernel, {blocks_for(n_values), kThreads}, launch, box_.place(pending_).y,
                pending_.y, n_values, has_share_, state_, &box_.words().answered);
  pending_ = {};
}

}  // namespace dsv32::cuda
