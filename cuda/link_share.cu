// The link's share of host experts (backend/link_share.h): a round's parts of experts are copied into the
// window by a kernel, which knows which, and the kernels for experts in device memory compute them.
//
// A kernel that multiplied straight from host memory would have a third of the link's rate: large pieces in
// flight make it.
#include "backend/link_share.h"
#include "cuda/dependent.cuh"
#include "cuda/expert_uses.h"

namespace dsv32::cuda {
namespace {

constexpr int kThreads = 512, kBlocks = 24;  // enough to fill the link
constexpr int kTogether = 4;                 // loads of a thread on their way

// A matrix of each expert, and where those of a round go, one after the other; each n_rows pieces of n_bytes.
struct Pieces {
  const uint8_t* from;
  uint8_t* to;
  int64_t mat_bytes, row_bytes;  // of `from`
  int n_rows, n_bytes;
};
struct Round {
  Pieces pieces[3];
  const int32_t* experts;  // [n_most], those past the last are -1
  int n_most;
};

template <typename Word>
__device__ void copy_pieces(const Pieces& p, const int32_t* experts, int n_experts) {
  const int n_words = p.n_bytes / static_cast<int>(sizeof(Word)), n_each = n_words * p.n_rows,
            n = n_each * n_experts, step = static_cast<int>(gridDim.x) * kThreads;
  auto* to = reinterpret_cast<Word*>(p.to);
  for (int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x); i < n;
       i += kTogether * step) {
    Word words[kTogether];
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      const int j = i + k * step, expert = j / n_each, word = j % n_each;
      if (j >= n) continue;
      const uint8_t* row = p.from + experts[expert] * p.mat_bytes + word / n_words * p.row_bytes;
      words[k] = __ldcv(reinterpret_cast<const Word*>(row) + word % n_words);
    }
#pragma unroll
    for (int k = 0; k < kTogether; ++k)
      if (i + k * step < n) to[i + k * step] = words[k];
  }
}

// window = the link's parts of a round's experts.
// All blocks together: a thread per word of 2 to 16 bytes, as these are aligned; a warp's are in a line.
// Bound by the link. Measured (H100, 2026-11-23): 8 experts of Q4_K, 50 MB, and their products in 1.09 ms.
__global__ void __launch_bounds__(kThreads) fetch_experts_kernel(Round round) {
  __shared__ int32_t experts[kLinkExperts];
  let_next_start();
  wait_for_inputs();
  const int thread = static_cast<int>(threadIdx.x);
  const bool is_one = thread < round.n_most && round.experts[thread] >= 0;
  if (is_one) experts[thread] = round.experts[thread];
  const int n_experts = __syncthreads_count(is_one);
#pragma unroll 1
  for (const Pieces& p : round.pieces) {
    const auto odd = (reinterpret_cast<uintptr_t>(p.from) | p.mat_bytes | p.row_bytes | p.n_bytes) % 16;
    if (odd == 0)
      copy_pieces<uint4>(p, experts, n_experts);
    else if (odd % 8 == 0)
      copy_pieces<uint2>(p, experts, n_experts);
    else if (odd % 4 == 0)
      copy_pieces<uint32_t>(p, experts, n_experts);
    else
      copy_pieces<uint16_t>(p, experts, n_experts);
  }
}

// From a matrix's part in host memory to its place in the window. Whole rows are one piece.
Pieces pieces_of(const WeightMatrix& from, const WeightMatrix& to) {
  const bool is_whole = from.row_bytes == to.row_bytes;
  return {from.data,
          const_cast<uint8_t*>(to.data),
          static_cast<int64_t>(from.mat_bytes),
          static_cast<int64_t>(from.row_bytes),
          is_whole ? 1 : static_cast<int>(to.n_rows),
          static_cast<int>(is_whole ? to.mat_bytes : to.row_bytes)};
}

}  // namespace

void run_link_share(const RunExperts& op, const Launch& launch) {
  const ExpertStacks part = link_part(op, link_share(op)), there = in_link_window(part, link_window(op));
  RunExperts compact = op;
  static_cast<ExpertStacks&>(compact) = there;
  Workspace scratch = *launch.workspace;
  const Launch here{launch.stream, &scratch, launch.n_sms, launch.is_plain};
  const auto n_most = static_cast<int>(there.w1.n_mats);
  const UseRounds rounds = sort_uses(op, n_most, here);
  const auto n_uses = static_cast<size_t>(op.n_tokens * op.n_activated);
  float* h = scratch.take<float>(n_uses * static_cast<size_t>(there.w1.n_rows));
  float* y = scratch.take<float>(n_uses * static_cast<size_t>(there.w2.n_rows));
  for (int i = 0; i < rounds.n_rounds; ++i) {
    const Round round{
        {pieces_of(part.w1, there.w1), pieces_of(part.w3, there.w3), pieces_of(part.w2, there.w2)},
        rounds.chosen_of(i),
        n_most};
    launch_kernel("fetch_experts_kernel", fetch_experts_kernel, {kBlocks, kThreads}, here, round);
    run_uses(compact, rounds.runs_of(i), h, y, here);
  }
  sum_uses(compact, y, here);
}

}  // namespace dsv32::cuda
