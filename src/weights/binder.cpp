#include "weights/binder.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/text.h"
#include "weights/config.h"

namespace dsv32 {
namespace {

std::string shape_text(const std::array<uint64_t, 4>& ne) {
  std::string text = "[";
  for (size_t i = 0; i < 4; ++i)
    if (i == 0 || ne[i] != 1 ||
        std::any_of(ne.begin() + static_cast<long>(i), ne.end(), [](auto n) { return n != 1; }))
      text += format("%s%llu", i ? ", " : "", static_cast<unsigned long long>(ne[i]));
  return text + "]";
}

std::array<uint64_t, 4> shape_of(int64_t n_cols, int64_t n_rows, int64_t n_mats) {
  return {static_cast<uint64_t>(n_cols), static_cast<uint64_t>(n_rows), static_cast<uint64_t>(n_mats), 1};
}

}  // namespace

const GgufTensor& Binder::find(const std::string& name, const std::array<uint64_t, 4>& ne) {
  const GgufTensor* tensor = file_.find_tensor(name);
  if (!tensor)
    fail(ErrorKind::model, format("%s: tensor %s is missing", visible(file_.path()).c_str(), name.c_str()));
  if (tensor->n_bytes == 0)
    fail(ErrorKind::model,
         format("%s: tensor %s has %s%s, which dsv32 cannot read", visible(file_.path()).c_str(),
                name.c_str(), find_traits(tensor->type) ? "type " : "", type_name(tensor->type)),
         "use a file of the common types: Q8_0, Q2_K to Q6_K, IQ1_S to IQ4_XS, MXFP4, NVFP4");
  if (tensor->ne != ne)
    fail(ErrorKind::model,
         format("%s: tensor %s at offset %llu has shape %s, expected %s", visible(file_.path()).c_str(),
                name.c_str(), static_cast<unsigned long long>(tensor->offset), shape_text(tensor->ne).c_str(),
                shape_text(ne).c_str()));
  found_.insert(tensor);
  return *tensor;
}

// ik_llama.cpp writes the matrices of heads one below the other as a single one.
const GgufTensor& Binder::find_rows(const std::string& name, int64_t n_cols, int64_t n_rows, int64_t n_mats) {
  const GgufTensor* tensor = file_.find_tensor(name);
  const auto flat = shape_of(n_cols, n_rows * n_mats, 1);
  return find(name, tensor && tensor->ne == flat ? flat : shape_of(n_cols, n_rows, n_mats));
}

WeightMatrix Binder::whole(const GgufTensor& tensor, int64_t n_cols, int64_t n_rows, int64_t n_mats) const {
  WeightMatrix matrix{tensor.data, tensor.type, n_rows, n_cols, n_mats, row_bytes(tensor.type, n_cols)};
  matrix.mat_bytes = matrix.row_bytes * static_cast<size_t>(n_rows);
  return matrix;
}

uint8_t* Binder::alloc(uint64_t n_bytes, size_t n_part_bytes) {
  return backend_->alloc_weights(place_, n_bytes, n_part_bytes);
}

WeightMatrix Binder::stored(const std::string& name, int64_t n_cols, int64_t n_rows, int64_t n_mats,
                            int64_t split_row) {
  const GgufTensor& tensor = find_rows(name, n_cols, n_rows, n_mats);
  n_bytes_found_ += tensor.n_bytes;
  WeightMatrix matrix = whole(tensor, n_cols, n_rows, n_mats);
  if (is_mapped()) return matrix;
  const int64_t n_part_rows = std::gcd(split_row, n_rows);
  uint8_t* to = alloc(tensor.n_bytes, matrix.row_bytes * static_cast<size_t>(n_part_rows));
  loader_->add(tensor, *backend_, place_, to);
  matrix.data = to;
  if (place_ == Place::device && backend_->keeps_bands())
    matrix.step_bytes = band_step_bytes(matrix.type, n_part_rows, n_cols);
  if (matrix.step_bytes > 0) banded_.emplace_back(backend_, matrix);
  return matrix;
}

WeightMatrix Binder::stack(const std::string& name, int64_t n_cols, int64_t n_rows, int64_t n_mats) {
  std::vector<float> factors = scales(name, n_mats);
  if (factors.empty()) return stored(name, n_cols, n_rows, n_mats);
  const GgufTensor& tensor = find_rows(name, n_cols, n_rows, n_mats);
  return made({.from = &tensor,
               .type = MadeMatrix::type_for(tensor.type, true),
               .n_mats = n_mats,
               .n_rows = n_rows,
               .n_cols = n_cols,
               .stored_rows = n_rows,
               .scales = std::move(factors)});
}

WeightMatrix Binder::made(MadeMatrix from) {
  n_bytes_found_ += from.n_bytes();
  WeightMatrix matrix{from.from->data, from.type,   from.n_rows,
                      from.n_cols,     from.n_mats, row_bytes(from.type, from.n_cols)};
  matrix.mat_bytes = matrix.row_bytes * static_cast<size_t>(matrix.n_rows);
  if (!loader_) return matrix;
  uint8_t* to = alloc(from.n_bytes(), 0);
  matrix.data = to;
  loader_->add(std::move(from), *backend_, backend_->works_in_host_memory() ? Place::host : place_, to);
  return matrix;
}

std::pair<WeightMatrix, WeightMatrix> Binder::halves(const std::string& name, int64_t n_cols,
                                                     int64_t first_rows, int64_t second_rows,
                                                     int64_t n_mats) {
  const int64_t n_rows = first_rows + second_rows;
  const std::vector<float> factors = scales(name, n_mats);
  const GgufTensor& tensor = find_rows(name, n_cols, n_rows, n_mats);
  MadeMatrix half{.from = &tensor,
                  .type = MadeMatrix::type_for(tensor.type, !factors.empty()),
                  .n_mats = n_mats,
                  .n_rows = n_cols,
                  .n_cols = first_rows,
                  .stored_rows = n_rows,
                  .is_transposed = true,
                  .scales = factors};
  const WeightMatrix first = made(half);
  if (!factors.empty()) {
    half.n_rows = second_rows, half.n_cols = n_cols, half.first_row = first_rows, half.is_transposed = false;
    return {first, made(half)};
  }
  WeightMatrix second = whole(tensor, n_cols, n_rows, n_mats);
  second.data = second.row(0, first_rows), second.n_rows = second_rows;
  const uint64_t n_bytes = second.row_bytes * static_cast<uint64_t>(second_rows);  // of each matrix
  n_bytes_found_ += n_bytes * static_cast<uint64_t>(n_mats);
  if (is_mapped()) return {first, second};
  uint8_t* to = alloc(n_bytes * static_cast<uint64_t>(n_mats), 0);
  for (int64_t mat = 0; mat < n_mats; ++mat)
    loader_->add(tensor, static_cast<uint64_t>(second.row(mat, 0) - tensor.data), n_bytes, *backend_, place_,
                 to + static_cast<uint64_t>(mat) * n_bytes);
  second.data = to, second.mat_bytes = n_bytes;
  if (backend_->keeps_bands()) second.step_bytes = band_step_bytes(second.type, second_rows, n_cols);
  if (second.step_bytes > 0) banded_.emplace_back(backend_, second);
  return {first, second};
}

Vector Binder::vector(const std::string& name, int64_t n) {
  const GgufTensor& tensor = find(name, shape_of(n, 1, 1));
  std::vector<float> values(static_cast<size_t>(n));
  if (loader_) dequantize_row(tensor.type, tensor.data, values.data(), n);
  return placed(values, name.c_str());
}

Vector Binder::placed(const std::vector<float>& values, const char* what) {
  n_bytes_found_ += values.size() * sizeof(float);
  if (!loader_) return {};
  Vector placed(*backend_, Place::device, static_cast<int64_t>(values.size()), what);
  backend_->upload(placed.data(), values.data(), placed.n_bytes());
  return placed;
}

std::vector<float> Binder::scales(const std::string& name, int64_t n_mats) {
  std::string scale = name.substr(0, name.rfind('.')) + ".scale";
  if (!has(scale)) scale = name + ".scale";
  const GgufTensor* there = file_.find_tensor(scale);
  if (!there) return {};
  const int64_t n = there->ne[0] == 1 ? 1 : n_mats;  // one for all
  const GgufTensor& tensor = find(scale, shape_of(n, 1, 1));
  std::vector<float> values(static_cast<size_t>(n));
  dequantize_row(tensor.type, tensor.data, values.data(), n);
  if (!std::ranges::all_of(values, [](float value) { return std::isfinite(value); }))
    fail(ErrorKind::model, format("%s: tensor %s holds a factor that is no finite number",
                                  visible(file_.path()).c_str(), scale.c_str()));
  if (std::ranges::all_of(values, [](float value) { return value == 1; })) return {};
  values.resize(static_cast<size_t>(n_mats), values.front());
  return values;
}

// Scales of activations belong to the arithmetic of other programs. Of a file that has attn_kv_b both ways
// one is enough.
void Binder::refuse_unread(int64_t end_layer) const {
  std::vector<std::string> unread;
  for (const GgufTensor& tensor : file_.tensors()) {
    const int64_t block = block_of(tensor.name);
    if (block < 0 || block >= end_layer || found_.contains(&tensor)) continue;
    const std::string blk = format("blk.%lld.", as_ll(block));
    if (tensor.name.ends_with(".input_scale") ||
        (tensor.name.starts_with(blk + "attn_kv_b.") && has(blk + "attn_k_b.weight")))
      continue;
    unread.push_back(tensor.name);
  }
  if (!unread.empty())
    fail(ErrorKind::model,
         format("%s: dsv32 does not compute with tensor %s: without %s the answers would be others",
                visible(file_.path()).c_str(), some_names(unread).c_str(), unread.size() > 1 ? "them" : "it"),
         "the file is of another kind of model than DeepSeek-V3.2, or of a newer converter");
}

}  // namespace dsv32
