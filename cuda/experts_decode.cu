// The chosen experts of each token in decode. The kernels are in decode_rows.cuh; which experts is known on
// the device only.
//
// First every use (token, k) is a problem of its own: h = silu(w1 x) * (w3 x) * weight. Then a token is a
// problem whose parts are its experts: the products with w2 add up over the parts as over more columns, in
// ascending order.
#include "cuda/decode_rows.cuh"

namespace dsv32::cuda {
namespace {

constexpr int64_t kTokensTogether = 256;  // their h has room in the scratch memory

// gate = silu(gate) * up * factors[use].
// Who: a thread per value. Layout: [n_uses, width]. Only where w1 and w3 are stored in different types.
// Bound: bytes.
__global__ void gate_kernel(float* gate, const float* up, const float* factors, int64_t n_values,
                            int64_t width) {
  let_next_start();
  wait_for_inputs();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n_values) gate[i] = gate[i] / (1.0f + expf(-gate[i])) * up[i] * factors[i / width];
}

void gated_rows_decode(const DecodeRows& rows, TensorType type, const Launch& launch) {
  decode::launch_any<2>(rows, type, launch);
}

// h [n_uses, inter].
void run_gate_up(const RunExperts& op, float* h, const Launch& launch) {
  DecodeRows rows = decode::rows_of(op.w1);
  rows.n_problems = static_cast<int>(op.n_tokens * op.n_activated);
  rows.n_problems_token = static_cast<int>(op.n_activated);
  rows.mats = op.experts;
  rows.x = op.x;
  rows.x_problem_stride = op.w1.n_cols;
  rows.x_sharing = static_cast<int>(op.n_activated);
  rows.n_tokens = 1;
  rows.y = h;
  rows.y_problem_stride = op.w1.n_rows;
  if (op.w1.type == op.w3.type && op.w1.row_bytes == op.w3.row_bytes && op.w1.mat_bytes == op.w3.mat_bytes) {
    rows.weights[1] = op.w3.data;
    rows.factors = op.weights;
    gated_rows_decode(rows, op.w1.type, launch);
    return;
  }
  const int64_t n_values = op.n_tokens * op.n_activated * op.w1.n_rows;
  decode_rows(rows, op.w1.type, launch);
  const DecodeRows up = decode::rows_of(op.w3);
  rows.weights[0] = up.weights[0], rows.row_bytes = up.row_bytes, rows.mat_bytes = up.mat_bytes;
  rows.y = launch.workspace->take<float>(static_cast<size_t>(n_values));
  decode_rows(rows, op.w3.type, launch);
  launch_kernel("gate_kernel", gate_kernel, {static_cast<unsigned>(ceil_div(n_values, 256)), 256}, launch, h,
                rows.y, op.weights, n_values, op.w1.n_rows);
}

// y = the sums over each token's experts; see the head of this file.
void run_together(const RunExperts& op, const Launch& launch) {
  const int64_t width = op.n_activated * op.w1.n_rows;  // of a token's h
  float* h = launch.workspace->take<float>(static_cast<size_t>(op.n_tokens * width));
  run_gate_up(op, h, launch);
  DecodeRows rows = decode::rows_of(op.w2);
  rows.n_problems = static_cast<int>(op.n_tokens);
  rows.n_parts = static_cast<int>(op.n_activated);
  rows.mats = op.experts;
  rows.x = h;
  rows.x_problem_stride = width;
  rows.n_tokens = 1;
  rows.y = op.y;
  rows.y_problem_stride = op.w2.n_rows;
  decode_rows(rows, op.w2.type, launch);
}

}  // namespace

void run_experts_decode(const RunExperts& op, const Launch& launch) {
  if (op.w1.n_rows != op.w3.n_rows || op.w1.n_cols != op.w3.n_cols || op.w2.n_cols != op.w1.n_rows ||
      op.w2.n_rows != op.w1.n_cols)
    fail(ErrorKind::internal,
         format("experts with w1 [%lld, %lld], w2 [%lld, %lld]", static_cast<long long>(op.w1.n_rows),
                static_cast<long long>(op.w1.n_cols), static_cast<long long>(op.w2.n_rows),
                static_cast<long long>(op.w2.n_cols)));
  if (op.n_activated == 0) return;
  for (int64_t token = 0; token < op.n_tokens; token += kTokensTogether) {
    Workspace scratch = *launch.workspace;
    Launch here = launch;
    here.workspace = &scratch;
    run_together(tokens_of(op, token, std::min(kTokensTogether, op.n_tokens - token)), here);
  }
}

}  // namespace dsv32::cuda
