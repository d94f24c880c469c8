// The GGUF file: header, metadata and tensor directory, over one or several memory-mapped parts.
//
// Owns the mappings; tensors are views into them and live as long as the GgufFile. Version 3, little-endian.
// Every count, length, offset and product is checked against the file before it is used, so a damaged or
// hostile file gives one Error{model} that names file, field and offset, never an allocation it could not
// fill. Immutable after opening: any number of threads may read it.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "gguf/cursor.h"
#include "gguf/quant.h"

namespace dsv32 {

// Metadata value types, numbered as in the file.
enum class ValueType : uint32_t {
  u8 = 0,
  i8 = 1,
  u16 = 2,
  i16 = 3,
  u32 = 4,
  i32 = 5,
  f32 = 6,
  boolean = 7,
  string = 8,
  array = 9,
  u64 = 10,
  i64 = 11,
  f64 = 12,
};

struct GgufTensor {
  std::string name;
  TensorType type{};
  std::array<uint64_t, 4> ne{1, 1, 1, 1};  // ne[0] is contiguous (the input dimension)
  uint32_t n_dims = 0;
  const uint8_t* data = nullptr;  // into the mapping
  uint64_t n_bytes = 0;
  int part = 0;         // which file
  uint64_t offset = 0;  // of the data in that file
};

class GgufFile {
 public:
  // Opens `path` and, when it is the first of a split model, all its parts. Throws Error{model}.
  explicit GgufFile(const std::string& path);
  // One part by itself over bytes in memory, which the caller keeps alive. `name` stands in messages.
  GgufFile(std::span<const uint8_t> bytes, const std::string& name);

  const std::string& path() const;  // as given
  uint64_t n_bytes() const;         // of all parts
  size_t n_parts() const;
  const std::vector<GgufTensor>& tensors() const;
  const GgufTensor* find_tensor(std::string_view name) const;  // nullptr when absent

  // Metadata. Getters return nothing when the key is absent and throw Error{model} naming the key when its
  // type does not fit. Integer getters accept any integer type whose value fits.
  bool has(std::string_view key) const;
  std::optional<uint32_t> get_u32(std::string_view key) const;
  std::optional<float> get_f32(std::string_view key) const;
  std::optional<bool> get_bool(std::string_view key) const;
  std::optional<std::string_view> get_string(std::string_view key) const;
  // A u32, or an array of integers (some keys are per layer): every element.
  std::optional<std::vector<uint32_t>> get_u32_or_array(std::string_view key) const;
  std::optional<std::vector<std::string_view>> get_strings(
      std::string_view key) const;                                           // views into the mapping
  std::optional<std::vector<int32_t>> get_i32s(std::string_view key) const;  // array of any integer type
  std::optional<std::vector<float>> get_f32s(std::string_view key) const;

  // For `inspect model`: every key in file order, its type and a short printable rendering (escaped, arrays
  // abbreviated).
  struct KeyInfo {
    std::string_view key;
    std::string type, value;
  };
  std::vector<KeyInfo> describe_metadata() const;

 private:
  // Where a value lies. Only its place is kept: a vocabulary costs nothing until it is asked for.
  struct Value {
    std::string_view key;  // into the mapping
    ValueType type{};      // of the elements
    bool is_array = false;
    uint64_t n_elements = 1;
    const uint8_t* data = nullptr;  // the first element; of a string its length, 8 bytes
    uint64_t offset = 0;            // of the value type, for messages
  };

  explicit GgufFile(MappedFile file);
  void read(std::span<const uint8_t> bytes);
  void read_key(Cursor& cursor);
  void read_tensors(Cursor& cursor, uint64_t n_tensors);
  void append(GgufFile part, uint32_t no, uint32_t count);
  uint32_t alignment() const;
  const Value* find(std::string_view key) const;
  const Value* find(std::string_view key, ValueType type, bool is_array) const;
  uint32_t need_u32(std::string_view key) const;
  template <typename T>
  std::vector<T> integers(const Value& value) const;
  [[noreturn]] void fail_at(uint64_t offset, const std::string& what) const;
  [[noreturn]] void fail_type(const Value& value, const std::string& expected) const;

  std::string path_;
  uint64_t n_bytes_ = 0;
  std::vector<MappedFile> files_;  // [n_parts]; empty over bytes in memory
  std::vector<Value> values_;      // of the first part, in file order
  std::map<std::string_view, size_t> value_ids_;
  std::vector<GgufTensor> tensors_;                // in file order, part after part
  std::map<std::string_view, size_t> tensor_ids_;  // keys lie in the mapping
};

}  // namespace dsv32
