// What one instruction set offers for the products of one storage format: the table behind cpu_matmul.
//
// A row is worked off in steps of step_values columns. A step has its activations prepared: padded with zeros
// to a whole step, or as integers in a format's own order, see cpu_formats_vnni.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gguf/quant.h"

namespace dsv32 {

// A step of some rows as floats, in the order in which the tiles of an instruction set read them.
struct UnpackedPanel {
  static constexpr int64_t kRows = 16, kValues = 256;  // in the nearest cache while tokens pass by
  alignas(64) float values[kRows * kValues];
  int64_t n_rows;
};

struct CpuKernels {
  static constexpr int kRows = 4;    // of one call: they share the activations in the nearest cache
  static constexpr int kTokens = 4;  // of one many_tokens call: they share the unpacked weights

  int step_values;  // columns of a step, a multiple of the block's
  int step_floats;  // prepared floats of a step, a multiple of 16

  // x [n_values <= step_values]  ->  out [step_floats], aligned to 64 bytes.
  void (*prepare_step)(const float* x, int n_values, float* out);

  // sums[r * n_tokens + t] = row r times token t, with n_tokens 1 and kTokens. rows[r] is row_bytes long,
  // and the next rows lie behind it; x[t] is prepared. Both do the same operations in the same order for a
  // pair (row, token). Without many_tokens there is unpack_step.
  using RowsTimesTokens = void(const uint8_t* const* rows, size_t row_bytes, const float* const* x,
                               float* sums);
  RowsTimesTokens* one_token;
  RowsTimesTokens* many_tokens;

  // A step of a row as floats, to where the tiles of a panel look for it, and zeros up to a multiple of 16.
  void (*unpack_step)(const uint8_t* at, int n_values, int64_t row, UnpackedPanel& panel) = nullptr;
};

// How far ahead of its reads a kernel asks for the weights of each row: the same place of the next kRows
// rows, which lie behind these. Rows are too short for the hardware's prefetcher, which starts anew with each
// and stops at pages; a whole tile is too much for the nearest cache, so it goes to the second.
inline size_t prefetch_distance(const uint8_t* const* rows) {
  constexpr size_t kLargest = size_t{256} << 10, kInRow = 2048;
  const auto tile_bytes = CpuKernels::kRows * static_cast<size_t>(rows[1] - rows[0]);
  return tile_bytes <= kLargest ? tile_bytes : kInRow;
}

inline void prefetch_weights(const uint8_t* at, size_t n_bytes) {
  for (size_t line = 0; line < n_bytes; line += 64) __builtin_prefetch(at + line, 0, 2);
}

// Whether gathering from tables of 512 or 1024 points is quicker here than looking these up in registers: on
// Intel's CPUs.
bool gathers_fast();

// Kernels that multiply in integers, where this CPU has AVX-512 VNNI and the format has them; else nullptr.
// Of formats with such tables there are two, with the same bits.
const CpuKernels* vnni_kernels_of(TensorType type, bool gathers = gathers_fast());

}  // namespace dsv32
