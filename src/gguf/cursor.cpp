// Reading strings and runs of values, and the form of every message about a damaged file.
//
// A message always ends in "(at offset N of model file F)", so that the byte can be looked at with other
// tools.
#include "gguf/cursor.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>

#include "base/error.h"
#include "base/text.h"

namespace dsv32 {

std::string_view Cursor::read_string(const char* field, uint64_t max_bytes) {
  const uint64_t at = offset_, n_bytes = read<uint64_t>(field), limit = std::min(max_bytes, n_left());
  check(n_bytes <= limit, at, "%s has a length of %llu bytes, expected at most %llu", field, ull(n_bytes),
        ull(limit));
  const std::string_view text{reinterpret_cast<const char*>(data()), n_bytes};
  offset_ += n_bytes;
  return text;
}

std::string_view Cursor::read_name(const char* field, uint64_t max_bytes) {
  const uint64_t at = offset_;
  const std::string_view name = read_string(field, max_bytes);
  check(!name.empty(), at, "%s is empty", field);
  check(visible(name) == name, at, "%s has unprintable bytes: '%s'", field,
        visible(name, false, 100).c_str());
  return name;
}

void Cursor::skip(uint64_t n_values, uint64_t value_bytes, const char* field) {
  uint64_t n_bytes = 0;
  if (__builtin_mul_overflow(n_values, value_bytes, &n_bytes)) n_bytes = UINT64_MAX;
  need(n_bytes, field);
  offset_ += n_bytes;
}

void Cursor::check(bool ok, uint64_t offset, const char* pattern, ...) const {
  if (ok) return;
  va_list args;
  va_start(args, pattern);
  char message[2048];  // every argument is far shorter: names are cut before they come here
  std::vsnprintf(message, sizeof message, pattern, args);
  va_end(args);
  fail_at(offset, message);
}

void Cursor::check_count(uint64_t at, uint64_t count, uint64_t smallest_bytes, uint64_t limit,
                         const char* field) const {
  limit = std::min(limit, n_left() / smallest_bytes);
  check(count <= limit, at, "%s is %llu, expected at most %llu", field, ull(count), ull(limit));
}

void Cursor::fail_at(uint64_t offset, const std::string& what, const std::string& hint) const {
  fail(ErrorKind::model,
       format("%s (at offset %llu of model file %s)", what.c_str(), ull(offset), visible(file_name_).c_str()),
       hint);
}

void Cursor::fail_short(uint64_t n_bytes, const char* field) const {
  fail_at(offset_,
          format("the file ends inside %s, which needs %llu bytes where %llu are left", field, ull(n_bytes),
                 ull(n_left())),
          "the file is truncated or damaged: fetch it again");
}

}  // namespace dsv32
