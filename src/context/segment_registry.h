// What this process knows of the segments of one fingerprint and salt: their ids, open files, pins, and the
// uses that are not in the index yet.
//
// An id belongs to a file's name and is never given out again, whatever happens to the index. Files are kept
// open, the last 64 of them: a segment that another process evicts can be read to the end. Any number of
// threads; no file I/O happens under the mutex but the closing of files.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "context/prefix_index.h"
#include "context/segment_file.h"

namespace dsv32 {

struct SegmentUse {
  Hash256 chain{};
  uint64_t n_hits = 0, order = 0;  // order: of the last one among all uses
};

class SegmentRegistry {
 public:
  int64_t add(const IndexEntry& entry);  // with tokens; the id it has, if it is known
  std::optional<IndexEntry> find(int64_t id) const;
  // Nothing when it was not known: another thread was first. Its name stays known as gone.
  std::optional<IndexEntry> forget(int64_t id);
  bool is_gone(const std::string& name) const;

  std::shared_ptr<const SegmentFile> file(int64_t id) const;  // null: not open
  void keep_open(int64_t id, std::shared_ptr<const SegmentFile> file);
  void close_files();

  void record_use(std::span<const int64_t> ids);
  std::vector<SegmentUse> take_uses();  // in their order; they are the caller's then
  bool has_uses() const;

  void change_pins(std::span<const int64_t> ids, int64_t change);
  bool is_pinned(const std::string& name) const;

 private:
  struct Known {
    IndexEntry entry;
    std::shared_ptr<const SegmentFile> file;
    int64_t n_pins = 0;
    SegmentUse use;
  };

  mutable std::mutex mutex_;  // for everything
  int64_t next_id_ = 0;
  std::map<int64_t, Known> known_;
  std::map<std::string, int64_t> ids_;  // of known_, by name
  std::set<std::string> gone_;          // the index may name them yet
  std::vector<int64_t> open_;           // whose files are open, the first opened first
  uint64_t n_uses_ = 0;
};

}  // namespace dsv32
