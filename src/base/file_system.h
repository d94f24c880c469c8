// The calls of the operating system that the disk cache makes, as one small virtual seam.
//
// The one idea: every step towards the disk passes here, so that a test can let it fail, cut it short, or
// lose what no sync has made durable. Nothing is retried or interpreted here; the functions below the class
// do that once for all callers.
//
// Results follow the kernel: a value >= 0, or a negative errno. Every name is relative to an open directory
// and is never followed when it is a symbolic link. Any number of threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <sys/types.h>
#include <sys/uio.h>

namespace dsv32 {

struct FileInfo {
  bool is_regular = false, is_directory = false;
  mode_t mode = 0;
  uid_t owner = 0;
  uint64_t n_links = 0;
  uint64_t n_bytes = 0;     // length
  uint64_t disk_bytes = 0;  // blocks taken
  uint64_t device = 0, inode = 0;
  int64_t changed_ns = 0;  // when it was last changed, since 1970 (to 2255): what set_time() sets
};

struct SpaceInfo {
  uint64_t free_bytes = 0;   // for this user
  uint64_t total_bytes = 0;  // of the file system
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // A directory by its path, the last component no symbolic link; a descriptor for the calls below.
  virtual int open_directory(const std::string& path) = 0;
  // `flags` as for open(2); O_NOFOLLOW, O_CLOEXEC and O_NONBLOCK are added. New files get `mode` whatever the
  // umask.
  virtual int open_at(int directory, const std::string& name, int flags, mode_t mode = 0600) = 0;
  virtual void close(int fd) = 0;

  virtual ssize_t preadv(int fd, const iovec* parts, int n_parts, uint64_t offset) = 0;
  virtual ssize_t pwrite(int fd, const void* bytes, size_t n_bytes, uint64_t offset) = 0;
  // Takes the room for a file of `n_bytes` now, so that a full disk shows before the data is written.
  virtual int reserve(int fd, uint64_t n_bytes) = 0;
  // Tells the kernel that the file's bytes in its page cache are not wanted: they would displace the weights.
  virtual void drop_cached(int fd) = 0;

  virtual int fsync(int fd) = 0;      // of a directory: its entries
  virtual int fdatasync(int fd) = 0;  // of a file: its bytes and length

  virtual int make_directory(int directory, const std::string& name, mode_t mode = 0700) = 0;
  virtual int rename_new(int directory, const std::string& from,
                         const std::string& to) = 0;                     // -EEXIST: no overwriting
  virtual int unlink(int directory, const std::string& name) = 0;        // an empty directory too
  virtual int list(int directory, std::vector<std::string>& names) = 0;  // without . and ..

  virtual int stat_at(int directory, const std::string& name, FileInfo& info) = 0;
  virtual int stat(int fd, FileInfo& info) = 0;
  virtual int set_time(int directory, const std::string& name, int64_t changed_ns) = 0;
  virtual int space(int fd, SpaceInfo& info) = 0;

  virtual int try_lock(int fd) = 0;  // an exclusive flock, without waiting; -EWOULDBLOCK
  virtual int unlock(int fd) = 0;

  std::atomic<uint64_t> n_writes_done{0};  // of write_fully: whoever waits for a write sees that it goes on
};

// The operating system's.
FileSystem& real_file_system();

// Owns a descriptor of `fs`; move-only.
class OwnedFd {
 public:
  OwnedFd() = default;
  OwnedFd(FileSystem& fs, int fd) : fs_(&fs), fd_(fd) {}
  ~OwnedFd() { reset(); }
  OwnedFd(OwnedFd&& other) noexcept;
  OwnedFd& operator=(OwnedFd&& other) noexcept;
  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  int error() const { return fd_; }  // of a descriptor that is not open: the negative errno
  void reset();

 private:
  FileSystem* fs_ = nullptr;
  int fd_ = -1;
};

// Reads until `parts` are full or the file ends; EINTR and short reads are continued. `unit` (a power of
// two): reads go on at multiples of it only, as O_DIRECT wants. The bytes read, or a negative errno.
int64_t read_fully(FileSystem& fs, int fd, std::vector<iovec> parts, uint64_t offset, uint64_t unit = 1);

// Writes all of `bytes`; EINTR and short writes are continued. 0, or a negative errno.
int write_fully(FileSystem& fs, int fd, std::span<const uint8_t> bytes, uint64_t offset, uint64_t unit = 1);

// What a negative errno means, in words.
std::string describe_errno(int64_t negative_errno);

}  // namespace dsv32
