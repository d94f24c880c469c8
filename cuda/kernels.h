// The launchers of cuda/, one line each; which file has them stands above.
#pragma once

#include "backend/backend.h"
#include "cuda/launch.h"

namespace dsv32::cuda {

class ExpertRing;

// small_ops.cu
void put_in_bands(const WeightMatrix&, const Launch&);  // rows of all matrices, where they lie
void embed(const Embed&, const Launch&);
void rms_norm(const RmsNorm&, const Launch&);
void add(const Add&, const Launch&);
// What the two sums of a gated product are multiplied by: of each matrix a pair.
struct GateScales {
  const float* pairs = nullptr;   // [n_mats, 2]; null: 1
  const int32_t* mats = nullptr;  // [n_problems] the matrix of each; null: the first one
};
// values = silu(values) * up * factors[i / width], values and up times the scales of problem i / width;
// factors null: 1
void gate(float* values, const float* up, const float* factors, const GateScales&, int64_t n_values,
          int64_t width, const Launch&);
void matmul_gated_apart(const GatedMatmul&, const Launch&);  // by a product for each matrix
void store_tokens(const StoreTokens&, const Launch&);
void turn_queries(const TurnQueries&, const Launch&);    // without absorb
void route_experts(const RouteExperts&, const Launch&);  // of logits that are there

// matmul_decode.cu, experts_decode.cu: any number of tokens, bound by reading the weights
void matmul_decode(const Matmul&, const Launch&);
void matmuls_decode(std::span<const Matmul>, const Launch&);
void matmul_gated_decode(const GatedMatmul&, const Launch&);
void matmul_heads_decode(const MatmulHeads&, const Launch&);
void store_tokens_decode(const StoreTokens&, const Launch&);  // with queries
void turn_queries_decode(const TurnQueries&, const Launch&);  // with absorb
// With gate and beside. Returns whether the kernel behind may read x, which is older, without waiting.
bool route_experts_decode(const RouteExperts&, const Launch&);
void run_experts_decode(const RunExperts&, const Launch&, bool is_x_older = false);

// experts_decode.cu: uses (token, k) of experts in decode, sorted by expert into runs, so that an expert's
// weights are read once for all tokens that chose it. A use's bits are the same in any run.

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

// matmul_prefill.cu, experts_prefill.cu: any number of tokens, bound by the tensor cores
void matmul_prefill(const Matmul&, const Launch&);
void matmuls_prefill(std::span<const Matmul>, const Launch&);  // of the same x
void matmul_heads_prefill(const MatmulHeads&, const Launch&,
                          bool is_rounded = false);  // x: rounded_rows_in()
void run_experts_prefill(const RunExperts&, const Launch&);
// The same with experts in host memory.
void run_experts_streamed(const RunExperts&, ExpertRing&, const Launch&);

// The tokens [first, first + n) of an operation.
inline RunExperts tokens_of(RunExperts op, int64_t first, int64_t n) {
  op.n_tokens = n;
  op.x += first * op.w1.n_cols, op.y += first * op.w2.n_rows;
  op.experts += first * op.n_activated, op.weights += first * op.n_activated;
  return op;
}

// resolve.cu, fetch.cu
// `fetches`, of what can_fetch_resolved() allows: the missing rows are in their slots then.
bool can_fetch_resolved(const Resolve&);
void resolve(const Resolve&, bool fetches, const Launch&);
void fetch_latents(const FetchLatents&, const Launch&);

// indexer.cu, topk.cu
void indexer_scores(const IndexerScores&, const Launch&);
void select_topk(const SelectTopk&, const Launch&);

// mla.cu
void attend(const Attend&, const Launch&, bool is_rounded = false);  // o_c: rounded_rows_in() (common.cuh)
bool attends_rounded(const Attend&);                                 // whether it can

// sample.cu
void sample(const Sample&, const Launch&);

}  // namespace dsv32::cuda
