#include "base/file_system.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

namespace dsv32 {
namespace {

constexpr int kMaxParts = 1024;                  // of one preadv (UIO_MAXIOV)
constexpr int kMaxStalls = 3;                    // transfers of less than a unit that are tried again
constexpr int64_t kNanoseconds = 1'000'000'000;  // of a second
constexpr int64_t kMaxSeconds = 9'000'000'000;   // whose nanoseconds can be counted

template <typename Result>
Result checked(Result result) {
  return result < 0 ? static_cast<Result>(-errno) : result;
}

void fill(FileInfo& info, const struct stat& from) {
  info.is_regular = S_ISREG(from.st_mode);
  info.is_directory = S_ISDIR(from.st_mode);
  info.mode = from.st_mode & 07777;
  info.owner = from.st_uid;
  info.n_links = from.st_nlink;
  info.n_bytes = static_cast<uint64_t>(from.st_size);
  info.disk_bytes = static_cast<uint64_t>(from.st_blocks) * 512;
  info.device = from.st_dev;
  info.inode = from.st_ino;
  info.changed_ns =
      std::clamp<int64_t>(from.st_mtim.tv_sec, 0, kMaxSeconds) * kNanoseconds + from.st_mtim.tv_nsec;
}

class RealFileSystem : public FileSystem {
 public:
  int open_directory(const std::string& path) override {
    return checked(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  }

  int open_at(int directory, const std::string& name, int flags, mode_t mode) override {
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

  void close(int fd) override { ::close(fd); }

  ssize_t preadv(int fd, const iovec* parts, int n_parts, uint64_t offset) override {
    return checked(::preadv(fd, parts, n_parts, static_cast<off_t>(offset)));
  }

  ssize_t pwrite(int fd, const void* bytes, size_t n_bytes, uint64_t offset) override {
    return checked(::pwrite(fd, bytes, n_bytes, static_cast<off_t>(offset)));
  }

  int reserve(int fd, uint64_t n_bytes) override {
    if (::fallocate(fd, 0, 0, static_cast<off_t>(n_bytes)) == 0) return 0;
    if (errno != EOPNOTSUPP && errno != ENOSYS) return -errno;
    return checked(
        ::ftruncate(fd, static_cast<off_t>(n_bytes)));  // at least the length, for who counts bytes
  }

  void drop_cached(int fd) override { ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED); }

  int fsync(int fd) override { return checked(::fsync(fd)); }
  int fdatasync(int fd) override { return checked(::fdatasync(fd)); }

  int make_directory(int directory, const std::string& name, mode_t mode) override {
    return checked(::mkdirat(directory, name.c_str(), mode));
  }

  int rename_new(int directory, const std::string& from, const std::string& to) override {
    if (::renameat2(directory, from.c_str(), directory, to.c_str(), RENAME_NOREPLACE) == 0) return 0;
    if (errno != EINVAL && errno != ENOSYS) return -errno;
    // File systems without RENAME_NOREPLACE have links that refuse to overwrite.
    if (::linkat(directory, from.c_str(), directory, to.c_str(), 0) != 0) return -errno;
    return checked(::unlinkat(directory, from.c_str(), 0));
  }

  int unlink(int directory, const std::string& name) override {
    if (::unlinkat(directory, name.c_str(), 0) == 0) return 0;
    if (errno != EISDIR) return -errno;
    return checked(::unlinkat(directory, name.c_str(), AT_REMOVEDIR));
  }

  int list(int directory, std::vector<std::string>& names) override {
    names.clear();
    // A descriptor of its own: the position in the directory belongs to it.
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

  int stat_at(int directory, const std::string& name, FileInfo& info) override {
    struct stat found {};
    if (::fstatat(directory, name.c_str(), &found, AT_SYMLINK_NOFOLLOW) != 0) return -errno;
    fill(info, found);
    return 0;
  }

  int stat(int fd, FileInfo& info) override {
    struct stat found {};
    if (::fstat(fd, &found) != 0) return -errno;
    fill(info, found);
    return 0;
  }

  int set_time(int directory, const std::string& name, int64_t changed_ns) override {
    const timespec times[] = {{0, UTIME_OMIT}, {changed_ns / kNanoseconds, changed_ns % kNanoseconds}};
    return checked(::utimensat(directory, name.c_str(), times, AT_SYMLINK_NOFOLLOW));
  }

  int space(int fd, SpaceInfo& info) override {
    struct statvfs found {};
    if (::fstatvfs(fd, &found) != 0) return -errno;
    info.free_bytes = static_cast<uint64_t>(found.f_bavail) * found.f_frsize;
    info.total_bytes = static_cast<uint64_t>(found.f_blocks) * found.f_frsize;
    return 0;
  }

  int try_lock(int fd) override { return checked(::flock(fd, LOCK_EX | LOCK_NB)); }
  int unlock(int fd) override { return checked(::flock(fd, LOCK_UN)); }
};

// Removes the first `n_bytes` of what is to be read.
void advance(std::vector<iovec>& parts, size_t& first, size_t n_bytes) {
  while (n_bytes > 0) {
    iovec& part = parts[first];
    const size_t n = std::min(n_bytes, part.iov_len);
    part.iov_base = static_cast<uint8_t*>(part.iov_base) + n;
    part.iov_len -= n;
    n_bytes -= n;
    if (part.iov_len == 0) ++first;
  }
}

}  // namespace

FileSystem& real_file_system() {
  static RealFileSystem file_system;
  return file_system;
}

OwnedFd::OwnedFd(OwnedFd&& other) noexcept : fs_(other.fs_), fd_(std::exchange(other.fd_, -1)) {}

OwnedFd& OwnedFd::operator=(OwnedFd&& other) noexcept {
  if (this == &other) return *this;
  reset();
  fs_ = other.fs_;
  fd_ = std::exchange(other.fd_, -1);
  return *this;
}

void OwnedFd::reset() {
  if (fd_ >= 0) fs_->close(fd_);
  fd_ = -1;
}

int64_t read_fully(FileSystem& fs, int fd, std::vector<iovec> parts, uint64_t offset, uint64_t unit) {
  std::erase_if(parts, [](const iovec& part) { return part.iov_len == 0; });
  int64_t n_read = 0;
  int n_stalls = 0;
  for (size_t first = 0; first < parts.size();) {
    const int n_parts = static_cast<int>(std::min<size_t>(parts.size() - first, kMaxParts));
    const ssize_t n = fs.preadv(fd, &parts[first], n_parts, offset + static_cast<uint64_t>(n_read));
    if (n == -EINTR) continue;
    if (n < 0) return n;
    const size_t usable = static_cast<size_t>(n) / unit * unit;
    if (usable == 0 && n > 0 && ++n_stalls <= kMaxStalls) continue;
    if (usable == 0) return n_read + n;  // the end of the file, or its last part of a unit
    n_read += static_cast<int64_t>(usable);
    advance(parts, first, usable);
  }
  return n_read;
}

int write_fully(FileSystem& fs, int fd, std::span<const uint8_t> bytes, uint64_t offset, uint64_t unit) {
  int n_stalls = 0;
  while (!bytes.empty()) {
    const ssize_t n = fs.pwrite(fd, bytes.data(), bytes.size(), offset);
    ++fs.n_writes_done;
    if (n == -EINTR) continue;
    if (n < 0) return static_cast<int>(n);
    const size_t usable = static_cast<size_t>(n) / unit * unit;
    if (usable == 0 && ++n_stalls <= kMaxStalls) continue;
    if (usable == 0) return -EIO;  // no progress: going on would never end
    bytes = bytes.subspan(usable);
    offset += usable;
  }
  return 0;
}

std::string describe_errno(int64_t negative_errno) {
  return std::strerror(static_cast<int>(-negative_errno));
}

}  // namespace dsv32
