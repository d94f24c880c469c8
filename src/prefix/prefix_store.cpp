#include "prefix/prefix_store.h"

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include <fcntl.h>

namespace dsv32 {
namespace {

constexpr size_t kMaxOpenFiles = 64;
constexpr char kSpeeds[] = "speeds";  // the note's name

// An implausible rate becomes 0, also one from a valid note.
double sane(double rate) { return rate > 0 && rate < 1e15 ? rate : 0; }

// Writes one segment: room, bytes, name, in this order, so that a final name never stands for an incomplete
// file, and the next open() sweeps what an interrupted write left.
//
//   reserve   in a turn: evicts other segments, creates a locked temporary file of the final length
//   write     bytes, then fdatasync; other processes have their turns meanwhile
//   publish   in a turn: rename to the final name, fsync of the folder
//
// The name is a hash of the tokens and all tokens before them, so a process that stores the same segment
// finds the name taken. A failed sync is not tried again, because the kernel may have dropped the unwritten
// bytes: the file is removed.
class SegmentWriter {
 public:
  SegmentWriter(CacheDirectory& directory, const SegmentInfo& segment)
      : directory_(directory), segment_(segment), name_(CacheFiles::segment_file(segment.chain)) {}
  ~SegmentWriter() {
    if (!placed_.empty()) fs_.unlink(folder_.get(), placed_);
  }
  SegmentWriter(const SegmentWriter&) = delete;
  SegmentWriter& operator=(const SegmentWriter&) = delete;

  // True when there is room, or when the segment is stored already (is_there).
  bool reserve() {
    folder_ = directory_.make_folder(segment_.fingerprint);
    if (!directory_.check_write(folder_.error())) return false;
    if (!is_wanted()) return is_there;
    if (!directory_.make_room(segment_.file_bytes(), directory_.max_bytes(), segment_.parent))
      return directory_.warn_once("not stored: no room under its limits");
    segment_.created = directory_.next_time();
    std::string temporary = CacheFiles::new_temporary();
    if (temporary.empty()) return false;
    file_ = OwnedFd(fs_, fs_.open_at(folder_.get(), temporary, O_RDWR | O_CREAT | O_EXCL));
    if (!directory_.check_write(file_.error())) return false;
    placed_ = std::move(temporary);
    int result = fs_.try_lock(file_.get());  // tells sweep() that it is being written
    if (result == 0) result = fs_.reserve(file_.get(), segment_.file_bytes());
    return directory_.check_write(result);
  }

  bool write(std::span<const PageSource> pages) {
    const OwnedFd direct(fs_, fs_.open_at(folder_.get(), placed_, O_WRONLY | O_DIRECT));
    return directory_.check_write(write_segment(fs_, file_.get(), direct.get(), segment_, pages));
  }

  // True when the segment is there.
  bool publish() {
    if (!is_wanted()) return is_there;
    directory_.record_creation(folder_.get(), placed_);
    int result = fs_.rename_new(folder_.get(), placed_, name_);
    if (result == 0) {
      placed_ = name_;
      result = fs_.fsync(folder_.get());
    }
    is_there = directory_.check_write(result);
    if (is_there) placed_.clear();
    return is_there;
  }

  bool is_there = false;

 private:
  // False when the segment is stored already, in whatever sizes, or its parent is gone. Removes an entry of
  // its name that is damaged or no file of this user.
  bool is_wanted() {
    SegmentFault fault = SegmentFault::none;
    if (const auto file = SegmentFile::open(fs_, folder_.get(), name_, fault)) {
      is_there = file->info().chain == segment_.chain && file->info().has_sizes_of(segment_);
      return false;
    }
    if (fault == SegmentFault::damaged || fault == SegmentFault::foreign)
      directory_.remove(folder_.get(), name_, fault);
    else if (fault != SegmentFault::vanished)
      return false;
    FileInfo parent;
    return segment_.first_page == 0 ||
           fs_.stat_at(folder_.get(), CacheFiles::segment_file(segment_.parent), parent) == 0;
  }

