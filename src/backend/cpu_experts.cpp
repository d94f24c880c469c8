// The router and the routed experts on the CPU.
//
// The experts of a step are computed in two loops over pieces of rows: one over W1 and W3 of all experts, one
// over W2. A piece is read once for all tokens that use it; a token's sum runs over its experts in ascending
// order. A NUMA node's threads always compute the same rows of a matrix, which may lie in the node's memory.
// Members of a team gather the hidden values between the loops.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "backend/cpu_backend.h"
#include "backend/cpu_common.h"
#include "backend/cpu_matmul.h"

namespace dsv32 {
namespace {

// Ranks NaN below every number, so that scores can be sorted.
float comparable(float s) { return std::isnan(s) ? -INFINITY : s; }

// The best n of `candidates` by score, ties to the lower index.
void keep_best(std::vector<int32_t>& candidates, const std::vector<float>& scores, int64_t n) {
  std::ranges::sort(candidates, [of = scores.data()](int32_t a, int32_t b) {
    return of[a] != of[b] ? of[a] > of[b] : a < b;
  });
  candidates.resize(static_cast<size_t>(n));
}

std::vector<int32_t> first_integers(int64_t n) {
  std::vector<int32_t> integers(static_cast<size_t>(n));
  std::iota(integers.begin(), integers.end(), 0);
  return integers;
}

// The sum of the two largest scores of each group, or the only score.
std::vector<float> group_scores(const std::vector<float>& scores, int64_t n_groups) {
  const auto group_size = static_cast<int64_t>(scores.size()) / n_groups;
  std::vector<float> sums(static_cast<size_t>(n_groups));
  for (int64_t g = 0; g < n_groups; ++g) {
    float best = -INFINITY, second = -INFINITY;
    for (const float s :
         std::span(scores).subspan(static_cast<size_t>(g * group_size), static_cast<size_t>(group_size))) {
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
    if (op.scales) weights[k] *= op.scales[experts[k]];
  }
}

// A token's use of an expert, and the expert's weight in the token's sum.
struct Use {
  int32_t expert;
  int64_t token;
  float weight;
};
using Uses = std::span<const Use>;

// Sorted by expert, ascending.
std::vector<Use> sorted_uses(const RunExperts& op) {
  std::vector<Use> uses;
  for (int64_t i = 0; i < op.n_tokens * op.n_activated; ++i)
    uses.push_back({op.experts[i], i / op.n_activated, op.weights[i]});
  std::ranges::stable_sort(uses, {}, &Use::expert);
  return uses;
}

std::vector<Uses> cut_by_expert(Uses uses) {
  std::vector<Uses> experts;
  for (size_t begin = 0, end = 0; begin < uses.size(); begin = end) {
    while (end < uses.size() && uses[end].expert == uses[begin].expert) ++end;
    experts.push_back(uses.subspan(begin, end - begin));
  }
  return experts;
}

class ExpertStep {
 public:
  // scratch: for `hidden` [n_uses, inter], silu(W1 x) * (W3 x); in a team the member's share of inter.
  ExpertStep(const RunExperts& op, std::vector<float>& scratch)
      : op_(op),
        uses_(sorted_uses(op)),
        experts_(cut_by_expert(uses_)),
        hidden_((scratch.resize(uses_.size() * static_cast<size_t>(op.w1.n_rows)), scratch.data())),
        x1_(op.w1, op.x, op.w1.n_cols, op.n_tokens),
        x3_(op.w3, op.x, op.w3.n_cols, op.n_tokens),
        x2_(op.w2, op.member.is_alone() ? hidden_ : reinterpret_cast<const float*>(op.hidden), op.w2.n_cols,
            static_cast<int64_t>(uses_.size())) {}

  const float* hidden() const { return hidden_; }

  // between: called when all of hidden() is made. Preparing activations is seldom worth sharing.
  void run(WorkerPool& workers, const std::function<void()>& between) {
    const int64_t n_uses = static_cast<int64_t>(uses_.size()),
                  n_experts = static_cast<int64_t>(experts_.size());
    const int64_t dim = op_.w2.n_rows, inter = op_.w1.n_rows;
    const bool is_shared = products_worth_sharing(n_uses * inter * dim);
    for (CpuActivations* x : {&x1_, &x3_})
      workers.parallel_for(x->n_steps(), worth_sharing(op_.n_tokens * dim),
                           [&](int64_t step) { x->prepare(step); });
    workers.parallel_for(n_experts * n_pieces(inter), is_shared, [&](int64_t i) {
      const auto [expert, piece] = workers.nodes().place_of(i, n_experts, n_pieces(inter));
      compute_hidden(experts_[static_cast<size_t>(expert)], Rows(piece, inter));
    });
    if (between) between();
    workers.parallel_for(x2_.n_steps(), worth_sharing(n_uses * inter),
                         [&](int64_t step) { x2_.prepare(step); });
    workers.parallel_for(n_pieces(dim), is_shared, [&](int64_t i) { sum_experts(Rows(i, dim)); });
  }

 private:
  static constexpr int64_t kRows = 32;   // of a piece, which stays in the second-level cache for all tokens
  static constexpr size_t kTokens = 64;  // tokens computed at a time

  static int64_t n_pieces(int64_t n_rows) { return (n_rows + kRows - 1) / kRows; }
  struct Rows {
    Rows(int64_t piece, int64_t n_rows) : begin(piece * kRows), n(std::min(kRows, n_rows - begin)) {}
    int64_t begin, n;
  };

  template <class Work>
  static void for_each_batch(Uses uses, const Work& work) {
    for (size_t i = 0; i < uses.size(); i += kTokens)
      work(uses.subspan(i, std::min(kTokens, uses.size() - i)));
  }

  // token(use): prepared activations. y [uses.size(), rows.n], rows y_stride apart.
  template <class Token>
  static void multiply(const WeightMatrix& weight, Rows rows, Uses uses, const Token& token, float* y,
                       int64_t y_stride) {
    const float* tokens[kTokens];
    std::ranges::transform(uses, tokens, token);
    cpu_multiply_rows(weight, uses[0].expert, rows.begin, rows.begin + rows.n, {tokens, uses.size()}, y,
                      y_stride);
  }

  int64_t index(const Use& use) const { return &use - uses_.data(); }

  void compute_hidden(Uses uses, Rows rows) {
    for_each_batch(uses, [&](Uses batch) {
      float up[kTokens * kRows];
      const int64_t inter = op_.w1.n_rows;
      const float* scales = op_.scales ? op_.scales + 2 * uses[0].expert : nullptr;
      float* gate = hidden_ + index(batch[0]) * inter + rows.begin;
      multiply(
          op_.w1, rows, batch, [&](const Use& use) { return x1_.token(use.token); }, gate, inter);
      multiply(
          op_.w3, rows, batch, [&](const Use& use) { return x3_.token(use.token); }, up, kRows);
      for (size_t i = 0; i < batch.size(); ++i, gate += inter)
        for (int64_t r = 0; r < rows.n; ++r)
          gate[r] = cpu_silu_mul(gate[r], up[static_cast<int64_t>(i) * kRows + r], scales);
    });
  }

  void sum_experts(Rows rows) {
    const auto y = [&](int64_t token) { return op_.y + token * op_.w2.n_rows + rows.begin; };
    for (int64_t t = 0; t < op_.n_tokens; ++t) std::fill_n(y(t), rows.n, 0.0f);
    for (const Uses uses : experts_)
      for_each_batch(uses, [&](Uses batch) {
        float out[kTokens * kRows];
        multiply(
            op_.w2, rows, batch, [&](const Use& use) { return x2_.token(index(use)); }, out, kRows);
        for (size_t i = 0; i < batch.size(); ++i)
          cpu_axpy(batch[i].weight, out + static_cast<int64_t>(i) * kRows, y(batch[i].token), rows.n);
      });
  }

  const RunExperts& op_;
  const std::vector<Use> uses_;
  const std::vector<Uses> experts_;  // the uses of each used expert
  float* hidden_;
  CpuActivations x1_, x3_, x2_;
};

}  // namespace

void CpuBackend::route_experts(const RouteExperts& op) {
  if (op.gate.weight.data) CpuBackend::matmul(op.gate);
  if (op.beside.w1.data) CpuBackend::matmul_gated(op.beside);
  workers_.parallel_for(op.n_tokens, worth_sharing(op.n_tokens * op.n_experts), [&](int64_t t) {
    route_one(op, op.logits + t * op.n_experts, op.experts + t * op.n_activated,
              op.weights + t * op.n_activated);
  });
}

void cpu_run_experts(const RunExperts& op, WorkerPool& workers, std::vector<float>& scratch) {
  ExpertStep(op, scratch).run(workers, {});
}

void CpuBackend::run_experts(const RunExperts& op) {
  Matmul shared = op.shared;
  if (op.member.is_alone()) {
    cpu_run_experts(op, workers_, scratch_);
  } else {
    auto* whole = reinterpret_cast<float*>(op.hidden);
    const int64_t n_uses = op.n_tokens * op.n_activated;
    float* behind = whole + n_uses * op.w2.n_cols;
    ExpertStep step(op, scratch_);
    step.run(workers_, [&] {
      Gather all{op.member, {{step.hidden(), whole, n_uses, op.w2.n_cols}, {}}};
      if (shared.weight.data) all.pieces[1] = {shared.x, behind, op.n_tokens, shared.weight.n_cols};
      CpuBackend::gather(all);
    });
    shared.x = behind, shared.x_stride = shared.weight.n_cols;
  }
  if (shared.weight.data) CpuBackend::matmul(shared);
}

}  // namespace dsv32
