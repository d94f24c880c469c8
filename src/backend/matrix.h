// A weight matrix, or a stack of them, where it lies and as it is stored.
//
// Non-owning. Rows are GGUF rows: n_cols values of `type` in row_bytes contiguous bytes. A stack (experts,
// heads) has n_mats matrices mat_bytes apart; a fused tensor (gate and up in one) is two views with the same
// mat_bytes and different data.
//
// A device may keep a matrix in bands (Backend::keeps_bands): of each 16 rows their first band_columns(), row
// after row, then their second, and so on. What 16 rows are multiplied by together is then one piece of
// memory, which is read at its full rate.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gguf/quant.h"

namespace dsv32 {

constexpr int64_t kBandRows = 16;

// The columns of a row that lie together in a band: a step of it.
constexpr int64_t band_columns(TensorType type) { return type == TensorType::q8_0 ? 128 : 256; }

// The bytes of a row's step; 0: such a matrix has no bands.
inline size_t band_step_bytes(TensorType type, int64_t n_rows, int64_t n_cols) {
  if (traits(type).block_values == 1 || n_rows % kBandRows != 0 || n_cols % band_columns(type) != 0) return 0;
  return row_bytes(type, band_columns(type));
}

struct WeightMatrix {
  const uint8_t* data = nullptr;  // of the backend that computes with it; null: the tensor is absent
  TensorType type = TensorType::f32;
  int64_t n_rows = 0;  // outputs, of one matrix
  int64_t n_cols = 0;  // inputs
  int64_t n_mats = 1;
  size_t row_bytes = 0;
  size_t mat_bytes = 0;   // from one matrix of the stack to the next
  size_t step_bytes = 0;  // in bands: of a row's step; 0: rows lie whole

  // The first byte of a row; in bands of a band's first one.
  const uint8_t* row(int64_t mat, int64_t i) const {
    return data + static_cast<size_t>(mat) * mat_bytes + static_cast<size_t>(i) * row_bytes;
  }
};

}  // namespace dsv32
