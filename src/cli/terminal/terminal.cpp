// See terminal.h.
#include "cli/terminal/terminal.h"

#include <algorithm>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <cwchar>
#include <string_view>

#include <histedit.h>
#include <sys/ioctl.h>

#include "base/error.h"
#include "base/stopwatch.h"
#include "base/text.h"
#include "cli/terminal/streams.h"

namespace dsv32 {
namespace {

bool is_dumb(const char* term) { return !term || std::string_view(term) == "dumb"; }

// Asks libedit, whose complaint goes to /dev/null.
bool is_known(const char* term) {
  FILE* null = std::fopen("/dev/null", "r+");
  EditLine* editor = null ? el_init("dsv32", null, null, null) : nullptr;
  const bool is_found = !editor || el_set(editor, EL_TERMINAL, term) == 0;
  if (editor) el_end(editor);
  if (null) std::fclose(null);
  return is_found;
}

// wcwidth() knows the characters of the locale.
size_t width_of(uint32_t code_point) {
  static const char* const kLocale = std::setlocale(LC_CTYPE, "C.UTF-8");
  const int width = kLocale ? wcwidth(static_cast<wchar_t>(code_point)) : 1;
  return static_cast<size_t>(std::max(width, 0));
}

// The first character; a malformed byte is one.
std::string_view first_character(std::string_view text, uint32_t& code_point) {
  const int n_bytes = decode_utf8(text, 0, &code_point);
  if (n_bytes == 0) code_point = 0xfffd;
  return text.substr(0, static_cast<size_t>(std::max(n_bytes, 1)));
}

}  // namespace

void take_unknown_terminal_for_dumb() {
  const char* term = std::getenv("TERM");
  const bool is_any = is_terminal(STDIN_FILENO) || is_terminal(STDOUT_FILENO) || is_terminal(STDERR_FILENO);
  if (is_any && !is_dumb(term) && !is_known(term)) setenv("TERM", "dumb", 1);
}

WindowSize window_size(std::initializer_list<int> fds) {
  winsize size{};
  for (const int fd : fds)
    if (ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
      return {size.ws_row > 0 ? size.ws_row : size_t{24}, size.ws_col};
  return {24, 80};
}

bool decide_color(ColorMode mode, bool is_terminal, const char* no_color, const char* term) {
  if (mode != ColorMode::automatic) return mode == ColorMode::always;
  return is_terminal && !(no_color && *no_color) && !is_dumb(term);
}

Terminal examine_terminal(ColorMode mode) {
  const char* term = std::getenv("TERM");
  const bool is_out = is_terminal(STDOUT_FILENO), is_err = is_terminal(STDERR_FILENO);
  return {.is_in = is_terminal(STDIN_FILENO),
          .is_out = is_out,
          .is_err = is_err,
          .has_color = decide_color(mode, is_err, std::getenv("NO_COLOR"), term),
          .can_redraw = is_err && !is_dumb(term),
          .can_draw = is_out && !is_dumb(term)};
}

void StatusLine::show(const std::string& text) {
  const auto now = std::chrono::steady_clock::now();
  if (is_quiet_) return;
  if (!can_redraw_) {
    if (seconds_since(start_) < next_line_) return;
    next_line_ = seconds_since(start_) + every_;
    return say(text);
  }
  if (is_drawn_ && now - drawn_at_ < std::chrono::milliseconds(100)) return;
  write_err("\r\x1b[K" + visible(text.substr(0, columns() - 1)));
  is_drawn_ = true;
  drawn_at_ = now;
}

void StatusLine::erase() {
  if (is_drawn_) write_err("\r\x1b[K");
  is_drawn_ = false;
}

size_t columns_of(std::string_view text) {
  size_t n = 0;
  for (uint32_t code_point = 0; !text.empty(); n += width_of(code_point))
    text.remove_prefix(first_character(text, code_point).size());
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
  const size_t n = c == '\t' ? kTabColumns - column_ % kTabColumns : columns_of(character);
  const bool is_wide = n == 2 && c != '\t';  // scripts of wide characters break anywhere
  const bool ends_word = c == '\n' || c == ' ' || c == '\t';
  if (c == '\n') column_ = 0;
  if (ends_word || is_wide) word_.clear(), word_columns_ = 0;
  if (c != '\n' && width > 0 && column_ + n > width) {
    const bool moves_word = !ends_word && word_columns_ > 0 && word_columns_ < column_;
    if (moves_word) {
      // At the end of a full line a terminal's cursor is still on its last column.
      const size_t at = std::min(column_, width - 1), n_back = at - std::min(at, column_ - word_columns_);
      out += (n_back > 0 ? format("\x1b[%zuD", n_back) : "") + "\x1b[K\n" + word_;
    } else if (word_columns_ == 0) {
      out += '\n';
    }  // else the word is longer than the line, and the terminal breaks it
    column_ = moves_word ? word_columns_ : 0;
    if (ends_word) return;  // the line's end stands for the space
  }
  out += character;
  if (c == '\n') return;
  column_ += n;
  if (!ends_word && !is_wide) word_ += character, word_columns_ += n;
}

std::string with_thousands(int64_t value) {
  std::string digits = std::to_string(value);
  const int64_t first = value < 0 ? 1 : 0;
  for (int64_t at = std::ssize(digits) - 3; at > first; at -= 3) digits.insert(static_cast<size_t>(at), ",");
  return digits;
}

std::string rate(int64_t n_tokens, double seconds) {
  const double per_second = seconds > 0 ? static_cast<double>(n_tokens) / seconds : 0;
  if (per_second >= 100) return with_thousands(static_cast<int64_t>(per_second + 0.5));
  return format(per_second >= 10 ? "%.1f" : "%.2f", per_second);
}

}  // namespace dsv32
