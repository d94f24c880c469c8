// Bytes in and out: the standard streams, the abilities of their terminals, the lines of a file or a pipe.
//
// Standard output carries the answer. A failed write to it is Error{io}, so that a full disk cannot end in
// exit code 0. Standard error carries everything else, and failed writes to it are ignored. Untrusted bytes
// reach a terminal only through write_out() and say(), which escape them.
//
// Each stream is examined by itself. A standard error that is a terminal and can erase a line shows progress
// at most ten times a second; any other gets a line of progress each minute. What is shown next erases
// progress. None is drawn once the reader of a pipe has a byte of the answer and may print on the same line.
#pragma once

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include <unistd.h>

namespace dsv32 {

// Opens /dev/null where a standard stream is closed, so that no file opened later gets its number. Call
// first.
void open_missing_streams();

bool is_terminal(int fd);

// Writes everything, or throws Error{io}. For a terminal the bytes are escaped by visible(), which leaves
// JSON the same JSON.
void write_out(std::string_view bytes);
// The same unescaped: for text that is escaped already, and cursor movements.
void write_out_as_is(std::string_view bytes);
// write_stream() for an answer, wherever it goes.
int write_answer(int fd, std::string_view bytes);
void write_err(std::string_view bytes);
// Writes an escaped line to standard error.
void say(const std::string& line);

// Throws Error{io}: "cannot VERB PATH", and the reason, from errno.
[[noreturn]] void fail_file(const char* verb, const std::string& path);
// Whether the path leads to a device, a pipe or a folder.
bool is_special_file(const std::string& path);

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
      : can_redraw_(can_redraw), is_quiet_(is_quiet), every_(every), next_(can_redraw ? 0 : every) {}
  ~StatusLine() { erase(); }
  StatusLine(const StatusLine&) = delete;

  // Draws `text`, cut to the terminal's width, unless the last drawing is younger than a tenth of a second.
  void show(const std::string& text);
  void erase();

 private:
  const bool can_redraw_, is_quiet_;
  const double every_;
  double next_;  // when it may be shown again, in seconds from the start
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// Sets TERM to "dumb" where this machine does not know the terminal's kind, for libedit and for programs
// started from here. Call first.
void take_unknown_terminal_for_dumb();

struct WindowSize {
  size_t rows, columns;
};
// The window of the first of these streams that is a terminal and gives its size, which is bounded; else 24
// rows of 80 columns.
WindowSize window_size(std::initializer_list<int> fds = {STDERR_FILENO, STDOUT_FILENO});
inline size_t columns() { return window_size().columns; }

inline constexpr size_t kTabColumns = 8;
// Columns that a terminal gives to printable UTF-8: 2 for wide characters, 0 for combining ones.
size_t columns_of(std::string_view text);

// Ends lines between words in a text that comes piece by piece. A word is shown at once, letter by letter. If
// it does not fit, the cursor goes back to the word's first column, the rest of the line is erased, and the
// word is written on the next line. Words longer than a line are left to the terminal.
class WordWrap {
 public:
  // `text`: whole characters, escaped (visible()), that follow the text of the last call. `width`: columns of
  // the window; 0: nothing is wrapped. Returns what to write.
  std::string wrap(std::string_view text, size_t width);

 private:
  void place(std::string_view character, size_t width, std::string& out);

  size_t column_ = 0;  // where the next character goes
  std::string word_;   // the last word so far
  size_t word_columns_ = 0;
};

// 1204 -> "1,204"
std::string with_thousands(int64_t value);

// Tokens per second: "0.42", "12.3", "1,240".
std::string rate(int64_t n_tokens, double seconds);

std::string duration(double seconds);  // "0.4 s", "38 s", "11 min", "3 h"

// Reads lines one at a time, each as soon as it is complete. Lines end with \n or \r\n; a byte order mark at
// a line's beginning is dropped, since files may have been joined. Memory: one line and one block.
class LineReader {
 public:
  // `fd` stays the caller's; `name` is for messages.
  LineReader(int fd, std::string name, size_t max_bytes)
      : fd_(fd), name_(std::move(name)), max_bytes_(max_bytes) {}

  const std::string& name() const { return name_; }

  struct Line {
    std::string text;
    int64_t number = 0;        // from 1
    uint64_t end = 0;          // bytes read up to and including its line end
    bool is_too_long = false;  // more than max_bytes: the text is empty
    bool has_end = true;       // false: the last line, without a line end
  };
  enum class Result { line, later, end };
  // `later`: no line came within wait_ms, or a signal did. Throws Error{usage} when reading fails.
  Result next(Line& line, int wait_ms);

 private:
  void take(Line& line, size_t n_bytes);
  void read_block();

  int fd_;
  std::string name_;
  size_t max_bytes_;
  std::string held_;                // bytes read; those from begin_ on are not taken yet
  size_t begin_ = 0, scanned_ = 0;  // no line end lies before scanned_
  uint64_t n_dropped_ = 0;          // bytes of the line that is too long
  uint64_t n_taken_ = 0;
  int64_t n_lines_ = 0;
  bool is_at_end_ = false;
};

}  // namespace dsv32
