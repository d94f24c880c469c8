// The CPU in the place of a device that computes the link's share of host experts (backend/link_share.h), in
// two ways that must give the same bits.
#pragma once

#include <algorithm>
#include <cstring>
#include <set>
#include <vector>

#include "backend/link_share.h"

namespace dsv32 {

enum class ShareWay {
  in_place,  // the experts of each token, where they lie
  in_rounds  // the distinct experts of a step, copied into the window round by round
};

// y[use] = the output of a token's k-th expert, one use after the other, for the experts places[first..end),
// which are the first ones in `stacks`.
template <typename Compute>
void run_uses(const RunExperts& op, const ExpertStacks& stacks, const std::vector<int32_t>& places,
              size_t first, size_t end, std::vector<float>& y, const Compute& compute) {
  for (int64_t use = 0; use < op.n_tokens * op.n_activated; ++use) {
    const auto found = std::ranges::lower_bound(places, op.experts[use]);
    const auto place = static_cast<size_t>(found - places.begin());
    if (place < first || place >= end) continue;
    const auto mat = static_cast<int32_t>(place - first);
    RunExperts one{stacks};
    one.x = op.x + use / op.n_activated * op.w1.n_cols;
    if (op.scales) one.scales = op.scales + 2 * (op.experts[use] - mat);
    one.experts = &mat, one.weights = op.weights + use, one.n_tokens = one.n_activated = 1;
    one.y = y.data() + use * op.w2.n_rows, one.role = op.role;
    compute(one);
  }
}

// Copies the matrices of n experts to the place of a round.
inline void copy_round(const ExpertStacks& from, const ExpertStacks& to, const int32_t* experts, size_t n) {
  const WeightMatrix* const sources[] = {&from.w1, &from.w3, &from.w2};
  const WeightMatrix* const targets[] = {&to.w1, &to.w3, &to.w2};
  for (size_t m = 0; m < 3; ++m)
    for (size_t i = 0; i < n; ++i)
      for (int64_t row = 0; row < targets[m]->n_rows; ++row)
        std::memcpy(const_cast<uint8_t*>(targets[m]->row(static_cast<int64_t>(i), row)),
                    sources[m]->row(experts[i], row), targets[m]->row_bytes);
}

// y = the host's sums + the link's. compute(RunExperts) computes a whole operation on the CPU.
template <typename Compute>
void run_with_link_share(const RunExperts& op, ShareWay way, const Compute& compute) {
  const int64_t n_share = op.n_link_bytes > 0 ? link_share(op) : 0;
  RunExperts host = op;
  static_cast<ExpertStacks&>(host) = host_part(op, n_share);
  compute(host);
  if (n_share == 0) return;
  const ExpertStacks part = link_part(op, n_share);
  std::vector<float> uses(static_cast<size_t>(op.n_tokens * op.n_activated * op.w2.n_rows));
  if (way == ShareWay::in_place) {
    std::vector<int32_t> all;
    for (int32_t e = 0; e < op.w1.n_mats; ++e) all.push_back(e);
    run_uses(op, part, all, 0, all.size(), uses, compute);
  } else {
    const std::set<int32_t> chosen(op.experts, op.experts + op.n_tokens * op.n_activated);
    const std::vector<int32_t> places(chosen.begin(), chosen.end());
    const ExpertStacks there = in_link_window(part, link_window(op));
    const auto n_together = static_cast<size_t>(there.w1.n_mats);
    for (size_t first = 0; first < places.size(); first += n_together) {
      const size_t n = std::min(n_together, places.size() - first);
      copy_round(part, there, places.data() + first, n);
      run_uses(op, there, places, first, first + n, uses, compute);
    }
  }
  for (int64_t t = 0; t < op.n_tokens; ++t)
    for (int64_t row = 0; row < op.w2.n_rows; ++row) {
      const float* use = uses.data() + t * op.n_activated * op.w2.n_rows + row;
      float sum = use[0];
      for (int64_t k = 1; k < op.n_activated; ++k) sum += use[k * op.w2.n_rows];
      op.y[t * op.w2.n_rows + row] += sum;
    }
}

}  // namespace dsv32
