// The router and the routed experts on the CPU.
//
// Tokens are gathered by expert, so that each expert's weights are read once per step; a token's sum runs
// over its experts in ascending order, whatever else is in the step.
#include "backend/cpu_experts.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "backend/cpu_backend.h"
#include "backend/cpu_matmul.h"
#include "backend/cpu_threads.h"

namespace dsv32 {
namespace {

// NaN must not upset the order of a sort: it ranks below every number.
float comparable(float s) { return std::isnan(s) ? -INFINITY : s; }

// The best n of `candidates` by score, ties to the lower index.
void keep_best(std::vector<int32_t>& candidates, const std::vector<float>& scores, int64_t n) {
  const auto is_better = [&](int32_t a, int32_t b) {
    const float score_a = scores[static_cast<size_t>(a)], score_b = scores[static_cast<size_t>(b)];
    return score_a != score_b ? score_a > score_b : a < b;
  };
  std::sort(candidates.begin(), candidates.end(), is_better);
  candidates.resize(static_cast<size_t>(n));
}

std::vector<int32_t> first_integers(int64_t n) {
  std::vector<int32_t> integers(static_cast<size_t>(n));
  std::iota(integers.begin(), integers.end(), 0);
  return integers;
}

// The sum of the two largest scores of each group (of the only one when a group has one expert).
std::vector<float> group_scores(const std::vector<float>& scores, int64_t n_groups) {
  const int64_t group_size = static_cast<int64_t>(scores.size()) / n_groups;
  std::vector<float> sums(static_cast<size_t>(n_groups));
  for (int64_t g = 0; g < n_groups; ++g) {
    float best = -INFINITY, second = -INFINITY;
    for (int64_t i = g * group_size; i < (g + 1) * group_size; ++i) {
      const float s = scores[static_cast<size_t>(i)];
      second = std::max(second, std::min(best, s));
      best = std::max(best, s);
    }
    sums[static_cast<size_t>(g)] = group_size > 1 ? best + second : best;
  }
  return sums;
}

void route_one(const RouteExperts& op, const float* logits, int32_t* experts, float* weights) {
  std::vector<float> p(static_cast<size_t>(op.n_experts)), s(p.size());
  for (size_t e = 0; e < p.size(); ++e) {
    p[e] = 1.0f / (1.0f + std::exp(-logits[e]));
    s[e] = comparable(op.bias ? p[e] + op.bias[e] : p[e]);
  }
  std::vector<int32_t> candidates = first_integers(op.n_experts);
  if (op.n_groups > 1) {
    std::vector<int32_t> groups = first_integers(op.n_groups);
    keep_best(groups, group_scores(s, op.n_groups), op.n_limited_groups);
    const int32_t group_size = static_cast<int32_t>(op.n_experts / op.n_groups);
    std::erase_if(candidates,
                  [&](int32_t e) { return std::ranges::find(groups, e / group_size) == groups.end(); });
  }
  keep_best(candidates, s, op.n_activated);
  float sum = 0;
  for (const int32_t e : candidates) sum += p[static_cast<size_t>(e)];
  std::sort(candidates.begin(), candidates.end());
  for (int64_t k = 0; k < op.n_activated; ++k) {
    experts[k] = candidates[static_cast<size_t>(k)];
    weights[k] = p[static_cast<size_t>(experts[k])] / (op.normalize ? sum : 1.0f) * op.route_scale;
  }
}

// One use of an expert: the token, and the weight of the expert in that token's sum.
struct Use {
  int64_t token;
  float weight;
};

}  // namespace

void CpuBackend::route_experts(const RouteExperts& op) {
  workers_.parallel_for(op.n_tokens, worth_sharing(op.n_tokens * op.n_experts), [&](int64_t t) {
    route_one(op, op.logits + t * op.n_experts, op.experts + t * op.n_activated,
              op.weights + t * op.n_activated);
  });
}

void CpuBackend::run_experts(const RunExperts& op) { cpu_run_experts(op, workers_, scratch_); }

void cpu_run_experts(const RunExperts& op, WorkerPool& workers, std::vector<float>& scratch) {
  const int64_t dim = op.w2.n_rows, inter = op.w1.n_rows;
  std::vector<std::vector<Use>> uses(static_cast<size_t>(op.w1.n_mats));
  for (int64_t t = 0; t < op.n_tokens; ++t)
    for (int64_t k = t * op.n_activated; k < (t + 1) * op.n_activated; ++k)
      uses[static_cast<size_t>(op.experts[k])].push_back({t, op.weights[k]});
  std::fill_n(op.y, op.n_tokens * dim, 0.0f);
  scratch.resize(static_cast<size_t>(op.n_tokens * (2 * dim + 2 * inter)));
  float* x = scratch.data();            // [n_uses, dim]
  float* gate = x + op.n_tokens * dim;  // [n_uses, inter]
  float* up = gate + op.n_tokens * inter;
  float* y = up + op.n_tokens * inter;  // [n_uses, dim]
  for (size_t e = 0; e < uses.size(); ++e) {
    const int64_t n = static_cast<int64_t>(uses[e].size()), mat = static_cast<int64_t>(e);
    if (n == 0) continue;
    for (int64_t i = 0; i < n; ++i)
      std::copy_n(op.x + uses[e][static_cast<size_t>(i)].token * dim, dim, x + i * dim);
    cpu_matmul({op.w1, mat, x, dim, gate, inter, n}, workers);
    cpu_matmul({op.w3, mat, x, dim, up, inter, n}, workers);
    workers.parallel_for(n * inter, worth_sharing(n * inter),
                         [&](int64_t i) { gate[i] = gate[i] / (1.0f + std::exp(-gate[i])) * up[i]; });
    cpu_matmul({op.w2, mat, gate, inter, y, dim, n}, workers);
    workers.parallel_for(n, worth_sharing(n * dim), [&](int64_t i) {
      const Use& use = uses[e][static_cast<size_t>(i)];
      cpu_axpy(use.weight, y + i * dim, op.y + use.token * dim, dim);
    });
  }
}

}  // namespace dsv32
