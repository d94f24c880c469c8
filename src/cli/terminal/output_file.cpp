// See output_file.h.
//
// The temporary file has the process number in its name: two runs to the same path do not meet.
#include "cli/terminal/output_file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/text.h"
#include "cli/terminal/streams.h"

namespace dsv32 {

OutputFile::OutputFile(const std::string& path) : path_(path) {
  if (path == "-") {
    if (is_terminal(STDOUT_FILENO))
      fail(ErrorKind::usage, "--out - would write binary data to the terminal, expected a file or a pipe");
    return;
  }
  struct stat info {};
  const bool is_special = stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode);
  if (!is_special) temporary_ = format("%s.%ld.tmp", path.c_str(), static_cast<long>(getpid()));
  const std::string& opened = is_special ? path_ : temporary_;
  fd_ = open(opened.c_str(), O_WRONLY | O_CLOEXEC | (is_special ? 0 : O_CREAT | O_EXCL), 0666);
  if (fd_ < 0) fail_io("open");
}

OutputFile::~OutputFile() {
  if (fd_ >= 0) close(fd_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

void OutputFile::write(std::string_view bytes) {
  if (path_ == "-") return write_out(bytes);
  while (!bytes.empty()) {
    const ssize_t n_written = ::write(fd_, bytes.data(), bytes.size());
    if (n_written < 0 && errno == EINTR) continue;
    if (n_written < 0) fail_io("write");
    bytes.remove_prefix(static_cast<size_t>(n_written));
  }
}

void OutputFile::commit() {
  if (fd_ >= 0 && close(std::exchange(fd_, -1)) != 0) fail_io("write");
  if (temporary_.empty()) return;
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail_io("rename to");
  temporary_.clear();
}

void OutputFile::fail_io(const char* what) const {
  fail(ErrorKind::io, format("cannot %s %s: %s", what, visible(path_).c_str(), std::strerror(errno)));
}

}  // namespace dsv32