  CacheDirectory& directory_;
  FileSystem& fs_ = directory_.fs();
  SegmentInfo segment_;
  const std::string name_;  // of the published file
  OwnedFd folder_, file_;
  std::string placed_;  // the name that the destructor removes; empty: none
};

}  // namespace

PrefixStore::PrefixStore(const PrefixStoreOptions& options, std::unique_ptr<CacheDirectory> directory)
    : directory_(std::move(directory)),
      sizes_(options.sizes),
      root_(chain_root(sizes_.fingerprint, options.salt)) {}

PrefixStore::~PrefixStore() { flush_uses(); }

std::unique_ptr<PrefixStore> PrefixStore::open(const PrefixStoreOptions& options, FileSystem& fs, Warn warn) {
  return or_miss([&]() -> std::unique_ptr<PrefixStore> {
    if (!options.sizes.has_sane_sizes()) {
      if (warn) warn("prefix cache: pages of this model's sizes cannot be stored; going on without it");
      return nullptr;
    }
    auto directory = CacheDirectory::open(options.directory, options.limits, fs, std::move(warn));
    if (!directory) return nullptr;
    return std::unique_ptr<PrefixStore>(new PrefixStore(options, std::move(directory)));
  });
}

// --- listing and removing ------------------------------------------------------------------------

std::vector<StoredSegment> PrefixStore::segments() {
  std::vector<StoredSegment> all;
  for (const std::string& file : segment_files()) std::ranges::move(find(file), std::back_inserter(all));
  return all;
}

std::vector<std::string> PrefixStore::segment_files() {
  flush_uses();
  return or_miss([this]() -> std::vector<std::string> {
    {
      const std::lock_guard lock(mutex_);
      reached_ = {{root_, {-1, 0}}}, waiting_.clear();
    }
    const OwnedFd folder = open_folder();
    if (!folder.is_open()) return {};
    return directory_->segments_in(folder.get());
  });
}

std::vector<StoredSegment> PrefixStore::find(const std::string& file) {
  return or_miss([&]() -> std::vector<StoredSegment> {
    const OwnedFd folder = open_folder();
    if (!folder.is_open()) return {};
    const std::string name = CacheFiles::name_of(sizes_.fingerprint);
    std::optional<StoredSegment> one = directory_->segment_of(folder.get(), name, file, true, true);
    if (!one || one->fingerprint != sizes_.fingerprint || !one->has_sizes_of(sizes_)) return {};
    const std::lock_guard lock(mutex_);
    return reach(std::move(*one));
  });
}

// Returns segments from the root down, without those that do not continue their parent's pages.
std::vector<StoredSegment> PrefixStore::reach(StoredSegment first) {
  std::vector<StoredSegment> found, next;
  next.push_back(std::move(first));
  for (size_t i = 0; i < next.size(); ++i) {
    StoredSegment segment = std::move(next[i]);
    const auto parent = reached_.find(segment.parent);
    if (parent == reached_.end()) {
      waiting_.emplace(segment.parent, std::move(segment));
      continue;
    }
    const auto [first_page, end_page] = parent->second;
    if (segment.first_page <= first_page || segment.first_page > end_page) continue;
    reached_[segment.chain] = {segment.first_page, segment.first_page + segment.n_pages};
    const auto [begin, end] = waiting_.equal_range(segment.chain);
    for (auto child = begin; child != end; ++child) next.push_back(std::move(child->second));
    waiting_.erase(begin, end);
    found.push_back(std::move(segment));
  }
  return found;
}

void PrefixStore::discard(const Hash256& segment) {
  or_miss([&] { remove(segment, SegmentFault::damaged); });
}

void PrefixStore::take_back() {
  for (const Hash256& segment : written_) or_miss([&] { remove(segment, SegmentFault::vanished); });
  written_.clear();
}

// Closes a segment's file and removes it, unless a newer version wrote it.
void PrefixStore::remove(const Hash256& segment, SegmentFault why) {
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(open_, [&](const auto& file) { return file->info().chain == segment; });
  }
  if (why == SegmentFault::newer) return;
  if (const OwnedFd folder = open_folder(); folder.is_open())
    directory_->remove(folder.get(), CacheFiles::segment_file(segment), why);
}

// --- loading -------------------------------------------------------------------------------------

bool PrefixStore::load_pages(const DiskPage& first, std::span<const PageTarget> pages) {
  note_read(1, 0);
  const bool is_there = or_miss([&] {
    SegmentFault fault = SegmentFault::none;
    if (const auto file = open_file(first.segment, fault)) fault = file->read_pages(first.number, pages);
    if (fault == SegmentFault::unreadable)
      directory_->warn_once("a segment cannot be read at present");
    else if (fault != SegmentFault::none)
      remove(first.segment, fault);
    return fault == SegmentFault::none;
  });
  note_read(-1, is_there ? pages.size() * sizes_.page_bytes() : 0);
  return is_there;
}

std::shared_ptr<const SegmentFile> PrefixStore::known_file(const Hash256& segment) const {
  const std::lock_guard lock(mutex_);
  const auto found =
      std::ranges::find_if(open_, [&](const auto& file) { return file->info().chain == segment; });
  return found == open_.end() ? nullptr : *found;
}

std::shared_ptr<const SegmentFile> PrefixStore::open_file(const Hash256& segment, SegmentFault& fault) {
  std::shared_ptr<const SegmentFile> file = known_file(segment);
  if (file) return file;
  for (const bool is_again : {false, true}) {
    if (is_again) {  // perhaps out of descriptors: close the files kept open
      const std::lock_guard lock(mutex_);
      open_.clear();
    }
    const OwnedFd folder = open_folder();
    if (folder.is_open())
      file = SegmentFile::open(directory_->fs(), folder.get(), CacheFiles::segment_file(segment), fault);
    else
      fault = folder.error() == -ENOENT ? SegmentFault::vanished : SegmentFault::unreadable;
    if (file || fault != SegmentFault::unreadable) break;
  }
  if (!file) return nullptr;
  if (file->info().chain != segment || !file->info().has_sizes_of(sizes_)) {
    fault = SegmentFault::damaged;  // whole, but not the segment that it is named after
    return nullptr;
  }
  const std::lock_guard lock(mutex_);
  open_.push_back(file);
  if (open_.size() > kMaxOpenFiles) open_.pop_front();
  return file;
}

