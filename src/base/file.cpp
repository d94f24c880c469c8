#include "base/file.h"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/text.h"

namespace dsv32 {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
// Nanoseconds after which another change gets another time: a tick of the system's clock, or more where the
// file system keeps no fractions of a second.
constexpr int64_t kTick = 10'000'000, kCoarse = 2 * kSecond;

int64_t in_ns(const timespec& time) { return int64_t{time.tv_sec} * kSecond + time.tv_nsec; }

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

void fail_changed(const std::string& path) {
  fail(ErrorKind::model, format("%s has changed since it was opened: what was computed with it may be wrong",
                                visible(path).c_str()));
}

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const std::string name = visible(path);
  const auto fail_to = [&](const char* verb, const char* hint = "") {
    fail(ErrorKind::model, format("cannot %s model file %s: %s", verb, name.c_str(), std::strerror(errno)),
         hint);
  };
  // O_NONBLOCK: opening a pipe must not wait for a writer.
  OwnedFd file(real_file_system(), open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.is_open()) fail_to("open", errno == ENOENT ? "name a GGUF file with -m FILE" : "");
  struct stat info {};
  if (fstat(file.get(), &info) != 0) fail_to("examine");
  if (!S_ISREG(info.st_mode))
    fail(ErrorKind::model,
         format("model file %s is %s, expected a regular file", name.c_str(), kind_of_file(info.st_mode)));
  if (info.st_size == 0)
    fail(ErrorKind::model,
         format("model file %s is empty, expected a GGUF header at offset 0", name.c_str()));
  stamp_ = stamp_from(info);
  const auto n_bytes = static_cast<size_t>(info.st_size);
  void* mapped = mmap(nullptr, n_bytes, PROT_READ, MAP_SHARED, file.get(), 0);
  if (mapped == MAP_FAILED) fail_to("map");
  bytes_ = {static_cast<const uint8_t*>(mapped), n_bytes};
  file_ = std::move(file);
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<uint8_t*>(bytes_.data()), bytes_.size());
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      stamp_(other.stamp_),
      file_(std::move(other.file_)),
      bytes_(std::exchange(other.bytes_, {})) {}

// Removing a name changes the file's ctime, but no byte.
bool MappedFile::is_unchanged() const {
  std::optional<FileStamp> now = stamp_of(file_.get());
  if (!now || *now == stamp_) return now.has_value();
  struct stat named {};
  const bool has_name =
      stat(path_.c_str(), &named) == 0 && named.st_dev == stamp_.device && named.st_ino == stamp_.inode;
  if (!has_name) now->changed_ns = stamp_.changed_ns;
  return *now == stamp_;
}

void MappedFile::settle() const {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  const int64_t age = in_ns(now) - stamp_.changed_ns;
  const int64_t grain = stamp_.changed_ns % kSecond == 0 ? kCoarse : kTick;
  if (age >= 0 && age < grain) std::this_thread::sleep_for(std::chrono::nanoseconds(grain - age));
  if (!is_unchanged()) fail_changed(path_);
}

void install_truncation_guard() {
  struct sigaction action {};
  action.sa_handler = on_bus_error;
  sigaction(SIGBUS, &action, nullptr);
}

std::string read_text(const std::string& path, size_t max_bytes, std::function<void()> on_wait) {
  constexpr int kPatienceMs = 500;
  const bool is_stdin = path == "-";
  const OwnedFd file(real_file_system(), is_stdin ? -1 : open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const int fd = is_stdin ? STDIN_FILENO : file.get();
  const std::string name = is_stdin ? "standard input" : visible(path);
  const auto fail_read = [&] {
    fail(ErrorKind::usage, format("cannot read %s: %s", name.c_str(), std::strerror(errno)));
  };
  if (fd < 0) fail_read();
  std::string text;
  char block[1 << 16];
  for (;;) {
    pollfd readable{fd, POLLIN, 0};
    if (on_wait && poll(&readable, 1, kPatienceMs) == 0) std::exchange(on_wait, {})();
    const ssize_t n_read = read(fd, block, sizeof block);
    if (n_read < 0) fail_read();
    if (n_read == 0) return std::string(plain_text(text, is_stdin ? "standard input" : path));
    if (text.size() + static_cast<size_t>(n_read) > max_bytes)
      fail(ErrorKind::usage, format("%s is longer than %zu bytes", name.c_str(), max_bytes));
    text.append(block, static_cast<size_t>(n_read));
  }
}

}  // namespace dsv32
