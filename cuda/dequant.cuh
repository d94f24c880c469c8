// Stored weights of any type on the device: the list of types, sixteen values at a time as f32, and where
// rows lie.
#pragma once

#include <iterator>

#include "backend/matrix.h"
#include "cuda/codes_grids.cuh"

namespace dsv32::cuda {

// F32, F16 and BF16 have values instead of codes.
template <TensorType kType>
inline constexpr bool kIsFloat =
    kType == TensorType::f32 || kType == TensorType::f16 || kType == TensorType::bf16;

template <TensorType kType>
DSV32_DEVICE float load_float(const uint8_t* row, int64_t i) {
  if constexpr (kType == TensorType::f32)
    return reinterpret_cast<const float*>(row)[i];
  else if constexpr (kType == TensorType::f16)
    return load_f16(row + 2 * i);
  else
    return __uint_as_float(static_cast<uint32_t>(reinterpret_cast<const uint16_t*>(row)[i]) << 16);
}

// The types for which kernels are compiled.
constexpr TensorType kComputedTypes[] = {
    TensorType::f32,     TensorType::f16,    TensorType::bf16,  TensorType::q4_0,    TensorType::q4_1,
    TensorType::q5_0,    TensorType::q5_1,   TensorType::q8_0,  TensorType::q2_k,    TensorType::q3_k,
    TensorType::q4_k,    TensorType::q5_k,   TensorType::q6_k,  TensorType::iq1_s,   TensorType::iq1_m,
    TensorType::iq2_xxs, TensorType::iq2_xs, TensorType::iq2_s, TensorType::iq3_xxs, TensorType::iq3_s,
    TensorType::iq4_nl,  TensorType::iq4_xs, TensorType::mxfp4, TensorType::nvfp4};

// Calls work.operator()<type>(). Throws Error{internal} for a type without kernels.
template <typename Work>
void with_type(TensorType type, const Work& work) {
  const auto try_all = [&]<size_t... i>(std::index_sequence<i...>) {
    return ((type == kComputedTypes[i] && (work.template operator()<kComputedTypes[i]>(), true)) || ...);
  };
  if (!try_all(std::make_index_sequence<std::size(kComputedTypes)>()))
    fail(ErrorKind::internal, format("no kernel reads weights of type %u", static_cast<unsigned>(type)));
}

// out [16]: values col..col+15 of a row of codes, equal to the reference up to the rounding of one fma; col
// is a multiple of 16. grid: see fill_grid.
template <TensorType kType>
DSV32_DEVICE void dequantize16(const uint8_t* row, int64_t col, float* out, const uint32_t* grid) {
  using Format = Codes<kType>;
  const uint8_t* block = row + col / Format::kBlockValues * Format::kBlockBytes;
  const int i16 = static_cast<int>(col % Format::kBlockValues);
  const ScaleMin s = Format::scale(block, i16);
  DSV32_UNROLL for (int j = 0; j < 16; j += 4) {
    float codes[4];
    codes_to_floats(Format::codes4(block, i16, j, grid), codes);
    DSV32_UNROLL for (int i = 0; i < 4; ++i) out[j + i] =
        Format::kHasMin ? fmaf(s.scale, codes[i], s.min) : s.scale * codes[i];
  }
}

// ---- where a row of a matrix lies on the device: whole, or in a band (backend/matrix.h) ----

// A step of a band's row, for types with codes.
template <TensorType kType>
constexpr int kStepColumns = static_cast<int>(band_columns(kType));
template <TensorType kType>
constexpr int kStepBytes = kStepColumns<kType> / Codes<kType>::kBlockValues* Codes<kType>::kBlockBytes;

// Bytes from one row of a band to the next. Rows that lie whole count as bands too.
__host__ DSV32_DEVICE size_t row_apart(const WeightMatrix& w) {
  return w.step_bytes ? w.step_bytes : w.row_bytes;
}

// The first byte of a row.
DSV32_DEVICE const uint8_t* row_of(const WeightMatrix& w, int64_t mat, int64_t row) {
  return w.data + static_cast<size_t>(mat) * w.mat_bytes +
         static_cast<size_t>(row / kBandRows * kBandRows) * w.row_bytes +
         static_cast<size_t>(row % kBandRows) * row_apart(w);
}

// Bytes of kColumns columns, whole blocks.
template <TensorType kType, int kColumns>
constexpr uint32_t span_bytes() {
  if constexpr (kIsFloat<kType>)
    return kColumns * (kType == TensorType::f32 ? 4 : 2);
  else
    return kColumns / Codes<kType>::kBlockValues * Codes<kType>::kBlockBytes;
}

// Offset in a row of its columns from span * kColumns on; kColumns divides a step.
template <TensorType kType, int kColumns>
DSV32_DEVICE uint32_t span_offset(bool in_bands, uint32_t span) {
  if constexpr (kIsFloat<kType>) {
    return span * span_bytes<kType, kColumns>();
  } else {
    constexpr uint32_t kSpans = kStepColumns<kType> / kColumns, kBytes = kStepBytes<kType> / kSpans;
    return in_bands ? span / kSpans * (kBandRows * kStepBytes<kType>)+span % kSpans * kBytes : span * kBytes;
  }
}

}  // namespace dsv32::cuda