void PrefixStore::note_read(int n_begun, uint64_t n_bytes) {
  const std::lock_guard lock(mutex_);
  read_ = {read_.n_bytes + n_bytes, read_seconds()};
  reading_since_ = Clock::now();
  n_reading_ += n_begun;
}

// With mutex_ held.
double PrefixStore::read_seconds() const {
  const std::chrono::duration<double> reading = Clock::now() - reading_since_;
  return read_.seconds + (n_reading_ > 0 ? reading.count() : 0);
}

ReadStats PrefixStore::read_stats() const {
  const std::lock_guard lock(mutex_);
  return {read_.n_bytes, read_seconds()};
}

// --- uses and notes ------------------------------------------------------------------------------

void PrefixStore::record_use(std::span<const Hash256> segments) {
  or_miss([&] {
    if (!can_write()) return;
    const std::lock_guard lock(mutex_);
    uses_.insert(uses_.end(), segments.begin(), segments.end());
  });
}

// In a turn. Uses that cannot be written are lost: they only guide eviction.
void PrefixStore::write_uses() {
  std::vector<Hash256> uses;
  {
    const std::lock_guard lock(mutex_);
    uses.swap(uses_);
  }
  const OwnedFd folder = open_folder();
  for (const Hash256& segment : uses)
    if (folder.is_open()) directory_->record_use(folder.get(), CacheFiles::segment_file(segment));
}

// Writes the pending uses, if any, in a turn of its own.
void PrefixStore::flush_uses() {
  or_miss([this] {
    {
      const std::lock_guard lock(mutex_);
      if (uses_.empty()) return;
    }
    directory_->in_turn([this] { return write_uses(), true; });
  });
}

CacheSpeeds PrefixStore::speeds() {
  return or_miss([this]() -> CacheSpeeds {
    CacheSpeeds speeds;
    const OwnedFd folder = open_folder();
    if (!folder.is_open()) return {};
    constexpr size_t kNoteBytes = sizeof(Hash256) + sizeof speeds;
    const std::string note = directory_->read_note(folder.get(), kSpeeds, kNoteBytes);
    if (note.size() != kNoteBytes ||
        std::memcmp(note.data(), sizes_.fingerprint.data(), sizeof(Hash256)) != 0)
      return {};
    std::memcpy(&speeds, note.data() + sizeof(Hash256), sizeof speeds);
    return {sane(speeds.read_bytes_per_second), sane(speeds.prefill_tokens_per_second)};
  });
}

void PrefixStore::record_speeds(const CacheSpeeds& speeds) {
  or_miss([&] {
    std::string note(sizes_.fingerprint.begin(), sizes_.fingerprint.end());
    note.append(reinterpret_cast<const char*>(&speeds), sizeof speeds);
    directory_->in_turn([&] {
      const OwnedFd folder = directory_->make_folder(sizes_.fingerprint);
      if (folder.is_open()) directory_->write_note(folder.get(), kSpeeds, note);
      return true;
    });
  });
}

void PrefixStore::record_model(const std::string& path) {
  or_miss([&] {
    const OwnedFd folder = open_folder();
    if (!can_write() || !folder.is_open() || path.empty()) return;
    if (directory_->read_note(folder.get(), CacheFiles::kPathNote, path.size()) != path)
      directory_->write_note(folder.get(), CacheFiles::kPathNote, path);
  });
}

// --- storing -------------------------------------------------------------------------------------

std::optional<Hash256> PrefixStore::store(const Hash256& parent, int64_t first_page,
                                          std::span<const int32_t> tokens,
                                          std::span<const PageSource> pages) {
  assert(!pages.empty() && std::ssize(pages) <= kMaxSegmentPages);
  assert(tokens.size() == pages.size() * kPageTokens);
  return or_miss([&]() -> std::optional<Hash256> {
    SegmentInfo segment{sizes_, {tokens.begin(), tokens.end()}};
    segment.n_pages = std::ssize(pages);
    segment.first_page = first_page;
    segment.parent = first_page == 0 ? root_ : parent;
    segment.chain = chain_next(segment.parent, first_page, tokens);
    SegmentWriter writer(*directory_, segment);
    const bool is_reserved = directory_->in_turn([&] {
      write_uses();
      return writer.reserve();
    });
    if (!is_reserved) return std::nullopt;
    if (writer.is_there) return segment.chain;
    if (!writer.write(pages) || !directory_->in_turn([&] { return writer.publish(); })) return std::nullopt;
    written_.push_back(segment.chain);
    return segment.chain;
  });
}

}  // namespace dsv32
