// Products with up to kFewTokens tokens: a matrix, and one small matrix per head. The kernels are in
// rows_few.cuh.
#include "cuda/rows_few.cuh"

namespace dsv32::cuda {

void rows_few(const RowsFew& rows, TensorType type, const Launch& launch) {
  few::launch_any<1>(rows, type, launch);
}

void matmul_few(const Matmul& op, const Launch& launch) {
  RowsFew rows = few::rows_of(op.weight);
  rows.x = op.x;
  rows.x_token_stride = op.x_stride;
  rows.n_tokens = static_cast<int>(op.n_tokens);
  rows.y = op.y;
  rows.y_token_stride = op.weight.n_rows;
  rows_few(rows, op.weight.type, launch);
}

void matmul_heads_few(const MatmulHeads& op, const Launch& launch) {
  RowsFew rows = few::rows_of(op.weight);
  rows.n_problems = rows.n_problems_token = static_cast<int>(op.weight.n_mats);
  rows.x = op.x;
  rows.x_problem_stride = op.x_head_stride;
  rows.x_token_stride = op.x_token_stride;
  rows.n_tokens = static_cast<int>(op.n_tokens);
  rows.y = op.y;
  rows.y_problem_stride = op.weight.n_rows;
  rows.y_token_stride = op.weight.n_mats * op.weight.n_rows;
  rows_few(rows, op.weight.type, launch);
}

}  // namespace dsv32::cuda
