// The router: which experts each token goes to, decided on the device.
#include <cmath>

#include "cuda/common.cuh"
#include "cuda/kernels.h"

namespace dsv32::cuda {
namespace {

constexpr int kThreads = 256;

// The index of the largest value of a shared array (not above `n`), ties to the lower index; every thread
// gets it. -1 when every value is taken (NaN marks a taken one: it compares false).
__device__ int block_argmax(const float* values, int n) {
  __shared__ float best_values[32];
  __shared__ int best_indices[32];
  float best = 0;
  int index = -1;
  for (int i = threadIdx.x; i < n; i += blockDim.x)
    if (!isnan(values[i]) && (index < 0 || values[i] > best)) best = values[i], index = i;
  for (int offset = 16; offset > 0; offset /= 2) {
    const float other = __shfl_xor_sync(0xffffffffu, best, offset);
    const int other_index = __shfl_xor_sync(0xffffffffu, index, offset);
    if (other_index >= 0 && (index < 0 || other > best || (other == best && other_index < index)))
      best = other, index = other_index;
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) best_values[threadIdx.x / 32] = best, best_indices[threadIdx.x / 32] = index;
  __syncthreads();
  for (int w = 0; w < static_cast<int>(blockDim.x) / 32; ++w)
    if (best_indices[w] >= 0 &&
        (index < 0 || best_values[w] > best || (best_values[w] == best && best_indices[w] < index)))
      best = best_values[w], index = best_indices[w];
  return index;
}

// p = sigmoid(logits); s = p + bias; the groups with the largest sum of two best s; in them the experts with
// the largest s, ties to the lower index; weight = p / sum of p * route_scale (model.py, Gate) A block a
// token; a round of block_argmax for each group kept and each expert chosen. p and s lie in shared memory;
// what is taken, or lies in a dropped group, becomes NaN there, and an s that is NaN becomes -infinity first,
// as on the CPU. Chosen experts are sorted ascending at the end, the sum runs in the order of choice. Bound
// by latency: some twelve rounds of two barriers.
__global__ void route_experts_kernel(RouteExperts op) {
  extern __shared__ float shared[];
  const int n = static_cast<int>(op.n_experts), n_groups = static_cast<int>(op.n_groups),
            group_size = n / n_groups;
  float* p = shared;
  float* s = p + n;
  float* group_scores = s + n;
  int* chosen = reinterpret_cast<int*>(group_scores + n_groups);
  const float* logits = op.logits + blockIdx.x * op.n_experts;
  const float taken = __int_as_float(0x7fffffff);
  let_next_start();
  if (op.bias)
    for (int e = 32 * static_cast<int>(threadIdx.x); e < n; e += 32 * static_cast<int>(blockDim.x))
      prefetch_constant(op.bias + e);
  wait_for_inputs();
  for (int e = threadIdx.x; e < n; e += blockDim.x) {
    p[e] = 1.0f / (1.0f + expf(-logits[e]));
    const float score = op.bias ? p[e] + op.bias[e] : p[e];
    s[e] = isnan(score) ? -INFINITY : score;
  }
  __syncthreads();
  if (n_groups > 1) {
    for (int g = threadIdx.x; g < n_groups; g += blockDim.x) {
      float best = -INFINITY, second = -INFINITY;
      for (int e = g * group_size; e < (g + 1) * group_size; ++e) {
        second = fmaxf(second, fminf(best, s[e]));
        best = fmaxf(best, s[e]);
      }
      group_scores[g] = group_size > 1 ? best + second : best;
    }
    __syncthreads();
    for (int i = 0; i < op.n_limited_groups; ++i) {
      const int g = block_argmax(group_scores, n_groups);
      if (threadIdx.x == 0 && g >= 0) group_scores[g] = taken;
      __syncthreads();
    }
    for (int e = threadIdx.x; e < n; e += blockDim.x)
      if (!isnan(group_scores[e / group_size])) s[e] = taken;
    __syncthreads();
  }
  float sum = 0;
  for (int k = 0; k < op.n_activated; ++k) {
    const int e = block_argmax(s, n);
    sum += p[e];
    if (threadIdx.x == 0) chosen[k] = e, s[e] = taken;
    __syncthreads();
  }
  for (int k = threadIdx.x; k < op.n_activated; k += blockDim.x) {
    int rank = 0;
    for (int i = 0; i < op.n_activated; ++i) rank += chosen[i] < chosen[k];
    op.experts[blockIdx.x * op.n_activated + rank] = chosen[k];
    op.weights[blockIdx.x * op.n_activated + rank] =
        p[chosen[k]] / (op.normalize ? sum : 1.0f) * op.route_scale;
  }
}

}  // namespace

void route_experts(const RouteExperts& op, const Launch& launch) {
  if (op.n_tokens == 0) return;
  const size_t n_bytes = static_cast<size_t>(2 * op.n_experts + op.n_groups + op.n_activated) * 4;
  if (n_bytes > 48 << 10) fail(ErrorKind::internal, "the router's shared memory holds some 6000 experts");
  launch_kernel("route_experts_kernel", route_experts_kernel,
                {static_cast<unsigned>(op.n_tokens), kThreads, n_bytes}, launch, op);
}

}  // namespace dsv32::cuda
