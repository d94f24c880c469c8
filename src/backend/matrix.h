// A view of a stored weight matrix, or of a stack of them.
//
// Non-owning. Rows are GGUF rows: n_cols values of `type` in row_bytes contiguous bytes. A stack (experts,
// heads) has n_mats matrices mat_bytes apart; a fused tensor (gate and up in one) is two views with the same
// mat_bytes and different data.
//
// A device may keep a matrix in bands (Backend::keeps_bands): for each 16 rows the first band_columns() of
// all rows, row after row, then the second, and so on. The weights that 16 rows need at the same time are
// then contiguous, and are read at the memory's full rate.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gguf/quant.h"

namespace dsv32 {

constexpr int64_t kBandRows = 16;

// The columns of a row that lie together in a band: a step of the row.
constexpr int64_t band_columns(TensorType type) { return type == TensorType::q8_0 ? 128 : 256; }

// The bytes of a row's step; 0: a matrix of this shape has no bands.
inline size_t band_step_bytes(TensorType type, int64_t n_rows, int64_t n_cols) {
  if (traits(type).block_values == 1 || n_rows % kBandRows != 0 || n_cols % band_columns(type) != 0) return 0;
  return row_bytes(type, band_columns(type));
}

struct WeightMatrix {
  const uint8_t* data = nullptr;  // in the computing backend's memory; null: the tensor is absent
  TensorType type = TensorType::f32;
  int64_t n_rows = 0;  // of one matrix: outputs
  int64_t n_cols = 0;  // of one matrix: inputs
  int64_t n_mats = 1;
  size_t row_bytes = 0;
  size_t mat_bytes = 0;   // from one matrix of the stack to the next
  size_t step_bytes = 0;  // bytes of a row's step, in bands; 0: rows are whole
  // Where these are some rows, or some matrices, of a larger matrix or stack: its n_rows and n_mats; 0: they
  // are all. How sums are cut depends on these alone.
  int64_t n_whole_rows = 0, n_whole_mats = 0;

  int64_t whole_rows() const { return n_whole_rows ? n_whole_rows : n_rows; }
  int64_t whole_mats() const { return n_whole_mats ? n_whole_mats : n_mats; }

  // The first byte of a row; in bands only for the first row of a band.
  const uint8_t* row(int64_t mat, int64_t i) const {
    return data + static_cast<size_t>(mat) * mat_bytes + static_cast<size_t>(i) * row_bytes;
  }
};

// Some rows of a matrix; in bands they begin and end with one.
inline WeightMatrix some_rows(WeightMatrix matrix, int64_t first, int64_t n) {
  matrix.n_whole_rows = matrix.whole_rows();
  matrix.data = matrix.row(0, first), matrix.n_rows = n;
  return matrix;
}
// Some matrices of a stack.
inline WeightMatrix some_mats(WeightMatrix stack, int64_t first, int64_t n) {
  stack.n_whole_mats = stack.whole_mats();
  stack.data = stack.row(first, 0), stack.n_mats = n;
  return stack;
}

}  // namespace dsv32
