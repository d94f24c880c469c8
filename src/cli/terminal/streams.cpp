// See streams.h. Everything is written by write(2): nothing is left in a buffer that a crash, a signal or a
// failed flush at exit could lose.
#include "cli/terminal/streams.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cwchar>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <termcap.h>

#include "base/error.h"
#include "base/file_system.h"
#include "base/stopwatch.h"
#include "base/text.h"

namespace dsv32 {
namespace {

// Whether progress stands on standard error's terminal: what is shown next erases it.
std::atomic<bool> is_progress_shown{false};
// The pipe whose reader has got a part of the answer, which it may print on that terminal at any time; or -1.
std::atomic<int> answer_pipe{-1};

void erase_progress() {
  if (is_progress_shown.exchange(false)) write_stream(STDERR_FILENO, "\r\x1b[K");
}

// Gives the reader time to take the answer and to print it. One that does not read, such as a pager, is not
// waited for.
void let_reader_print() {
  constexpr int kMostMs = 100, kPrintMs = 10;
  int n_bytes = 0;
  for (int ms = 0; ms < kMostMs && ioctl(answer_pipe, FIONREAD, &n_bytes) == 0 && n_bytes > 0; ++ms)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(kPrintMs));
}

bool is_pipe(int fd) {
  struct stat info {};
  return fstat(fd, &info) == 0 && (S_ISFIFO(info.st_mode) || S_ISSOCK(info.st_mode));
}

bool is_dumb(const char* term) { return !term || std::string_view(term) == "dumb"; }

bool is_known(const char* term) { return tgetent(nullptr, term) == 1; }

// wcwidth() knows the characters of the locale.
size_t width_of(uint32_t code_point) {
  static const char* const kLocale = std::setlocale(LC_CTYPE, "C.UTF-8");
  const int width = kLocale ? wcwidth(static_cast<wchar_t>(code_point)) : 1;
  return static_cast<size_t>(std::max(width, 0));
}

// The first character; a malformed byte counts as one.
std::string_view first_character(std::string_view text, uint32_t& code_point) {
  const int n_bytes = decode_utf8(text, 0, &code_point);
  if (n_bytes == 0) code_point = 0xfffd;
  return text.substr(0, static_cast<size_t>(std::max(n_bytes, 1)));
}

}  // namespace

void open_missing_streams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd)
    if (fcntl(fd, F_GETFD) < 0) [[maybe_unused]]
      const int opened = open("/dev/null", O_RDONLY);
}

bool is_terminal(int fd) { return isatty(fd) == 1; }

void write_out(std::string_view bytes) {
  if (is_terminal(STDOUT_FILENO)) return write_out_as_is(visible(bytes, true));
  write_out_as_is(bytes);
}

int write_answer(int fd, std::string_view bytes) {
  const bool is_piped = !bytes.empty() && is_pipe(fd);
  if (is_piped || is_terminal(fd)) erase_progress();
  if (is_piped) answer_pipe = fd;
  return write_stream(fd, bytes);
}

void write_out_as_is(std::string_view bytes) {
  if (const int result = write_answer(STDOUT_FILENO, bytes); result != 0)
    fail(ErrorKind::io, std::string("cannot write to standard output: ") + std::strerror(-result));
}

void fail_file(const char* verb, const std::string& path) {
  fail(ErrorKind::io, format("cannot %s %s: %s", verb, visible(path).c_str(), std::strerror(errno)));
}

bool is_special_file(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode);
}

void write_err(std::string_view bytes) {
  erase_progress();
  if (answer_pipe >= 0 && is_terminal(STDERR_FILENO)) let_reader_print();
  write_stream(STDERR_FILENO, bytes);
}

void say(const std::string& line) { write_err(visible(line, true) + "\n"); }

void take_unknown_terminal_for_dumb() {
  const char* term = std::getenv("TERM");
  const bool is_any = is_terminal(STDIN_FILENO) || is_terminal(STDOUT_FILENO) || is_terminal(STDERR_FILENO);
  if (is_any && !is_dumb(term) && !is_known(term)) setenv("TERM", "dumb", 1);
}

constexpr size_t kMostCells = 2000;  // of a line, and lines: who believes more takes memory for them

WindowSize window_size(std::initializer_list<int> fds) {
  winsize size{};
  for (const int fd : fds)
    if (ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
      return {size.ws_row > 0 ? std::min<size_t>(size.ws_row, kMostCells) : 24,
              std::min<size_t>(size.ws_col, kMostCells)};
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
  constexpr double kRedrawSeconds = 0.1;
  const double now = seconds_since(start_);
  if (is_quiet_ || now < next_ || (can_redraw_ && answer_pipe >= 0)) return;
  next_ = now + (can_redraw_ ? kRedrawSeconds : every_);
  if (!can_redraw_) return say(text);
  write_stream(STDERR_FILENO, "\r\x1b[K" + visible(text.substr(0, columns() - 1)));
  is_progress_shown = true;
}

void StatusLine::erase() {
  if (is_progress_shown) erase_progress(), next_ = 0;
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
      // Counted from the first column: terminals differ in where the cursor of a full line is.
      out += format("\r\x1b[%zuC\x1b[K\n", column_ - word_columns_) + word_;
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

std::string duration(double seconds) {
  if (seconds < 10) return format("%.1f s", seconds);
  if (seconds < 100) return format("%.0f s", seconds);
  if (seconds < 6000) return format("%.0f min", seconds / 60);
  return format("%.0f h", seconds / 3600);
}

LineReader::Result LineReader::next(Line& line, int wait_ms) {
  for (;;) {
    const size_t end = held_.find('\n', scanned_);
    if (end != std::string::npos) return take(line, end + 1 - begin_), Result::line;
    scanned_ = held_.size();
    const size_t n_left = held_.size() - begin_;
    if (is_at_end_ && n_left == 0 && n_dropped_ == 0) return Result::end;
    if (is_at_end_) return take(line, n_left), Result::line;
    pollfd readable{fd_, POLLIN, 0};
    if (poll(&readable, 1, wait_ms) <= 0) return Result::later;
    read_block();
  }
}

// Takes the next n_bytes of held_, the line end included.
void LineReader::take(Line& line, size_t n_bytes) {
  n_taken_ += n_dropped_ + n_bytes;
  line.text.assign(held_, begin_, n_bytes);
  line.is_too_long = std::exchange(n_dropped_, 0) + n_bytes > max_bytes_;
  line.number = ++n_lines_;
  line.end = n_taken_;
  line.has_end = line.text.ends_with('\n');
  begin_ = scanned_ = begin_ + n_bytes;
  if (line.has_end) line.text.pop_back();
  if (line.is_too_long) line.text.clear();
  if (line.text.ends_with('\r')) line.text.pop_back();
  if (line.text.starts_with("\ufeff")) line.text.erase(0, 3);
}

// The beginning of a line that is too long is dropped.
void LineReader::read_block() {
  held_.erase(0, begin_);
  begin_ = 0;
  if (held_.size() > max_bytes_ || n_dropped_ > 0) n_dropped_ += held_.size(), held_.clear();
  scanned_ = held_.size();
  char block[1 << 16];
  const ssize_t n_read = read(fd_, block, sizeof block);
  if (n_read < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (n_read < 0) fail(ErrorKind::usage, "cannot read " + visible(name_) + ": " + std::strerror(errno));
  is_at_end_ = n_read == 0;
  held_.append(block, static_cast<size_t>(n_read));
}

}  // namespace dsv32
