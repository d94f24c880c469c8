// Gated products in decode: an MLP's, and the router and chosen experts of each token. The choice of experts
// is known on the device only.
//
// Every use (token, k) of an expert is one problem: h = silu(w1 x) * (w3 x) * weight, then w2 h. A token's
// results are added in ascending k. With many tokens the uses are sorted by expert, so that its weights are
// read once for all; a use's bits are the same either way. With few tokens the router runs beside the shared
// expert's first product, and the shared expert's second product is one more problem of the chosen experts'.
//
// A member of a team makes its share of all hidden values, the members gather these, and each makes its share
// of the outputs. Few tokens' products send their results themselves (inbox.h), as sum_uses_kernel does.
#include "cuda/decode_launch.cuh"

namespace dsv32::cuda {
namespace {

constexpr int kSortThreads = 1024;

// Sorts uses by expert; makes runs of them, and the list of each round's experts.
// One block; a thread per use, then per expert. Shared memory: `places`, each expert's count, later where its
// next use goes; then the number of runs before each round. What precedes an expert is summed over lanes,
// warps and the kSortThreads experts before. An expert's uses are in any order: they are columns of one
// product. Bound by latency.
__global__ void __launch_bounds__(kSortThreads)
    sort_uses_kernel(const int32_t* experts, int n_uses, int n_experts, UseRounds to) {
  struct Before {
    int uses, runs, chosen;
  };
  extern __shared__ int32_t places[];
  __shared__ Before of_warps[kSortThreads / 32];
  int32_t* round_runs = places + n_experts;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  let_next_start();
  for (int e = thread; e < n_experts; e += kSortThreads) places[e] = 0;
  __syncthreads();
  wait_for_inputs();
  for (int use = thread; use < n_uses; use += kSortThreads) atomicAdd(&places[experts[use]], 1);
  for (int run = thread; run < to.n_rounds * to.n_runs; run += kSortThreads) to.runs[run] = {0, 0, 0};
  for (int i = thread; to.chosen && i < to.n_rounds * to.n_together; i += kSortThreads) to.chosen[i] = -1;
  __syncthreads();
  Before all = {0, 0, 0};
  for (int begin = 0; begin < n_experts; begin += kSortThreads) {
    const int e = begin + thread, count = e < n_experts ? places[e] : 0;
    const int n_runs = (count + to.most - 1) / to.most, n_chosen = count > 0;
    const Before here = {warp_prefix(count), warp_prefix(n_runs), warp_prefix(n_chosen)};
    if (lane == 31) of_warps[warp] = here;
    __syncthreads();
    const auto sum_before = [&](int Before::*what, int own) {
      const int value = of_warps[lane].*what, before = all.*what;
      all.*what += __reduce_add_sync(0xffffffffu, value);
      return before + __reduce_add_sync(0xffffffffu, lane < warp ? value : 0) + here.*what - own;
    };
    const int first = sum_before(&Before::uses, count), place_of_all = sum_before(&Before::chosen, n_chosen);
    int run = sum_before(&Before::runs, n_runs);
    const int round = place_of_all / to.n_together, place = place_of_all % to.n_together;
    if (count > 0 && place == 0) round_runs[round] = run;
    __syncthreads();
    if (count == 0) continue;
    run += round * to.n_runs - round_runs[round];
    places[e] = first;
    if (to.chosen) to.chosen[round * to.n_together + place] = e;
    const int mat = to.chosen ? place : e;
    for (int done = 0; done < count; done += to.most)
      to.runs[run++] = {mat, first + done, min(to.most, count - done)};
  }
  __syncthreads();
  for (int use = thread; use < n_uses; use += kSortThreads)
    to.uses[atomicAdd(&places[experts[use]], 1)] = use;
}

// y[t] = sum over k of x[t, k], in ascending order. has_last: there is one more x of each token, the shared
// expert's, behind all others: y = that x + the sum; and h += y, if there is an h.
// A thread has four values, which it may send; grid (columns, tokens). x [n_tokens, n_each, width], width a
// multiple of 4. Bound by bytes.
__global__ void sum_uses_kernel(const float4* x, float4* y, float4* h, bool has_last, int n_each, int width,
                                const __grid_constant__ Mail mail) {
  let_next_start();
  wait_for_inputs();
  const int column = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (column >= width) return;
  const int64_t token = blockIdx.y, n_uses = int64_t{gridDim.y} * n_each, at = token * width + column;
  const float4* from = x + token * n_each * width + column;
  const float4 before = h ? h[at] : float4{}, last = has_last ? x[n_uses * width + at] : float4{};
  float4 sum = from[0];
#pragma unroll 8
  for (int k = 1; k < n_each; ++k) {
    const float4 v = from[static_cast<int64_t>(k) * width];
    sum = {sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w};
  }
  if (has_last) sum = {last.x + sum.x, last.y + sum.y, last.z + sum.z, last.w + sum.w};
  if (h) h[at] = {before.x + sum.x, before.y + sum.y, before.z + sum.z, before.w + sum.w};
  y[at] = sum;
  const uint4 words = {word_of(sum.x), word_of(sum.y), word_of(sum.z), word_of(sum.w)};
  for (int member = 0; member < mail.n_members; ++member)
    send_words(mail.to[member] + token * mail.token_stride + 4 * column, words);
}

bool is_one_product(const WeightMatrix& w1, const WeightMatrix& w3) {
  return w1.type == w3.type && w1.row_bytes == w3.row_bytes && w1.mat_bytes == w3.mat_bytes &&
         w1.step_bytes == w3.step_bytes;
}

DecodeRows rows_of_gated(const GatedMatmul& op) {
  DecodeRows rows = decode::rows_of(op.w1);
  rows.gate_offset = op.w3.data - op.w1.data;
  rows.x = op.x;
  rows.x_token_stride = op.w1.n_cols;
  rows.n_tokens = static_cast<int>(op.n_tokens);
  rows.matrices[0].y = op.y;
  rows.scales = {op.scales};
  return rows;
}

// Makes each use a problem.
void set_uses(const RunExperts& op, const UseRuns& runs, DecodeRows& rows) {
  rows.n_problems = static_cast<int>(op.n_tokens * op.n_activated);
  rows.n_problems_token = static_cast<int>(op.n_activated);
  if (!runs.runs) rows.mats = op.experts;
  rows.n_tokens = 1;
  rows.y_problem_stride = rows.matrices[0].n_rows;
}

// Makes h [n_uses, inter].
void run_gate_up(const RunExperts& op, const UseRuns& runs, bool is_x_older, float* h, const Launch& launch) {
  DecodeRows rows = decode::rows_of(op.w1);
  set_uses(op, runs, rows);
  rows.x = op.x;
  rows.x_problem_stride = op.w1.n_cols;
  rows.x_sharing = static_cast<int>(op.n_activated);
  rows.matrices[0].y = h;
  if (is_one_product(op.w1, op.w3)) {
    rows.gate_offset = op.w3.data - op.w1.data;
    rows.factors = op.weights, rows.scales = {op.scales, op.experts}, rows.is_x_older = is_x_older;
    decode::launch_any<2>(decode::by_inbox(rows, launch), runs, op.w1.type, launch);
    return;
  }
  const int64_t n_values = op.n_tokens * op.n_activated * op.w1.n_rows;
  decode_rows(rows, runs, op.w1.type, launch);
  const DecodeRows up = decode::rows_of(op.w3);
  rows.matrices[0].weights = up.matrices[0].weights, rows.row_bytes = up.row_bytes;
  rows.mat_bytes = up.mat_bytes, rows.in_bands = up.in_bands;
  float* values = launch.workspace->take<float>(n_values);
  rows.matrices[0].y = values;
  decode_rows(rows, runs, op.w3.type, launch);
  gate(h, values, op.weights, {op.scales, op.experts}, n_values, op.w1.n_rows, launch);
}

// The number of tokens whose uses fit the scratch memory: of each use h and y, w2's x as fp16, and w3's
// values if w1 and w3 are two products. At most as many as a grid has rows of blocks, where each use is one.
// Each such group of tokens reads all experts again.
int64_t tokens_together(const RunExperts& op, const Workspace& scratch) {
  constexpr int64_t kMostUses = 65535;
  const int64_t n_values = op.n_activated * (2 * op.w1.n_rows + op.w2.n_cols + op.w2.n_rows) + op.w1.n_cols;
  const int64_t n_room = scratch.n_bytes_left() * 7 / 8 / (4 * n_values);
  return std::max<int64_t>(1, std::min(n_room, kMostUses / op.n_activated));
}

// Whether the shared expert's w2 may be a problem of the chosen experts' product.
bool is_like_chosen(const RunExperts& op) {
  const WeightMatrix &w = op.shared.weight, &w2 = op.w2;
  return w.data && w.type == w2.type && w.n_rows == w2.n_rows && w.whole_rows() == w2.whole_rows() &&
         w.row_bytes == w2.row_bytes && w.step_bytes == w2.step_bytes && has_codes(w.type);
}

bool is_joined(const RunExperts& op) { return op.n_tokens <= kFewTokens && is_like_chosen(op); }

// Makes y [n_uses, w2's rows] of the gathered or own hidden values x, and the shared expert's behind it.
void run_down(const RunExperts& op, const UseRuns& runs, const float* x, float* y, const Launch& launch) {
  DecodeRows rows = decode::rows_of(op.w2);
  set_uses(op, runs, rows);
  rows.is_known = is_one_product(op.w1, op.w3);
  rows.x = x;
  rows.x_problem_stride = op.w2.n_cols;
  rows.matrices[0].y = y;
  if (is_joined(op))
    ++rows.n_problems, rows.shared_weights = op.shared.weight.data, rows.shared_x = op.shared.x,
                       rows.n_shared_tokens = static_cast<int>(op.n_tokens),
                       rows.x_token_stride = op.shared.x_stride;
  decode_rows(decode::by_inbox(rows, launch), runs, op.w2.type, launch);
}

// Replaces the member's part of the shared expert's hidden values by where all will be; returns the piece of
// a gather that brings them there.
Gather::Piece move_shared(RunExperts& op) {
  Matmul& shared = op.shared;
  if (op.member.is_alone() || !shared.weight.data) return {};
  if (shared.sum) fail(ErrorKind::internal, "a member adds its part of the shared expert's output to a sum");
  auto* whole = reinterpret_cast<float*>(op.hidden) + op.n_tokens * op.n_activated * op.w2.n_cols;
  shared.x_stride = shared.weight.n_cols;
  return {.part = std::exchange(shared.x, whole),
          .whole = whole,
          .n_rows = op.n_tokens,
          .width = shared.weight.n_cols};
}

// The hidden values of all uses, of which h has the member's part. `beside` is gathered too.
const float* gather_hidden(const RunExperts& op, const float* h, const Gather::Piece& beside,
                           const Launch& launch) {
  if (op.member.is_alone()) return h;
  gather({.member = op.member,
          .pieces =
              {{.part = h, .whole = op.hidden, .n_rows = op.n_tokens * op.n_activated, .width = op.w2.n_cols},
               beside}},
         launch);
  return reinterpret_cast<const float*>(op.hidden);
}

// y = the sums over each token's experts; see the head of this file.
void run_together(const RunExperts& op, const Gather::Piece& beside, bool is_x_older, const Launch& launch) {
  const int64_t n_uses = op.n_tokens * op.n_activated;
  // Uses are sorted with many tokens, if weights have codes.
  const bool have_codes = has_codes(op.w1.type) && has_codes(op.w3.type) && has_codes(op.w2.type);
  const bool are_sorted = choose_run(op.n_tokens, op.w1.n_mats, have_codes, card().family) > 0;
  const UseRuns runs = are_sorted ? sort_uses(op, 0, launch).runs_of(0) : UseRuns{};
  float* h = launch.workspace->take<float>(n_uses * op.w1.n_rows);
  if (launch.exchange) launch.exchange->inbox().name_part(op.hidden, h);
  float* y = launch.workspace->take<float>((n_uses + (is_joined(op) ? op.n_tokens : 0)) * op.w2.n_rows);
  Workspace scratch = *launch.workspace;
  run_gate_up(op, runs, is_x_older, h, launch.with(scratch));
  run_down(op, runs, gather_hidden(op, h, beside, launch), y, launch.with(scratch));
  sum_uses(op, y, launch);
}

// The shared expert's w2 by itself, with sums divided as in the chosen experts' product.
void run_shared(const RunExperts& op, const Launch& launch) {
  DecodeRows rows = decode::by_inbox(decode::rows_of(op.shared), launch);
  if (is_like_chosen(op)) rows.n_problems_token = static_cast<int>(op.n_activated);
  decode_rows(rows, {}, op.shared.weight.type, launch);
}

}  // namespace

void matmul_gated_decode(const GatedMatmul& op, const Launch& launch) {
  if (!is_one_product(op.w1, op.w3)) return matmul_gated_apart(op, launch);  // same order of sums
  decode::launch_any<2>(decode::by_inbox(rows_of_gated(op), launch), {}, op.w1.type, launch);
}

UseRounds sort_uses(const RunExperts& op, int64_t n_together, const Launch& launch) {
  const int64_t n_uses = op.n_tokens * op.n_activated, n_experts = op.w1.n_mats;
  if (n_experts > kMostSorted) fail(ErrorKind::internal, format("%ld experts to sort uses by", n_experts));
  const bool is_whole = n_together == 0;
  UseRounds rounds;
  rounds.n_together = static_cast<int>(is_whole ? n_experts : n_together);
  rounds.n_rounds = is_whole ? 1 : static_cast<int>(ceil_div(std::min(n_uses, n_experts), n_together));
  rounds.most = longest_run(op.n_tokens, n_experts, card().family);
  rounds.n_runs = static_cast<int>(std::min(n_uses, rounds.n_together + n_uses / rounds.most));
  rounds.runs = launch.workspace->take<UseRuns::Run>(rounds.n_rounds * rounds.n_runs);
  rounds.uses = launch.workspace->take<int32_t>(n_uses);
  if (!is_whole) rounds.chosen = launch.workspace->take<int32_t>(rounds.n_rounds * n_together);
  const size_t n_bytes = static_cast<size_t>(n_experts + rounds.n_rounds) * sizeof(int32_t);
  launch_kernel(sort_uses_kernel, {1, kSortThreads, n_bytes}, launch, op.experts, n_uses, n_experts, rounds);
  return rounds;
}

void run_uses(const RunExperts& op, const UseRuns& runs, float* h, float* y, const Launch& launch) {
  Workspace scratch = *launch.workspace;
  run_gate_up(op, runs, false, h, launch.with(scratch));
  run_down(op, runs, h, y, launch.with(scratch));
}

void sum_uses(const RunExperts& op, const float* y, const Launch& launch) {
  const auto width = static_cast<int>(op.w2.n_rows / 4);
  const bool adds = is_joined(op);
  float* to = adds ? op.shared.y : op.y;
  const Mail mail = launch.exchange ? launch.exchange->inbox().send_from(to, 0, op.w2.n_rows) : Mail{};
  launch_kernel(sum_uses_kernel, {{ceil_div(width, decode::kThreads), op.n_tokens}, decode::kThreads}, launch,
                reinterpret_cast<const float4*>(y), reinterpret_cast<float4*>(to),
                reinterpret_cast<float4*>(adds ? op.shared.sum : nullptr), adds, op.n_activated, width, mail);
}

bool route_experts_decode(const RouteExperts& op, const Launch& launch) {
  const GatedMatmul& beside = op.beside;
  const bool is_coded = beside.w1.data && has_codes(beside.w1.type);
  const bool is_made = routes_beside(op.n_tokens, launch.n_sms) && launch.n_done && is_coded &&
                       is_one_product(beside.w1, beside.w3) && op.gate.weight.data &&
                       op.gate.weight.type == TensorType::f32 && route_bytes(op) <= decode::kMostBesideBytes;
  if (is_made) {
    Beside router = decode::beside_of(decode::rows_of(op.gate));
    router.route = op, router.n_done = launch.n_done, router.n_row_jobs = router.n_jobs;
    router.n_jobs += static_cast<int>(op.n_tokens) - 1;
    DecodeRows rows = decode::by_inbox(rows_of_gated(beside), launch);
    rows.lets_next_late = true;
    if (decode::launch_any<2>(rows, {}, beside.w1.type, launch, router)) return true;
  }
  if (op.gate.weight.data) matmul_decode(op.gate, launch);
  route_experts(op, launch);
  if (beside.w1.data && !is_made) matmul_gated_decode(beside, launch);
  return false;
}

void run_experts_decode(const RunExperts& op, const Launch& launch, bool is_x_older) {
  const int64_t n_members = op.member.n();
  if (op.w1.n_rows != op.w3.n_rows || op.w1.n_cols != op.w3.n_cols ||
      op.w2.n_cols != op.w1.n_rows * n_members || op.w1.n_cols != op.w2.n_rows * n_members ||
      op.w1.whole_rows() != op.w2.n_cols || op.w2.whole_rows() != op.w1.n_cols || op.w2.n_rows % 4 != 0)
    fail(ErrorKind::internal, format("experts with w1 [%ld, %ld], w2 [%ld, %ld]", op.w1.n_rows, op.w1.n_cols,
                                     op.w2.n_rows, op.w2.n_cols));
  if (op.n_activated == 0) return;
  const int64_t n_rounds = ceil_div(op.n_tokens, tokens_together(op, *launch.workspace)),
                n_together = ceil_div(op.n_tokens, std::max<int64_t>(1, n_rounds));
  const bool joins = is_joined(op) && n_rounds == 1;
  RunExperts all = op;
  Gather::Piece beside = move_shared(all);
  for (int64_t token = 0; token < op.n_tokens; token += n_together) {
    Workspace scratch = *launch.workspace;
    RunExperts part = tokens_of(all, token, std::min(n_together, op.n_tokens - token));
    if (!joins) part.shared = {};
    run_together(part, std::exchange(beside, {}), is_x_older && n_rounds == 1, launch.with(scratch));
  }
  if (op.shared.weight.data && !joins) run_shared(all, launch);
}

}  // namespace dsv32::cuda
