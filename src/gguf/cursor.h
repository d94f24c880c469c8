// A bounds-checked reading position in the bytes of one model file.
//
// Non-owning. Nothing is read before it is known to lie inside the file, and no sum or product can wrap:
// lengths are compared with what is left, never added to the position first. Every refusal is one
// Error{model} that names field, offset and file.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

namespace dsv32 {

static_assert(std::endian::native == std::endian::little, "GGUF values are copied as they lie in the file");

class Cursor {
 public:
  // `file_name` appears, escaped, in messages.
  Cursor(std::span<const uint8_t> bytes, const std::string& file_name)
      : bytes_(bytes), file_name_(file_name) {}

  uint64_t offset() const { return offset_; }
  uint64_t n_left() const { return bytes_.size() - offset_; }
  const uint8_t* data() const { return bytes_.data() + offset_; }

  // The next value of type T, little-endian. `field` names it when the file ends before.
  template <typename T>
  T read(const char* field) {
    need(sizeof(T), field);
    T value;
    std::memcpy(&value, data(), sizeof value);
    offset_ += sizeof value;
    return value;
  }

  // A u64 length and that many bytes, at most `max_bytes`: a view into the file.
  std::string_view read_string(const char* field, uint64_t max_bytes);

  // A string fit to be shown and looked up: 1 to `max_bytes` bytes, printable UTF-8 only.
  std::string_view read_name(const char* field, uint64_t max_bytes);

  // Steps over `n_values` of `value_bytes` each.
  void skip(uint64_t n_values, uint64_t value_bytes, const char* field);

  // Unless `ok`, throws Error{model}: the printf message, then "(at offset N of model file F)".
  __attribute__((format(printf, 4, 5))) void check(bool ok, uint64_t offset, const char* pattern, ...) const;
  // Of a count that stands at `at`: that many things of at least `smallest_bytes` (1 or more) fit in what is
  // left, and `limit` holds.
  void check_count(uint64_t at, uint64_t count, uint64_t smallest_bytes, uint64_t limit,
                   const char* field) const;
  [[noreturn]] void fail_at(uint64_t offset, const std::string& what, const std::string& hint = {}) const;

 private:
  void need(uint64_t n_bytes, const char* field) const {
    if (n_bytes > n_left()) fail_short(n_bytes, field);
  }
  [[noreturn]] void fail_short(uint64_t n_bytes, const char* field) const;

  std::span<const uint8_t> bytes_;
  std::string file_name_;
  uint64_t offset_ = 0;  // <= bytes_.size()
};

// For messages: printf has no portable letter for uint64_t.
constexpr unsigned long long ull(uint64_t value) { return value; }

}  // namespace dsv32
