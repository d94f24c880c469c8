#include "prefix/cache_directory.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <iterator>
#include <map>
#include <set>
#include <tuple>
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
constexpr int kMaxWaitMs = 1000;  // wait for a turn; storing a segment takes two turns
// A segment file's mtime is its last use in microseconds; its last three digits (nanoseconds) count the uses.
constexpr int64_t kHitsRange = 1000;
constexpr int64_t kLatest = int64_t{1} << 62;  // file time, in 2116; later times are clamped to it

std::string warning(const std::string& path, const std::string& reason) {
  return format("prefix cache %s: %s", visible(path, false, 200).c_str(), reason.c_str());
}

// All segments as a forest. A segment whose parent is not on disk is an orphan, and so are its descendants:
// no prompt can reach them, so they are evicted first.
class Forest {
 public:
  Forest(std::vector<StoredSegment> segments, EvictionPolicy policy)
      : segments_(std::move(segments)), policy_(policy), nodes_(segments_.size()) {
    std::ranges::sort(segments_, {}, &StoredSegment::first_page);
    std::map<Hash256, Node*> by_chain;
    for (size_t i = 0; i < nodes_.size(); ++i) {
      const StoredSegment& segment = segments_[i];
      const auto parent = by_chain.find(segment.parent);
      Node* const above = parent == by_chain.end() ? nullptr : parent->second;
      if (above) ++above->n_children;
      nodes_[i] = {&segment, above, 0, above ? above->is_orphan : segment.first_page > 0};
      by_chain[segment.chain] = &nodes_[i];
    }
    for (Node& node : nodes_) add_if_leaf(&node);
  }

  // Calls remove() with the next leaf; it returns whether the leaf is gone, which may make its parent a leaf.
  // False when no leaf is left.
  template <typename Remove>
  bool take_leaf(const Remove& remove) {
    if (leaves_.empty()) return false;
    const Node* const leaf = std::get<Node*>(*leaves_.begin());
    leaves_.erase(leaves_.begin());
    if (remove(*leaf->segment) && leaf->parent) --leaf->parent->n_children, add_if_leaf(leaf->parent);
    return true;
  }

 private:
  struct Node {
    const StoredSegment* segment;
    Node* parent;
    int64_t n_children;
    bool is_orphan;
  };

  void add_if_leaf(Node* node) {
    if (node->n_children == 0)
      leaves_.insert({!node->is_orphan, eviction_key(policy_, node->segment->use), node});
  }

  std::vector<StoredSegment> segments_;
  EvictionPolicy policy_;
  std::vector<Node> nodes_;  // [segments_]
  std::set<std::tuple<bool, EvictionKey, Node*>> leaves_;
};

}  // namespace

std::unique_ptr<CacheDirectory> CacheDirectory::open(const std::string& path, const CacheLimits& limits,
                                                     FileSystem& fs, Warn warn) {
  std::string reason;
  try {
    if (std::optional<CacheFiles> files = CacheFiles::open(path, fs, reason))
      return std::unique_ptr<CacheDirectory>(new CacheDirectory(std::move(*files), limits, warn));
  } catch (const std::exception& error) {
    reason = error.what();
  }
  if (warn) warn(warning(path, reason + "; going on without it"));
  return nullptr;
}

// Removes leftover files and enforces the limits.
CacheDirectory::CacheDirectory(CacheFiles files, const CacheLimits& limits, Warn warn)
    : CacheFiles(std::move(files)), warn_(std::move(warn)), policy_(limits.policy) {
  SpaceInfo space;
  if (fs().space(top(), space) != 0) space = {};
  // The cache's own bytes count as free; otherwise the default would shrink with each start.
  max_bytes_ = limits.max_bytes ? *limits.max_bytes
                                : std::min((space.free_bytes + used_bytes()) / 10, kMaxDefaultBytes);
  min_free_bytes_ = limits.min_free_bytes.value_or(std::min(space.total_bytes / 20, kMaxDefaultFreeBytes));

  lock_ = OwnedFd(fs(), fs().open_at(top(), kLockName, O_RDWR | O_CREAT));
  FileInfo info;
  can_write_ =
      lock_.is_open() && fs().stat(lock_.get(), info) == 0 && info.is_regular && info.owner == ::geteuid();
  if (!can_write_) {
    warn_once("it cannot be written; it is only read");
    return;
  }
  in_turn([this] {
    sweep();
    return make_room(0, max_bytes_);
  });
}

