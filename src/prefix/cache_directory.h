// The disk cache of all models: its lock, its limits, and what is stored in it.
//
// Only files keep state: a segment exists while its file does; the file's head says what it holds, and its
// mtime when it was used last. A process changes the set of segments (publishing, making room, eviction,
// sweeping) only in its turn, under a flock, so that all processes keep the limits together. Reading takes no
// lock.
//
// Other files in the directory count against the limit and are never touched. A process waits at most 1 s for
// a turn; after a wait in vain it waits no more until it finds the lock free. Exceptions come only from
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
  // For everything in the directory; default: a tenth of the free disk, at most 256 GB.
  std::optional<uint64_t> max_bytes;
  std::optional<uint64_t> min_free_bytes;  // kept free on the disk; default: 5 % of the disk, at most 10 GB
  EvictionPolicy policy = EvictionPolicy::lru;
};

struct StoredSegment : SegmentInfo {  // tokens: empty unless the caller asked for them
  UseRecord use;
};

class CacheDirectory : public CacheFiles {
 public:
  // Creates the directory and its parents when missing. Null, after one warning, when it cannot be used; a
  // directory that cannot be written is only read. Enforces the limits.
  static std::unique_ptr<CacheDirectory> open(const std::string& path, const CacheLimits& limits,
                                              FileSystem& fs, Warn warn);

  bool can_write() const;
  uint64_t max_bytes() const { return max_bytes_; }

  // A folder's segments, from their heads. With tokens, reads every head; without, each head only once.
  // `removes`: removes entries that are named as segments but damaged or no file of this user, with one
  // warning.
  std::vector<StoredSegment> segments_of(const std::string& folder, bool has_tokens, bool removes);
  // The same for one file; `folder` is the open folder of that name.
  std::optional<StoredSegment> segment_of(int folder, const std::string& folder_name, const std::string& file,
                                          bool has_tokens, bool removes);
  std::vector<StoredSegment> segments(bool removes);  // of all folders, without tokens

  // Runs `body` while no other process has a turn, and returns its result; false, after a warning, when no
  // turn comes.
  bool in_turn(const std::function<bool()>& body);

  // In a turn: evicts leaves, over all models in the policy's order, until `n_bytes` more fit into
  // `max_bytes` and the disk keeps its free space. False when they do not fit. `kept`: the chain hash of a
  // segment that must stay.
  bool make_room(uint64_t n_bytes, uint64_t max_bytes, const Hash256& kept = {});

  // A logical time, later than all seen here: the clock's time, unless the clock has gone back.
  uint64_t next_time();
  // In a turn: records one more use of a segment, now. The count stops at 999.
  void record_use(int folder, const std::string& segment);
  void record_creation(int folder, const std::string& file);  // with no uses

  // Removes the entry of this name, with a warning unless `why` is vanished. Not for newer segments.
  void remove(int folder, const std::string& segment, SegmentFault why);

  // Warns once of each `reason`, which includes the consequence. Returns false, for callers that then fail.
  bool warn_once(const std::string& reason);
  // True when `result` is no error. Otherwise warns; the third failed write ends writing.
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
  std::atomic<uint64_t> latest_{0};  // the latest time seen

  mutable std::mutex mutex_;                                         // guards the members below
  std::map<std::string, std::map<std::string, SegmentHead>> heads_;  // by folder and file
  bool can_write_ = true;
  int n_write_failures_ = 0;
  std::set<std::string> warned_;
};

// --- The user's commands on the cache, without a model. Other processes may use it meanwhile. One thread.

struct CachedModel {
  std::string fingerprint;  // hexadecimal, of all 32 bytes
  std::string path;         // of the model file last used with it; empty: unknown
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
    bool is_removed = false;  // asked for, and possible
  };
  int64_t n_segments = 0, n_pages = 0;  // segments read; pages found whole
  int64_t n_unreadable = 0;             // of the segments: cannot be read now
  std::vector<Damaged> damaged;
};
// Reads every page of every segment and verifies its checksum; with `removes`, removes damaged segments.
// Skips segments of a newer version.
Verification verify(CacheDirectory& cache, bool removes);

struct Pruned {
  uint64_t n_bytes = 0;  // freed
  bool is_done = false;  // at most `max_bytes` are left, or no segment
};
// Evicts until the directory holds at most `max_bytes`; 0: evicts all segments and removes the notes of
// models' hashes.
Pruned prune(CacheDirectory& cache, uint64_t max_bytes);

}  // namespace dsv32
