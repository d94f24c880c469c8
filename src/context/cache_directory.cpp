#include "context/cache_directory.h"

#include <algorithm>
#include <cerrno>
#include <map>
#include <set>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include "base/error.h"
#include "base/text.h"

namespace dsv32 {
namespace {

constexpr char kIndexName[] = "index.sqlite", kLockName[] = "LOCK";
constexpr uint64_t kMaxDefaultBytes = 256'000'000'000, kMaxDefaultFreeBytes = 10'000'000'000;
constexpr int kMaxWriteFailures = 3;
constexpr int64_t kMaxEntriesPerFile = 2, kMinEntries = 1000;  // an index with more than these is damaged
}  // namespace

// The flock and the transaction end together, however the operation ends.
class CacheDirectory::Transaction {
 public:
  explicit Transaction(CacheDirectory& owner) : owner_(owner) {}
  ~Transaction() {
    if (owner_.index_) owner_.index_->rollback();
    if (owner_.lock_.is_open()) owner_.fs().unlock(owner_.lock_.get());
  }

 private:
  CacheDirectory& owner_;
};

CacheDirectory::CacheDirectory(CacheFiles files, Warn warn)
    : files_(std::move(files)), warn_(std::move(warn)) {}

std::unique_ptr<CacheDirectory> CacheDirectory::open(const std::string& path, const CacheLimits& limits,
                                                     FileSystem& fs, Warn warn) {
  std::string reason;
  try {
    if (std::optional<CacheFiles> files = CacheFiles::open(path, fs, reason)) {
      std::unique_ptr<CacheDirectory> cache(new CacheDirectory(std::move(*files), warn));
      cache->set_limits(limits);
      return cache->begin_use() ? std::move(cache) : nullptr;
    }
  } catch (const std::exception& error) {
    reason = error.what();
  }
  if (warn)
    warn(format("prefix cache %s: %s; going on without it", visible(path, false, 200).c_str(),
                reason.c_str()));
  return nullptr;
}

void CacheDirectory::set_limits(const CacheLimits& limits) {
  SpaceInfo space;
  if (fs().space(files_.top(), space) != 0) space = {};
  // What the cache holds already counts as free, or each start would find a tenth of less.
  max_bytes_ = limits.max_bytes ? *limits.max_bytes
                                : std::min((space.free_bytes + files_.used_bytes()) / 10, kMaxDefaultBytes);
  min_free_bytes_ =
      limits.min_free_bytes ? *limits.min_free_bytes : std::min(space.total_bytes / 20, kMaxDefaultFreeBytes);
  policy_ = limits.policy;
}

// Index and limits; a directory that cannot be written is read.
bool CacheDirectory::begin_use() {
  open_lock();
  const auto keep_nothing = [](const IndexEntry&) { return false; };
  const bool is_ready = with_index(Access::write, [&](PrefixIndex& index) {
    make_room(index, 0, keep_nothing);
    return true;
  });
  if (is_ready) return true;
  if (can_write() && last_failure_ == IndexFailure::busy) return false;
  bool has_said_why = false;
  {
    const std::lock_guard guard(state_mutex_);
    can_write_ = false;
    has_said_why = !warned_.empty();
  }
  index_.reset();
  if (!has_said_why) warn_once("it cannot be written; it is only read");
  return with_index(Access::read, [](PrefixIndex&) { return true; });
}

void CacheDirectory::open_lock() {
  lock_ = OwnedFd(fs(), fs().open_at(files_.top(), kLockName, O_RDWR | O_CREAT));
  FileInfo info;
  const bool is_own = lock_.is_open() && fs().stat(lock_.get(), info) == 0 && info.is_regular &&
                      info.owner == ::geteuid() && info.n_links == 1;
  if (is_own) return;
  can_write_ = false;
  lock_ = OwnedFd(fs(), fs().open_at(files_.top(), kLockName, O_RDONLY));
}

bool CacheDirectory::can_write() const {
  const std::lock_guard guard(state_mutex_);
  return can_write_;
}

void CacheDirectory::warn_once(const std::string& reason) {
  {
    const std::lock_guard guard(state_mutex_);
    if (!warned_.insert(reason).second) return;
  }
  if (warn_) warn_(format("prefix cache %s: %s", visible(files_.path(), false, 200).c_str(), reason.c_str()));
}

void CacheDirectory::count_write_failure(const std::string& reason) {
  warn_once("not stored: " + reason);
  const std::lock_guard guard(state_mutex_);
  if (++n_write_failures_ >= kMaxWriteFailures) can_write_ = false;
}

// --- the index -----------------------------------------------------------------------------------

bool CacheDirectory::with_index(Access access, const std::function<bool(PrefixIndex&)>& body) {
  WaitBudget budget = patience();
  return with_index(access, budget, body);
}

bool CacheDirectory::with_index(Access access, WaitBudget& budget,
                                const std::function<bool(PrefixIndex&)>& body) {
  const std::lock_guard guard(index_mutex_);
  std::string reason;
  bool is_anew = false, has_repaired = false;
  for (;;) {
    if (access == Access::write && !can_write()) return false;
    try {
      const Transaction transaction(*this);
      bool is_done = false;
      run(access, is_anew, budget, body, is_done);
      has_patience_ = true;
      return is_done;
    } catch (const IndexFailure& failure) {
      last_failure_ = failure.kind;
      reason = failure.what();
    } catch (const std::exception& error) {
      last_failure_ = IndexFailure::fault;
      reason = error.what();
    }
    is_anew = false;
    // SQLite gives up at once where waiting could end in a deadlock: then all is undone and tried again.
    if (last_failure_ == IndexFailure::busy && budget.wait()) continue;
    // A damaged index is made anew; one that cannot be used for reading is replaced by one in memory.
    const bool can_repair = can_write() ? last_failure_ == IndexFailure::damaged : !is_memory_index_;
    if (!can_repair || has_repaired) break;
    is_anew = has_repaired = true;
  }
  if (last_failure_ == IndexFailure::busy) has_patience_ = false;
  warn_once(last_failure_ == IndexFailure::busy ? "another process holds it; going on without it"
                                                : "its index cannot be used: " + visible(reason, false, 200));
  return false;
}

void CacheDirectory::run(Access access, bool is_anew, WaitBudget& budget,
                         const std::function<bool(PrefixIndex&)>& body, bool& is_done) {
  lock(is_anew && can_write() ? LockKind::exclusive : LockKind::shared, budget);
  if (is_anew && can_write()) remove_index();
  if (is_anew && !can_write()) use_memory_index(budget);
  if (!is_index_current()) open_index(budget);
  index_->begin(access, budget);
  std::set<std::string> removed;
  if (access == Access::write) {
    const std::lock_guard guard(state_mutex_);
    removed = removed_;
  }
  for (const std::string& name : removed) index_->erase(name);
  is_done = body(*index_);
  if (!is_done) return;
  index_->commit();
  const std::lock_guard guard(state_mutex_);
  for (const std::string& name : removed) removed_.erase(name);
}

void CacheDirectory::lock(LockKind kind, WaitBudget& budget) {
  if (!lock_.is_open()) return;  // a directory that is only read, and has no lock
  for (;;) {
    const int result = fs().try_lock(lock_.get(), kind);
    if (result == 0) return;
    if (result != -EWOULDBLOCK && result != -EINTR)
      throw IndexFailure(IndexFailure::fault, describe_errno(result));
    if (!budget.wait()) throw IndexFailure(IndexFailure::busy, "locked");
  }
}

// Another process may have made the index anew, or a user have removed it.
bool CacheDirectory::is_index_current() {
  if (is_memory_index_) return true;
  FileInfo info;
  return index_ && fs().stat_at(files_.top(), kIndexName, info) == 0 && info.inode == index_file_.inode &&
         info.device == index_file_.device;
}

void CacheDirectory::open_index(WaitBudget& budget) {
  index_.reset();
  const Access access = can_write() ? Access::write : Access::read;
  // The descriptor of a file that was there is never closed here: closing would drop SQLite's locks on it.
  if (access == Access::write)
    OwnedFd(fs(), fs().open_at(files_.top(), kIndexName, O_RDWR | O_CREAT | O_EXCL)).reset();
  const int result = fs().stat_at(files_.top(), kIndexName, index_file_);
  if (result != 0) throw IndexFailure(IndexFailure::fault, describe_errno(result));
  if (!index_file_.is_regular || index_file_.owner != ::geteuid() || index_file_.n_links != 1)
    throw IndexFailure(IndexFailure::damaged, "it is no file of this user alone");
  index_ = std::make_unique<PrefixIndex>(files_.path() + "/" + kIndexName, access, budget);
  if (access == Access::read) return;
  index_->begin(access, budget);
  reconcile(*index_);
  index_->commit();
}

// Under the exclusive lock. What another process has made anew since is kept.
void CacheDirectory::remove_index() {
  FileInfo info;
  const bool is_seen = fs().stat_at(files_.top(), kIndexName, info) == 0 && info.inode == index_file_.inode &&
                       info.device == index_file_.device;
  index_.reset();
  if (!is_seen) return;
  for (const char* suffix : {"", "-journal", "-wal", "-shm"})
    fs().unlink(files_.top(), std::string(kIndexName) + suffix);
}

void CacheDirectory::use_memory_index(WaitBudget& budget) {
  index_ = std::make_unique<PrefixIndex>();
  is_memory_index_ = true;
  index_->begin(Access::write, budget);
  reconcile(*index_);
  index_->commit();
}

// --- index and files -----------------------------------------------------------------------------

// Within a write transaction: entries without a file go, files without an entry come or go, leftovers go.
void CacheDirectory::reconcile(PrefixIndex& index) {
  std::map<std::string, CacheFiles::Folder> folders;
  if (const int result = files_.list(folders); result != 0)
    throw IndexFailure(IndexFailure::fault, describe_errno(result));
  int64_t n_segments = 0;
  for (const auto& [name, folder] : folders) n_segments += static_cast<int64_t>(folder.segments.size());
  if (index.n_entries() > kMaxEntriesPerFile * n_segments + kMinEntries)
    throw IndexFailure(IndexFailure::damaged, "the index has more entries than there are files");

  std::set<std::pair<std::string, std::string>> known;  // folder, segment
  for (const IndexEntry& entry : index.entries())
    known.insert({CacheFiles::folder_name(entry.segment.fingerprint), entry.name});
  uint64_t now = index.next_time();
  for (const auto& [name, listed] : folders) {
    const OwnedFd folder = files_.open_folder(name);
    if (!folder.is_open()) continue;
    for (const std::string& segment : listed.segments)
      if (known.erase({name, segment}) == 0) adopt(index, folder.get(), name, segment, now++);
    if (!can_write()) continue;
    for (const std::string& temporary : listed.temporaries) files_.sweep(folder.get(), temporary);
  }
  for (const auto& [name, segment] : known) index.erase(segment);
}

// A file without an entry: its writer died before it could make one, or the index is being made anew.
void CacheDirectory::adopt(PrefixIndex& index, int folder, const std::string& folder_name,
                           const std::string& name, uint64_t now) {
  SegmentFault fault = SegmentFault::none;
  const auto file = SegmentFile::open(fs(), folder, CacheFiles::segment_file(name), fault);
  bool is_wanted = fault != SegmentFault::damaged;
  if (file) {
    // Moved here from another model's folder, or stored twice: of no use.
    const SegmentInfo& segment = file->info();
    is_wanted = CacheFiles::folder_name(segment.fingerprint) == folder_name && !index.find(segment.chain);
    if (is_wanted)
      index.insert({name, segment, {.last_use = now, .created = now, .n_hits = 0, .priority = 0}});
  }
  if (!is_wanted && can_write()) fs().unlink(folder, CacheFiles::segment_file(name));
}

void CacheDirectory::remove_file(const IndexEntry& entry) {
  if (!can_write() || !files_.unlink_segment(entry.segment.fingerprint, entry.name)) return;
  const std::lock_guard guard(state_mutex_);
  removed_.insert(entry.name);
}

}  // namespace dsv32
