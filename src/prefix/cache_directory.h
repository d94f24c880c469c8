// The disk cache of all models: its lock, its limits, and what is stored in it.
//
// Files are the truth: a segment is there when its file is, its head says what it holds, and the file's time
// when it was used. What changes which segments there are (a last name, room for a new one, eviction,
// sweeping) happens in a turn, under a flock, so that processes keep the limits together; reading takes no
// lock.
//
// Files of others in the directory count against the limit and are never touched. No turn is waited for
// longer than 1 s, and after one such wait none until the lock is seen free again. What is thrown comes from
// failed allocations and the cryptography library. Any number of threads.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "prefix/cache_files.h"
#include "prefix/prefix_cache_options.h"
#include "prefix/segment.h"

namespace dsv32 {

using Warn = std::function<void(const std::string&)>;

struct CacheLimits {
  // Of everything in the directory; default: a tenth of what is free, at most 256 GB.
  std::optional<uint64_t> max_bytes;
  std::optional<uint64_t> min_free_bytes;  // stays free on the disk; default: 5 % of it, at most 10 GB
  EvictionPolicy policy = EvictionPolicy::lru;
};

struct StoredSegment : SegmentInfo {  // its tokens only where they were asked for
  UseRecord use;
};

class CacheDirectory : public CacheFiles {
 public:
  // Made when missing, parents too. Null after one warning when it cannot be used at all; one that cannot be
  // written is read. Enforces the limits.
  static std::unique_ptr<CacheDirectory> open(const std::string& path, const CacheLimits& limits,
                                              FileSystem& fs, Warn warn);

  bool can_write() const;
  uint64_t max_bytes() const { return max_bytes_; }

  // What the heads of a folder's segments say. With tokens all heads are read, without each is read once.
  // `removes`: what bears a segment's name and is none is removed, and said once.
  std::vector<StoredSegment> segments_of(const std::string& folder, bool has_tokens, bool removes);
  // Of one file of the open folder of that name.
  std::optional<StoredSegment> segment_of(int folder, const std::string& folder_name, const std::string& file,
                                          bool has_tokens, bool removes);
  std::vector<StoredSegment> segments(bool removes);  // of all folders, without tokens

  // Runs `body` while no other process has its turn. Its result; false, after a warning, when the turn does
  // not come.
  bool in_turn(const std::function<bool()>& body);

  // In a turn: removes leaves, over all models in the order of the policy, until `n_bytes` more fit into
  // `max_bytes` and the disk's free space stays. False when they do not fit. `kept`: the chain hash of a
  // segment that must stay.
  bool make_room(uint64_t n_bytes, uint64_t max_bytes, const Hash256& kept = {});

  // A logical time, later than all seen here: that of the clock, unless the clock has gone back.
  uint64_t next_time();
  // In a turn: one more use of a segment, now. Counts to 999.
  void record_use(int folder, const std::string& segment);
  void record_creation(int folder, const std::string& file);  // no use so far

  // Removes what bears this name in a folder, with a warning unless it has vanished. Not for newer ones.
  void remove(int folder, const std::string& segment, SegmentFault why);

  // Says `reason` once, with what the cache does about it. False, for callers that then fail.
  bool warn_once(const std::string& reason);
  // A store failed for a reason of the disk; the third one ends writing. True when `result` is no error.
  bool check_write(int64_t result);

 private:
  CacheDirectory(CacheFiles files, const CacheLimits& limits, Warn warn);
  bool lock();
  std::optional<SegmentHead> known_head(const std::string& folder, const std::string& file);
  UseRecord use_of(const SegmentHead& segment, const FileInfo& file);

  OwnedFd lock_;
  Warn warn_;
  uint64_t max_bytes_ = 0, min_free_bytes_ = 0;
  EvictionPolicy policy_;

  std::mutex turn_mutex_;  // held in a turn
  std::atomic<bool> has_patience_{true};
  std::atomic<uint64_t> latest_{0};  // of the times that were seen

  mutable std::mutex mutex_;                                         // for what follows
  std::map<std::string, std::map<std::string, SegmentHead>> heads_;  // by folder and file
  bool can_write_ = true;
  int n_write_failures_ = 0;
  std::set<std::string> warned_;
};

// --- What a user may want to know of the cache, and do to it, without a model. Other processes may go on
// meanwhile. One thread.

struct CachedModel {
  std::string fingerprint;  // hexadecimal, of all 32 bytes
  std::string path;         // of the file that was last used with it; empty when that is not known
  int64_t n_segments = 0, n_pages = 0;
  uint64_t n_bytes = 0, n_hits = 0;
  uint64_t last_use = 0;  // microseconds since 1970
};

// One element for each fingerprint, the largest first.
std::vector<CachedModel> list_models(CacheDirectory& cache);

// The segments of the fingerprint whose hexadecimal form begins with `prefix`, in the order of their first
// pages, with their tokens.
std::vector<StoredSegment> list_segments(CacheDirectory& cache, const std::string& prefix);

struct Verification {
  struct Damaged {
    std::string name, reason;
    bool is_removed = false;  // if that was asked for, as it is where the directory can be written
  };
  int64_t n_segments = 0, n_pages = 0;  // that were looked at; pages: that are whole
  int64_t n_unreadable = 0;             // could not be looked at now
  std::vector<Damaged> damaged;
};
// Reads every page of every segment and verifies its checksum; with `removes` what is damaged goes. Segments
// of a newer version are passed over.
Verification verify(CacheDirectory& cache, bool removes);

struct Pruned {
  uint64_t n_bytes = 0;  // gained
  bool is_done = false;  // so few bytes are left, or no segment
};
// Evicts until the directory holds at most `max_bytes`; 0: all segments, and what is known of models' bytes.
Pruned prune(CacheDirectory& cache, uint64_t max_bytes);

}  // namespace dsv32
