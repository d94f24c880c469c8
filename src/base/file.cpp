#include "base/file.h"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/text.h"

namespace dsv32 {
namespace {

struct Descriptor {
  int fd = -1;
  ~Descriptor() {
    if (fd > STDERR_FILENO) close(fd);
  }
};

int64_t in_ns(const timespec& time) { return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec; }

FileStamp stamp_from(const struct stat& info) {
  return {info.st_dev, info.st_ino, static_cast<uint64_t>(info.st_size), in_ns(info.st_mtim),
          in_ns(info.st_ctim)};
}

const char* kind_of_file(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  return "not a regular file";
}

void on_bus_error(int) {
  constexpr char kMessage[] =
      "dsv32: the model file was truncated or became unreadable while it was in use\n";
  [[maybe_unused]] const ssize_t n = write(STDERR_FILENO, kMessage, sizeof kMessage - 1);
  _exit(exit_code(ErrorKind::model));
}

}  // namespace

std::optional<FileStamp> stamp_of(int fd) {
  struct stat info {};
  return fstat(fd, &info) == 0 ? std::optional(stamp_from(info)) : std::nullopt;
}

MappedFile::MappedFile(const std::string& path) : path_(path) {
  // O_NONBLOCK: opening a pipe must not wait for a writer.
  Descriptor file{open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0)
    fail(ErrorKind::model,
         format("cannot open model file %s: %s", visible(path).c_str(), std::strerror(errno)),
         errno == ENOENT ? "name a GGUF file with -m FILE" : "");
  struct stat info {};
  if (fstat(file.fd, &info) != 0)
    fail(ErrorKind::model,
         format("cannot examine model file %s: %s", visible(path).c_str(), std::strerror(errno)));
  if (!S_ISREG(info.st_mode))
    fail(ErrorKind::model, format("model file %s is %s, expected a regular file", visible(path).c_str(),
                                  kind_of_file(info.st_mode)));
  if (info.st_size == 0)
    fail(ErrorKind::model,
         format("model file %s is empty, expected a GGUF header at offset 0", visible(path).c_str()));
  stamp_ = stamp_from(info);
  n_bytes_ = static_cast<size_t>(info.st_size);
  void* mapped = mmap(nullptr, n_bytes_, PROT_READ, MAP_SHARED, file.fd, 0);
  if (mapped == MAP_FAILED)
    fail(ErrorKind::model,
         format("cannot map model file %s: %s", visible(path).c_str(), std::strerror(errno)));
  data_ = static_cast<const uint8_t*>(mapped);
}

MappedFile::~MappedFile() {
  if (data_) munmap(const_cast<uint8_t*>(data_), n_bytes_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      stamp_(other.stamp_),
      data_(std::exchange(other.data_, nullptr)),
      n_bytes_(std::exchange(other.n_bytes_, 0)) {}

void install_truncation_guard() {
  struct sigaction action {};
  action.sa_handler = on_bus_error;
  sigaction(SIGBUS, &action, nullptr);
}

std::string read_text(const std::string& path, size_t max_bytes) {
  const bool is_stdin = path == "-";
  Descriptor file{is_stdin ? STDIN_FILENO : open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  const std::string name = is_stdin ? "standard input" : visible(path);
  if (file.fd < 0) fail(ErrorKind::usage, format("cannot read %s: %s", name.c_str(), std::strerror(errno)));
  std::string text;
  char block[1 << 16];
  for (;;) {
    const ssize_t n_read = read(file.fd, block, sizeof block);
    if (n_read < 0 && errno == EINTR) continue;
    if (n_read < 0) fail(ErrorKind::usage, format("cannot read %s: %s", name.c_str(), std::strerror(errno)));
    if (n_read == 0) return text;
    if (text.size() + static_cast<size_t>(n_read) > max_bytes)
      fail(ErrorKind::usage, format("%s is longer than %zu bytes", name.c_str(), max_bytes));
    text.append(block, static_cast<size_t>(n_read));
  }
}

}  // namespace dsv32
