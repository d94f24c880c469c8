// See streams.h. Everything is written by write(2): nothing is left in a buffer that a crash, a signal or a
// failed flush at exit could lose.
#include "cli/terminal/streams.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file_system.h"
#include "base/text.h"

namespace dsv32 {
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

void write_out_as_is(std::string_view bytes) {
  if (const int result = write_stream(STDOUT_FILENO, bytes); result != 0)
    fail(ErrorKind::io, std::string("cannot write to standard output: ") + std::strerror(-result));
}

void fail_file(const char* verb, const std::string& path) {
  fail(ErrorKind::io, format("cannot %s %s: %s", verb, visible(path).c_str(), std::strerror(errno)));
}

bool is_special_file(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode);
}

void write_err(std::string_view bytes) { write_stream(STDERR_FILENO, bytes); }

void say(const std::string& line) { write_err(visible(line, true) + "\n"); }

// Looks at the first bytes where that takes nothing from a pipe.
LineReader::LineReader(int fd, std::string name, size_t max_bytes)
    : fd_(fd), name_(std::move(name)), max_bytes_(max_bytes) {
  char head[4];
  const ssize_t n_read = pread(fd_, head, sizeof head, lseek(fd_, 0, SEEK_CUR));
  if (n_read > 0) plain_text({head, static_cast<size_t>(n_read)}, name_);
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

// Takes the first n_bytes of what is held, the line end included.
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
  if (line.number == 1) plain_text(line.text, name_);
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

// The process number in the temporary name keeps two runs to the same path apart.
OutputFile::OutputFile(const std::string& path) : path_(path) {
  if (path == "-" && is_terminal(STDOUT_FILENO))
    fail(ErrorKind::usage, "--out - would write binary data to the terminal, expected a file or a pipe");
  if (path == "-") return;
  const bool is_special = is_special_file(path);
  if (!is_special) temporary_ = format("%s.%ld.tmp", path.c_str(), static_cast<long>(getpid()));
  file_ = OwnedFd(real_file_system(),
                  is_special ? open(path.c_str(), O_WRONLY | O_CLOEXEC)
                             : open(temporary_.c_str(), O_WRONLY | O_CLOEXEC | O_CREAT | O_EXCL, 0666));
  if (!file_.is_open()) fail_file("open", path);
}

OutputFile::~OutputFile() {
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

void OutputFile::write(std::string_view bytes) {
  if (path_ == "-") return write_out(bytes);
  if (const int result = write_stream(file_.get(), bytes); result != 0)
    errno = -result, fail_file("write", path_);
}

void OutputFile::commit() {
  if (temporary_.empty()) return;
  if (fdatasync(file_.get()) != 0)
    fail_file("write", path_);  // some file systems tell of a full disk only then
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail_file("rename to", path_);
  temporary_.clear();
}

}  // namespace dsv32
