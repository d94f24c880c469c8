// A weight matrix, or a stack of them, where it lies and as it is stored.
//
// Non-owning. Rows are GGUF rows: n_cols values of `type` in row_bytes contiguous bytes. A stack (experts,
// heads) has n_mats matrices mat_bytes apart; a fused tensor (gate and up in one) is two views with the same
// mat_bytes and different data.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gguf/quant.h"

namespace dsv32 {

struct WeightMatrix {
  const uint8_t* data = nullptr;  // of the backend that computes with it; null: the tensor is absent
  TensorType type = TensorType::f32;
  int64_t n_rows = 0;  // outputs, of one matrix
  int64_t n_cols = 0;  // inputs
  int64_t n_mats = 1;
  size_t row_bytes = 0;
  size_t mat_bytes = 0;  // from one matrix of the stack to the next

  const uint8_t* row(int64_t mat, int64_t i) const {
    return data + static_cast<size_t>(mat) * mat_bytes + static_cast<size_t>(i) * row_bytes;
  }
};

}  // namespace dsv32
