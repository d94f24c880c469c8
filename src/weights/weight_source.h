// The source of a model's matrices and vectors: a file, or random numbers. Callers name them by GGUF name and
// shape; the source places them in the memory of the backend that computes with them: all rows, or the share
// of a member of a team.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "weights/shares.h"
#include "weights/weights.h"

namespace dsv32 {

// Which rows of a matrix a member of a team has; a device alone has all.
enum class Rows { all, share };

// Which rows of each matrix of a stored stack are meant: all, or n from `first` on.
struct StoredRows {
  int64_t n, first, n_stored;
  StoredRows(int64_t all) : StoredRows(all, 0, all) {}
  StoredRows(int64_t n_meant, int64_t first_meant, int64_t n_all)
      : n(n_meant), first(first_meant), n_stored(n_all) {}
};

class WeightSource {
 public:
  virtual ~WeightSource() = default;

  // Where later calls place what they return.
  void place_on(Backend& backend) { backend_ = &backend; }
  void place_in(Place place) { place_ = place; }
  // Whose share of rows later calls return.
  void divide_for(const Member& member) { member_ = member; }

  uint64_t n_bytes_found() const { return n_bytes_; }  // of everything returned so far

  virtual bool has(const std::string& name) const = 0;
  // n_mats matrices [stored.n, n_cols] as they are stored; GGUF shape {n_cols, stored.n_stored, n_mats}.
  virtual WeightMatrix stored(const std::string& name, int64_t n_cols, StoredRows stored, int64_t n_mats,
                              Rows rows) = 0;
  // The same, multiplied by their factors; and transposed, [n_cols, stored.n].
  virtual WeightMatrix stack(const std::string& name, int64_t n_cols, StoredRows stored, int64_t n_mats,
                             Rows rows = Rows::all) = 0;
  virtual WeightMatrix transposed(const std::string& name, int64_t n_cols, StoredRows stored,
                                  int64_t n_mats) = 0;
  WeightMatrix matrix(const std::string& name, int64_t n_cols, int64_t n_rows, Rows rows = Rows::all) {
    return stack(name, n_cols, n_rows, 1, rows);
  }
  virtual Vector vector(const std::string& name, int64_t n) = 0;
  // The factors of a stack's matrices: [n_mats], or empty when all are 1.
  virtual std::vector<float> scales(const std::string& name, int64_t n_mats) = 0;

  // A view of these rows of each of the matrices, whose data may be null.
  WeightMatrix view(const WeightMatrix& whole, Rows rows) const {
    if (rows == Rows::all || member_.is_alone()) return whole;
    if (!divides_rows(whole.n_rows, member_.n()))
      fail(ErrorKind::internal, format("%lld rows have no equal shares of whole bands", as_ll(whole.n_rows)));
    return some_rows(whole, whole.data ? member_.begin(whole.n_rows) : 0, whole.n_rows / member_.n());
  }
  // Whether, and so how, the head's rows are divided.
  Rows rows_of_head(int64_t vocab_size) const {
    return divides_rows(vocab_size, member_.n()) ? Rows::share : Rows::all;
  }

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
  // Memory for the rows of a view, whose matrices are contiguous there.
  uint8_t* alloc_rows(WeightMatrix& matrix) {
    matrix.mat_bytes = matrix.row_bytes * static_cast<size_t>(matrix.n_rows);
    if (place_ == Place::device && backend_->keeps_bands())
      matrix.step_bytes = band_step_bytes(matrix.type, matrix.n_rows, matrix.n_cols);
    uint8_t* memory = backend_->alloc_weights(place_, n_bytes_of(matrix), matrix.mat_bytes);
    matrix.data = memory;
    return memory;
  }
  static size_t n_bytes_of(const WeightMatrix& matrix) {
    return matrix.row_bytes * static_cast<size_t>(matrix.n_rows * matrix.n_mats);
  }

  const bool is_real_;
  Backend* backend_ = nullptr;
  Place place_ = Place::device;
  Member member_;
  uint64_t n_bytes_ = 0;
};

// All of a model's weights, by the one table of names and shapes (weights.cpp).
Weights bind_weights(WeightSource& source, const ModelArgs& args, const WeightPlaces& places);
// Only shapes and counts of bytes, from a source that is not real.
Weights bind_shapes(WeightSource& source, const ModelArgs& args);

}  // namespace dsv32
