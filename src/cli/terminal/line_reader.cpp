#include "cli/terminal/line_reader.h"

#include <cerrno>
#include <cstring>

#include <poll.h>
#include <unistd.h>

#include "base/error.h"
#include "base/text.h"

namespace dsv32 {
namespace {

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

}  // namespace

LineReader::LineReader(int fd, std::string name, size_t max_bytes)
    : fd_(fd), name_(std::move(name)), max_bytes_(max_bytes) {
  char head[4];
  const ssize_t n_read =
      pread(fd_, head, sizeof head, lseek(fd_, 0, SEEK_CUR));  // a pipe's comes with its first line
  if (n_read > 0) plain_text({head, static_cast<size_t>(n_read)}, name_);
}

LineReader::Result LineReader::next(Line& line, int wait_ms) {
  for (;;) {
    const size_t end = held_.find('\n', scanned_);
    if (end != std::string::npos) {
      take(line, end + 1 - begin_, true);
      return Result::line;
    }
    scanned_ = held_.size();
    const size_t n_left = held_.size() - begin_;
    if (is_at_end_ && n_left == 0 && n_dropped_ == 0) return Result::end;
    if (is_at_end_) {
      take(line, n_left, false);
      return Result::line;
    }
    make_room();
    if (!can_read(wait_ms)) return Result::later;
    read_block();
  }
}

// The first n_bytes of what is held, its line end among them.
void LineReader::take(Line& line, size_t n_bytes, bool has_end) {
  n_taken_ += n_dropped_ + n_bytes;
  line.text.assign(held_, begin_, n_bytes - has_end);
  line.is_too_long = n_dropped_ + n_bytes > max_bytes_;
  line.number = ++n_lines_;
  line.end = n_taken_;
  line.has_end = has_end;
  begin_ += n_bytes;
  scanned_ = begin_;
  n_dropped_ = 0;
  if (line.is_too_long) line.text.clear();
  if (line.text.ends_with('\r')) line.text.pop_back();
  if (line.number == 1) plain_text(line.text, name_);
  if (line.text.starts_with(kByteOrderMark)) line.text.erase(0, kByteOrderMark.size());
}

// What was taken goes, and so does the beginning of a line that is too long.
void LineReader::make_room() {
  held_.erase(0, begin_);
  if (held_.size() > max_bytes_ || n_dropped_ > 0) {
    n_dropped_ += held_.size();
    held_.clear();
  }
  begin_ = 0;
  scanned_ = held_.size();
}

bool LineReader::can_read(int wait_ms) const {
  pollfd readable{fd_, POLLIN, 0};
  return poll(&readable, 1, wait_ms) > 0;
}

void LineReader::read_block() {
  char block[1 << 16];
  const ssize_t n_read = read(fd_, block, sizeof block);
  if (n_read < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (n_read < 0)
    fail(ErrorKind::usage, format("cannot read %s: %s", visible(name_).c_str(), std::strerror(errno)));
  is_at_end_ = n_read == 0;
  held_.append(block, static_cast<size_t>(n_read));
}

}  // namespace dsv32
