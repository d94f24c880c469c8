// The launchers of cuda/, by the file that has them.
#pragma once

#include <span>

#include "backend/attention_ops.h"
#include "backend/expert_ops.h"
#include "backend/ops.h"
#include "backend/sampling.h"
#include "cuda/launch.h"

namespace dsv32::cuda {

class ExpertRing;

// small_ops.cu
void put_in_bands(const WeightMatrix&, const Launch&);  // in place, all matrices
void embed(const Embed&, const Launch&);
void rms_norm(const RmsNorm&, const Launch&);
void add(const Add&, const Launch&);
// Factors of the two sums of a gated product: a pair for each matrix.
struct GateScales {
  const float* pairs = nullptr;   // [n_mats, 2]; null: 1
  const int32_t* mats = nullptr;  // [n_problems] the matrix of each problem; null: the first one
};
// values = silu(values) * up * factors[i / width]; values and up are first multiplied by the scales of
// problem i / width. factors null: 1
void gate(float* values, const float* up, const float* factors, const GateScales&, int64_t n_values,
          int64_t width, const Launch&);
void matmul_gated_apart(const GatedMatmul&, const Launch&);  // one product for each matrix
void store_tokens(const StoreTokens&, const Launch&);
void turn_queries(const TurnQueries&, const Launch&);    // without absorb
void route_experts(const RouteExperts&, const Launch&);  // from op.logits, already computed

// matmul_decode.cu, experts_decode.cu: any number of tokens; bound by reading the weights
void matmul_decode(const Matmul&, const Launch&);
void matmuls_decode(std::span<const Matmul>, const Launch&);
void matmul_gated_decode(const GatedMatmul&, const Launch&);
void matmul_heads_decode(const MatmulHeads&, const Launch&);
void store_tokens_decode(const StoreTokens&, const Launch&);  // with queries
void turn_queries_decode(const TurnQueries&, const Launch&);  // with absorb
// With gate and beside. Returns whether the next kernel may read x without waiting, since x is older.
bool route_experts_decode(const RouteExperts&, const Launch&);
void run_experts_decode(const RunExperts&, const Launch&, bool is_x_older = false);

// experts_decode.cu: uses (token, k) of experts in decode, sorted by expert into runs, so that an expert's
// weights are read once for all tokens that chose it. A use has the same bits in every run.

// Runs of at most `most` uses of one matrix. A use is a column of x and of y: problem `use` of a DecodeRows.
struct UseRuns {
  struct Run {
    int32_t mat, first, n;  // uses[first ... first + n)
  };
  const Run* runs = nullptr;  // [n_runs]; unused runs at the end have n = 0
  const int32_t* uses = nullptr;
  int n_runs = 0, most = 0;
};

// The chosen experts of a step, ascending, divided into rounds, and the runs of each round.
struct UseRounds {
  UseRuns::Run* runs = nullptr;  // [n_rounds, n_runs]
  int32_t* uses = nullptr;       // [n_tokens * n_activated]
  int32_t* chosen = nullptr;     // [n_rounds, n_together] experts, -1 past the last; null: one round of all
  int n_rounds = 0, n_runs = 0, n_together = 0, most = 0;

  UseRuns runs_of(int round) const { return {runs + round * n_runs, uses, n_runs, most}; }
  const int32_t* chosen_of(int round) const { return chosen + round * n_together; }
};

// Sorts the uses of op's tokens by expert; the layer has at most kMostSorted experts. A run's matrix is its
// expert's index among the n_together experts of its round; n_together 0: one round of all experts, and the
// matrix is the expert. The result lies in the workspace.
UseRounds sort_uses(const RunExperts& op, int64_t n_together, const Launch& launch);

// y [n_uses, dim] = the outputs of these runs' uses, for weights that have codes. h [n_uses, inter]: scratch
// memory.
void run_uses(const RunExperts& op, const UseRuns& runs, float* h, float* y, const Launch& launch);

// op.y = the sums of each token's uses, added in ascending order; y [n_uses, dim].
void sum_uses(const RunExperts& op, const float* y, const Launch& launch);

// matmul_prefill.cu, experts_prefill.cu: any number of tokens; bound by the tensor cores
void matmul_prefill(const Matmul&, const Launch&);
void matmuls_prefill(std::span<const Matmul>, const Launch&);  // of the same x
void matmul_heads_prefill(const MatmulHeads&, const Launch&,
                          bool is_rounded = false);  // x: rounded_rows_in()
void run_experts_prefill(const RunExperts&, const Launch&);
// run_experts_prefill with experts in host memory.
void run_experts_streamed(const RunExperts&, ExpertRing&, const Launch&);

// The operation for its tokens [first, first + n). In a team each such part gathers its hidden values in a
// place of its own.
inline RunExperts tokens_of(RunExperts op, int64_t first, int64_t n) {
  op.n_tokens = n;
  op.x += first * op.w1.n_cols, op.y += first * op.w2.n_rows;
  op.experts += first * op.n_activated, op.weights += first * op.n_activated;
  if (op.hidden) op.hidden += first * op.n_activated * op.w1.whole_rows() * 4;
  return op;
}

// gather.cu
void gather(const Gather&, const Launch&);  // by launch.exchange

// resolve.cu, fetch.cu
// True: it also copied the missing rows into their slots, as it may and as few tokens allow.
bool resolve(const Resolve&, bool may_fetch, const Launch&);
void fetch_latents(const FetchLatents&, const Launch&);

// indexer.cu, quest.cu, topk.cu
void indexer_scores(const IndexerScores&, const Launch&);
// Stores the bounds of the spans that the step's tokens complete, after store_tokens() of these.
void store_bounds(const StepTokens&, const CacheView&, const Launch&);
void quest_scores(const QuestScores&, const Launch&);
void select_topk(const SelectTopk&, const Launch&);

// mla.cu
void attend(const Attend&, const Launch&, bool is_rounded = false);  // o_c: rounded_rows_in() (common.cuh)
bool attends_rounded(const Attend&);                                 // whether attend() can give rounded rows

// sample.cu
void sample(const Sample&, const Launch&);

}  // namespace dsv32::cuda
