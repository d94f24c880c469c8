// See word_wrap.h.
#include "cli/terminal/word_wrap.h"

#include <algorithm>
#include <clocale>
#include <cwchar>

#include "base/error.h"
#include "base/text.h"

namespace dsv32 {
namespace {

constexpr size_t kTab = 8;

// wcwidth() knows the characters of the locale.
size_t width_of(uint32_t code_point) {
  static const char* const kLocale = std::setlocale(LC_CTYPE, "C.UTF-8");
  const int width = kLocale ? wcwidth(static_cast<wchar_t>(code_point)) : 1;
  return static_cast<size_t>(std::max(width, 0));
}

// The first character; a byte that belongs to none is one.
std::string_view first_character(std::string_view text, uint32_t& code_point) {
  const int n_bytes = decode_utf8(text, 0, &code_point);
  if (n_bytes == 0) code_point = 0xfffd;
  return text.substr(0, static_cast<size_t>(std::max(n_bytes, 1)));
}

}  // namespace

size_t columns_of(std::string_view text) {
  size_t n = 0;
  for (uint32_t code_point = 0; !text.empty();) {
    text.remove_prefix(first_character(text, code_point).size());
    n += width_of(code_point);
  }
  return n;
}

std::string WordWrap::wrap(std::string_view text, size_t width) {
  std::string out;
  for (uint32_t code_point = 0; !text.empty();) {
    const std::string_view character = first_character(text, code_point);
    text.remove_prefix(character.size());
    place(character, width, out);
  }
  return out;
}

void WordWrap::place(std::string_view character, size_t width, std::string& out) {
  const char c = character[0];
  const size_t n = c == '\t' ? kTab - column_ % kTab : columns_of(character);
  const bool is_wide = n == 2 && c != '\t';  // such scripts part no words
  const bool ends_word = c == '\n' || c == ' ' || c == '\t';
  if (c == '\n') column_ = 0;
  if (ends_word || is_wide) word_.clear(), word_columns_ = 0;
  if (c != '\n' && width > 0 && column_ + n > width) {
    if (ends_word) {  // the line's end stands for the space
      out += '\n';
      column_ = 0;
      return;
    }
    if (word_columns_ > 0 && word_columns_ < column_) {
      // At the end of a full line a terminal's cursor is still on its last column.
      const size_t at = std::min(column_, width - 1);
      const size_t n_back = at - std::min(at, column_ - word_columns_);
      if (n_back > 0) out += format("\x1b[%zuD", n_back);
      out += "\x1b[K\n" + word_;
      column_ = word_columns_;
    } else if (word_columns_ == 0) {
      out += '\n';
      column_ = 0;
    } else {
      column_ = 0;  // the terminal's own line end
    }
  }
  out += character;
  if (c == '\n') return;
  column_ += n;
  if (!ends_word && !is_wide) word_ += character, word_columns_ += n;
}

}  // namespace dsv32
