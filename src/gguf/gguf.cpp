// Opening a GGUF file: every field is checked here, once, so that what the getters return can be trusted.
//
// The header is walked from front to back with a bounds-checked cursor. Metadata values are not copied: their
// places are remembered. Tensors are placed after the whole header is known, since their offsets count from
// its aligned end.
#include "gguf/gguf.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <regex>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace dsv32 {
namespace {

// Far above any real model (60 keys, 1420 tensors, 129280 tokens), low enough that a hostile file stays
// cheap.
constexpr uint64_t kMaxKeys = 1 << 16, kMaxTensors = 1 << 16, kMaxElements = 1 << 24;
constexpr uint64_t kMaxKeyBytes = 65535, kMaxNameBytes = 63, kMaxStringBytes = 1 << 30;
constexpr uint64_t kSmallestKey = 8 + 1 + 4 + 1,
                   kSmallestTensor = 8 + 1 + 4 + 8 + 4 + 8;  // bytes in the file
constexpr uint32_t kMaxAlignment = 1 << 20;
constexpr const char* kTruncated = "the file is truncated or damaged: fetch it again";

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

// A u64 past the range of i64 becomes the largest i64, which no caller has room for either.
int64_t load_integer(ValueType type, const uint8_t* data) {
  switch (type) {
    case ValueType::u8:
      return load<uint8_t>(data);
    case ValueType::i8:
      return load<int8_t>(data);
    case ValueType::u16:
      return load<uint16_t>(data);
    case ValueType::i16:
      return load<int16_t>(data);
    case ValueType::u32:
      return load<uint32_t>(data);
    case ValueType::i32:
      return load<int32_t>(data);
    case ValueType::i64:
      return load<int64_t>(data);
    default:
      return static_cast<int64_t>(std::min<uint64_t>(load<uint64_t>(data), INT64_MAX));
  }
}

// The string at `data`, which is left behind it.
std::string_view next_string(const uint8_t*& data) {
  const std::string_view text{reinterpret_cast<const char*>(data) + 8, load<uint64_t>(data)};
  data += 8 + text.size();
  return text;
}

// The element at `data`, which is left behind it, fit to be shown.
std::string render_next(ValueType type, const uint8_t*& data, size_t max_chars) {
  if (type == ValueType::string) return "'" + visible(next_string(data), false, max_chars) + "'";
  const uint8_t* here = data;
  data += info(type).n_bytes;
  switch (type) {
    case ValueType::boolean:
      return here[0] ? "true" : "false";
    case ValueType::f32:
      return format("%g", load<float>(here));
    case ValueType::f64:
      return format("%g", load<double>(here));
    case ValueType::u64:
      return format("%llu", ull(load<uint64_t>(here)));
    default:
      return format("%lld", static_cast<long long>(load_integer(type, here)));
  }
}

std::string key_field(std::string_view key) { return "key " + visible(key, false, 100); }

void check_header(Cursor& cursor) {
  const uint32_t magic = cursor.read<uint32_t>("the magic number");
  const std::string_view letters{reinterpret_cast<const char*>(&magic), sizeof magic};
  cursor.check(letters == "GGUF", 0, "the magic number is '%s', expected 'GGUF'", visible(letters).c_str());
  const uint32_t version = cursor.read<uint32_t>("the version");
  cursor.check(version != __builtin_bswap32(3), 4,
               "the version is 3 in big-endian order, expected little-endian");
  cursor.check(version == 3, 4, "the version is %u, expected 3", version);
}

// A count just read at `at`, against what the rest of the file can hold.
void check_count(const Cursor& cursor, uint64_t at, const std::string& field, uint64_t count,
                 uint64_t smallest_bytes, uint64_t limit) {
  limit = std::min(limit, cursor.n_left() / smallest_bytes);
  cursor.check(count <= limit, at, "%s is %llu, expected at most %llu", field.c_str(), ull(count),
               ull(limit));
}

std::string_view read_name(Cursor& cursor, const char* field, uint64_t max_bytes) {
  const uint64_t at = cursor.offset();
  const std::string_view name = cursor.read_string(field, max_bytes);
  cursor.check(!name.empty(), at, "%s is empty", field);
  cursor.check(visible(name) == name, at, "%s has unprintable bytes: '%s'", field,
               visible(name, false, 100).c_str());
  return name;
}

ValueType read_value_type(Cursor& cursor, const std::string& field) {
  const uint64_t at = cursor.offset();
  const uint32_t type = cursor.read<uint32_t>(field.c_str());
  cursor.check(type < std::size(kValueTypes), at, "%s has value type %u, expected 0 to 12", field.c_str(),
               type);
  return static_cast<ValueType>(type);
}

void skip_elements(Cursor& cursor, ValueType type, uint64_t n_elements, const std::string& field) {
  if (type != ValueType::string) return cursor.skip(n_elements, info(type).n_bytes, field.c_str());
  for (uint64_t i = 0; i < n_elements; ++i) cursor.read_string(field.c_str(), kMaxStringBytes);
}

// ne, whose product is returned.
uint64_t read_dimensions(Cursor& cursor, const char* field, GgufTensor& tensor) {
  tensor.n_dims = cursor.read<uint32_t>(field);
  cursor.check(tensor.n_dims >= 1 && tensor.n_dims <= 4, cursor.offset() - 4,
               "%s has n_dims %u, expected 1 to 4", field, tensor.n_dims);
  uint64_t n_values = 1;
  for (uint32_t i = 0; i < tensor.n_dims; ++i) {
    const uint64_t n = tensor.ne[i] = cursor.read<uint64_t>(field);
    const bool fits = n != 0 && !__builtin_mul_overflow(n_values, n, &n_values) && n_values <= INT64_MAX;
    cursor.check(fits, cursor.offset() - 8,
                 "%s has ne[%u] = %llu, expected 1 or more and a product of all below 2^63", field, i,
                 ull(n));
  }
  return n_values;
}

void read_type(Cursor& cursor, const char* field, uint64_t n_values, GgufTensor& tensor) {
  const uint64_t at = cursor.offset();
  tensor.type = static_cast<TensorType>(cursor.read<uint32_t>(field));
  const TypeTraits* type = find_traits(tensor.type);
  if (!type || !type->is_supported)
    cursor.fail_at(
        at,
        format("%s has %s%s, which dsv32 cannot read", field, type ? "type " : "", type_name(tensor.type)),
        "use a file of the common types: Q8_0, Q2_K to Q6_K, IQ2_XXS, IQ3_XXS, IQ4_XS");
  cursor.check(tensor.ne[0] % type->block_values == 0, at,
               "%s has ne[0] = %llu, expected a multiple of %u for type %s", field, ull(tensor.ne[0]),
               type->block_values, type->name);
  const bool fits =
      !__builtin_mul_overflow(n_values / type->block_values, uint64_t{type->block_bytes}, &tensor.n_bytes);
  cursor.check(fits, at, "%s has %llu values, more than can be addressed", field, ull(n_values));
}

// `offset` stays relative to the data section until that is known; `data` stays null.
GgufTensor read_tensor(Cursor& cursor, std::string_view name, uint32_t alignment) {
  GgufTensor tensor;
  tensor.name = name;
  const std::string field = "tensor " + tensor.name;
  read_type(cursor, field.c_str(), read_dimensions(cursor, field.c_str(), tensor), tensor);
  tensor.offset = cursor.read<uint64_t>(field.c_str());
  cursor.check(tensor.offset % alignment == 0, cursor.offset() - 8,
               "%s has data offset %llu, expected a multiple of the alignment %u", field.c_str(),
               ull(tensor.offset), alignment);
  return tensor;
}

void check_overlap(const Cursor& cursor, const std::vector<GgufTensor>& tensors) {
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return tensors[a].offset < tensors[b].offset; });
  for (size_t i = 1; i < order.size(); ++i) {
    const GgufTensor &low = tensors[order[i - 1]], &high = tensors[order[i]];
    cursor.check(high.offset - low.offset >= low.n_bytes, high.offset,
                 "the data of tensor %s overlaps that of tensor %s", high.name.c_str(), low.name.c_str());
  }
}

