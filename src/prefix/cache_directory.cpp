#include "prefix/cache_directory.h"

#include <algorithm>
#include <cerrno>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include "base/error.h"
#include "base/text.h"

namespace dsv32 {
namespace {

constexpr char kLockName[] = "LOCK";
constexpr uint64_t kMaxDefaultBytes = 256'000'000'000, kMaxDefaultFreeBytes = 10'000'000'000;
constexpr int kMaxWriteFailures = 3;
constexpr std::chrono::seconds kMaxWait{1};  // for a turn; a store takes two
constexpr std::chrono::milliseconds kStep{1};
// A file's time is that of the last use in microseconds; its last three digits, which would be nanoseconds,
// count the uses.
constexpr int64_t kHitsRange = 1000;
constexpr int64_t kLatest = int64_t{1} << 62;  // of a file's time, in 2116; who says more gets this

const char* describe(SegmentFault why) {
  return why == SegmentFault::foreign
             ? "what lay in a segment's place and is no file of this user was removed"
             : "a damaged segment was removed";
}

}  // namespace

CacheDirectory::CacheDirectory(CacheFiles files, Warn warn)
    : files_(std::move(files)), warn_(std::move(warn)) {}

std::unique_ptr<CacheDirectory> CacheDirectory::open(const std::string& path, const CacheLimits& limits,
                                                     FileSystem& fs, Warn warn) {
  std::string reason;
  try {
    if (std::optional<CacheFiles> files = CacheFiles::open(path, fs, reason)) {
      std::unique_ptr<CacheDirectory> cache(new CacheDirectory(std::move(*files), warn));
      cache->set_limits(limits);
      cache->begin_use();
      return cache;
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

// Leftovers and limits.
void CacheDirectory::begin_use() {
  open_lock();
  if (!can_write()) return warn_once("it cannot be written; it is only read");
  in_turn([this] {
    files_.sweep();
    return make_room(0, max_bytes_);
  });
}

void CacheDirectory::open_lock() {
  lock_ = OwnedFd(fs(), fs().open_at(files_.top(), kLockName, O_RDWR | O_CREAT));
  FileInfo info;
  can_write_ =
      lock_.is_open() && fs().stat(lock_.get(), info) == 0 && info.is_regular && info.owner == ::geteuid();
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

// --- turns ---------------------------------------------------------------------------------------

bool CacheDirectory::in_turn(const std::function<bool()>& body) {
  const std::lock_guard guard(turn_mutex_);
  if (!can_write() || !lock()) return false;
  struct Unlock {
    CacheDirectory& owner;
    ~Unlock() { owner.fs().unlock(owner.lock_.get()); }
  } unlock{*this};
  return body();
}

bool CacheDirectory::lock() {
  const auto end = std::chrono::steady_clock::now() + kMaxWait;
  for (;;) {
    const int result = fs().try_lock(lock_.get());
    if (result == 0) return has_patience_ = true;
    if (result != -EWOULDBLOCK && result != -EINTR)
      return warn_once("it cannot be locked: " + describe_errno(result)), false;
    if (!has_patience_ || std::chrono::steady_clock::now() >= end) break;
    std::this_thread::sleep_for(kStep);
  }
  has_patience_ = false;
  warn_once("another process holds it; nothing is stored meanwhile");
  return false;
}

// --- segments ------------------------------------------------------------------------------------

std::optional<SegmentHead> CacheDirectory::known_head(const std::string& folder, const std::string& file) {
  const std::lock_guard guard(heads_mutex_);
  const std::map<std::string, SegmentHead>& heads = heads_[folder];
  const auto head = heads.find(file);
  return head == heads.end() ? std::nullopt : std::optional(head->second);
}

std::optional<CachedSegment> CacheDirectory::segment_in(int folder, const std::string& folder_name,
                                                        const std::string& name, bool has_tokens,
                                                        bool removes) {
  CachedSegment found;
  SegmentInfo& segment = found.segment;
  FileInfo file;
  SegmentFault fault = SegmentFault::none;
  if (const auto head = has_tokens ? std::nullopt : known_head(folder_name, name)) {
    static_cast<SegmentHead&>(segment) = *head;
    if (fs().stat_at(folder, name, file) != 0) fault = SegmentFault::vanished;
  } else {
    fault = read_segment_info(fs(), folder, name, segment, file);
  }
  const bool is_in_place = CacheFiles::name_of(segment.fingerprint) == folder_name &&
                           CacheFiles::segment_file(segment.chain) == name;
  if (fault == SegmentFault::none && !is_in_place) fault = SegmentFault::damaged;
  if (removes && (fault == SegmentFault::damaged || fault == SegmentFault::foreign))
    remove(folder, name, fault);
  const std::lock_guard guard(heads_mutex_);
  if (fault != SegmentFault::none) return heads_[folder_name].erase(name), std::nullopt;
  heads_[folder_name][name] = segment;
  if (!has_tokens) segment.tokens = {};
  found.use = use_of(segment, file);
  return found;
}

std::vector<CachedSegment> CacheDirectory::segments_in(const std::string& folder_name, bool has_tokens,
                                                       bool removes) {
  const OwnedFd folder = files_.open_folder(folder_name);
  if (!folder.is_open()) return {};
  std::vector<CachedSegment> found;
  for (const std::string& name : files_.segments_in(folder.get()))
    if (std::optional<CachedSegment> one = segment_in(folder.get(), folder_name, name, has_tokens, removes))
      found.push_back(std::move(*one));
  return found;
}

std::vector<CachedSegment> CacheDirectory::segments(bool removes) {
  std::vector<CachedSegment> all;
  for (const std::string& folder : files_.folders()) {
    std::vector<CachedSegment> found = segments_in(folder, false, removes);
    std::ranges::move(found, std::back_inserter(all));
  }
  return all;
}

void CacheDirectory::remove(int folder, const std::string& segment, SegmentFault why) {
  if (!can_write() || !files_.free_name(folder, segment)) return;
  if (why != SegmentFault::vanished) warn_once(describe(why));
}

// --- uses ----------------------------------------------------------------------------------------

UseRecord CacheDirectory::use_of(const SegmentHead& segment, const FileInfo& file) {
  const int64_t time = std::clamp<int64_t>(file.changed_ns, 0, kLatest);
  const UseRecord use = {.last_use = static_cast<uint64_t>(time / kHitsRange),
                         .created = std::min<uint64_t>(segment.created, kLatest / kHitsRange),
                         .n_hits = static_cast<uint64_t>(time % kHitsRange)};
  const uint64_t seen = std::max(use.last_use, use.created);
  uint64_t latest = latest_;
  while (latest < seen && !latest_.compare_exchange_weak(latest, seen)) {
  }
  return use;
}

uint64_t CacheDirectory::next_time() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const int64_t clock = std::chrono::duration_cast<std::chrono::microseconds>(now).count();
  uint64_t latest = latest_, next = 0;
  do {
    next = std::max(static_cast<uint64_t>(std::max<int64_t>(0, clock)), latest + 1);
  } while (!latest_.compare_exchange_weak(latest, next));
  return next;
}

void CacheDirectory::record_use(int folder, const std::string& segment) {
  FileInfo file;
  if (fs().stat_at(folder, segment, file) != 0 || !file.is_regular) return;
  const uint64_t hits = std::min<uint64_t>(use_of({}, file).n_hits + 1, kHitsRange - 1);
  fs().set_time(folder, segment, static_cast<int64_t>(next_time() * kHitsRange + hits));
}

void CacheDirectory::record_creation(int folder, const std::string& file) {
  fs().set_time(folder, file, static_cast<int64_t>(next_time() * kHitsRange));
}

}  // namespace dsv32
