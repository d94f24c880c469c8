// What is known about the terminal, how text takes up its columns, and the status line, which is drawn on it
// and erased again.
//
// Each stream is examined by itself. Progress is drawn on standard error only where that is a terminal that
// can erase a line, at most ten times a second; a log gets a line of it each minute.
#pragma once

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include <unistd.h>

namespace dsv32 {

enum class ColorMode { automatic, always, never };
enum class ThinkingDisplay { show, hide, on_stdout };

struct Terminal {
  bool is_in = false, is_out = false, is_err = false;
  bool has_color = false;   // on standard error
  bool can_redraw = false;  // standard error can erase a line
  bool can_draw = false;    // standard output can move its cursor
};

// NO_COLOR and TERM count when `mode` is automatic.
Terminal examine_terminal(ColorMode mode);

// Whether to use colour. `no_color` and `term`: the variables' values, or null.
bool decide_color(ColorMode mode, bool is_terminal, const char* no_color, const char* term);

class StatusLine {
 public:
  // Where standard error cannot redraw, `show` writes a line every `every` seconds.
  StatusLine(bool can_redraw, bool is_quiet, double every = 60)
      : can_redraw_(can_redraw), is_quiet_(is_quiet), every_(every), next_line_(every) {}
  ~StatusLine() { erase(); }
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  // Draws `text`, cut to the terminal's width, unless the last drawing is younger than a tenth of a second.
  void show(const std::string& text);
  void erase();

 private:
  const bool can_redraw_, is_quiet_;
  bool is_drawn_ = false;
  const double every_;
  double next_line_;  // seconds from the start
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point drawn_at_{};
};

// Sets TERM to "dumb" where this machine does not know the terminal's kind, for libedit and for programs
// started from here. Call first.
void take_unknown_terminal_for_dumb();

struct WindowSize {
  size_t rows, columns;
};
// Of the first of these streams that is a terminal and tells its size; else 24 and 80.
WindowSize window_size(std::initializer_list<int> fds = {STDERR_FILENO, STDOUT_FILENO});
inline size_t columns() { return window_size().columns; }
inline size_t window_columns(int fd) { return window_size({fd}).columns; }

inline constexpr size_t kTabColumns = 8;
// Columns that a terminal gives to printable UTF-8: 2 for wide characters, 0 for those that join.
size_t columns_of(std::string_view text);

// Ends lines between words in a text that comes piece by piece. A word is shown at once, letter by letter,
// and taken back when it does not fit: the cursor goes to where it began, the rest of the line is erased, and
// the word stands on the next one. Words longer than a line are left to the terminal.
class WordWrap {
 public:
  // `text`: whole characters, escaped (visible()), that follow the text of the last call. `width`: columns of
  // the window; 0: nothing is wrapped. Returns what to write.
  std::string wrap(std::string_view text, size_t width);

 private:
  void place(std::string_view character, size_t width, std::string& out);

  size_t column_ = 0;  // where the next character goes
  std::string word_;   // the last one so far
  size_t word_columns_ = 0;
};

// 1204 -> "1,204"
std::string with_thousands(int64_t value);

// Tokens per second: "0.42", "12.3", "1,240".
std::string rate(int64_t n_tokens, double seconds);

}  // namespace dsv32
