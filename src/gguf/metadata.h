// The metadata of a GGUF file: keys and where their values lie.
//
// Non-owning views into the file's bytes; arrays are decoded when a getter asks for them. Lengths and counts
// are checked against the file once, at opening. Immutable after that: any number of threads may read.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/cursor.h"

namespace dsv32 {

// Metadata value types, numbered as in the file.
enum class ValueType : uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };

class Metadata {
 public:
  // Getters return nothing when the key is absent and throw Error{model} naming the key when its type does
  // not fit. Integer getters accept any integer type whose value fits.
  bool has(std::string_view key) const { return find(key) != nullptr; }
  std::optional<uint32_t> get_u32(std::string_view key) const { return get_integer<uint32_t>(key); }
  std::optional<int64_t> get_i64(std::string_view key) const { return get_integer<int64_t>(key); }
  std::optional<float> get_f32(std::string_view key) const;  // finite
  std::optional<bool> get_bool(std::string_view key) const;
  std::optional<std::string_view> get_string(std::string_view key) const;  // a view into the file
  // An integer, or an array of integers (some keys are per layer): every element.
  std::optional<std::vector<uint32_t>> get_u32_or_array(std::string_view key) const;
  std::optional<std::vector<std::string_view>> get_strings(
      std::string_view key) const;  // views into the file
  std::optional<std::vector<int32_t>> get_i32s(std::string_view key) const;
  std::optional<std::vector<float>> get_f32s(std::string_view key) const;  // may be infinite or NaN

  // Every key in file order, its type and a short printable rendering (escaped, arrays abbreviated).
  struct KeyInfo {
    std::string_view key;
    std::string type, value;
  };
  std::vector<KeyInfo> describe_metadata() const;

  // The file's name, as given.
  const std::string& path() const { return path_; }

 protected:
  explicit Metadata(const std::string& path) : path_(path) {}

  // Reads `n_keys` keys and leaves the cursor after them. Throws Error{model}.
  void read_keys(Cursor& cursor, uint64_t n_keys);
  // Takes the other's keys that begin so and are not here. They stay in its bytes, which must outlive this.
  void take_keys(const Metadata& other, std::string_view beginning);
  template <typename T>
  std::optional<T> get_integer(std::string_view key) const;
  std::optional<uint32_t> get_only_u32(std::string_view key) const;  // refuses other integer types
  uint32_t need_u32(std::string_view key) const;                     // Error{model} when the key is absent
  // Throws Error{model} with the offset of `key`, which must be present.
  [[noreturn]] void fail_at_key(std::string_view key, const std::string& what) const;

 private:
  struct Value {
    std::string_view key;  // into the file
    ValueType type{};      // of an array: its elements' type
    bool is_array = false;
    uint64_t n_elements = 1;
    const uint8_t* data = nullptr;  // the first element; a string's begins with its 8-byte length
    uint64_t offset = 0;            // of the value type, for messages
  };

  Value read_value(Cursor& cursor, std::string_view key) const;
  const Value* find(std::string_view key) const;
  const Value* find(std::string_view key, ValueType type, bool is_array = false) const;
  template <typename T>
  std::vector<T> integers(const Value& value) const;
  [[noreturn]] void fail_type(const Value& value, const std::string& expected) const;

  std::string path_;
  std::vector<Value> values_;                     // in file order
  std::map<std::string_view, size_t> value_ids_;  // key -> index in values_
};

}  // namespace dsv32
