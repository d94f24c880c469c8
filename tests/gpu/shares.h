// What the tests of a team share: values and weights in a backend's memory, and the shares that its members
// have of them.
#pragma once

#include <cmath>
#include <vector>

#include "tests/gpu/products.h"

namespace dsv32 {

using Floats = std::vector<float>;

template <typename T>
Buffer<T> placed(Backend& backend, const std::vector<T>& values) {
  Buffer<T> buffer(backend, Place::device, std::ssize(values), "a test");
  backend.upload(buffer.data(), values.data(), values.size() * sizeof(T));
  return buffer;
}
inline Buffer<float> room(Backend& backend, int64_t n) {
  return placed(backend, Floats(static_cast<size_t>(n), NAN));
}
inline Floats read(Backend& backend, const Buffer<float>& buffer) {
  Floats values(static_cast<size_t>(buffer.n()));
  backend.download(values.data(), buffer.data(), buffer.n_bytes());
  return values;
}

struct Shape {
  int64_t n_rows, width;
  bool is_by_rows = false;
  int64_t n() const { return n_rows * width; }
};

// The member's part of all values.
inline Floats part_of(const Floats& all, const Shape& shape, const Member& member) {
  if (shape.is_by_rows)
    return {all.begin() + member.begin(shape.n_rows) * shape.width,
            all.begin() + member.end(shape.n_rows) * shape.width};
  Floats part;
  for (int64_t row = 0; row < shape.n_rows; ++row)
    part.insert(part.end(), all.begin() + row * shape.width + member.begin(shape.width),
                all.begin() + row * shape.width + member.end(shape.width));
  return part;
}

struct HostStack {
  TensorType type;
  int64_t n_mats, n_rows, n_cols;
  std::vector<uint8_t> bytes;

  HostStack(TensorType type_, int64_t n_mats_, int64_t n_rows_, int64_t n_cols_, uint64_t seed)
      : type(type_),
        n_mats(n_mats_),
        n_rows(n_rows_),
        n_cols(n_cols_),
        bytes(TestWeights::make(type_, n_mats_ * n_rows_, n_cols_, seed)) {}
};

// n rows of each of n_some matrices, as the loader places them.
inline WeightMatrix place(Backend& backend, const HostStack& stack, int64_t first, int64_t n,
                          int64_t first_mat, int64_t n_some) {
  WeightMatrix w;
  w.type = stack.type, w.n_rows = n, w.n_cols = stack.n_cols, w.n_mats = n_some;
  w.row_bytes = row_bytes(w.type, w.n_cols), w.mat_bytes = w.row_bytes * static_cast<size_t>(n);
  w.n_whole_rows = stack.n_rows, w.n_whole_mats = stack.n_mats;
  std::vector<uint8_t> bytes;
  for (int64_t mat = first_mat; mat < first_mat + n_some; ++mat) {
    const auto from =
        stack.bytes.begin() + static_cast<std::ptrdiff_t>(w.row_bytes) * (mat * stack.n_rows + first);
    bytes.insert(bytes.end(), from, from + static_cast<std::ptrdiff_t>(w.mat_bytes));
  }
  uint8_t* memory = backend.alloc_weights(Place::device, bytes.size(), 0);
  backend.upload(memory, bytes.data(), bytes.size());
  w.data = memory, w.step_bytes = band_step_bytes(w.type, n, w.n_cols);
  if (w.step_bytes > 0) backend.put_in_bands(w);
  return w;
}
inline WeightMatrix place(Backend& backend, const HostStack& stack, const Member& member = {}) {
  const int64_t first = member.begin(stack.n_rows);
  return place(backend, stack, first, member.end(stack.n_rows) - first, 0, stack.n_mats);
}

}  // namespace dsv32
