// One segment on its way to the disk: room, bytes, name; in this order, so that at no moment a name stands
// for a file that is not whole, and what an end in between leaves behind is swept by the next open.
//
//   reserve   in a turn: other segments leave, a temporary file of the final length appears, locked
//   write     bytes, then fdatasync; others have their turns meanwhile
//   publish   in a turn: rename to the final name, fsync of the folder
//
// The name follows from the tokens and all before them: who stores the same finds it taken. A sync that
// failed is not tried again: the kernel may have dropped what it could not write. The file is removed. One
// thread.
#pragma once

#include <span>
#include <string>

#include "prefix/cache_directory.h"

namespace dsv32 {

class SegmentWriter {
 public:
  SegmentWriter(CacheDirectory& directory, SegmentInfo segment);
  ~SegmentWriter();  // what was not published leaves nothing behind
  SegmentWriter(const SegmentWriter&) = delete;
  SegmentWriter& operator=(const SegmentWriter&) = delete;

  // In a turn. True when there is room, or when the same is stored already: is_there().
  bool reserve();
  bool write(std::span<const PageSource> pages);
  // In a turn. True when the segment is there.
  bool publish();

  bool is_there() const { return is_there_; }

 private:
  bool is_wanted();
  bool create();
  bool move_into_place();

  CacheDirectory& directory_;
  SegmentInfo segment_;
  const std::string name_;  // the file's, when it is published
  OwnedFd folder_, file_;
  std::string placed_;  // the name that it has and that goes unless it is published; empty: none
  bool is_there_ = false;
};

}  // namespace dsv32
