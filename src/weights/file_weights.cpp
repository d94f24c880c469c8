// The weights of a model file: finds tensors by name, checks their shapes, and loads them where a backend can
// use them.
//
// If a layer has a tensor that nothing reads, the file is refused: its answers would be different. Factors of
// whole matrices (`X.scale`, or `X.weight.scale` in some files) are multiplied into a matrix while it is
// loaded (stack) or left to the caller (stored, scales).
#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "weights/layer_bytes.h"
#include "weights/weight_source.h"

namespace dsv32 {
namespace {

using Shape = std::array<uint64_t, 4>;

std::string shape_text(const Shape& ne) {
  size_t n = 4;
  while (n > 1 && ne[n - 1] == 1) --n;
  std::string text;
  for (size_t i = 0; i < n; ++i) text += format("%s%llu", i ? ", " : "[", ull(ne[i]));
  return text + "]";
}

Shape shape_of(int64_t n_cols, int64_t n_rows = 1, int64_t n_mats = 1) {
  return {static_cast<uint64_t>(n_cols), static_cast<uint64_t>(n_rows), static_cast<uint64_t>(n_mats), 1};
}

class FileWeights : public WeightSource {
 public:
  // All must outlive the object. Without a loader it gives shapes only.
  FileWeights(const GgufFile& file, const ModelArgs& args, Loader* loader)
      : WeightSource(loader), file_(file), args_(args), loader_(loader) {}

  bool has(const std::string& name) const override { return file_.find_tensor(name) != nullptr; }

  WeightMatrix stored(const std::string& name, int64_t n_cols, StoredRows stored, int64_t n_mats,
                      Rows rows) override {
    const GgufTensor& tensor = find_rows(name, n_cols, stored.n_stored, n_mats);
    return loaded(tensor, view(mapped(tensor, n_cols, stored, n_mats), rows));
  }

  WeightMatrix stack(const std::string& name, int64_t n_cols, StoredRows stored, int64_t n_mats,
                     Rows rows) override {
    std::vector<float> factors = scales(name, n_mats);
    if (factors.empty()) return this->stored(name, n_cols, stored, n_mats, rows);
    const GgufTensor& tensor = find_rows(name, n_cols, stored.n_stored, n_mats);
    const WeightMatrix wanted = view(mapped(tensor, n_cols, stored, n_mats), rows);
    const auto n_bytes_before = static_cast<size_t>(wanted.data - tensor.data);
    WeightMatrix matrix = made({.from = &tensor,
                                .type = MadeMatrix::type_for(tensor.type, true),
                                .n_mats = n_mats,
                                .n_rows = wanted.n_rows,
                                .n_cols = n_cols,
                                .stored_rows = stored.n_stored,
                                .first_row = static_cast<int64_t>(n_bytes_before / wanted.row_bytes),
                                .scales = std::move(factors)});
    matrix.n_whole_rows = wanted.n_whole_rows;
    return matrix;
  }

  WeightMatrix transposed(const std::string& name, int64_t n_cols, StoredRows stored,
                          int64_t n_mats) override {
    std::vector<float> factors = scales(name, n_mats);
    const GgufTensor& tensor = find_rows(name, n_cols, stored.n_stored, n_mats);
    return made({.from = &tensor,
                 .type = MadeMatrix::type_for(tensor.type, !factors.empty()),
                 .n_mats = n_mats,
                 .n_rows = n_cols,
                 .n_cols = stored.n,
                 .stored_rows = stored.n_stored,
                 .first_row = stored.first,
                 .is_transposed = true,
                 .scales = std::move(factors)});
  }

  Vector vector(const std::string& name, int64_t n) override {
    const GgufTensor& tensor = find(name, shape_of(n));
    std::vector<float> values(static_cast<size_t>(n));
    if (loader_) dequantize_row(tensor.type, tensor.data, values.data(), n);
    return placed(values, name.c_str());
  }

  std::vector<float> scales(const std::string& name, int64_t n_mats) override {
    std::string scale = name.substr(0, name.rfind('.')) + ".scale";
    if (!has(scale)) scale = name + ".scale";
    const GgufTensor* there = file_.find_tensor(scale);
    if (!there) return {};
    const int64_t n = there->ne[0] == 1 ? 1 : n_mats;  // one factor for all
    const GgufTensor& tensor = find(scale, shape_of(n));
    std::vector<float> values(static_cast<size_t>(n));
    dequantize_row(tensor.type, tensor.data, values.data(), n);
    if (!std::ranges::all_of(values, [](float value) { return std::isfinite(value); }))
      refuse(scale, "holds a factor that is no finite number");
    if (std::ranges::all_of(values, [](float value) { return value == 1; })) return {};
    values.resize(static_cast<size_t>(n_mats), values.front());
    return values;
  }

  // Call after the loader has run.
  void put_in_bands() const {
    for (const auto& [backend, matrix] : banded_) backend->put_in_bands(matrix);
  }

  // Throws Error{model} naming the tensors of the layers that nothing has read. Exceptions: scales of
  // activations, which only other programs' arithmetic uses, an indexer that is left out or is the block for
  // drafts' alone, and attn_kv_b where the file has it in two parts too.
  void refuse_unread() const {
    std::vector<std::string> unread;
    for (const GgufTensor& tensor : file_.tensors()) {
      const int64_t block = block_of(tensor.name);
      if (block < 0 || block >= args_.n_all_layers() || found_.contains(&tensor)) continue;
      const std::string blk = format("blk.%lld.", as_ll(block));
      if (tensor.name.ends_with(".input_scale") ||
          ((args_.ignores_indexer || is_of_draft(tensor.name)) && is_of_indexer(tensor)) ||
          (tensor.name.starts_with(blk + "attn_kv_b.") && has(blk + "attn_k_b.weight")))
        continue;
      unread.push_back(tensor.name);
    }
    if (!unread.empty())
      fail(ErrorKind::model,
           format("%s: dsv32 does not compute with tensor %s: without %s the answers would be others",
                  visible(path_of(unread.front())).c_str(), some_names(unread).c_str(),
                  unread.size() > 1 ? "them" : "it"),
           is_of_draft(unread.front())
               ? kWithoutDraft
               : "the file is of another kind of model than DeepSeek-V3.2, or of a newer converter");
  }

