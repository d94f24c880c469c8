// Rows of weights in any GGUF format on their way to the tensor cores (gemm_tile.cuh): cp.async copies the
// raw bytes of a tile, one span of columns ahead, and the codes become fp16.
#pragma once

#include "cuda/gemm_tile.cuh"

namespace dsv32::cuda {

// ---- sixteen stored weights as fp16 ----

// f16(scale * code + min) takes a byte permutation and an fma per value. A code, made unsigned by an offset,
// is put into the mantissa of a power of two, and the fma subtracts power and offset. Compared with rounding
// the reference's f32 value, this is off by the rounding of the fma's constant: less than scale * 2^-9 for
// formats of large codes, 2^-16 for the others. That is at most 2^-15 of a block's largest value, where fp16
// rounds off 2^-11.
//
// No scale is applied. Values from 2^-14 to 65504 keep eleven bits. Smaller ones err by 2^-25 at most, which
// is nothing beside the roundings of ordinary values (0.01) in the same sums. Larger ones, which only F32,
// BF16 and absurd scales have, become 65504.

// Formats with codes down to -127 or up to 127. Codes of the others are within -64..63, or within 0..31 if
// there is a min.
template <TensorType kType>
inline constexpr bool kHasLargeCodes =
    kType == TensorType::q8_0 || kType == TensorType::iq4_nl || kType == TensorType::iq4_xs;

// The offset that makes codes unsigned. The fma subtracts it, and the power of two that holds the code.
template <TensorType kType>
inline constexpr uint32_t kToUnsigned = Codes<kType>::kHasMin   ? 0
                                        : kHasLargeCodes<kType> ? 128
                                                                : 64;

template <TensorType kType>
DSV32_DEVICE float widen_constant(const ScaleMin& s) {
  return fmaf(-((kHasLargeCodes<kType> ? 32768.0f : 128.0f) + static_cast<float>(kToUnsigned<kType>)),
              s.scale, s.min);
}

// Values of four codes of codes4(): scale * code + min; out: two words. constant: from widen_constant().
template <TensorType kType>
DSV32_DEVICE void widen4(uint32_t codes, float scale, float constant, uint32_t* out) {
  constexpr bool kIsLarge = kHasLargeCodes<kType>;
  constexpr uint32_t kPower =
      kIsLarge ? 0x47000000u : 0x43000000u;  // 2^15, 2^7: the code becomes byte 1 or 2
  if constexpr (!Codes<kType>::kHasMin)
    codes = (codes ^ 0x80808080u) - (128 - kToUnsigned<kType>)*0x01010101u;
  float values[4];
  DSV32_UNROLL for (int i = 0; i < 4; ++i) {
    // Bytes of the result, lowest first: 0, (code or 0), (0 or code), 0x43 or 0x47.
    const uint32_t selector =
        kIsLarge ? 0x7404u | static_cast<uint32_t>(i) << 4 : 0x7044u | static_cast<uint32_t>(i) << 8;
    values[i] = fmaf(scale, __uint_as_float(__byte_perm(codes, kPower, selector)), constant);
  }
  out[0] = pack_f16(values[0], values[1]);
  out[1] = pack_f16(values[2], values[3]);
}

// The block of a span that has `column`, and the column's place in the block.
template <TensorType kType>
struct InBlock {
  const uint8_t* block;
  int i16;
  DSV32_DEVICE InBlock(const uint8_t* span, uint32_t column)
      : block(span + column / Codes<kType>::kBlockValues * Codes<kType>::kBlockBytes),
        i16(static_cast<int>(column % Codes<kType>::kBlockValues)) {}
};

// ---- rows on their way into a tile ----

// A span of a tile's rows in shared memory. Each row's part is copied in whole 16-byte pieces of memory,
// wherever it begins in them.
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

// Consecutive rows of a matrix, from a multiple of kBandRows on.
struct RowRun {
  const uint8_t* first;
  uint32_t row_bytes, row_apart;
  bool in_bands;

  DSV32_DEVICE RowRun(const WeightMatrix& weight, const uint8_t* first_row)
      : first(first_row),
        row_bytes(static_cast<uint32_t>(weight.row_bytes)),
        row_apart(static_cast<uint32_t>(cuda::row_apart(weight))),
        in_bands(weight.step_bytes > 0) {}
  DSV32_DEVICE uint32_t row_offset(uint32_t row) const {
    return row / kBandRows * kBandRows * row_bytes + row % kBandRows * row_apart;
  }
};

// Starts the copy of span `span` of the tile's rows, with kThreads threads. Past the end of a row zeros are
// stored, which every format reads as the value 0. A thread copies the same piece of every kTogether-th row,
// which saves address arithmetic. kIsAligned: rows and spans are whole pieces of 16 bytes.
template <TensorType kType, bool kIsAligned, int kThreads>
DSV32_DEVICE void load_span(const RowRun& rows, int n_rows, int span, uint32_t to, int thread) {
  using S = RawSpan<kType>;
  constexpr int kPieces = kIsAligned ? S::kRowBytes / 16 : S::kPieces, kTogether = kThreads / kPieces;
  if (thread >= kTogether * kPieces) return;
  const uint8_t* aligned_first =
      rows.first - (reinterpret_cast<uintptr_t>(rows.first) & 15);  // an address for copies of 0 bytes
  const int row = thread / kPieces, piece = thread % kPieces;
  n_rows = min(n_rows, kTileRows) - row;
  const auto n_left = static_cast<int>(
      min(rows.row_bytes - static_cast<uint32_t>(span) * S::kRowBytes, S::kRowBytes + 16u));  // of a row
  const uint8_t* span_begin =
      rows.first + span_offset<kType, RawSpan<kType>::kColumns>(rows.in_bands, static_cast<uint32_t>(span));
  to += row * S::kPitch + piece * 16;
  DSV32_UNROLL for (int i = 0; i < (kTileRows + kTogether - 1) / kTogether; ++i) {
    if (i * kTogether >= n_rows) break;
    const uint8_t* begin = span_begin + rows.row_offset(static_cast<uint32_t>(row + i * kTogether));
    const int at = 16 * piece - (kIsAligned ? 0 : static_cast<int>(reinterpret_cast<uintptr_t>(begin) & 15));
    if (at >= S::kRowBytes) continue;
    const int n_bytes = min(16, max(n_left - at, 0));
    copy_async(to + i * kTogether * S::kPitch, n_bytes > 0 ? begin + at : aligned_first, n_bytes);
  }
}

// Where load_span() has put row `row` of span `span`.
template <TensorType kType>
DSV32_DEVICE const uint8_t* loaded_row(const uint8_t* raw, const RowRun& rows, int span, int row) {
  const uint32_t begin =
      static_cast<uint32_t>(reinterpret_cast<uintptr_t>(rows.first)) +
      rows.row_offset(static_cast<uint32_t>(row)) +
      span_offset<kType, RawSpan<kType>::kColumns>(rows.in_bands, static_cast<uint32_t>(span));
  return raw + row * RawSpan<kType>::kPitch + begin % 16;
}

}  // namespace dsv32::cuda
