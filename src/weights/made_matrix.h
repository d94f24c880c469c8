// A matrix, or a stack of matrices, computed from a tensor's values while it is loaded.
//
// Two kinds of file need it: files with attn_kv_b in one piece, whose K part must be transposed, and files
// with a factor beside a matrix (`.scale`, of conversions to NVFP4). Values become floats: transposing tears
// quantised blocks apart, and a block's scale has no room for a factor.
#pragma once

#include <cstdint>
#include <vector>

#include "gguf/gguf.h"

namespace dsv32 {

struct MadeMatrix {
  const GgufTensor* from = nullptr;  // rows of values, mapped
  TensorType type{};                 // f32, f16 or bf16
  int64_t n_mats = 1, n_rows = 0, n_cols = 0;
  // Each matrix has `stored_rows` rows in `from`. It is made from the rows from `first_row` on: n_rows of
  // n_cols values or, when transposed, n_cols of n_rows.
  int64_t stored_rows = 0, first_row = 0;
  bool is_transposed = false;
  std::vector<float> scales = {};  // [n_mats]; empty: 1

  static constexpr uint64_t kBlockBytes = 256 * sizeof(float);  // whole blocks of any type

  // f32 stays f32; f16 and bf16 stay unless they are scaled. All else becomes f16, which has three mantissa
  // bits more than bf16 and enough range for every weight.
  static TensorType type_for(TensorType stored, bool is_scaled);

  uint64_t n_bytes() const { return row_bytes(type, n_mats * n_rows * n_cols); }
  // Writes bytes [first, first + n) of the result, whole kBlockBytes except at the end. Any thread.
  void make(uint64_t first, uint64_t n, uint8_t* out) const;
};

}  // namespace dsv32
