// The router's choice of one token's experts, by the threads of a block.
#pragma once

#include "cuda/common.cuh"

namespace dsv32::cuda {

// What choose_experts() wants of shared memory.
inline size_t route_bytes(const RouteExperts& op) {
  return static_cast<size_t>(3 * op.n_experts + op.n_groups * (op.n_activated + 3) + op.n_activated) *
         sizeof(float);
}

// How many of a shared array's n values are larger than value i, or equal to it and before it.
__device__ inline int rank_of(const float* values, int n, int i) {
  const float value = values[i];
  int rank = 0;
#pragma unroll 8
  for (int j = 0; j < n; ++j) rank += values[j] > value || (values[j] == value && j < i);
  return rank;
}

// p = sigmoid(logits); s = p + bias; the groups with the largest sum of two best s; in them the experts with
// the largest s, ties to the lower index; weight = p / sum of p * route_scale (model.py, Gate). A block a
// token, all in shared memory; an expert counts those before it in its group, and of the other groups among
// their best alone. An s that is NaN becomes -infinity, as on the CPU. Chosen experts are sorted ascending at
// the end, the sum runs in the order of choice. Logits are read past the first cache: other blocks of the
// same kernel may have written them. Bound by latency.
__device__ inline void choose_experts(const RouteExperts& op, int64_t token, float* shared) {
  const int n = static_cast<int>(op.n_experts), n_groups = static_cast<int>(op.n_groups),
            n_activated = static_cast<int>(op.n_activated), group_size = n / n_groups,
            n_best = min(n_activated, group_size);
  float *p = shared, *s = p + n, *best = s + n;             // best [n_groups, n_activated] of each group's s
  float* top = best + n_groups * n_activated;               // [n_groups, 2]
  int* place = reinterpret_cast<int*>(top + 2 * n_groups);  // of each expert in its group
  int *is_kept = place + n, *chosen = is_kept + n_groups;
  const float* logits = op.logits + token * n;
  for (int e = threadIdx.x; e < n; e += blockDim.x) {
    p[e] = 1.0f / (1.0f + expf(-__ldcg(logits + e)));
    const float score = op.bias ? p[e] + op.bias[e] : p[e];
    s[e] = isnan(score) ? -INFINITY : score;
  }
  __syncthreads();
  for (int e = threadIdx.x; e < n; e += blockDim.x) {
    const int group = e / group_size, first = group * group_size;
    place[e] = rank_of(s + first, group_size, e - first);
    if (place[e] < 2) top[2 * group + place[e]] = s[e];
    if (place[e] < n_best) best[group * n_activated + place[e]] = s[e];
  }
  __syncthreads();
  const auto score_of = [&](int group) { return top[2 * group] + (group_size > 1 ? top[2 * group + 1] : 0); };
  for (int g = threadIdx.x; g < n_groups; g += blockDim.x) {
    const float score = score_of(g);
    int rank = 0;
    for (int h = 0; h < n_groups; ++h) rank += score_of(h) > score || (score_of(h) == score && h < g);
    is_kept[g] = n_groups == 1 || rank < op.n_limited_groups;
  }
  __syncthreads();
  for (int e = threadIdx.x; e < n; e += blockDim.x) {
    const int group = e / group_size;
    int rank = place[e];
    if (rank >= n_best || !is_kept[group]) continue;
    for (int h = 0; h < n_groups; ++h) {
      if (h == group || !is_kept[h]) continue;
#pragma unroll 8
      for (int k = 0; k < n_best; ++k) {
        const float other = best[h * n_activated + k];
        rank += other > s[e] || (other == s[e] && h < group);
      }
    }
    if (rank < n_activated) chosen[rank] = e;
  }
  __syncthreads();
  float sum = 0;
  for (int k = 0; k < n_activated; ++k) sum += p[chosen[k]];
  for (int k = threadIdx.x; k < n_activated; k += blockDim.x) {
    int rank = 0;
    for (int i = 0; i < n_activated; ++i) rank += chosen[i] < chosen[k];
    op.experts[token * n_activated + rank] = chosen[k];
    float weight = p[chosen[k]] / (op.normalize ? sum : 1.0f) * op.route_scale;
    if (op.scales) weight *= op.scales[chosen[k]];
    op.weights[token * n_activated + rank] = weight;
  }
}

}  // namespace dsv32::cuda
