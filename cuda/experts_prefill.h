// The routed experts of a prompt, all at once or in runs of experts as their weights arrive: the same bits.
#pragma once

#include "cuda/gemm_tile.cuh"

namespace dsv32::cuda {

// Use u = t * n_activated + k: token t has expert experts[u]. Sorted by expert, then by u.
struct Uses {
  int32_t* uses;     // [n_uses] u of each place
  int32_t* tokens;   // [n_uses] t of each place
  int32_t* firsts;   // [n_experts] first place of each expert
  int32_t* counts;   // [n_experts]
  TokenTile* tiles;  // [most_tiles] of a run of experts
  int32_t* n_tiles;  // [1]
};

// The tokens of a step, made ready for their experts, which are then added in ascending order. What it
// enqueues goes to the launch's stream, and its memory is of the launch's workspace.
class PromptExperts {
 public:
  // How many of op's tokens fit n_scratch_bytes together, one at least; else throws Error{internal}.
  static int64_t tokens_together(const RunExperts& op, size_t n_scratch_bytes);
  // Throws Error{internal} when the shapes of the matrices do not match.
  static void check(const RunExperts& op);

  PromptExperts(const RunExperts& op, const Launch& launch);

  // y (+)= the weighted outputs of the experts [first, end); the first call writes every token's y. Matrix e
  // of `stacks` is expert e; only those of the run need be there.
  void add(const ExpertStacks& stacks, int64_t first, int64_t end);

 private:
  Uses list_uses() const;
  Product over_tiles(const WeightMatrix& weight, int64_t first, int64_t end) const;
  void make_hidden(const ExpertStacks& stacks, int64_t first, int64_t end);
  void combine(const WeightMatrix& w2, int64_t first, int64_t end);

  const RunExperts op_;
  const Launch launch_;
  const bool is_paired_;  // all products by multiply_pairs(): x_ and h_ are in turned order
  const int64_t n_uses_;
  const bool is_double_;                // tiles of tokens
  const int64_t n_columns_, n_hidden_;  // padded widths of x and of the hidden values
  Uses uses_;
  RoundedRows x_, h_;     // by token; by place
  int64_t slab_ = 0;      // columns of y at a time
  float* out_ = nullptr;  // [n_uses, slab] by use
  bool has_sums_ = false;
};

}  // namespace dsv32::cuda
