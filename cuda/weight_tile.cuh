// Rows of weights in any GGUF format on their way into a tile of fp16 (gemm_tile.cuh): raw bytes come by
// cp.async, one span of columns ahead, and a thread turns 64 values of its row into fp16 at a time.
#pragma once

#include "cuda/gemm_tile.cuh"
#include "cuda/widen.cuh"

namespace dsv32::cuda {

constexpr int kTileThreads = 128;  // that fill a tile: one a row

// A span of a tile's rows in shared memory. A row's is copied in whole 16-byte pieces of memory, wherever in
// them it begins.
template <TensorType kType>
struct RawSpan {
  // Columns copied together: one block where blocks are long.
  static constexpr int kColumns = [] {
    if constexpr (kIsFloat<kType>)
      return 64;
    else
      return Codes<kType>::kBlockValues == 32 ? 128 : 256;
  }();
  static constexpr int kSteps = kColumns / kStep;
  static constexpr int kRowBytes = static_cast<int>(span_bytes<kType, kColumns>());
  static constexpr int kPieces = (kRowBytes + 15 + 15) / 16;
  static constexpr int kPitch =
      (kPieces | 1) * 16;  // an odd number of pieces: eight rows lie in different banks
  static constexpr int kBytes = kTileRows * kPitch;
};

// Rows of a matrix that follow one another, from a multiple of kBandRows on.
struct RowRun {
  const uint8_t* first;
  uint32_t row_bytes, row_apart;
  bool in_bands;

  __device__ __forceinline__ RowRun(const WeightMatrix& weight, const uint8_t* first_row)
      : first(first_row),
        row_bytes(static_cast<uint32_t>(weight.row_bytes)),
        row_apart(static_cast<uint32_t>(cuda::row_apart(weight))),
        in_bands(weight.step_bytes > 0) {}
  __device__ __forceinline__ uint32_t row_offset(uint32_t row) const {
    return row / kBandRows * kBandRows * row_bytes + row % kBandRows * row_apart;
  }
};

template <TensorType kType>
__device__ __forceinline__ uint32_t raw_offset(const RowRun& rows, uint32_t span) {
  return span_offset<kType, RawSpan<kType>::kColumns>(rows.in_bands, span);
}

// Starts the copy of span `span` of the tile's rows. Past the end of a row: zeros, which every format reads
// as the value 0. A thread has the same piece of every kTogether-th row, so that little is worked out for
// each. kIsAligned: rows and spans are whole pieces of 16 bytes.
template <TensorType kType, bool kIsAligned = false>
__device__ __forceinline__ void load_span(const RowRun& rows, int n_rows, int span, uint32_t to, int thread) {
  using S = RawSpan<kType>;
  constexpr int kPieces = kIsAligned ? S::kRowBytes / 16 : S::kPieces, kTogether = kTileThreads / kPieces;
  if (thread >= kTogether * kPieces) return;
  const uint8_t* aligned_first =
      rows.first - (reinterpret_cast<uintptr_t>(rows.first) & 15);  // where nothing is read
  const int row = thread / kPieces, piece = thread % kPieces;
  n_rows = min(n_rows, kTileRows) - row;
  const auto n_left = static_cast<int>(
      min(rows.row_bytes - static_cast<uint32_t>(span) * S::kRowBytes, S::kRowBytes + 16u));  // of a row
  const uint8_t* span_begin = rows.first + raw_offset<kType>(rows, static_cast<uint32_t>(span));
  to += row * S::kPitch + piece * 16;
  DSV32_UNROLLED (int i = 0; i < (kTileRows + kTogether - 1) / kTogether; ++i) {
    if (i * kTogether >= n_rows) break;
    const uint8_t* begin = span_begin + rows.row_offset(static_cast<uint32_t>(row + i * kTogether));
    const int at = 16 * piece - (kIsAligned ? 0 : static_cast<int>(reinterpret_cast<uintptr_t>(begin) & 15));
    if (at >= S::kRowBytes) continue;
    const int n_bytes = min(16, max(n_left - at, 0));
    copy_async(to + i * kTogether * S::kPitch, n_bytes > 0 ? begin + at : aligned_first, n_bytes);
  }
}

// 64 values of row `row`: from its raw span, of which they are step `within`, into the tile.
template <TensorType kType>
__device__ __forceinline__ void fill_tile(const uint8_t* raw, const RowRun& rows, int span, int within,
                                          const uint32_t* grid, uint8_t* tile, int row) {
  using S = RawSpan<kType>;
  const uint32_t begin = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(rows.first)) +
                         rows.row_offset(static_cast<uint32_t>(row)) +
                         raw_offset<kType>(rows, static_cast<uint32_t>(span));
  const uint8_t* at = raw + row * S::kPitch + begin % 16;
  uint32_t values[kStep / 2];
  widen64<kType>(at, within * kStep, values, grid);
  DSV32_UNROLLED (int i = 0; i < kStep / 2; i += 4)
    *reinterpret_cast<uint4*>(tile + tile_offset(row, 4 * i)) =
        make_uint4(values[i], values[i + 1], values[i + 2], values[i + 3]);
}

}  // namespace dsv32::cuda
