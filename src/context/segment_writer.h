// One segment on its way to the disk: room, bytes, name, entry; in this order, so that at no moment the index
// names a file that is not whole, and what an end in between leaves behind is swept or adopted by the next
// open.
//
//   reserve   in a write transaction: other segments leave, a temporary file of the final length appears,
//   locked write     bytes, then fdatasync; no lock is held publish   in a write transaction: rename to the
//   final name, fsync of the directory, the entry
//
// A sync that failed is not tried again: the kernel may have dropped what it could not write. The file is
// removed. One thread.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>

#include "context/cache_directory.h"

namespace dsv32 {

class SegmentWriter {
 public:
  // `entry`: what to store, with tokens, without a name and times. `has_parent`: it continues an entry.
  SegmentWriter(CacheDirectory& directory, const IndexEntry& entry, bool has_parent);
  ~SegmentWriter();  // what was not published leaves nothing behind
  SegmentWriter(const SegmentWriter&) = delete;
  SegmentWriter& operator=(const SegmentWriter&) = delete;

  // Within a write transaction. True when there is room, or when the same tokens are stored already:
  // has_twin().
  bool reserve(PrefixIndex& index, const std::function<bool(const IndexEntry&)>& is_kept);
  bool write(std::span<const PageSource> pages);
  bool publish(WaitBudget& budget);

  bool has_twin() const { return twin_.has_value(); }
  const IndexEntry& entry() const { return twin_ ? *twin_ : entry_; }  // what is stored under these tokens

 private:
  bool create();
  bool is_wanted(PrefixIndex& index);
  bool move_into_place();
  void remove_files();

  CacheDirectory& directory_;
  IndexEntry entry_;
  bool has_parent_;
  OwnedFd folder_, file_;
  std::string temporary_;  // the file's name until it is published; empty when there is none
  bool is_renamed_ = false, is_published_ = false;
  std::optional<IndexEntry> twin_;
};

}  // namespace dsv32
