// A file system that can be told to fail: any call by its number, short transfers, and a hook before each
// call for kills and for pictures of what a power cut would leave (power_loss.h).
#pragma once

#include <atomic>
#include <functional>
#include <optional>

#include "base/file_system.h"

namespace dsv32 {

enum class FileOp {
  open,
  close,
  read,
  write,
  reserve,
  sync_directory,
  sync_data,
  make_directory,
  rename,
  unlink,
  list,
  stat,
  space,
  set_time,
  lock,
};

class FaultFileSystem : public FileSystem {
 public:
  // Called before each call, with its number (from 0) and kind. If it returns a value, that is the call's
  // result, and the call is not made; closing cannot fail.
  std::function<std::optional<int>(int64_t n, FileOp op)> on_call;
  // Called before each open; a returned value is the result.
  std::function<std::optional<int>(const std::string& name, int flags)> on_open;
  uint64_t most_at_once = UINT64_MAX;  // bytes of one read or write
  std::atomic<int64_t> n_calls{0};
  std::atomic<uint64_t> n_bytes_written{0};

  int open_directory(const std::string& path) override;
  int open_at(int directory, const std::string& name, int flags, mode_t mode) override;
  void close(int fd) override;
  ssize_t pread(int fd, void* bytes, size_t n_bytes, uint64_t offset) override;
  ssize_t pwrite(int fd, const void* bytes, size_t n_bytes, uint64_t offset) override;
  int reserve(int fd, uint64_t n_bytes) override;
  void drop_cached(int fd) override { real_.drop_cached(fd); }
  int fsync(int fd) override;
  int fdatasync(int fd) override;
  int make_directory(int directory, const std::string& name, mode_t mode) override;
  int rename_new(int directory, const std::string& from, const std::string& to) override;
  int unlink(int directory, const std::string& name) override;
  int list(int directory, std::vector<std::string>& names) override;
  int stat_at(int directory, const std::string& name, FileInfo& info) override;
  int stat(int fd, FileInfo& info) override;
  int set_time(int directory, const std::string& name, int64_t changed_ns) override;
  int space(int fd, SpaceInfo& info) override;
  int try_lock(int fd) override;

 protected:
  std::optional<int> fault(FileOp op);

 private:
  FileSystem& real_ = real_file_system();
};

}  // namespace dsv32
