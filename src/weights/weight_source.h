// The source of a model's matrices and vectors: a file, or random numbers. Callers name them by GGUF name and
// shape; the source places them in the memory of the backend that computes with them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "weights/weights.h"

namespace dsv32 {

class WeightSource {
 public:
  virtual ~WeightSource() = default;

  // Where later calls place what they return.
  void place_on(Backend& backend) { backend_ = &backend; }
  void place_in(Place place) { place_ = place; }

  uint64_t n_bytes_found() const { return n_bytes_; }  // of everything returned so far

  virtual bool has(const std::string& name) const = 0;
  // n_mats matrices [n_rows, n_cols] as they are stored; GGUF shape {n_cols, n_rows, n_mats}. Each may be two
  // matrices, one above the other; then the lower begins at `split_row`.
  virtual WeightMatrix stored(const std::string& name, int64_t n_cols, int64_t n_rows, int64_t n_mats,
                              int64_t split_row = 0) = 0;
  // The same, multiplied by their factors.
  virtual WeightMatrix stack(const std::string& name, int64_t n_cols, int64_t n_rows, int64_t n_mats) = 0;
  WeightMatrix matrix(const std::string& name, int64_t n_cols, int64_t n_rows) {
    return stack(name, n_cols, n_rows, 1);
  }
  // For a stack whose matrices have first_rows rows and below them second_rows: returns the upper parts
  // transposed, and the lower parts.
  virtual std::pair<WeightMatrix, WeightMatrix> halves(const std::string& name, int64_t n_cols,
                                                       int64_t first_rows, int64_t second_rows,
                                                       int64_t n_mats) = 0;
  virtual Vector vector(const std::string& name, int64_t n) = 0;
  // The factors of a stack's matrices: [n_mats], or empty when all are 1.
  virtual std::vector<float> scales(const std::string& name, int64_t n_mats) = 0;

  Vector placed(const std::vector<float>& values, const char* what) {
    n_bytes_ += values.size() * sizeof(float);
    if (!is_real_) return {};
    Vector vector(*backend_, Place::device, static_cast<int64_t>(values.size()), what);
    backend_->upload(vector.data(), values.data(), vector.n_bytes());
    return vector;
  }

 protected:
  // If not is_real, nothing is placed: matrices have only shapes, and vectors are empty.
  explicit WeightSource(bool is_real) : is_real_(is_real) {}

  static WeightMatrix shaped(const uint8_t* data, TensorType type, int64_t n_rows, int64_t n_cols,
                             int64_t n_mats) {
    WeightMatrix matrix{data, type, n_rows, n_cols, n_mats, row_bytes(type, n_cols)};
    matrix.mat_bytes = matrix.row_bytes * static_cast<size_t>(n_rows);
    return matrix;
  }
  // Memory for a matrix. Where the backend keeps bands, each n_rows rows are put into bands on their own.
  uint8_t* alloc_rows(WeightMatrix& matrix, int64_t n_rows) {
    if (place_ == Place::device && backend_->keeps_bands())
      matrix.step_bytes = band_step_bytes(matrix.type, n_rows, matrix.n_cols);
    const size_t n_bytes = matrix.row_bytes * static_cast<size_t>(matrix.n_rows * matrix.n_mats);
    uint8_t* memory =
        backend_->alloc_weights(place_, n_bytes, matrix.row_bytes * static_cast<size_t>(n_rows));
    matrix.data = memory;
    return memory;
  }

  const bool is_real_;
  Backend* backend_ = nullptr;
  Place place_ = Place::device;
  uint64_t n_bytes_ = 0;
};

// All of a model's weights, by the one table of names and shapes (weights.cpp).
Weights bind_weights(WeightSource& source, const ModelArgs& args, const WeightPlaces& places);
// Only shapes and counts of bytes, from a source that is not real.
Weights bind_shapes(WeightSource& source, const ModelArgs& args);

}  // namespace dsv32
