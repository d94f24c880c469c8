// Writes small GGUF files for tests: well-formed by default, and damaged one field at a time on request.
//
// Keys and tensors are collected, then laid out in one go. The finished image knows at which byte every field
// lies, so a test can overwrite exactly one ("n_tensors", "key general.alignment value", "tensor a ne[0]")
// and check what the reader says.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "gguf/gguf.h"

namespace dsv32 {

using Bytes = std::vector<uint8_t>;

// The file, and where its fields begin:
//   magic version n_tensors n_kv data
//   key K, key K length, key K type, key K value; of arrays also key K element type, key K count
//   tensor T, tensor T length, tensor T n_dims, tensor T ne[0..3], tensor T type, tensor T offset, tensor T
//   data
struct GgufImage {
  Bytes bytes;
  std::map<std::string, size_t> offsets;

  size_t offset_of(const std::string& field) const { return offsets.at(field); }
  template <typename T>
  void poke(const std::string& field, T value) {
    std::memcpy(bytes.data() + offset_of(field), &value, sizeof value);
  }
  void write(const std::string& path) const;
};

class GgufWriter {
 public:
  template <typename T>
  requires std::is_arithmetic_v<T>
  void add(const std::string& key, T value) { add_raw(key, value_type<T>(), bytes_of(&value, 1)); }
  void add(const std::string& key, std::string_view text);
  void add(const std::string& key, const char* text) { add(key, std::string_view(text)); }
  template <typename T>
  requires(std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) void add_array(const std::string& key,
                                                                               const std::vector<T>& values) {
    add_raw_array(key, value_type<T>(), values.size(), bytes_of(values.data(), values.size()));
  }
  void add_array(const std::string& key, const std::vector<std::string>& texts);

  // Any bytes under any type number; nothing is checked.
  void add_raw(const std::string& key, ValueType type, Bytes payload);
  void add_raw_array(const std::string& key, ValueType element_type, uint64_t count, Bytes payload);

  // ne[0] is contiguous. `data` is stored as given, at the next aligned place.
  void add_tensor(const std::string& name, TensorType type, std::vector<uint64_t> ne, Bytes data);

  // The same with every tensor dequantised to f32.
  GgufWriter as_f32() const;

  struct Tensor {
    std::string name;
    TensorType type{};
    std::vector<uint64_t> ne;
    Bytes data;

    std::vector<float> values() const;
    void set(TensorType new_type, const std::vector<float>& values);  // f32, f16 or bf16
  };
  std::vector<Tensor>& tensors() { return tensors_; }
  Tensor& tensor(const std::string& name);  // throws std::out_of_range
  void remove_tensor(const std::string& name);

  // Changes only the layout; add the key general.alignment as well to state it in the file.
  void set_alignment(size_t alignment) { alignment_ = alignment; }

  GgufImage image() const;
  void write(const std::string& path) const { image().write(path); }

  template <typename T>
  static constexpr ValueType value_type() {
    if constexpr (std::is_same_v<T, bool>)
      return ValueType::boolean;
    else if constexpr (std::is_same_v<T, float>)
      return ValueType::f32;
    else if constexpr (std::is_same_v<T, double>)
      return ValueType::f64;
    else if constexpr (sizeof(T) == 8)
      return std::is_signed_v<T> ? ValueType::i64 : ValueType::u64;
    else if constexpr (sizeof(T) == 4)
      return std::is_signed_v<T> ? ValueType::i32 : ValueType::u32;
    else if constexpr (sizeof(T) == 2)
      return std::is_signed_v<T> ? ValueType::i16 : ValueType::u16;
    else
      return std::is_signed_v<T> ? ValueType::i8 : ValueType::u8;
  }
  template <typename T>
  static Bytes bytes_of(const T* values, size_t n_values) {
    const auto* begin = reinterpret_cast<const uint8_t*>(values);
    return Bytes(begin, begin + n_values * sizeof(T));
  }

 private:
  struct Key {
    std::string name;
    ValueType type{};
    bool is_array = false;
    uint64_t count = 0;
    Bytes payload;
  };
  std::vector<Key> keys_;
  std::vector<Tensor> tensors_;
  size_t alignment_ = 32;
};

}  // namespace dsv32
