// The router's choice of one token's experts, by the threads of a block.
#pragma once

#include <cmath>

#include "cuda/common.cuh"
#include "cuda/kernels.h"

namespace dsv32::cuda {

// Of the shared memory that choose_experts() wants.
inline size_t route_bytes(const RouteExperts& op) {
  return static_cast<size_t>(2 * op.n_experts + op.n_groups + op.n_activated) * sizeof(float);
}

// How many of a shared array's n values are larger than value i, or equal to it and before it. NaN marks a
// value that does not count: it compares false.
__device__ inline int rank_of(const float* values, int n, int i) {
  const float value = values[i];
  int rank = 0;
#pragma unroll 8
  for (int j = 0; j < n; ++j) rank += values[j] > value || (values[j] == value && j < i);
  return rank;
}

// p = sigmoid(logits); s = p + bias; the groups with the largest sum of two best s; in them the experts with
// the largest s, ties to the lower index; weight = p / sum of p * route_scale (model.py, Gate). A block a
// token; each expert and each group counts those before it. p and s lie in shared memory; what lies in a
// dropped group becomes NaN there, and an s that is NaN becomes -infinity first, as on the CPU. Chosen
// experts are sorted ascending at the end, the sum runs in the order of choice. Logits are read past the
// first cache: other blocks of the same kernel may have written them. Bound by latency.
__device__ inline void choose_experts(const RouteExperts& op, int64_t token, float* shared) {
  const int n = static_cast<int>(op.n_experts), n_groups = static_cast<int>(op.n_groups),
            group_size = n / n_groups;
  float* p = shared;
  float* s = p + n;
  float* group_scores = s + n;
  int* chosen = reinterpret_cast<int*>(group_scores + n_groups);
  const float* logits = op.logits + token * op.n_experts;
  for (int e = threadIdx.x; e < n; e += blockDim.x) {
    p[e] = 1.0f / (1.0f + expf(-__ldcg(logits + e)));
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
    for (int e = threadIdx.x; e < n; e += blockDim.x)
      if (rank_of(group_scores, n_groups, e / group_size) >= op.n_limited_groups)
        s[e] = __int_as_float(0x7fffffff);
    __syncthreads();
  }
  for (int e = threadIdx.x; e < n; e += blockDim.x) {
    const int rank = isnan(s[e]) ? n : rank_of(s, n, e);
    if (rank < op.n_activated) chosen[rank] = e;
  }
  __syncthreads();
  float sum = 0;
  for (int k = 0; k < op.n_activated; ++k) sum += p[chosen[k]];
  for (int k = threadIdx.x; k < op.n_activated; k += blockDim.x) {
    int rank = 0;
    for (int i = 0; i < op.n_activated; ++i) rank += chosen[i] < chosen[k];
    op.experts[token * op.n_activated + rank] = chosen[k];
    op.weights[token * op.n_activated + rank] = p[chosen[k]] / (op.normalize ? sum : 1.0f) * op.route_scale;
  }
}

}  // namespace dsv32::cuda
