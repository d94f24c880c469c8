// Where a row of a matrix lies on the device: whole, or in a band (backend/matrix.h).
#pragma once

#include "backend/matrix.h"
#include "cuda/dequant.cuh"

namespace dsv32::cuda {

// A step of a band's row, of a type that has codes.
template <TensorType kType>
constexpr int kStepColumns = static_cast<int>(band_columns(kType));
template <TensorType kType>
constexpr int kStepBytes = kStepColumns<kType> / Codes<kType>::kBlockValues * Codes<kType>::kBlockBytes;

// From one row of a band to the next, whether it is one or only 16 rows.
__host__ __device__ __forceinline__ size_t row_apart(const WeightMatrix& w) {
  return w.step_bytes ? w.step_bytes : w.row_bytes;
}

// The first byte of a row.
__device__ __forceinline__ const uint8_t* row_of(const WeightMatrix& w, int64_t mat, int64_t row) {
  return w.data + static_cast<size_t>(mat) * w.mat_bytes +
         static_cast<size_t>(row / kBandRows * kBandRows) * w.row_bytes +
         static_cast<size_t>(row % kBandRows) * row_apart(w);
}

// From there to its columns from a multiple of kColumns on, number `span`; kColumns divides a step.
template <TensorType kType, int kColumns>
__device__ __forceinline__ uint32_t span_offset(bool in_bands, uint32_t span) {
  if constexpr (kIsFloat<kType>) {
    return span * (kColumns * (kType == TensorType::f32 ? 4 : 2));
  } else {
    constexpr uint32_t kSpans = kStepColumns<kType> / kColumns, kBytes = kStepBytes<kType> / kSpans;
    return in_bands ? span / kSpans * (kBandRows * kStepBytes<kType>)+span % kSpans * kBytes : span * kBytes;
  }
}

}  // namespace dsv32::cuda
