#include "cli/batch/batch_input.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/text.h"

namespace dsv32 {
namespace {

constexpr size_t kMaxLineBytes = size_t{64} << 20;

int open_lines(const std::string& path) {
  if (path == "-") return STDIN_FILENO;
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    fail(ErrorKind::usage, format("cannot read %s: %s", visible(path).c_str(), std::strerror(errno)));
  return fd;
}

// Of a regular file, whose place to read is left as it is.
std::optional<int64_t> count_lines(int fd) {
  struct stat info {};
  const off_t begin = lseek(fd, 0, SEEK_CUR);
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || begin < 0) return {};
  int64_t n_lines = 0;
  char last = '\n';
  std::string block(1 << 20, '\0');
  for (off_t at = begin;;) {
    const ssize_t n = pread(fd, block.data(), block.size(), at);
    if (n <= 0) return n_lines + (last != '\n');
    for (ssize_t i = 0; i < n; ++i) n_lines += block[static_cast<size_t>(i)] == '\n';
    last = block[static_cast<size_t>(n) - 1];
    at += n;
  }
}

bool is_blank(const std::string& text) { return text.find_first_not_of(" \t\r") == std::string::npos; }

}  // namespace

BatchInput::BatchInput(BatchSource source, Shard shard) : source_(std::move(source)), shard_(shard) {
  if (source_.path.empty()) {
    n_lines_ = std::ssize(source_.files);
    return;
  }
  fd_ = open_lines(source_.path);
  if (fd_ != STDIN_FILENO) file_ = OwnedFd(real_file_system(), fd_);
  lines_.emplace(fd_, source_.path == "-" ? "standard input" : source_.path, kMaxLineBytes);
  n_lines_ = count_lines(fd_);
}

LineReader::Result BatchInput::next(BatchLine& line, LineMaker& maker, int wait_ms) {
  for (;;) {
    const LineReader::Result result = read(line, maker, wait_ms);
    if (result != LineReader::Result::line || is_in(shard_, line.digest)) return result;
  }
}

// With a second line of one id refused, and whatever goes wrong in making a line.
LineReader::Result BatchInput::read(BatchLine& line, LineMaker& maker, int wait_ms) {
  if (!lines_ && n_read_ == n_lines_) return LineReader::Result::end;
  LineReader::Line text;
  do {
    if (const auto result = lines_ ? lines_->next(text, wait_ms) : LineReader::Result::line;
        result != LineReader::Result::line)
      return result;
    ++n_read_;
  } while (lines_ && !text.is_too_long && is_blank(text.text));
  line = {};
  try {
    line = lines_ ? from_line(maker, text) : from_file(maker, n_read_);
    if (line.id && !ids_.insert(digest_of(*line.id)).second)
      fail(ErrorKind::usage, "an earlier line has the same id");
  } catch (...) {
    const int64_t number = lines_ ? text.number : n_read_;
    line =
        maker.refused(number, line.id, std::to_string(number) + text.text, at_line(number, current_error()));
  }
  return LineReader::Result::line;
}

BatchLine BatchInput::from_file(LineMaker& maker, int64_t number) const {
  const std::string& name = source_.files[static_cast<size_t>(number) - 1];
  try {
    return maker.from_text(number, source_.read(name), name);
  } catch (...) {
    return maker.refused(number, name, name, current_error());
  }
}

BatchLine BatchInput::from_line(LineMaker& maker, const LineReader::Line& line) const {
  if (line.is_too_long)
    return maker.refused(
        line.number, {}, std::to_string(line.end),
        at_line(line.number, Error(ErrorKind::usage, format("it is longer than %zu bytes", kMaxLineBytes))));
  if (!source_.is_text) return maker.from_json(line.number, line.text);
  return maker.from_text(line.number,
                         source_.question.empty() ? line.text : line.text + "\n" + source_.question);
}

}  // namespace dsv32