std::string split_path(const std::string& prefix, uint32_t no, uint32_t count) {
  return prefix + format("-%05u-of-%05u.gguf", no + 1, count);
}

// "{prefix}-00002-of-00003.gguf" -> prefix; "NAME" when `path` has another form.
std::string split_prefix(const std::string& path) {
  std::smatch match;
  return std::regex_match(path, match, std::regex(R"(([^]*)-\d{5}-of-\d{5}\.gguf)")) ? match[1].str()
                                                                                     : "NAME";
}

// Large files also travel as raw pieces that only make sense joined; the first one even begins like a model.
const std::string& refuse_raw_piece(const std::string& path) {
  std::smatch match;
  if (!std::regex_match(path, match, std::regex(R"(([^]*)\.part\d+of(\d+))"))) return path;
  const std::string whole = visible(match[1].str()), last = match[2];
  fail(ErrorKind::model, format("model file %s is a raw piece of a file, not a model", visible(path).c_str()),
       "join the pieces in order: cat " + whole + ".part1of" + last + " ... " + whole + ".part" + last +
           "of" + last + " > " + whole);
}

}  // namespace

GgufFile::GgufFile(const std::string& path) : GgufFile(MappedFile(refuse_raw_piece(path))) {
  const uint32_t count = get_u32("split.count").value_or(0);
  if (count <= 1) return;  // a merged file keeps the key, as 0 or 1
  const std::string prefix = split_prefix(path), first = split_path(prefix, 0, count);
  if (const uint32_t no = need_u32("split.no"); no != 0 || path != first)
    fail(ErrorKind::model,
         format("model file %s is part %u (split.no) of %u (split.count), expected the first of them "
                "under a name that ends in %s",
                visible(path).c_str(), no, count, split_path("", 0, count).c_str()),
         "name the first part: " + visible(first));
  const uint32_t n_tensors = need_u32("split.tensors.count");
  for (uint32_t no = 1; no < count; ++no)
    append(GgufFile(MappedFile(split_path(prefix, no, count))), no, count);
  if (tensors_.size() != n_tensors)
    fail_at(find("split.tensors.count")->offset,
            format("split.tensors.count is %u, but the %u parts hold %zu tensors", n_tensors, count,
                   tensors_.size()));
}

