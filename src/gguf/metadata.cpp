// Reading keys and values once at opening, and getting them later.
//
// read_value() refuses malformed values; the getters refuse well-formed values of the wrong type and numbers
// out of range.
#include "gguf/metadata.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

namespace dsv32 {
namespace {

// Far above any real model (129280 tokens), yet low enough that a hostile file is refused cheaply.
constexpr uint64_t kMaxElements = 1 << 24, kMaxKeyBytes = 65535, kMaxStringBytes = 1 << 30;

struct ValueTypeInfo {
  const char* name;
  uint32_t n_bytes;  // 0: of variable length
};
constexpr ValueTypeInfo kValueTypes[] = {{"u8", 1},  {"i8", 1},  {"u16", 2},  {"i16", 2},    {"u32", 4},
                                         {"i32", 4}, {"f32", 4}, {"bool", 1}, {"string", 0}, {"array", 0},
                                         {"u64", 8}, {"i64", 8}, {"f64", 8}};
const ValueTypeInfo& info(ValueType type) { return kValueTypes[static_cast<uint32_t>(type)]; }

template <typename T>
T load(const uint8_t* data) {
  T value;
  std::memcpy(&value, data, sizeof value);
  return value;
}

bool is_integer(ValueType type) {
  return info(type).n_bytes != 0 && type != ValueType::f32 && type != ValueType::f64 &&
         type != ValueType::boolean;
}

// A u64 above the largest i64 becomes the largest i64: callers want 32 bits and refuse both.
int64_t load_integer(ValueType type, const uint8_t* data) {
  switch (type) {
    case ValueType::u8: return load<uint8_t>(data);
    case ValueType::i8: return load<int8_t>(data);
    case ValueType::u16: return load<uint16_t>(data);
    case ValueType::i16: return load<int16_t>(data);
    case ValueType::u32: return load<uint32_t>(data);
    case ValueType::i32: return load<int32_t>(data);
    case ValueType::i64: return load<int64_t>(data);
    default: return static_cast<int64_t>(std::min<uint64_t>(load<uint64_t>(data), INT64_MAX));
  }
}

// Reads the string at `data` and moves `data` past it.
std::string_view next_string(const uint8_t*& data) {
  const std::string_view text{reinterpret_cast<const char*>(data) + 8, load<uint64_t>(data)};
  data += 8 + text.size();
  return text;
}

// The shortest digits that give the same number.
template <typename T>
std::string digits_of(T number) {
  char text[64];
  return {text, std::to_chars(text, std::end(text), number).ptr};
}

// Renders the element at `data` in printable form and moves `data` past it.
std::string render_next(ValueType type, const uint8_t*& data, size_t max_chars) {
  if (type == ValueType::string) return "'" + visible(next_string(data), false, max_chars) + "'";
  const uint8_t* here = std::exchange(data, data + info(type).n_bytes);
  switch (type) {
    case ValueType::boolean: return here[0] ? "true" : "false";
    case ValueType::f32: return digits_of(load<float>(here));
    case ValueType::f64: return digits_of(load<double>(here));
    case ValueType::u64: return format("%llu", ull(load<uint64_t>(here)));
    default: return format("%lld", as_ll(load_integer(type, here)));
  }
}

std::string key_field(std::string_view key) { return "key " + visible(key, false, 100); }

ValueType read_value_type(Cursor& cursor, const std::string& field) {
  const auto type = cursor.read<uint32_t>(field.c_str());
  cursor.check(type < std::size(kValueTypes), cursor.offset() - 4, "%s has value type %u, expected 0 to 12",
               field.c_str(), type);
  return static_cast<ValueType>(type);
}

void skip_elements(Cursor& cursor, ValueType type, uint64_t n_elements, const std::string& field) {
  if (type != ValueType::string) return cursor.skip(n_elements, info(type).n_bytes, field.c_str());
  for (uint64_t i = 0; i < n_elements; ++i) cursor.read_string(field.c_str(), kMaxStringBytes);
}

}  // namespace

void Metadata::read_keys(Cursor& cursor, uint64_t n_keys) {
  for (uint64_t i = 0; i < n_keys; ++i) {
    const uint64_t at = cursor.offset();
    const std::string_view key = cursor.read_name("a key", kMaxKeyBytes);
    cursor.check(value_ids_.emplace(key, i).second, at, "%s stands twice", key_field(key).c_str());
    values_.push_back(read_value(cursor, key));
  }
}

Metadata::Value Metadata::read_value(Cursor& cursor, std::string_view key) const {
  const std::string field = key_field(key);
  Value value{.key = key, .offset = cursor.offset()};
  value.type = read_value_type(cursor, field);
  if (value.type == ValueType::array) {
    value.is_array = true;
    value.type = read_value_type(cursor, field);
    cursor.check(value.type != ValueType::array, value.offset, "%s is an array of arrays", field.c_str());
    value.n_elements = cursor.read<uint64_t>(field.c_str());
    cursor.check_count(cursor.offset() - 8, value.n_elements, 1, kMaxElements,
                       ("the element count of " + field).c_str());
  }
  value.data = cursor.data();
  skip_elements(cursor, value.type, value.n_elements, field);
  const bool is_sound = value.type != ValueType::boolean ||
                        std::all_of(value.data, cursor.data(), [](uint8_t byte) { return byte <= 1; });
  cursor.check(is_sound, value.offset, "%s holds a bool that is neither 0 nor 1", field.c_str());
  return value;
}

const Metadata::Value* Metadata::find(std::string_view key) const {
  const auto found = value_ids_.find(key);
  return found == value_ids_.end() ? nullptr : &values_[found->second];
}

const Metadata::Value* Metadata::find(std::string_view key, ValueType type, bool is_array) const {
  const Value* value = find(key);
  if (value && (value->type != type || value->is_array != is_array))
    fail_type(*value, std::string(info(type).name) + (is_array ? " array" : ""));
  return value;
}

void Metadata::fail_at_key(std::string_view key, const std::string& what) const {
  Cursor({}, path_).fail_at(find(key)->offset, key_field(key) + what);
}

void Metadata::fail_type(const Value& value, const std::string& expected) const {
  fail_at_key(value.key, format(" has type %s%s, expected %s", info(value.type).name,
                                value.is_array ? " array" : "", expected.c_str()));
}

template <typename T>
std::vector<T> Metadata::integers(const Value& value) const {
  if (!is_integer(value.type)) fail_type(value, "an integer type");
  std::vector<T> numbers(value.n_elements);
  for (uint64_t i = 0; i < value.n_elements; ++i) {
    const int64_t number = load_integer(value.type, value.data + i * info(value.type).n_bytes);
    if (!std::in_range<T>(number))
      fail_at_key(value.key,
                  format(" holds %lld, expected %lld to %lld", as_ll(number),
                         as_ll(std::numeric_limits<T>::min()), as_ll(std::numeric_limits<T>::max())));
    numbers[i] = static_cast<T>(number);
  }
  return numbers;
}

void Metadata::take_keys(const Metadata& other, std::string_view beginning) {
  for (const Value& value : other.values_)
    if (value.key.starts_with(beginning) && value_ids_.emplace(value.key, values_.size()).second)
      values_.push_back(value);
}

template <typename T>
std::optional<T> Metadata::get_integer(std::string_view key) const {
  const Value* value = find(key);
  if (!value) return {};
  if (value->is_array) fail_type(*value, "an integer type");
  return integers<T>(*value)[0];
}
template std::optional<uint32_t> Metadata::get_integer(std::string_view key) const;
template std::optional<int64_t> Metadata::get_integer(std::string_view key) const;

std::optional<uint32_t> Metadata::get_only_u32(std::string_view key) const {
  const Value* value = find(key, ValueType::u32);
  return value ? std::optional(load<uint32_t>(value->data)) : std::nullopt;
}

uint32_t Metadata::need_u32(std::string_view key) const {
  if (const auto value = get_u32(key)) return *value;
  fail(ErrorKind::model, format("model file %s has no %s, expected an integer", visible(path_).c_str(),
                                key_field(key).c_str()));
}

std::optional<float> Metadata::get_f32(std::string_view key) const {
  const Value* value = find(key, ValueType::f32);
  if (!value) return {};
  const float number = load<float>(value->data);
  if (!std::isfinite(number)) fail_at_key(key, format(" is %g, expected a finite number", number));
  return number;
}

std::optional<bool> Metadata::get_bool(std::string_view key) const {
  const Value* value = find(key, ValueType::boolean);
  return value ? std::optional(value->data[0] != 0) : std::nullopt;
}

std::optional<std::string_view> Metadata::get_string(std::string_view key) const {
  const Value* value = find(key, ValueType::string);
  if (!value) return {};
  const uint8_t* data = value->data;
  return next_string(data);
}

std::optional<std::vector<uint32_t>> Metadata::get_u32_or_array(std::string_view key) const {
  const Value* value = find(key);
  return value ? std::optional(integers<uint32_t>(*value)) : std::nullopt;
}

std::optional<std::vector<std::string_view>> Metadata::get_strings(std::string_view key) const {
  const Value* value = find(key, ValueType::string, true);
  if (!value) return {};
  std::vector<std::string_view> texts(value->n_elements);
  const uint8_t* data = value->data;
  for (std::string_view& text : texts) text = next_string(data);
  return texts;
}

std::optional<std::vector<int32_t>> Metadata::get_i32s(std::string_view key) const {
  const Value* value = find(key);
  if (value && !value->is_array) fail_type(*value, "an array of integers");
  return value ? std::optional(integers<int32_t>(*value)) : std::nullopt;
}

std::optional<std::vector<float>> Metadata::get_f32s(std::string_view key) const {
  const Value* value = find(key, ValueType::f32, true);
  if (!value) return {};
  std::vector<float> numbers(value->n_elements);
  if (!numbers.empty()) std::memcpy(numbers.data(), value->data, numbers.size() * sizeof(float));
  return numbers;
}

std::vector<Metadata::KeyInfo> Metadata::describe_metadata() const {
  constexpr uint64_t kShown = 6;
  std::vector<KeyInfo> rows;
  for (const Value& value : values_) {
    std::string type = info(value.type).name, text;
    const uint8_t* data = value.data;
    for (uint64_t i = 0; i < std::min(value.n_elements, kShown); ++i)
      text += (i ? ", " : "") + render_next(value.type, data, value.is_array ? 24 : 80);
    if (value.is_array) {
      type += format("[%llu]", ull(value.n_elements));
      text = "[" + text + (value.n_elements > kShown ? ", ...]" : "]");
    }
    rows.push_back({value.key, std::move(type), std::move(text)});
  }
  return rows;
}

}  // namespace dsv32
