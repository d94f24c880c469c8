// The layout of a GGUF file: header, keys, tensor directory, padding, tensor data. Version 3, little-endian.
//
// Written in one pass front to back; the data offsets in the directory follow from the sizes alone.
#include "tests/support/gguf_writer.h"

#include <cstdio>
#include <stdexcept>
#include <utility>

#include "base/error.h"
#include "base/numbers.h"

namespace dsv32 {
namespace {

// Appends to the image, noting where each field begins.
class Layout {
 public:
  explicit Layout(GgufImage& image) : image_(image) {}

  void mark(const std::string& field) { image_.offsets[field] = image_.bytes.size(); }
  void put(const Bytes& bytes) { image_.bytes.insert(image_.bytes.end(), bytes.begin(), bytes.end()); }
  template <typename T>
  void put(const std::string& field, T value) {
    mark(field);
    put(GgufWriter::bytes_of(&value, 1));
  }
  // Puts a u64 length, marked "`field` length", and the text, marked `field`.
  void put_text(const std::string& field, std::string_view text) {
    put(field + " length", uint64_t{text.size()});
    mark(field);
    put(GgufWriter::bytes_of(text.data(), text.size()));
  }
  void pad_to(size_t alignment) {
    while (image_.bytes.size() % alignment != 0) image_.bytes.push_back(0);
  }

 private:
  GgufImage& image_;
};

void append_text(Bytes& bytes, std::string_view text) {
  const uint64_t n_bytes = text.size();
  const Bytes length = GgufWriter::bytes_of(&n_bytes, 1);
  bytes.insert(bytes.end(), length.begin(), length.end());
  bytes.insert(bytes.end(), text.begin(), text.end());
}

size_t padded(size_t n_bytes, size_t alignment) { return (n_bytes + alignment - 1) / alignment * alignment; }

}  // namespace

void GgufImage::write(const std::string& path) const {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  const bool is_written =
      file && (bytes.empty() || std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size());
  if ((file && std::fclose(file) != 0) || !is_written) fail(ErrorKind::io, "cannot write " + path);
}

void GgufWriter::add(const std::string& key, std::string_view text) {
  Bytes payload;
  append_text(payload, text);
  add_raw(key, ValueType::string, std::move(payload));
}

void GgufWriter::add_array(const std::string& key, const std::vector<std::string>& texts) {
  Bytes payload;
  for (const std::string& text : texts) append_text(payload, text);
  add_raw_array(key, ValueType::string, texts.size(), std::move(payload));
}

void GgufWriter::add_raw(const std::string& key, ValueType type, Bytes payload) {
  keys_.push_back({key, type, false, 1, std::move(payload)});
}

void GgufWriter::add_raw_array(const std::string& key, ValueType element_type, uint64_t count,
                               Bytes payload) {
  keys_.push_back({key, element_type, true, count, std::move(payload)});
}

void GgufWriter::add_tensor(const std::string& name, TensorType type, std::vector<uint64_t> ne, Bytes data) {
  tensors_.push_back({name, type, std::move(ne), std::move(data)});
}

GgufWriter GgufWriter::as_f32() const {
  GgufWriter writer = *this;
  for (Tensor& tensor : writer.tensors_) tensor.set(TensorType::f32, tensor.values());
  return writer;
}

std::vector<float> GgufWriter::Tensor::values() const {
  std::vector<float> values(data.size() / traits(type).block_bytes * traits(type).block_values);
  dequantize_row(type, data.data(), values.data(), static_cast<int64_t>(values.size()));
  return values;
}

void GgufWriter::Tensor::set(TensorType new_type, const std::vector<float>& values) {
  type = new_type;
  if (type == TensorType::f32) {
    data = bytes_of(values.data(), values.size());
    return;
  }
  std::vector<uint16_t> bits;
  for (const float value : values)
    bits.push_back(type == TensorType::f16 ? f32_to_f16(value) : f32_to_bf16(value));
  data = bytes_of(bits.data(), bits.size());
}

GgufWriter::Tensor& GgufWriter::tensor(const std::string& name) {
  for (Tensor& tensor : tensors_)
    if (tensor.name == name) return tensor;
  throw std::out_of_range(name);
}

void GgufWriter::remove_tensor(const std::string& name) {
  std::erase_if(tensors_, [&](const Tensor& tensor) { return tensor.name == name; });
}

GgufImage GgufWriter::image() const {
  GgufImage image;
  Layout layout(image);
  layout.put("magic", uint32_t{0x46554747});
  layout.put("version", uint32_t{3});
  layout.put("n_tensors", uint64_t{tensors_.size()});
  layout.put("n_kv", uint64_t{keys_.size()});
  for (const Key& key : keys_) {
    const std::string field = "key " + key.name;
    layout.put_text(field, key.name);
    layout.put(field + " type", key.is_array ? ValueType::array : key.type);
    if (key.is_array) {
      layout.put(field + " element type", key.type);
      layout.put(field + " count", key.count);
    }
    layout.mark(field + " value");
    layout.put(key.payload);
  }
  uint64_t offset = 0;
  for (const Tensor& tensor : tensors_) {
    const std::string field = "tensor " + tensor.name;
    layout.put_text(field, tensor.name);
    layout.put(field + " n_dims", static_cast<uint32_t>(tensor.ne.size()));
    for (size_t i = 0; i < tensor.ne.size(); ++i)
      layout.put(field + " ne[" + std::to_string(i) + "]", tensor.ne[i]);
    layout.put(field + " type", tensor.type);
    layout.put(field + " offset", offset);
    offset += padded(tensor.data.size(), alignment_);
  }
  layout.pad_to(alignment_);
  layout.mark("data");
  for (const Tensor& tensor : tensors_) {
    layout.pad_to(alignment_);
    layout.mark("tensor " + tensor.name + " data");
    layout.put(tensor.data);
  }
  return image;
}

}  // namespace dsv32