GgufFile::GgufFile(std::span<const uint8_t> bytes, const std::string& name) : path_(name) { read(bytes); }

GgufFile::GgufFile(MappedFile file) : path_(file.path()) {
  read(file.bytes());
  files_.push_back(std::move(file));
}

void GgufFile::append(GgufFile part, uint32_t no, uint32_t count) {
  for (const auto& [key, expected] : {std::pair{"split.no", no}, std::pair{"split.count", count}})
    if (const uint32_t found = part.need_u32(key); found != expected)
      part.fail_at(part.find(key)->offset, format("%s is %u, expected %u", key, found, expected));
  for (const auto& [name, id] : part.tensor_ids_) {
    GgufTensor& tensor = part.tensors_[id];
    if (!tensor_ids_.emplace(name, tensors_.size() + id).second)
      part.fail_at(tensor.offset, "tensor " + tensor.name + " stands in an earlier part too");
    tensor.part = static_cast<int>(no);
  }
  std::move(part.tensors_.begin(), part.tensors_.end(), std::back_inserter(tensors_));
  std::move(part.files_.begin(), part.files_.end(), std::back_inserter(files_));
  n_bytes_ += part.n_bytes_;
}

void GgufFile::read(std::span<const uint8_t> bytes) {
  Cursor cursor(bytes, path_);
  check_header(cursor);
  const auto n_tensors = cursor.read<uint64_t>("the number of tensors");
  const auto n_keys = cursor.read<uint64_t>("the number of keys");
  check_count(cursor, 8, "the number of tensors", n_tensors, kSmallestTensor, kMaxTensors);
  check_count(cursor, 16, "the number of keys", n_keys, kSmallestKey, kMaxKeys);
  for (uint64_t i = 0; i < n_keys; ++i) read_key(cursor);
  read_tensors(cursor, n_tensors);
  n_bytes_ = bytes.size();
}

