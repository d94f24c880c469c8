#include "base/file_system.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <thread>

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <unistd.h>

namespace dsv32 {
namespace {

constexpr int kMaxStalls = 3;                    // retries of transfers of less than a unit
constexpr int64_t kNanoseconds = 1'000'000'000;  // of a second
constexpr int64_t kMaxSeconds = 9'000'000'000;   // whose nanoseconds fit into int64_t

template <typename Result>
Result checked(Result result) {
  return result < 0 ? static_cast<Result>(-errno) : result;
}

int64_t in_ns(const timespec& time) {
  return std::clamp<int64_t>(time.tv_sec, 0, kMaxSeconds) * kNanoseconds + time.tv_nsec;
}

int checked_info(int result, const struct stat& from, FileInfo& info) {
  if (result != 0) return -errno;
  info = {{from.st_dev, from.st_ino, static_cast<uint64_t>(from.st_size), in_ns(from.st_mtim),
           in_ns(from.st_ctim)},
          from.st_mode,
          from.st_uid,
          static_cast<uint64_t>(from.st_blocks) * 512};
  return 0;
}

}  // namespace

int FileSystem::open_directory(const std::string& path) {
  return checked(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

int FileSystem::open_at(int directory, const std::string& name, int flags, mode_t mode) {
  const int fd = ::openat(directory, name.c_str(), flags | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, mode);
  if (fd < 0) return -errno;
  if ((flags & O_CREAT) && (flags & O_EXCL) && ::fchmod(fd, mode) != 0) {
    const int error = errno;
    ::close(fd);
    ::unlinkat(directory, name.c_str(), 0);
    return -error;
  }
  return fd;
}

void FileSystem::close(int fd) { ::close(fd); }

ssize_t FileSystem::pread(int fd, void* bytes, size_t n_bytes, uint64_t offset) {
  return checked(::pread(fd, bytes, n_bytes, static_cast<off_t>(offset)));
}

ssize_t FileSystem::pwrite(int fd, const void* bytes, size_t n_bytes, uint64_t offset) {
  return checked(::pwrite(fd, bytes, n_bytes, static_cast<off_t>(offset)));
}

int FileSystem::reserve(int fd, uint64_t n_bytes) {
  const auto length = static_cast<off_t>(n_bytes);
  if (::fallocate(fd, 0, 0, length) == 0) return 0;
  if (errno != EOPNOTSUPP && errno != ENOSYS) return -errno;
  return checked(::ftruncate(fd, length));  // reserves nothing, but used_bytes() counts the length
}

void FileSystem::drop_cached(int fd) { ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED); }

int FileSystem::fsync(int fd) { return checked(::fsync(fd)); }
int FileSystem::fdatasync(int fd) { return checked(::fdatasync(fd)); }

int FileSystem::make_directory(int directory, const std::string& name, mode_t mode) {
  return checked(::mkdirat(directory, name.c_str(), mode));
}

int FileSystem::rename_new(int directory, const std::string& from, const std::string& to) {
  if (::renameat2(directory, from.c_str(), directory, to.c_str(), RENAME_NOREPLACE) == 0) return 0;
  if (errno != EINVAL && errno != ENOSYS) return -errno;
  // File systems without RENAME_NOREPLACE have links that refuse to overwrite.
  if (::linkat(directory, from.c_str(), directory, to.c_str(), 0) != 0) return -errno;
  return checked(::unlinkat(directory, from.c_str(), 0));
}

// An empty directory goes too.
int FileSystem::unlink(int directory, const std::string& name) {
  if (::unlinkat(directory, name.c_str(), 0) == 0) return 0;
  if (errno != EISDIR) return -errno;
  return checked(::unlinkat(directory, name.c_str(), AT_REMOVEDIR));
}

int FileSystem::list(int directory, std::vector<std::string>& names) {
  names.clear();
  // A descriptor of its own, because it holds the position in the directory.
  const int fd = ::openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return -errno;
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(::fdopendir(fd), ::closedir);
  if (!stream) {
    const int error = errno;
    ::close(fd);
    return -error;
  }
  errno = 0;
  while (const dirent* entry = ::readdir(stream.get())) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
    errno = 0;
  }
  return -errno;
}

int FileSystem::stat_at(int directory, const std::string& name, FileInfo& info) {
  struct stat found {};
  return checked_info(::fstatat(directory, name.c_str(), &found, AT_SYMLINK_NOFOLLOW), found, info);
}

int FileSystem::stat(int fd, FileInfo& info) {
  struct stat found {};
  return checked_info(::fstat(fd, &found), found, info);
}

int FileSystem::set_time(int directory, const std::string& name, int64_t written_ns) {
  const timespec times[] = {{0, UTIME_OMIT}, {written_ns / kNanoseconds, written_ns % kNanoseconds}};
  return checked(::utimensat(directory, name.c_str(), times, AT_SYMLINK_NOFOLLOW));
}

int FileSystem::space(int fd, SpaceInfo& info) {
  struct statvfs found {};
  if (::fstatvfs(fd, &found) != 0) return -errno;
  info.free_bytes = static_cast<uint64_t>(found.f_bavail) * found.f_frsize;
  info.total_bytes = static_cast<uint64_t>(found.f_blocks) * found.f_frsize;
  return 0;
}

int FileSystem::try_lock(int fd) { return checked(::flock(fd, LOCK_EX | LOCK_NB)); }

FileSystem& real_file_system() {
  static FileSystem file_system;
  return file_system;
}

int64_t read_fully(FileSystem& fs, int fd, void* bytes, size_t n_bytes, uint64_t offset, uint64_t unit) {
  size_t n_read = 0;
  int n_stalls = 0;
  while (n_read < n_bytes) {
    const ssize_t n = fs.pread(fd, static_cast<char*>(bytes) + n_read, n_bytes - n_read, offset + n_read);
    if (n == -EINTR) continue;
    if (n < 0) return n;
    const size_t usable = static_cast<size_t>(n) / unit * unit;
    if (usable == 0 && n > 0 && ++n_stalls <= kMaxStalls) continue;
    if (usable == 0) return static_cast<int64_t>(n_read) + n;  // the file's end, or a partial unit before it
    n_read += usable;
  }
  return static_cast<int64_t>(n_read);
}

int write_fully(FileSystem& fs, int fd, std::span<const uint8_t> bytes, uint64_t offset, uint64_t unit) {
  int n_stalls = 0;
  while (!bytes.empty()) {
    const ssize_t n = fs.pwrite(fd, bytes.data(), bytes.size(), offset);
    ++fs.n_steps_done;
    if (n == -EINTR) continue;
    if (n < 0) return static_cast<int>(n);
    const size_t usable = static_cast<size_t>(n) / unit * unit;
    if (usable == 0 && ++n_stalls <= kMaxStalls) continue;
    if (usable == 0) return -EIO;  // no progress: retrying would never end
    bytes = bytes.subspan(usable);
    offset += usable;
  }
  return 0;
}

int write_stream(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    pollfd writable{fd, POLLOUT, 0};
    if (n >= 0)
      bytes.remove_prefix(static_cast<size_t>(n));
    else if (errno == EAGAIN)
      ::poll(&writable, 1, -1);
    else if (errno != EINTR)
      return -errno;
  }
  return 0;
}

int replace_file(FileSystem& fs, int directory, const std::string& name, const std::string& temporary,
                 std::string_view bytes) {
  const OwnedFd file(fs, fs.open_at(directory, temporary, O_WRONLY | O_CREAT | O_EXCL));
  if (!file.is_open()) return file.error();
  int result = write_fully(fs, file.get(), as_bytes(bytes), 0);
  if (result == 0) result = fs.fsync(file.get());
  if (result == 0) result = checked(::renameat(directory, temporary.c_str(), directory, name.c_str()));
  if (result != 0) return fs.unlink(directory, temporary), result;
  return fs.fsync(directory);
}

int lock_within(FileSystem& fs, int fd, std::chrono::milliseconds patience) {
  const auto end = std::chrono::steady_clock::now() + patience;
  for (;;) {
    const int result = fs.try_lock(fd);
    if (result != -EWOULDBLOCK && result != -EINTR) return result;
    if (std::chrono::steady_clock::now() >= end) return -EWOULDBLOCK;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

std::string describe_errno(int64_t negative_errno) {
  return std::strerror(static_cast<int>(-negative_errno));
}

}  // namespace dsv32
