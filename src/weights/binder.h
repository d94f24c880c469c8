// Finds a file's tensors by name, checks their shapes and has them loaded where a backend can use them.
//
// Knows which tensors were found: what is left of a layer in the end would have changed the answers, and is
// refused by name. Factors of whole matrices (`X.scale`, or `X.weight.scale` as some write it) are either
// multiplied into a matrix while it is loaded (stack, matrix) or left to the caller (stored, scales).
#pragma once

#include <array>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "gguf/gguf.h"
#include "weights/loader.h"

namespace dsv32 {

class Binder {
 public:
  // Both must outlive it. Without a loader nothing is placed: matrices have shapes, vectors nothing.
  Binder(const GgufFile& file, Loader* loader) : file_(file), loader_(loader) {}

  // Where what is found from now on is placed.
  void place_on(Backend& backend) { backend_ = &backend; }
  void place_in(Place place) { place_ = place; }

  // When all of it is there.
  void put_in_bands() const {
    for (const auto& [backend, matrix] : banded_) backend->put_in_bands(matrix);
  }

  uint64_t n_bytes_found() const { return n_bytes_found_; }
  bool has(const std::string& name) const { return file_.find_tensor(name) != nullptr; }

  // All that follow throw Error{model} naming the tensor that is missing, of another shape, or of a type that
  // is not computed.

  // n_mats matrices [n_rows, n_cols] as they are stored; GGUF shape {n_cols, n_rows, n_mats}, or all rows in
  // one matrix. Each may be two, one above the other, of which the lower begins at `split_row`.
  WeightMatrix stored(const std::string& name, int64_t n_cols, int64_t n_rows, int64_t n_mats,
                      int64_t split_row = 0);
  WeightMatrix stack(const std::string& name, int64_t n_cols, int64_t n_rows, int64_t n_mats);
  WeightMatrix matrix(const std::string& name, int64_t n_cols, int64_t n_rows) {
    return stack(name, n_cols, n_rows, 1);
  }
  // Of a stack whose matrices have first_rows rows and below them second_rows: the first ones transposed, and
  // the second ones.
  std::pair<WeightMatrix, WeightMatrix> halves(const std::string& name, int64_t n_cols, int64_t first_rows,
                                               int64_t second_rows, int64_t n_mats);

  Vector vector(const std::string& name, int64_t n);
  Vector placed(const std::vector<float>& values, const char* what);

  // The factors of a stack's matrices: [n_mats], or none where all are 1.
  std::vector<float> scales(const std::string& name, int64_t n_mats);

  // Throws Error{model} naming the tensors of blocks before end_layer that were not found; those that change
  // nothing are none of them.
  void refuse_unread(int64_t end_layer) const;

 private:
  const GgufTensor& find(const std::string& name, const std::array<uint64_t, 4>& ne);
  const GgufTensor& find_rows(const std::string& name, int64_t n_cols, int64_t n_rows, int64_t n_mats);
  WeightMatrix whole(const GgufTensor& tensor, int64_t n_cols, int64_t n_rows, int64_t n_mats) const;
  WeightMatrix made(MadeMatrix matrix);
  uint8_t* alloc(uint64_t n_bytes, size_t n_part_bytes);
  bool is_mapped() const { return !loader_ || backend_->works_in_host_memory(); }

  const GgufFile& file_;
  Loader* loader_;
  Backend* backend_ = nullptr;
  Place place_ = Place::device;
  std::vector<std::pair<Backend*, WeightMatrix>> banded_;
  std::set<const GgufTensor*> found_;
  uint64_t n_bytes_found_ = 0;
};

}  // namespace dsv32