void GgufFile::read_key(Cursor& cursor) {
  const uint64_t at = cursor.offset();
  Value value;
  value.key = read_name(cursor, "a key", kMaxKeyBytes);
  const std::string field = key_field(value.key);
  const bool is_new = value_ids_.emplace(value.key, values_.size()).second;
  cursor.check(is_new, at, "%s stands twice", field.c_str());
  value.offset = cursor.offset();
  value.type = read_value_type(cursor, field);
  if (value.type == ValueType::array) {
    value.is_array = true;
    value.type = read_value_type(cursor, field);
    cursor.check(value.type != ValueType::array, value.offset, "%s is an array of arrays", field.c_str());
    value.n_elements = cursor.read<uint64_t>(field.c_str());
    check_count(cursor, cursor.offset() - 8, "the element count of " + field, value.n_elements, 1,
                kMaxElements);
  }
  value.data = cursor.data();
  skip_elements(cursor, value.type, value.n_elements, field);
  const bool is_bool = value.type == ValueType::boolean;
  cursor.check(!is_bool || std::all_of(value.data, cursor.data(), [](uint8_t byte) { return byte <= 1; }),
               value.offset, "%s holds a bool that is neither 0 nor 1", field.c_str());
  values_.push_back(value);
}

uint32_t GgufFile::alignment() const {
  const Value* value = find("general.alignment", ValueType::u32, false);
  const uint32_t alignment = value ? load<uint32_t>(value->data) : 32;
  if (alignment < 8 || alignment > kMaxAlignment || !std::has_single_bit(alignment))
    fail_at(value->offset, format("key general.alignment is %u, expected a power of two from 8 to %u",
                                  alignment, kMaxAlignment));
  return alignment;
}

void GgufFile::read_tensors(Cursor& cursor, uint64_t n_tensors) {
  const uint32_t align = alignment();
  std::vector<uint64_t> entries;  // [n_tensors] offsets in the directory, for messages
  for (uint64_t i = 0; i < n_tensors; ++i) {
    entries.push_back(cursor.offset());
    const std::string_view name = read_name(cursor, "a tensor name", kMaxNameBytes);
    tensors_.push_back(read_tensor(cursor, name, align));
    const bool is_new = tensor_ids_.emplace(name, i).second;
    cursor.check(is_new, entries[i], "tensor %s stands twice", tensors_[i].name.c_str());
  }
  const uint64_t file_bytes = cursor.offset() + cursor.n_left();
  const uint64_t data_begin = std::min(file_bytes, (cursor.offset() + align - 1) / align * align);
  const uint64_t data_bytes = file_bytes - data_begin;
  const uint8_t* file_begin = cursor.data() - cursor.offset();
  for (uint64_t i = 0; i < n_tensors; ++i) {
    GgufTensor& tensor = tensors_[i];
    if (tensor.offset > data_bytes || tensor.n_bytes > data_bytes - tensor.offset)
      cursor.fail_at(entries[i],
                     format("tensor %s has %llu bytes from %llu on, but there are %llu bytes of tensor data",
                            tensor.name.c_str(), ull(tensor.n_bytes), ull(tensor.offset), ull(data_bytes)),
                     kTruncated);
    tensor.offset += data_begin;
    tensor.data = file_begin + tensor.offset;
  }
  check_overlap(cursor, tensors_);
}

const std::string& GgufFile::path() const { return path_; }
uint64_t GgufFile::n_bytes() const { return n_bytes_; }
size_t GgufFile::n_parts() const { return std::max<size_t>(files_.size(), 1); }
const std::vector<GgufTensor>& GgufFile::tensors() const { return tensors_; }

const GgufTensor* GgufFile::find_tensor(std::string_view name) const {
  const auto found = tensor_ids_.find(name);
  return found == tensor_ids_.end() ? nullptr : &tensors_[found->second];
}

const GgufFile::Value* GgufFile::find(std::string_view key) const {
  const auto found = value_ids_.find(key);
  return found == value_ids_.end() ? nullptr : &values_[found->second];
}

