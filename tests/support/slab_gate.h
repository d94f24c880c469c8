// A disk that gives out the later slabs of segments only when it is told to, and can fail there.
#pragma once

#include <cerrno>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>

#include "context/segment_file.h"
#include "tests/support/fault_file_system.h"

namespace dsv32 {

// Knows one segment's layout by its sizes; the files that are read through it have them. Heads and trailers
// are not held back, nor are reads that begin at `free_page`.
class SlabGate : public FaultFileSystem {
 public:
  explicit SlabGate(const SegmentInfo& segment) : segment_(segment) {}

  // Slabs [0, n_slabs) are given out from now on.
  void open(int64_t n_slabs) {
    const std::lock_guard lock(mutex_);
    n_open_ = std::max(n_open_, n_slabs);
    changed_.notify_all();
  }
  void close() {
    const std::lock_guard lock(mutex_);
    n_open_ = 1, n_given_out_ = 0;
  }
  // Reads of this slab fail with a negative errno.
  void fail(int64_t slab, int result) { failing_ = slab, result_ = result; }

  int64_t n_given_out() {  // the slabs, from the first to the last one of which anything was read
    const std::lock_guard lock(mutex_);
    return n_given_out_;
  }
  bool is_waited_for() {
    const std::lock_guard lock(mutex_);
    return n_waiting_ > 0;
  }
  int64_t free_page = -1;

  ssize_t preadv(int fd, const iovec* parts, int n_parts, uint64_t offset) override {
    const std::optional<int64_t> slab = slab_at(offset);
    if (slab) {
      std::unique_lock lock(mutex_);
      ++n_waiting_;
      changed_.wait(lock, [&] { return *slab < n_open_; });
      --n_waiting_;
      n_given_out_ = std::max(n_given_out_, *slab + 1);
      if (*slab == failing_) return result_;
    }
    return FaultFileSystem::preadv(fd, parts, n_parts, offset);
  }

 private:
  // Nothing: not held back.
  std::optional<int64_t> slab_at(uint64_t offset) const {
    for (int64_t slab = 1; slab < segment_.n_slabs(); ++slab) {
      const uint64_t begin = segment_.slab_offset(slab), page_bytes = segment_.slab_bytes(slab);
      const uint64_t n_bytes = page_bytes * static_cast<uint64_t>(segment_.n_pages);
      if (offset < begin || offset >= begin + n_bytes) continue;
      const auto page = static_cast<int64_t>((offset - begin) / page_bytes);
      return page == free_page ? std::nullopt : std::optional(slab);
    }
    return std::nullopt;
  }

  const SegmentInfo segment_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t n_open_ = 1, n_given_out_ = 0, n_waiting_ = 0;
  int64_t failing_ = -1;
  int result_ = 0;
};

}  // namespace dsv32
