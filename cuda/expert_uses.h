// Uses (token, k) of experts in decode, sorted by expert into runs, so that an expert's weights are read once
// for all tokens that chose it. A use's bits are the same in any run.
#pragma once

#include "cuda/kernels.h"

namespace dsv32::cuda {

// In runs of at most `most` uses of one matrix. A use is a column of x and of y: problem `use` of a
// DecodeRows.
struct UseRuns {
  struct Run {
    int32_t mat, first, n;  // uses[first ... first + n)
  };
  const Run* runs = nullptr;  // [n_runs]; those past the last have no uses
  const int32_t* uses = nullptr;
  int n_runs = 0, most = 0;
};

// The chosen experts of a step in rounds, ascending, and the runs of each round.
struct UseRounds {
  UseRuns::Run* runs = nullptr;  // [n_rounds, n_runs]
  int32_t* uses = nullptr;       // [n_tokens * n_activated]
  int32_t* chosen = nullptr;  // [n_rounds, n_together] the experts, -1 past the last; null: one round of all
  int n_rounds = 0, n_runs = 0, n_together = 0, most = 0;

  UseRuns runs_of(int round) const { return {runs + round * n_runs, uses, n_runs, most}; }
  const int32_t* chosen_of(int round) const { return chosen + round * n_together; }
};

// By the experts that op's tokens chose, at most kMostSorted to choose from. The matrix of a run is its
// expert's place among the n_together of its round; n_together 0: one round of all, and the matrix is the
// expert. In the workspace.
UseRounds sort_uses(const RunExperts& op, int64_t n_together, const Launch& launch);

// y [n_uses, dim] = what the uses of these runs come to, of weights that have codes; h [n_uses, inter] is
// theirs to use.
void run_uses(const RunExperts& op, const UseRuns& runs, float* h, float* y, const Launch& launch,
              bool is_x_older = false);

// op.y = the sums of each token's uses, added in ascending order; y [n_uses, dim].
void sum_uses(const RunExperts& op, const float* y, const Launch& launch);

}  // namespace dsv32::cuda
