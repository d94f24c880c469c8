// Products in decode: a matrix, and one small matrix per head. The kernels are in decode_rows.cuh.
#include "cuda/decode_rows.cuh"

namespace dsv32::cuda {

void decode_rows(const DecodeRows& rows, TensorType type, const Launch& launch) {
  decode::launch_any<1>(rows, type, launch);
}

void matmul_decode(const Matmul& op, const Launch& launch) {
  DecodeRows rows = decode::rows_of(op.weight);
  rows.x = op.x;
  rows.x_token_stride = op.x_stride;
  rows.n_tokens = static_cast<int>(op.n_tokens);
  rows.y = op.y;
  rows.y_token_stride = op.weight.n_rows;
  decode_rows(rows, op.weight.type, launch);
}

void matmul_heads_decode(const MatmulHeads& op, const Launch& launch) {
  DecodeRows rows = decode::rows_of(op.weight);
  rows.n_problems = rows.n_problems_token = static_cast<int>(op.weight.n_mats);
  rows.x = op.x;
  rows.x_problem_stride = op.x_head_stride;
  rows.x_token_stride = op.x_token_stride;
  rows.n_tokens = static_cast<int>(op.n_tokens);
  rows.y = op.y;
  rows.y_problem_stride = op.weight.n_rows;
  rows.y_token_stride = op.weight.n_mats * op.weight.n_rows;
  decode_rows(rows, op.weight.type, launch);
}

}  // namespace dsv32::cuda
