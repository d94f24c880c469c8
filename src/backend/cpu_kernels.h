// The kernels of one instruction set for products with one storage format: the table that cpu_matmul uses.
//
// A row is processed in steps of kStepValues columns. A step's activations are prepared beforehand: padded
// with zeros to a whole step, or as integers in a format's own order, see cpu_formats_vnni.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gguf/quant.h"

namespace dsv32 {

constexpr int kStepValues = 256;  // whole blocks of every format

// A step of up to kRows rows as floats, in the order in which an instruction set's tiles read them.
struct UnpackedPanel {
  static constexpr int64_t kRows = 16;  // stays in the first-level cache for all tokens
  alignas(64) float values[kRows * kStepValues];
  int64_t n_rows;
};

struct CpuKernels {
  static constexpr int kRows = 4;    // of one call: they share activations in the first-level cache
  static constexpr int kTokens = 4;  // of one many_tokens call: they share the unpacked weights

  int step_floats;  // a step's prepared activations in floats, a multiple of 16

  // x [n_values <= kStepValues]  ->  out [step_floats], aligned to 64 bytes.
  void (*prepare_step)(const float* x, int n_values, float* out);

  // sums[r * n_tokens + t] = row r times token t; one_token has n_tokens 1, many_tokens kTokens. rows[r] has
  // row_bytes bytes and is followed by the next rows; x[t] is prepared. Both do the same operations in the
  // same order for a pair (row, token). If many_tokens is null, unpack_step is set.
  using RowsTimesTokens = void(const uint8_t* const* rows, size_t row_bytes, const float* const* x,
                               float* sums);
  RowsTimesTokens* one_token;
  RowsTimesTokens* many_tokens;

  // Unpacks a step of a row to floats, at its places in the panel, with zeros up to a multiple of 16.
  void (*unpack_step)(const uint8_t* at, int n_values, int64_t row, UnpackedPanel& panel) = nullptr;
};

// How far ahead of its reads a kernel prefetches each row's weights: at the same place of the next kRows
// rows, which follow these. Rows are too short for the hardware's prefetcher, which restarts with each row
// and stops at page ends. A whole tile is too large for the first-level cache, so it goes to the second.
inline size_t prefetch_distance(const uint8_t* const* rows) {
  constexpr size_t kLargest = size_t{256} << 10, kInRow = 2048;
  const auto tile_bytes = CpuKernels::kRows * static_cast<size_t>(rows[1] - rows[0]);
  return tile_bytes <= kLargest ? tile_bytes : kInRow;
}

inline void prefetch_weights(const uint8_t* at, size_t n_bytes) {
  for (size_t line = 0; line < n_bytes; line += 64) __builtin_prefetch(at + line, 0, 2);
}

// Whether this CPU gathers from tables of 512 or 1024 points faster than it looks them up in registers: true
// on Intel's.
bool gathers_fast();

// Kernels that multiply integers, if this CPU has AVX-512 VNNI and the format has such kernels; else nullptr.
// A format with such tables has two, with equal bits; `gathers` chooses.
const CpuKernels* vnni_kernels_of(TensorType type, bool gathers = gathers_fast());

}  // namespace dsv32
