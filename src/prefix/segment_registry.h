// What this process knows of the segments of one fingerprint and salt: their ids, open files, and the uses
// that are not on the disk yet.
//
// An id belongs to a chain hash until it is forgotten, and is never given out again. Files are kept
// open, the last 64 of them: a segment that another process evicts can be read to the end. Any number of
// threads; no file I/O happens under the mutex but the closing of files.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "prefix/segment_file.h"

namespace dsv32 {

class SegmentRegistry {
 public:
  int64_t add(const SegmentHead& segment);  // the id it has, if it is known
  std::optional<SegmentHead> find(int64_t id) const;
  bool forget(int64_t id);  // false when it was not known: another thread was first

  std::shared_ptr<const SegmentFile> file(int64_t id) const;  // null: not open
  void keep_open(int64_t id, std::shared_ptr<const SegmentFile> file);
  void close_files();

  void record_use(std::span<const int64_t> ids);
  std::vector<Hash256> take_uses();  // chain hashes, in the order of use; they are the caller's then
  bool has_uses() const;

 private:
  struct Known {
    SegmentHead segment;
    std::shared_ptr<const SegmentFile> file;
  };

  mutable std::mutex mutex_;  // for everything
  int64_t next_id_ = 0;
  std::map<int64_t, Known> known_;
  std::map<Hash256, int64_t> ids_;  // of known_, by chain hash
  std::vector<int64_t> open_;       // whose files are open, the first opened first
  std::vector<Hash256> uses_;       // that are not on the disk yet
};

}  // namespace dsv32
