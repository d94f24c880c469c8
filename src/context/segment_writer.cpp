#include "context/segment_writer.h"

#include <array>
#include <cerrno>

#include <fcntl.h>
#include <unistd.h>

namespace dsv32 {

SegmentWriter::SegmentWriter(CacheDirectory& directory, const IndexEntry& entry, bool has_parent)
    : directory_(directory), entry_(entry), has_parent_(has_parent) {}

SegmentWriter::~SegmentWriter() {
  if (!is_published_) remove_files();
}

void SegmentWriter::remove_files() {
  FileSystem& fs = directory_.fs();
  if (!temporary_.empty() && !is_renamed_) fs.unlink(folder_.get(), temporary_);
  if (is_renamed_) fs.unlink(folder_.get(), CacheFiles::segment_file(entry_.name));
  temporary_.clear();
  is_renamed_ = false;
}

// False when another process stored the same tokens, or removed those that these continue.
bool SegmentWriter::is_wanted(PrefixIndex& index) {
  twin_ = index.find(entry_.segment.chain);
  return !twin_ && (!has_parent_ || index.find(entry_.segment.parent));
}

bool SegmentWriter::reserve(PrefixIndex& index, const std::function<bool(const IndexEntry&)>& is_kept) {
  remove_files();  // of a transaction that is run again
  if (!is_wanted(index)) return has_twin();
  if (!directory_.make_room(index, entry_.segment.file_bytes(), is_kept)) {
    directory_.warn_once("not stored: no room under its limits");
    return false;
  }
  return create();
}

bool SegmentWriter::create() {
  FileSystem& fs = directory_.fs();
  std::array<uint8_t, 16> random{};
  if (::getentropy(random.data(), random.size()) != 0) return false;
  entry_.name = hex(random);
  folder_ = directory_.files().make_folder(entry_.segment.fingerprint);
  int result = folder_.error();
  if (folder_.is_open()) {
    const std::string name = CacheFiles::temporary_file(entry_.name);
    file_ = OwnedFd(fs, fs.open_at(folder_.get(), name, O_RDWR | O_CREAT | O_EXCL));
    result = file_.error();
    if (file_.is_open()) {
      temporary_ = name;
      result = fs.try_lock(file_.get(), LockKind::exclusive);  // says to sweepers that somebody writes it
      if (result == 0) result = fs.reserve(file_.get(), entry_.segment.file_bytes());
    }
  }
  if (result < 0) directory_.count_write_failure(describe_errno(result));
  return result >= 0;
}

bool SegmentWriter::write(std::span<const PageSource> pages) {
  FileSystem& fs = directory_.fs();
  const OwnedFd direct(fs, fs.open_at(folder_.get(), temporary_, O_WRONLY | O_DIRECT));
  const int result = write_segment(fs, file_.get(), direct.get(), entry_.segment, pages);
  if (result != 0) directory_.count_write_failure(describe_errno(result));
  return result == 0;
}

bool SegmentWriter::publish(WaitBudget& budget) {
  is_published_ = directory_.with_index(PrefixIndex::Access::write, budget, [&](PrefixIndex& index) {
    // A name that is in use already is our own: the index was made anew, from the files, between two tries.
    if (!is_wanted(index)) return twin_ && twin_->name == entry_.name && is_renamed_;
    if (!is_renamed_ && !move_into_place()) return false;
    entry_.use.created = entry_.use.last_use = index.next_time();
    index.insert(entry_);
    return true;
  });
  return is_published_ || has_twin();
}

bool SegmentWriter::move_into_place() {
  FileSystem& fs = directory_.fs();
  int result = fs.rename_new(folder_.get(), temporary_, CacheFiles::segment_file(entry_.name));
  if (result == 0) {
    is_renamed_ = true;
    result = fs.fsync(folder_.get());
  }
  if (result != 0) directory_.count_write_failure(describe_errno(result));
  return result == 0;
}

}  // namespace dsv32