 private:
  static constexpr const char* kWithoutDraft = "--draft off runs the model without this block";
  bool is_of_draft(const std::string& name) const { return block_of(name) >= args_.n_layers; }
  // The part that has the tensor or, if none has it, one that has others of its block.
  std::string path_of(const std::string& name) const {
    const GgufTensor* found = file_.find_tensor(name);
    for (const GgufTensor& tensor : file_.tensors())
      if (!found && is_of_draft(name) && block_of(tensor.name) == block_of(name)) found = &tensor;
    return found ? file_.path_of(*found) : file_.path();
  }

  [[noreturn]] void refuse(const std::string& name, const std::string& problem, const char* hint = "") const {
    fail(ErrorKind::model, visible(path_of(name)) + ": tensor " + name + " " + problem,
         is_of_draft(name) ? kWithoutDraft : hint);
  }

  const GgufTensor& find(const std::string& name, const Shape& ne) {
    const GgufTensor* tensor = file_.find_tensor(name);
    if (!tensor) refuse(name, "is missing");
    if (tensor->n_bytes == 0)
      refuse(name,
             format("has %s%s, which dsv32 cannot read", find_traits(tensor->type) ? "type " : "",
                    type_name(tensor->type)),
             "use a file of the common types: Q8_0, Q2_K to Q6_K, IQ1_S to IQ4_XS, MXFP4, NVFP4");
    if (tensor->ne != ne)
      refuse(name, format("at offset %llu has shape %s, expected %s", ull(tensor->offset),
                          shape_text(tensor->ne).c_str(), shape_text(ne).c_str()));
    found_.insert(tensor);
    return *tensor;
  }

  // ik_llama.cpp stacks the heads' matrices into one matrix.
  const GgufTensor& find_rows(const std::string& name, int64_t n_cols, int64_t n_rows, int64_t n_mats) {
    const GgufTensor* tensor = file_.find_tensor(name);
    const Shape flat = shape_of(n_cols, n_rows * n_mats);
    return find(name, tensor && tensor->ne == flat ? flat : shape_of(n_cols, n_rows, n_mats));
  }

  static WeightMatrix mapped(const GgufTensor& tensor, int64_t n_cols, StoredRows stored, int64_t n_mats) {
    WeightMatrix matrix = shaped(tensor.data, tensor.type, stored.n_stored, n_cols, n_mats);
    matrix.data = matrix.row(0, stored.first), matrix.n_rows = stored.n;
    return matrix;
  }

  // The rows of a view of the tensor, where the backend can use them.
  WeightMatrix loaded(const GgufTensor& tensor, const WeightMatrix& rows) {
    n_bytes_ += n_bytes_of(rows);
    if (is_mapped()) return rows;
    WeightMatrix matrix = rows;
    uint8_t* to = alloc_rows(matrix);
    const bool is_dense = matrix.mat_bytes == rows.mat_bytes;
    const size_t n_bytes = is_dense ? n_bytes_of(matrix) : matrix.mat_bytes;
    for (int64_t mat = 0; mat < (is_dense ? 1 : matrix.n_mats); ++mat)
      loader_->add(tensor, static_cast<uint64_t>(rows.row(mat, 0) - tensor.data), n_bytes, *backend_, place_,
                   to + static_cast<size_t>(mat) * n_bytes);
    if (matrix.step_bytes > 0) banded_.emplace_back(backend_, matrix);
    return matrix;
  }

  WeightMatrix made(MadeMatrix from) {
    n_bytes_ += from.n_bytes();
    WeightMatrix matrix = shaped(from.from->data, from.type, from.n_rows, from.n_cols, from.n_mats);
    if (!is_real_) return matrix;
    uint8_t* to = backend_->alloc_weights(place_, from.n_bytes(), 0);
    matrix.data = to;
    loader_->add(std::move(from), *backend_, backend_->works_in_host_memory() ? Place::host : place_, to);
    return matrix;
  }

  bool is_mapped() const { return !is_real_ || backend_->works_in_host_memory(); }

  const GgufFile& file_;
  const ModelArgs& args_;
  Loader* loader_;
  std::vector<std::pair<Backend*, WeightMatrix>> banded_;
  std::set<const GgufTensor*> found_;
};

}  // namespace

std::vector<Weights> load_weights(const GgufFile& file, const ModelArgs& args,
                                  std::span<const WeightPlaces> members, const LoadProgress& progress) {
  Loader loader(file);
  std::deque<FileWeights> sources;
  std::vector<Weights> weights;
  for (const WeightPlaces& places : members) {
    FileWeights& source = sources.emplace_back(file, args, &loader);
    weights.push_back(bind_weights(source, args, places));
    source.refuse_unread();
  }
  loader.run(progress);
  for (const FileWeights& source : sources) source.put_in_bands();
  return weights;
}

ModelBytes model_bytes(const GgufFile& file, const ModelArgs& args) {
  FileWeights source(file, args, nullptr);
  const Weights shapes = bind_shapes(source, args);
  source.refuse_unread();
  return model_bytes(shapes, args);
}

}  // namespace dsv32
