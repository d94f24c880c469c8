// A matrix, or a stack of them, whose values are worked out from a tensor's while it is loaded.
//
// Two kinds of file need it: those that keep attn_kv_b in one piece, whose K part is wanted transposed, and
// those that have a factor beside a matrix (`.scale`, of conversions to NVFP4). Values become floats: a
// transposed row has blocks that no quantised type could take over, and a block's scale has no room for a
// factor.
#pragma once

#include <cstdint>
#include <vector>

#include "gguf/gguf.h"

namespace dsv32 {

struct MadeMatrix {
  const GgufTensor* from = nullptr;  // rows of values, mapped
  TensorType type{};                 // f32, f16 or bf16
  int64_t n_mats = 1, n_rows = 0, n_cols = 0;
  // In `from` each matrix has `stored_rows` rows, of which those from `first_row` on are meant: n_rows of
  // n_cols values or, transposed, n_cols of n_rows.
  int64_t stored_rows = 0, first_row = 0;
  bool is_transposed = false;
  std::vector<float> scales = {};  // [n_mats]; empty: 1

  static constexpr uint64_t kBlockBytes = 256 * sizeof(float);  // of whole blocks, whatever the types

  // f32 stays so, and so do f16 and bf16 where they are only moved; all else becomes f16, which keeps three
  // bits more of each value than bf16 and has room for every weight.
  static TensorType type_for(TensorType stored, bool is_scaled);

  uint64_t n_bytes() const { return row_bytes(type, n_mats * n_rows * n_cols); }
  // Bytes [first, first + n) of it, whole units but at the end. Any thread.
  void make(uint64_t first, uint64_t n, uint8_t* out) const;
};

}  // namespace dsv32
