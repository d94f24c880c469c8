// A disk that holds back pages until it is told to read them, and can fail there.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <string>

#include "tests/support/fault_file_system.h"

namespace dsv32 {

class DiskGate : public FaultFileSystem {
 public:
  std::string held;           // the one page that is held back; empty: all
  int result = 0;             // of held reads, when negative
  bool holds_lists = false;   // of folders, instead of reads
  bool holds_writes = false;  // of all files, instead of reads

  void open() { set_open(true); }
  void close() { set_open(false); }
  bool is_waited_for() {
    const std::lock_guard lock(mutex_);
    return n_waiting_ > 0;
  }

  int open_at(int directory, const std::string& name, int flags, mode_t mode) override {
    const int fd = FaultFileSystem::open_at(directory, name, flags, mode);
    const std::lock_guard lock(mutex_);
    names_[fd] = name;
    return fd;
  }
  ssize_t pread(int fd, void* bytes, size_t n_bytes, uint64_t offset) override {
    std::unique_lock lock(mutex_);
    const bool is_held = !holds_writes && !holds_lists && (held.empty() || names_[fd] == held);
    if (is_held) wait(lock);
    lock.unlock();
    return is_held && result < 0 ? result : FaultFileSystem::pread(fd, bytes, n_bytes, offset);
  }
  ssize_t pwrite(int fd, const void* bytes, size_t n_bytes, uint64_t offset) override {
    std::unique_lock lock(mutex_);
    if (holds_writes) wait(lock);
    lock.unlock();
    return FaultFileSystem::pwrite(fd, bytes, n_bytes, offset);
  }
  int list(int directory, std::vector<std::string>& names) override {
    std::unique_lock lock(mutex_);
    if (holds_lists) wait(lock);
    lock.unlock();
    return FaultFileSystem::list(directory, names);
  }

 private:
  void wait(std::unique_lock<std::mutex>& lock) {
    ++n_waiting_;
    changed_.wait(lock, [this] { return is_open_; });
    --n_waiting_;
  }
  void set_open(bool is_open) {
    const std::lock_guard lock(mutex_);
    is_open_ = is_open;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = false;
  int64_t n_waiting_ = 0;
  std::map<int, std::string> names_;
};

}  // namespace dsv32
