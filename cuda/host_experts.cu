// See host_experts.h.
#include "cuda/host_experts.h"

#include "backend/link_share.h"
#include "cuda/common.cuh"

namespace dsv32::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kMostBlocks = 16;  // enough to fill the link
constexpr int64_t kBlockValues = 8192;

int64_t blocks_for(int64_t n_values) {
  return std::clamp<int64_t>(ceil_div(n_values, kBlockValues), 1, kMostBlocks);
}

// Copies n words with all blocks.
DSV32_DEVICE void copy_words(const void* from, void* to, int64_t n) {
  const auto* words = static_cast<const uint32_t*>(from);
  auto* out = static_cast<volatile uint32_t*>(to);
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += int64_t{gridDim.x} * kThreads)
    out[i] = words[i];
}

// Writes the tokens to the mailbox, then the word that says so.
// A few blocks; a warp writes 128 bytes at a time. The last block to finish writes the word.
// Bound by the link, with one token by launch latency.
__global__ void __launch_bounds__(kThreads)
    post_kernel(RunExperts op, Mail mail, HostExperts::State* state, uint64_t* posted, uint32_t request) {
  let_next_start();
  wait_for_inputs();
  const int64_t n_values = op.n_tokens * op.w1.n_cols, n_uses = op.n_tokens * op.n_activated;
  copy_words(op.x, mail.x, n_values);
  copy_words(op.weights, mail.weights, n_uses);
  copy_words(op.experts, mail.experts, n_uses);
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (atomicAdd(&state->n_blocks_done, 1) != gridDim.x - 1) return;
  state->n_blocks_done = 0;
  const uint32_t sequence = ++state->n_posts;
  __threadfence_system();
  *static_cast<volatile uint64_t*>(posted) = uint64_t{sequence} << 32 | request;
}

// Waits until the host has answered a post, or until the device has waited too long for any.
DSV32_DEVICE void await_answer(MailWords* words, uint32_t sequence, uint64_t most_nanoseconds) {
  constexpr uint32_t kReadsBetween = 1024;  // of the timer
  const volatile uint64_t& answered = words->answered;
  volatile uint32_t& is_late = words->is_late;
  uint64_t begin = 0;
  for (uint32_t n = 0; static_cast<uint32_t>(answered) != sequence; ++n) {
    if (n % kReadsBetween != 0) continue;
    if (is_late) return;
    if (n == 0) begin = nanoseconds();
    if (nanoseconds() - begin > most_nanoseconds) is_late = 1;
  }
}

// y = the sums in the mailbox, or y += these, once the host has answered. A few blocks; one thread of each
// waits for the host, which needs nothing more of this device. Bound by the host's computing.
__global__ void __launch_bounds__(kThreads)
    join_kernel(const float* sums, float* y, int64_t n_values, bool adds, const HostExperts::State* state,
                MailWords* words, uint64_t most_nanoseconds) {
  let_next_start();
  wait_for_inputs();
  if (threadIdx.x == 0) {
    await_answer(words, state->n_posts, most_nanoseconds);
    __threadfence_system();
  }
  __syncthreads();
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n_values;
       i += int64_t{gridDim.x} * kThreads)
    y[i] = adds ? __ldcv(sums + i) + y[i] : __ldcv(sums + i);
}

constexpr int kFetchThreads = 512, kFetchBlocks = 24;  // enough to fill the link
constexpr int kTogether = 4;                           // loads of a thread under way

// A matrix of each expert, and where a round's go, one after another; each is n_rows pieces of n_bytes.
struct Pieces {
  const uint8_t* from;
  uint8_t* to;
  int64_t mat_bytes, row_bytes;  // of `from`
  int n_rows, n_bytes;
};
struct Round {
  Pieces pieces[3];
  const int32_t* experts;  // [n_most], -1 past the last
  int n_most;
};

template <typename Word>
__device__ void copy_pieces(const Pieces& p, const int32_t* experts, int n_experts) {
  const int n_words = p.n_bytes / static_cast<int>(sizeof(Word)), n_each = n_words * p.n_rows,
            n = n_each * n_experts, step = static_cast<int>(gridDim.x) * kFetchThreads;
  auto* to = reinterpret_cast<Word*>(p.to);
  for (int i = static_cast<int>(blockIdx.x) * kFetchThreads + static_cast<int>(threadIdx.x); i < n;
       i += kTogether * step) {
    Word words[kTogether];
    DSV32_UNROLL for (int k = 0; k < kTogether; ++k) {
      const int j = i + k * step, expert = j / n_each, word = j % n_each;
      if (j >= n) continue;
      const uint8_t* row = p.from + experts[expert] * p.mat_bytes + word / n_words * p.row_bytes;
      words[k] = __ldcv(reinterpret_cast<const Word*>(row) + word % n_words);
    }
    DSV32_UNROLL for (int k = 0; k < kTogether; ++k) if (i + k * step < n) to[i + k * step] = words[k];
  }
}

