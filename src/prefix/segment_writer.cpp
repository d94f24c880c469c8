#include "prefix/segment_writer.h"

#include <cerrno>
#include <utility>

#include <fcntl.h>

namespace dsv32 {

SegmentWriter::SegmentWriter(CacheDirectory& directory, SegmentInfo segment)
    : directory_(directory), segment_(std::move(segment)), name_(CacheFiles::segment_file(segment_.chain)) {}

SegmentWriter::~SegmentWriter() {
  if (!placed_.empty()) directory_.fs().unlink(folder_.get(), placed_);
}

// False when the same is stored already, in whatever sizes, or what it continues is gone. What has its name
// and is damaged, or no file, makes room.
bool SegmentWriter::is_wanted() {
  SegmentFault fault = SegmentFault::none;
  if (const auto file = SegmentFile::open(directory_.fs(), folder_.get(), name_, fault)) {
    is_there_ = file->info().is_same(segment_);
    return false;
  }
  if (fault == SegmentFault::damaged || fault == SegmentFault::foreign)
    directory_.remove(folder_.get(), name_, fault);
  else if (fault != SegmentFault::vanished)
    return false;
  FileInfo parent;
  return segment_.first_page == 0 ||
         directory_.fs().stat_at(folder_.get(), CacheFiles::segment_file(segment_.parent), parent) == 0;
}

bool SegmentWriter::reserve() {
  folder_ = directory_.files().make_folder(segment_.fingerprint);
  if (!folder_.is_open()) return directory_.count_write_failure(describe_errno(folder_.error())), false;
  if (!is_wanted()) return is_there_;
  if (!directory_.make_room(segment_.file_bytes(), directory_.max_bytes(), segment_.parent)) {
    directory_.warn_once("not stored: no room under its limits");
    return false;
  }
  segment_.created = directory_.next_time();
  return create();
}

bool SegmentWriter::create() {
  FileSystem& fs = directory_.fs();
  std::string temporary = CacheFiles::new_temporary();
  if (temporary.empty()) return false;
  file_ = OwnedFd(fs, fs.open_at(folder_.get(), temporary, O_RDWR | O_CREAT | O_EXCL));
  int result = file_.error();
  if (file_.is_open()) {
    placed_ = std::move(temporary);
    result = fs.try_lock(file_.get());  // says to sweepers that somebody writes it
    if (result == 0) result = fs.reserve(file_.get(), segment_.file_bytes());
  }
  if (result < 0) directory_.count_write_failure(describe_errno(result));
  return result >= 0;
}

bool SegmentWriter::write(std::span<const PageSource> pages) {
  FileSystem& fs = directory_.fs();
  const OwnedFd direct(fs, fs.open_at(folder_.get(), placed_, O_WRONLY | O_DIRECT));
  const int result = write_segment(fs, file_.get(), direct.get(), segment_, pages);
  if (result != 0) directory_.count_write_failure(describe_errno(result));
  return result == 0;
}

bool SegmentWriter::publish() {
  if (!is_wanted()) return is_there_;
  directory_.record_creation(folder_.get(), placed_);
  is_there_ = move_into_place();
  if (is_there_) placed_.clear();
  return is_there_;
}

bool SegmentWriter::move_into_place() {
  FileSystem& fs = directory_.fs();
  int result = fs.rename_new(folder_.get(), placed_, name_);
  if (result == 0) {
    placed_ = name_;
    result = fs.fsync(folder_.get());
  }
  if (result != 0) directory_.count_write_failure(describe_errno(result));
  return result == 0;
}

}  // namespace dsv32
