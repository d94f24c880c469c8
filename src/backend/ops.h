// What the forward pass computes on a device, but for attention (attention_ops.h) and experts (expert_ops.h):
// for each operation its formula and its parameters, with shapes.
//
// All pointers are to memory of the backend that does the operation, unless a comment says host. f32 unless
// said otherwise; strides count elements.
#pragma once

#include <cstdint>

#include "backend/matrix.h"
#include "backend/member.h"

namespace dsv32 {

enum class Place {
  device,  // where the operations work
  host,    // host memory that the device can read and write at the link's full rate (pinned)
};

// A step's tokens belong to a prompt, or are the newest tokens of their sequences. A token's bits depend on
// its own sequence and its role alone: not on the other tokens of the step or their number, on how a prompt
// is cut into steps, on where rows lie or on how much memory there is.
enum class Role {
  prefill,  // any number of tokens of each sequence
  decode,   // of each sequence the next token, and perhaps guesses of those that follow
};

// The most tokens of a sequence in a decode step: the next one and three guesses.
constexpr int kMostSequenceTokens = 4;

// The tokens of one step, of one or more sequences. In decode each token has a number of its own in `seq`;
// tokens of the same sequence are adjacent, at positions in a row, with consecutive numbers and equal lines
// in the tables of pages and of buffers.
struct StepTokens {
  int64_t n_tokens = 0;
  int64_t n_seqs = 0;
  int64_t max_pos = 0;              // largest position in the step (host value, sizes grids)
  const int32_t* tokens = nullptr;  // [n_tokens] token ids
  const int32_t* pos = nullptr;     // [n_tokens] position in its sequence
  const int32_t* seq = nullptr;     // [n_tokens] 0..n_seqs-1
  Role role = Role::prefill;
};

// out[t] = row tokens[t] of the table, as f32.
struct Embed {
  StepTokens step;
  WeightMatrix table;    // [vocab_size, dim]
  float* out = nullptr;  // [n_tokens, dim]
};

// out = x * rsqrt(mean(x^2) + eps) * weight, per row, in f32.
struct RmsNorm {
  const float* x = nullptr;  // [n_rows, width], rows x_stride apart
  int64_t x_stride = 0;
  const float* weight = nullptr;  // [width]
  float eps = 0;
  float* out = nullptr;  // [n_rows, width], rows out_stride apart; may be x when both are dense
  int64_t n_rows = 0, width = 0;
  int64_t out_stride = 0;  // 0: dense
};

// y[t] = W @ x[t] (+ plus[t]);  sum[t] += y[t]
struct Matmul {
  WeightMatrix weight;       // [n_rows, n_cols]
  const float* x = nullptr;  // [n_tokens, n_cols], rows x_stride apart
  int64_t x_stride = 0;
  float* y = nullptr;  // [n_tokens, n_rows], dense
  int64_t n_tokens = 0;
  Role role = Role::prefill;
  const float* plus = nullptr;  // [n_tokens, n_rows], or null
  float* sum = nullptr;         // [n_tokens, n_rows], or null
};

// y[t] = silu(scales[0] * W1 @ x[t]) * (scales[1] * W3 @ x[t]). An operation so that x is read once.
struct GatedMatmul {
  WeightMatrix w1, w3;       // [n_rows, n_cols] each
  const float* x = nullptr;  // [n_tokens, n_cols], dense
  float* up = nullptr;       // [n_tokens, n_rows] for the operation's own use
  float* y = nullptr;        // [n_tokens, n_rows], dense
  int64_t n_tokens = 0;
  Role role = Role::prefill;
  const float* scales = nullptr;  // [2]; null: 1
};

// y[t, h] = W[h] @ x[t, h]: the absorbed products with W_UK and W_UV.
struct MatmulHeads {
  WeightMatrix weight;       // [n_heads, n_rows, n_cols]
  const float* x = nullptr;  // [n_tokens, n_heads, n_cols], strides below
  int64_t x_token_stride = 0, x_head_stride = 0;
  float* y = nullptr;  // [n_tokens, n_heads, n_rows], dense
  int64_t n_tokens = 0;
  Role role = Role::prefill;
};

// Makes a vector of the parts that the members of a team have computed. All members call it for the same
// shapes, in the same order. What one call writes is read before the next call begins; the calls after that
// one may write there again. So two calls, one behind the other, never write the same memory.
struct Gather {
  // whole[r, c] on every member, for all r and c, from the member that has that value: either each member has
  // its share of the columns of all rows, or its share of the rows.
  struct Piece {
    const void* part = nullptr;     // [n_rows, share of width] or [share of n_rows, width], dense
    void* whole = nullptr;          // [n_rows, width]; `part` may be its own place in it
    int64_t n_rows = 0, width = 0;  // width in words of 4 bytes; shares are equal
    bool is_by_rows = false;        // shares of rows: member m has n_rows * m / n up to n_rows * (m + 1) / n
  };
  Member member;
  Piece pieces[2];  // the second one may be empty
  // [n_rows, width] += the first piece's `whole`, as f32; null: no sum. With it, `whole` holds anything
  // after.
  float* sum = nullptr;
  RmsNorm norm = {};  // of `sum` afterwards, whose x it is; without `out`: none
  // Member m gets only the rows n_rows * m / n up to n_rows * (m + 1) / n, also of `sum`. One piece, not by
  // rows; without a norm.
  bool is_to_owners = false;
};

// y += x
struct Add {
  const float* x = nullptr;
  float* y = nullptr;
  int64_t n_values = 0;
};

}  // namespace dsv32
