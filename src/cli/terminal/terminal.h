// What is known about the terminal, and the one line of progress that is drawn on it and erased again.
//
// Each stream is asked by itself whether it is a terminal. Progress is drawn on standard error only when that
// is a terminal that can erase a line, at most ten times a second; a log gets a line of it a minute.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace dsv32 {

enum class ColorMode { automatic, always, never };

struct Terminal {
  bool is_in = false, is_out = false, is_err = false;
  bool has_color = false;   // on standard error
  bool can_redraw = false;  // standard error can erase a line
  bool can_draw = false;    // standard output can move its cursor
};

// Asks the streams; NO_COLOR and TERM count when `mode` is automatic.
Terminal examine_terminal(ColorMode mode);

// The rule for colour by itself. `no_color` and `term`: the variables' values, or null.
bool decide_color(ColorMode mode, bool is_terminal, const char* no_color, const char* term);

class StatusLine {
 public:
  // Where standard error cannot redraw, a line stands there `every` so many seconds.
  StatusLine(bool can_redraw, bool is_quiet, double every = 60)
      : can_redraw_(can_redraw), is_quiet_(is_quiet), every_(every), next_line_(every) {}
  ~StatusLine() { erase(); }
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  // Draws `text`, unless the last drawing is younger than a tenth of a second. Cut to the terminal's width.
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

// For a terminal of a kind that this machine knows nothing of TERM is "dumb" from here on, for libedit and
// for programs that are started too. Call first.
void take_unknown_terminal_for_dumb();

// Columns of the terminal that a stream is, now; 80 when it does not say.
size_t window_columns(int fd);
struct WindowSize {
  size_t rows, columns;
};

// Of the terminal that standard error is, or else standard output, now; 24 and 80 when neither says.
WindowSize window_size();
inline size_t columns() { return window_size().columns; }

// 1204 -> "1,204"
std::string with_thousands(int64_t value);

// Tokens per second as people read them: "0.42", "12.3", "1,240".
std::string rate(int64_t n_tokens, double seconds);

}  // namespace dsv32
