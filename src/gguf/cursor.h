// A bounds-checked reading position in the bytes of one model file.
//
// Non-owning. Every read is checked against the end of the file first, and no sum or product can overflow.
// Every refusal is one Error{model} that names the field and ends in "(at offset N of model file F)".
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/text.h"

namespace dsv32 {

static_assert(std::endian::native == std::endian::little, "GGUF values are copied as they lie in the file");

// For messages: printf has no portable letter for uint64_t.
constexpr unsigned long long ull(uint64_t value) { return value; }

class Cursor {
 public:
  // `file_name` appears, escaped, in messages.
  Cursor(std::span<const uint8_t> bytes, const std::string& file_name)
      : bytes_(bytes), file_name_(file_name) {}

  uint64_t offset() const { return offset_; }
  uint64_t n_left() const { return bytes_.size() - offset_; }
  const uint8_t* data() const { return bytes_.data() + offset_; }

  // Reads the next value of type T, little-endian. `field` names the value in messages.
  template <typename T>
  T read(const char* field) {
    T value;
    std::memcpy(&value, take(sizeof value, field), sizeof value);
    return value;
  }

  // Reads a u64 length and that many bytes, at most `max_bytes`; returns a view into the file.
  std::string_view read_string(const char* field, uint64_t max_bytes) {
    const uint64_t at = offset_, n_bytes = read<uint64_t>(field), limit = std::min(max_bytes, n_left());
    check(n_bytes <= limit, at, "%s has a length of %llu bytes, expected at most %llu", field, ull(n_bytes),
          ull(limit));
    return {reinterpret_cast<const char*>(take(n_bytes, field)), n_bytes};
  }

  // Reads a string of 1 to `max_bytes` bytes, printable UTF-8 only.
  std::string_view read_name(const char* field, uint64_t max_bytes) {
    const uint64_t at = offset_;
    const std::string_view name = read_string(field, max_bytes);
    check(!name.empty(), at, "%s is empty", field);
    check(visible(name) == name, at, "%s has unprintable bytes: '%s'", field,
          visible(name, false, 100).c_str());
    return name;
  }

  // Skips `n_values` of `value_bytes` each.
  void skip(uint64_t n_values, uint64_t value_bytes, const char* field) {
    uint64_t n_bytes = 0;
    take(__builtin_mul_overflow(n_values, value_bytes, &n_bytes) ? UINT64_MAX : n_bytes, field);
  }

  // Unless `ok`, throws Error{model} with the printf message.
  __attribute__((format(printf, 4, 5))) void check(bool ok, uint64_t offset, const char* pattern, ...) const {
    if (ok) return;
    va_list args;
    va_start(args, pattern);
    char message[2048];  // every argument is far shorter: names are cut by the caller
    std::vsnprintf(message, sizeof message, pattern, args);
    va_end(args);
    fail_at(offset, message);
  }

  // Checks a count read at offset `at`: it must be at most `limit`, and so many entries of at least
  // `smallest_bytes` (1 or more) must fit in the rest of the file.
  void check_count(uint64_t at, uint64_t count, uint64_t smallest_bytes, uint64_t limit,
                   const char* field) const {
    limit = std::min(limit, n_left() / smallest_bytes);
    check(count <= limit, at, "%s is %llu, expected at most %llu", field, ull(count), ull(limit));
  }

  [[noreturn]] void fail_at(uint64_t offset, const std::string& what, const std::string& hint = {}) const {
    fail(ErrorKind::model,
         what + format(" (at offset %llu of model file %s)", ull(offset), visible(file_name_).c_str()), hint);
  }

 private:
  const uint8_t* take(uint64_t n_bytes, const char* field) {
    if (n_bytes > n_left())
      fail_at(offset_,
              format("the file ends inside %s, which needs %llu bytes where %llu are left", field,
                     ull(n_bytes), ull(n_left())),
              "the file is truncated or damaged: fetch it again");
    return bytes_.data() + std::exchange(offset_, offset_ + n_bytes);
  }

  std::span<const uint8_t> bytes_;
  std::string file_name_;
  uint64_t offset_ = 0;  // <= bytes_.size()
};

}  // namespace dsv32