bool CacheDirectory::can_write() const {
  const std::lock_guard guard(mutex_);
  return can_write_;
}

bool CacheDirectory::warn_once(const std::string& reason) {
  {
    const std::lock_guard guard(mutex_);
    if (!warned_.insert(reason).second) return false;
  }
  if (warn_) warn_(warning(path(), reason));
  return false;
}

bool CacheDirectory::check_write(int64_t result) {
  if (result >= 0) return true;
  warn_once("not stored: " + describe_errno(result));
  const std::lock_guard guard(mutex_);
  if (++n_write_failures_ >= kMaxWriteFailures) can_write_ = false;
  return false;
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
  const std::chrono::milliseconds patience(has_patience_ ? kMaxWaitMs : 0);
  const int result = lock_within(fs(), lock_.get(), patience);
  if (result == 0) return has_patience_ = true;
  if (result != -EWOULDBLOCK) return warn_once("it cannot be locked: " + describe_errno(result));
  has_patience_ = false;
  return warn_once("another process holds it; nothing is stored meanwhile");
}

// --- segments ------------------------------------------------------------------------------------

std::optional<SegmentHead> CacheDirectory::known_head(const std::string& folder, const std::string& file) {
  const std::lock_guard guard(mutex_);
  const std::map<std::string, SegmentHead>& heads = heads_[folder];
  const auto head = heads.find(file);
  return head == heads.end() ? std::nullopt : std::optional(head->second);
}

std::optional<StoredSegment> CacheDirectory::segment_of(int folder, const std::string& folder_name,
                                                        const std::string& name, bool has_tokens,
                                                        bool removes) {
  StoredSegment segment;
  FileInfo file;
  SegmentFault fault = SegmentFault::none;
  if (const auto head = has_tokens ? std::nullopt : known_head(folder_name, name)) {
    static_cast<SegmentHead&>(segment) = *head;
    if (fs().stat_at(folder, name, file) != 0) fault = SegmentFault::vanished;
  } else {
    fault = SegmentFile::read_info(fs(), folder, name, segment, file);
  }
  const bool is_in_place = name_of(segment.fingerprint) == folder_name && segment_file(segment.chain) == name;
  if (fault == SegmentFault::none && !is_in_place) fault = SegmentFault::damaged;
  if (removes && (fault == SegmentFault::damaged || fault == SegmentFault::foreign))
    remove(folder, name, fault);
  const std::lock_guard guard(mutex_);
  if (fault != SegmentFault::none) return heads_[folder_name].erase(name), std::nullopt;
  heads_[folder_name][name] = segment;
  if (!has_tokens) segment.tokens = {};
  segment.use = use_of(segment, file);
  return segment;
}

std::vector<StoredSegment> CacheDirectory::segments_of(const std::string& folder_name, bool has_tokens,
                                                       bool removes) {
  const OwnedFd folder = open_folder(folder_name);
  if (!folder.is_open()) return {};
  std::vector<StoredSegment> found;
  for (const std::string& name : segments_in(folder.get()))
    if (std::optional<StoredSegment> one = segment_of(folder.get(), folder_name, name, has_tokens, removes))
      found.push_back(std::move(*one));
  return found;
}

std::vector<StoredSegment> CacheDirectory::segments(bool removes) {
  std::vector<StoredSegment> all;
  for (const std::string& folder : folders())
    std::ranges::move(segments_of(folder, false, removes), std::back_inserter(all));
  return all;
}

void CacheDirectory::remove(int folder, const std::string& segment, SegmentFault why) {
  if (!can_write() || !free_name(folder, segment) || why == SegmentFault::vanished) return;
  warn_once(why == SegmentFault::foreign
                ? "what lay in a segment's place and is no file of this user was removed"
                : "a damaged segment was removed");
}

// --- eviction ------------------------------------------------------------------------------------

