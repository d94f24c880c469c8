// See streams.h. write(2) directly: nothing is left in a buffer that a crash, a signal or a failed flush at
// exit could lose.
#include "cli/terminal/streams.h"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include "base/error.h"
#include "base/text.h"

namespace dsv32 {
namespace {

// False with errno set when the rest cannot be written.
bool write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n_written = write(fd, bytes.data(), bytes.size());
    if (n_written >= 0) {
      bytes.remove_prefix(static_cast<size_t>(n_written));
    } else if (errno == EAGAIN) {  // a pipe that its other end has made non-blocking
      pollfd writable{fd, POLLOUT, 0};
      poll(&writable, 1, -1);
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

}  // namespace

void open_missing_streams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd)
    if (fcntl(fd, F_GETFD) < 0) [[maybe_unused]]
      const int opened = open("/dev/null", O_RDONLY);
}

bool is_terminal(int fd) { return isatty(fd) == 1; }

void write_out(std::string_view bytes) {
  if (is_terminal(STDOUT_FILENO))
    write_out_as_is(visible(bytes, true));
  else
    write_out_as_is(bytes);
}

void write_out_as_is(std::string_view bytes) {
  if (!write_all(STDOUT_FILENO, bytes))
    fail(ErrorKind::io, format("cannot write to standard output: %s", std::strerror(errno)));
}

void write_err(std::string_view bytes) { write_all(STDERR_FILENO, bytes); }

void say(const std::string& line) { write_err(visible(line, true) + "\n"); }

}  // namespace dsv32