const GgufFile::Value* GgufFile::find(std::string_view key, ValueType type, bool is_array) const {
  const Value* value = find(key);
  if (value && (value->type != type || value->is_array != is_array))
    fail_type(*value, std::string(info(type).name) + (is_array ? " array" : ""));
  return value;
}

void GgufFile::fail_at(uint64_t offset, const std::string& what) const {
  Cursor({}, path_).fail_at(offset, what);
}

void GgufFile::fail_type(const Value& value, const std::string& expected) const {
  fail_at(value.offset, format("%s has type %s%s, expected %s", key_field(value.key).c_str(),
                               info(value.type).name, value.is_array ? " array" : "", expected.c_str()));
}

uint32_t GgufFile::need_u32(std::string_view key) const {
  if (const auto value = get_u32(key)) return *value;
  fail(ErrorKind::model, format("model file %s has no %s, which a part of a split model needs",
                                visible(path_).c_str(), key_field(key).c_str()));
}

template <typename T>
std::vector<T> GgufFile::integers(const Value& value) const {
  if (!is_integer(value.type)) fail_type(value, "an integer type");
  std::vector<T> numbers(value.n_elements);
  for (uint64_t i = 0; i < value.n_elements; ++i) {
    const int64_t number = load_integer(value.type, value.data + i * info(value.type).n_bytes);
    if (!std::in_range<T>(number))
      fail_at(value.offset,
              format("%s holds %lld, expected %lld to %lld", key_field(value.key).c_str(),
                     static_cast<long long>(number), static_cast<long long>(std::numeric_limits<T>::min()),
                     static_cast<long long>(std::numeric_limits<T>::max())));
    numbers[i] = static_cast<T>(number);
  }
  return numbers;
}

bool GgufFile::has(std::string_view key) const { return find(key) != nullptr; }

std::optional<uint32_t> GgufFile::get_u32(std::string_view key) const {
  const Value* value = find(key);
  if (!value) return {};
  if (value->is_array) fail_type(*value, "an integer type");
  return integers<uint32_t>(*value)[0];
}

std::optional<float> GgufFile::get_f32(std::string_view key) const {
  const Value* value = find(key, ValueType::f32, false);
  if (!value) return {};
  const float number = load<float>(value->data);
  if (!std::isfinite(number))
    fail_at(value->offset, format("%s is %g, expected a finite number", key_field(key).c_str(), number));
  return number;
}

std::optional<bool> GgufFile::get_bool(std::string_view key) const {
  const Value* value = find(key, ValueType::boolean, false);
  return value ? std::optional(value->data[0] != 0) : std::nullopt;
}

std::optional<std::string_view> GgufFile::get_string(std::string_view key) const {
  const Value* value = find(key, ValueType::string, false);
  if (!value) return {};
  const uint8_t* data = value->data;
  return next_string(data);
}

std::optional<std::vector<uint32_t>> GgufFile::get_u32_or_array(std::string_view key) const {
  const Value* value = find(key);
  return value ? std::optional(integers<uint32_t>(*value)) : std::nullopt;
}

std::optional<std::vector<std::string_view>> GgufFile::get_strings(std::string_view key) const {
  const Value* value = find(key, ValueType::string, true);
  if (!value) return {};
  std::vector<std::string_view> texts(value->n_elements);
  const uint8_t* data = value->data;
  for (std::string_view& text : texts) text = next_string(data);
  return texts;
}

std::optional<std::vector<int32_t>> GgufFile::get_i32s(std::string_view key) const {
  const Value* value = find(key);
  if (value && !value->is_array) fail_type(*value, "an array of integers");
  return value ? std::optional(integers<int32_t>(*value)) : std::nullopt;
}

std::optional<std::vector<float>> GgufFile::get_f32s(std::string_view key) const {
  const Value* value = find(key, ValueType::f32, true);
  if (!value) return {};
  std::vector<float> numbers(value->n_elements);
  if (!numbers.empty()) std::memcpy(numbers.data(), value->data, numbers.size() * sizeof(float));
  return numbers;
}

std::vector<GgufFile::KeyInfo> GgufFile::describe_metadata() const {
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
