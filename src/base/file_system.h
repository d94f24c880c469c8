// The calls of the operating system that the disk cache and the kept talks make.
//
// Every step towards the disk is a virtual function, so that a test can make it fail, cut it short, or lose
// data that was not synced. These functions retry nothing; the functions below the class do.
//
// Results follow the kernel: a value >= 0, or a negative errno. Names are relative to an open directory;
// symbolic links are never followed. Any number of threads.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <sys/stat.h>
#include <sys/types.h>

namespace dsv32 {

// Changes when the file is written to or replaced.
struct FileStamp {
  uint64_t device = 0, inode = 0, n_bytes = 0;
  int64_t written_ns = 0, changed_ns = 0;  // mtime and ctime, since 1970 (to 2255)
  std::array<uint64_t, 5> numbers() const {
    return {device, inode, n_bytes, static_cast<uint64_t>(written_ns), static_cast<uint64_t>(changed_ns)};
  }
  bool is_of_same_file(const FileStamp& other) const {
    return device == other.device && inode == other.inode;
  }
  bool operator==(const FileStamp&) const = default;
};

struct FileInfo : FileStamp {
  mode_t mode = 0;  // type and permissions
  uid_t owner = 0;
  uint64_t disk_bytes = 0;  // blocks taken
  bool is_regular() const { return S_ISREG(mode); }
  bool is_directory() const { return S_ISDIR(mode); }
};

struct SpaceInfo {
  uint64_t free_bytes = 0;   // for this user
  uint64_t total_bytes = 0;  // of the file system
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // Opens a directory, whose last component must not be a symbolic link, for the calls below.
  virtual int open_directory(const std::string& path);
  // `flags` as for open(2); O_NOFOLLOW, O_CLOEXEC and O_NONBLOCK are added. New files get `mode` whatever the
  // umask.
  virtual int open_at(int directory, const std::string& name, int flags, mode_t mode = 0600);
  virtual void close(int fd);

  virtual ssize_t pread(int fd, void* bytes, size_t n_bytes, uint64_t offset);
  virtual ssize_t pwrite(int fd, const void* bytes, size_t n_bytes, uint64_t offset);
  // Reserves the room for a file of `n_bytes`, so that a full disk shows before the data is written.
  virtual int reserve(int fd, uint64_t n_bytes);
  // Drops the file's bytes from the kernel's page cache, where they would displace the weights.
  virtual void drop_cached(int fd);

  virtual int fsync(int fd);      // of a directory: its entries
  virtual int fdatasync(int fd);  // of a file: its bytes and length

  virtual int make_directory(int directory, const std::string& name, mode_t mode = 0700);
  // Never overwrites: -EEXIST.
  virtual int rename_new(int directory, const std::string& from, const std::string& to);
  virtual int unlink(int directory, const std::string& name);
  virtual int list(int directory, std::vector<std::string>& names);  // without . and ..

  virtual int stat_at(int directory, const std::string& name, FileInfo& info);
  virtual int stat(int fd, FileInfo& info);
  virtual int set_time(int directory, const std::string& name, int64_t written_ns);  // its mtime
  virtual int space(int fd, SpaceInfo& info);

  virtual int try_lock(int fd);  // an exclusive flock, without waiting; -EWOULDBLOCK

  std::atomic<uint64_t> n_steps_done{0};  // of long work, such as write_fully(): shows that it goes on
};

FileSystem& real_file_system();

// Owns a descriptor of `fs`; move-only.
class OwnedFd {
 public:
  OwnedFd() = default;
  OwnedFd(FileSystem& fs, int fd) : fs_(&fs), fd_(fd) {}
  ~OwnedFd() { reset(); }
  OwnedFd(OwnedFd&& other) noexcept : fs_(other.fs_), fd_(std::exchange(other.fd_, -1)) {}
  OwnedFd& operator=(OwnedFd other) noexcept {
    std::swap(fs_, other.fs_), std::swap(fd_, other.fd_);
    return *this;
  }
  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  int error() const { return fd_; }  // of a descriptor that is not open: the negative errno
  void reset() {
    if (fd_ >= 0) fs_->close(fd_);
    fd_ = -1;
  }

 private:
  FileSystem* fs_ = nullptr;
  int fd_ = -1;
};

// Reads n_bytes, or until the file ends; EINTR and short reads are continued. `unit` (a power of two): reads
// go on only at multiples of it, as O_DIRECT requires. Returns the bytes read, or a negative errno.
int64_t read_fully(FileSystem& fs, int fd, void* bytes, size_t n_bytes, uint64_t offset, uint64_t unit = 1);

// Writes all of `bytes`; EINTR and short writes are continued. 0, or a negative errno.
int write_fully(FileSystem& fs, int fd, std::span<const uint8_t> bytes, uint64_t offset, uint64_t unit = 1);

// The same at the descriptor's own offset, for pipes, terminals and files that are appended to; waits where a
// pipe's other end has made it non-blocking.
int write_stream(int fd, std::string_view bytes);

// Writes the bytes under the name `temporary`, which must be free, makes them durable, and renames it to
// `name`. 0, or a negative errno: then `temporary` is gone, and `name` has its old bytes, or the new ones but
// perhaps not durably.
int replace_file(FileSystem& fs, int directory, const std::string& name, const std::string& temporary,
                 std::string_view bytes);

// Takes an exclusive flock, waiting at most `patience`: 0, -EWOULDBLOCK when others kept it, or another
// negative errno.
int lock_within(FileSystem& fs, int fd, std::chrono::milliseconds patience);

// What a negative errno means, in words.
std::string describe_errno(int64_t negative_errno);

inline std::span<const uint8_t> as_bytes(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

}  // namespace dsv32
