#include "weights/made_matrix.h"

#include <algorithm>
#include <cstring>

#include "base/numbers.h"

namespace dsv32 {
namespace {

void store_as(TensorType type, const float* values, int64_t n, uint8_t* out) {
  if (type == TensorType::f32) {
    std::memcpy(out, values, static_cast<size_t>(n) * sizeof(float));
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    const uint16_t bits = type == TensorType::f16 ? f32_to_f16(values[i]) : f32_to_bf16(values[i]);
    std::memcpy(out + 2 * i, &bits, sizeof bits);
  }
}

// Values [first, first + n) of one matrix.
void read_values(const MadeMatrix& m, int64_t mat, int64_t first, int64_t n, float* out) {
  const int64_t row = mat * m.stored_rows + m.first_row, width = m.is_transposed ? m.n_rows : m.n_cols;
  const uint8_t* begin = m.from->data + static_cast<size_t>(row) * row_bytes(m.from->type, width);
  if (!m.is_transposed) {
    dequantize_row(m.from->type, begin + row_bytes(m.from->type, first), out, n);
    return;
  }
  std::vector<float> stored(static_cast<size_t>(m.n_rows * m.n_cols));
  dequantize_row(m.from->type, begin, stored.data(), m.n_rows * m.n_cols);
  for (int64_t i = 0; i < n; ++i)
    out[i] = stored[static_cast<size_t>((first + i) % m.n_cols * width + (first + i) / m.n_cols)];
}

}  // namespace

TensorType MadeMatrix::type_for(TensorType stored, bool is_scaled) {
  const bool is_kept =
      stored == TensorType::f32 || (!is_scaled && (stored == TensorType::f16 || stored == TensorType::bf16));
  return is_kept ? stored : TensorType::f16;
}

void MadeMatrix::make(uint64_t first_byte, uint64_t n_bytes, uint8_t* out) const {
  const uint32_t value_bytes = traits(type).block_bytes;
  const int64_t n_each = n_rows * n_cols, end = static_cast<int64_t>((first_byte + n_bytes) / value_bytes);
  std::vector<float> values;
  for (int64_t at = static_cast<int64_t>(first_byte / value_bytes), n; at < end; at += n) {
    const int64_t mat = at / n_each, first = at % n_each;
    n = std::min(n_each - first, end - at);
    values.resize(static_cast<size_t>(n));
    read_values(*this, mat, first, n, values.data());
    if (!scales.empty())
      for (float& value : values) value *= scales[static_cast<size_t>(mat)];
    store_as(type, values.data(), n, out);
    out += n * value_bytes;
  }
}

}  // namespace dsv32
