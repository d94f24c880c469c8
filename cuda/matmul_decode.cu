// Products in decode: one matrix, several of the same x, and one small matrix per head. The kernels are in
// decode_rows.cuh, decode_columns.cu and decode_wide.cu.
#include "cuda/decode_launch.cuh"

namespace dsv32::cuda {
namespace {

// Whether two products of the same tokens are one. F16 and BF16 matrices go alone: they use other kernels,
// and are few.
bool go_together(const Matmul& a, const Matmul& b) {
  return a.weight.type == b.weight.type && a.weight.row_bytes == b.weight.row_bytes &&
         a.weight.step_bytes == b.weight.step_bytes && has_codes(a.weight.type);
}

bool have_same_tokens(const Matmul& a, const Matmul& b) { return a.x == b.x && a.n_tokens == b.n_tokens; }

DecodeRows rows_of_heads(const MatmulHeads& op) {
  DecodeRows rows = decode::rows_of(op.weight);
  rows.n_problems = static_cast<int>(op.weight.n_mats);
  rows.n_problems_token = static_cast<int>(op.weight.whole_mats());
  rows.x = op.x;
  rows.x_problem_stride = op.x_head_stride;
  rows.x_token_stride = op.x_token_stride;
  rows.n_tokens = static_cast<int>(op.n_tokens);
  rows.matrices[0].y = op.y;
  rows.matrices[0].y_token_stride = op.weight.n_mats * op.weight.n_rows;
  rows.y_problem_stride = op.weight.n_rows;
  return rows;
}

// Stores few tokens' rows and keys beside the products. Their blocks each norm the queries' low rank, which
// takes too long for more tokens. Returns false, and does nothing, where that is not possible. A member of a
// team may multiply some of the tokens alone; then it is not.
bool store_beside(const StoreTokens& op, const Launch& launch) {
  const Matmul &first = op.to_q, &second = op.to_index_q;
  DecodeRows rows = decode::rows_of(first);
  if (!has_codes(first.weight.type) || !rows.in_bands || rows.n_tokens > kFewTokens || first.x != op.qr ||
      first.n_tokens != op.step.n_tokens)
    return false;
  if (second.weight.data) {
    if (!go_together(first, second) || !have_same_tokens(first, second)) return false;
    rows.matrices[rows.n_matrices++] = decode::rows_of(second).matrices[0];
  }
  rows.is_undivided = true;
  rows.x_norm = op.q_norm, rows.norm_eps = op.norm_eps;
  Beside beside;
  beside.store = op, beside.store_room = StoreRoom::of(op.cache.layout);
  beside.n_jobs = (op.k ? 2 : 1) * rows.n_tokens;
  return beside.store_room.n_bytes <= static_cast<int>(decode::kMostBesideBytes) &&
         decode::launch_any<1>(rows, {}, first.weight.type, launch, beside);
}

}  // namespace

void decode_rows(const DecodeRows& rows, const UseRuns& runs, TensorType type, const Launch& launch) {
  decode::launch_any<1>(rows, runs, type, launch);
}

void matmul_decode(const Matmul& op, const Launch& launch) {
  decode_rows(decode::by_inbox(decode::rows_of(op), launch), {}, op.weight.type, launch);
}

// Matrices of one type become one product, with an F32 matrix beside it if there is one. Those of other
// tokens are products of their own, with sums divided as if they were not.
void matmuls_decode(std::span<const Matmul> ops, const Launch& launch) {
  std::vector<bool> is_done(ops.size());
  const auto floats = static_cast<size_t>(
      std::ranges::find(ops, TensorType::f32, [](const Matmul& op) { return op.weight.type; }) - ops.begin());
  for (size_t i = 0; i < ops.size(); ++i) {
    if (is_done[i]) continue;
    DecodeRows rows = decode::rows_of(ops[i]);
    rows.is_undivided = has_codes(ops[i].weight.type);  // in other steps other matrices are beside it
    int n_alike = 1;
    for (size_t j = i + 1; j < ops.size() && n_alike < kMostMatrices; ++j) {
      if (is_done[j] || !go_together(ops[i], ops[j])) continue;
      ++n_alike, is_done[j] = true;
      DecodeRows own = decode::rows_of(ops[j]);
      if (have_same_tokens(ops[i], ops[j])) {
        rows.matrices[rows.n_matrices++] = own.matrices[0];
        continue;
      }
      own.is_undivided = rows.is_undivided, own.n_whole_rows = rows.n_whole_rows;
      decode_rows(own, {}, ops[j].weight.type, launch);
    }
    const bool has_beside =
        floats > i && floats < ops.size() && !is_done[floats] && have_same_tokens(ops[i], ops[floats]);
    if (decode::launch_any<1>(rows, {}, ops[i].weight.type, launch,
                              has_beside ? decode::beside_of(decode::rows_of(ops[floats])) : Beside{}) &&
        has_beside)
      is_done[floats] = true;
  }
}

void store_tokens_decode(const StoreTokens& op, const Launch& launch) {
  if (op.step.n_tokens == 0 || store_beside(op, launch)) return;
  store_tokens(op, launch);
  matmuls_decode(op.products(), launch);
}

void matmul_heads_decode(const MatmulHeads& op, const Launch& launch) {
  decode_rows(decode::by_inbox(rows_of_heads(op), launch), {}, op.weight.type, launch);
}

// With few tokens the queries are turned beside the product with W_UK.
void turn_queries_decode(const TurnQueries& op, const Launch& launch) {
  Beside beside;
  beside.turn = op, beside.turn_blocks = TurnBlocks(op);
  beside.n_jobs = static_cast<int>(op.step.n_tokens) * beside.turn_blocks.n();
  const bool has_room = op.rope_dim >= 2 && turn_bytes(op) <= decode::kMostBesideBytes;
  if (!has_room) beside = {};
  const bool is_done =
      decode::launch_any<1>(rows_of_heads(op.absorb), {}, op.absorb.weight.type, launch, beside);
  if (!is_done || !has_room) turn_queries(op, launch);
}

}  // namespace dsv32::cuda