bool CacheDirectory::make_room(uint64_t n_bytes, uint64_t max_bytes, const Hash256& kept) {
  SpaceInfo space;
  const bool has_space = fs().space(top(), space) == 0;
  const uint64_t used = used_bytes();
  uint64_t freed = 0;
  const auto fits = [&] {
    const bool is_under_limit = used + n_bytes <= max_bytes + freed;
    return is_under_limit && (!has_space || space.free_bytes + freed >= min_free_bytes_ + n_bytes);
  };
  if (fits()) return true;
  if (n_bytes > max_bytes) return false;  // it can never fit, so nothing is removed for it

  const auto remove_leaf = [&](const SegmentHead& leaf) {
    if (leaf.chain == kept) return false;
    const OwnedFd folder = open_folder(leaf.fingerprint);
    if (!folder.is_open() || !free_name(folder.get(), segment_file(leaf.chain))) return false;
    freed += leaf.file_bytes();
    return true;
  };
  Forest forest(segments(true), policy_);
  while (!fits() && forest.take_leaf(remove_leaf)) {
  }
  return fits();
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

// --- for users -----------------------------------------------------------------------------------

namespace {

constexpr size_t kMostPath = 4096;

// Verifies one file and adds the result to `found`. Uses little memory, whatever sizes its head claims.
void verify_segment(CacheDirectory& cache, const std::string& folder_name, int folder,
                    const std::string& name, bool removes, Verification& found) {
  SegmentFault fault = SegmentFault::none;
  int64_t n_whole = 0;
  std::string reason;
  const auto file = SegmentFile::open(cache.fs(), folder, name, fault);
  if (file && (CacheFiles::name_of(file->info().fingerprint) != folder_name ||
               CacheFiles::segment_file(file->info().chain) != name)) {
    fault = SegmentFault::damaged;
    reason = "its tokens belong to another name";
  } else if (file) {
    fault = file->verify(n_whole);
    reason = format("page %lld of %lld has another checksum, or cannot be read", as_ll(n_whole + 1),
                    as_ll(file->info().n_pages));
  } else {
    reason = fault == SegmentFault::foreign ? "it is no file of this user"
                                            : "its head, its end or its length is wrong, or cannot be read";
  }
  if (fault == SegmentFault::vanished || fault == SegmentFault::newer) return;
  ++found.n_segments;
  found.n_pages += n_whole;
  if (fault == SegmentFault::unreadable) ++found.n_unreadable;
  if (fault != SegmentFault::damaged && fault != SegmentFault::foreign) return;
  const bool is_removed = removes && cache.can_write() && cache.free_name(folder, name);
  found.damaged.push_back({name, reason, is_removed});
}

}  // namespace

std::vector<CachedModel> list_models(CacheDirectory& cache) {
  std::map<Hash256, CachedModel> by_fingerprint;
  for (const StoredSegment& one : cache.segments(false)) {
    CachedModel& model = by_fingerprint[one.fingerprint];
    ++model.n_segments;
    model.n_pages += one.n_pages;
    model.n_bytes += one.file_bytes();
    model.n_hits += one.use.n_hits;
    model.last_use = std::max(model.last_use, one.use.last_use);
  }
  std::vector<CachedModel> models;
  for (auto& [fingerprint, model] : by_fingerprint) {
    model.fingerprint = hex(fingerprint);
    const OwnedFd folder = cache.open_folder(fingerprint);
    if (folder.is_open()) model.path = cache.read_note(folder.get(), CacheFiles::kPathNote, kMostPath);
    models.push_back(model);
  }
  std::ranges::stable_sort(models, std::ranges::greater(), &CachedModel::n_bytes);
  return models;
}

std::vector<StoredSegment> list_segments(CacheDirectory& cache, const std::string& prefix) {
  std::vector<StoredSegment> segments;
  for (const std::string& folder : cache.folders())
    if (folder.starts_with(prefix.substr(0, folder.size())))
      std::ranges::move(cache.segments_of(folder, true, false), std::back_inserter(segments));
  std::erase_if(segments,
                [&](const StoredSegment& one) { return !hex(one.fingerprint).starts_with(prefix); });
  std::ranges::stable_sort(segments, {}, &StoredSegment::first_page);
  return segments;
}

Verification verify(CacheDirectory& cache, bool removes) {
  Verification found;
  for (const std::string& name : cache.folders())
    if (const OwnedFd folder = cache.open_folder(name); folder.is_open())
      for (const std::string& segment : cache.segments_in(folder.get()))
        verify_segment(cache, name, folder.get(), segment, removes, found);
  return found;
}

Pruned prune(CacheDirectory& cache, uint64_t max_bytes) {
  const uint64_t before = cache.used_bytes();
  const bool had_turn = cache.in_turn([&] {
    cache.make_room(0, max_bytes);
    if (max_bytes == 0) cache.forget_models();
    return true;
  });
  const uint64_t after = cache.used_bytes();
  const bool is_small = after <= max_bytes || cache.segments(false).empty();
  return {before > after ? before - after : 0, had_turn && is_small};
}

}  // namespace dsv32