// window = the link's parts of a round's experts. All blocks together; a thread copies words of 2 to 16
// bytes, as alignment allows, a warp neighbouring words. Bound by the link. Measured (H100, 2026-11-23): 8
// experts of Q4_K, 50 MB, and their products in 1.09 ms.
__global__ void __launch_bounds__(kFetchThreads) fetch_experts_kernel(Round round) {
  __shared__ int32_t experts[kLinkExperts];
  let_next_start();
  wait_for_inputs();
  const int thread = static_cast<int>(threadIdx.x);
  const bool is_one = thread < round.n_most && round.experts[thread] >= 0;
  if (is_one) experts[thread] = round.experts[thread];
  const int n_experts = __syncthreads_count(is_one);
  DSV32_NO_UNROLL for (const Pieces& p : round.pieces) {
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

// From a matrix's part in host memory to its place in the window. Whole rows make one piece.
Pieces pieces_of(const WeightMatrix& from, const WeightMatrix& to) {
  const bool is_whole = from.row_bytes == to.row_bytes;
  return {from.data,
          const_cast<uint8_t*>(to.data),
          static_cast<int64_t>(from.mat_bytes),
          static_cast<int64_t>(from.row_bytes),
          is_whole ? 1 : static_cast<int>(to.n_rows),
          static_cast<int>(is_whole ? to.mat_bytes : to.row_bytes)};
}

// y = the results of the link's part of the experts. A kernel, which knows the chosen experts, copies a
// round's parts into the window, and the kernels for experts in device memory multiply them. Multiplying
// straight from host memory would reach a third of the link's rate.
void run_link_share(const RunExperts& op, const Launch& launch) {
  const ExpertStacks part = link_part(op, link_share(op)), there = in_link_window(part, link_window(op));
  RunExperts compact = op;
  static_cast<ExpertStacks&>(compact) = there;
  Workspace scratch = *launch.workspace;
  const Launch here = launch.with(scratch);
  const auto n_most = static_cast<int>(there.w1.n_mats);
  const UseRounds rounds = sort_uses(op, n_most, here);
  const int64_t n_uses = op.n_tokens * op.n_activated;
  float* h = scratch.take<float>(n_uses * there.w1.n_rows);
  float* y = scratch.take<float>(n_uses * there.w2.n_rows);
  for (int i = 0; i < rounds.n_rounds; ++i) {
    const Round round{
        {pieces_of(part.w1, there.w1), pieces_of(part.w3, there.w3), pieces_of(part.w2, there.w2)},
        rounds.chosen_of(i),
        n_most};
    launch_kernel(fetch_experts_kernel, {kFetchBlocks, kFetchThreads}, here, round);
    run_uses(compact, rounds.runs_of(i), h, y, here);
  }
  sum_uses(compact, y, here);
}

}  // namespace

void HostExperts::run(const RunExperts& op, bool is_recorded, const Launch& launch) {
  if (op.w1.n_cols != op.w2.n_rows || op.w1.n_rows != op.w2.n_cols)
    fail(ErrorKind::internal, "the shapes of the experts' matrices do not match");
  const int64_t n_together = box_.most_tokens(op), n_share = op.n_link_bytes > 0 ? link_share(op) : 0;
  for (int64_t token = 0; token < op.n_tokens; token += n_together) {
    join(launch);
    RunExperts part = tokens_of(op, token, std::min(n_together, op.n_tokens - token)), host = part;
    static_cast<ExpertStacks&>(host) = host_part(host, n_share);
    host.scales = host.host_scales;
    launch_kernel(post_kernel, {blocks_for(host.n_tokens * host.w1.n_cols), kThreads}, launch, host,
                  box_.place(host), state_, &box_.words().posted, box_.request(host));
    // The host is told at once: whatever fails after this, the device waits for the answer.
    pending_ = host;
    is_recorded ? static_cast<void>(++n_recorded_) : expect(1);
    has_share_ = n_share > 0;
    if (has_share_) run_link_share(part, launch);
  }
  y_ = op.y;
}

void HostExperts::join(const Launch& launch) {
  if (!pending_.y) return;
  const int64_t n_values = pending_.n_tokens * pending_.w2.n_rows;
  launch_kernel(join_kernel, {blocks_for(n_values), kThreads}, launch, box_.place(pending_).y, pending_.y,
                n_values, has_share_, state_, &box_.words(), most_nanoseconds_);
  pending_ = {};
}

void HostExperts::drop(const Launch& launch) {
  pending_.n_tokens = 0;
  join(launch);
}

}  // namespace dsv32::cuda
