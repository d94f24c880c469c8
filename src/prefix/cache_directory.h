// The directory of the disk cache, whatever models it serves: its lock, its limits, and what is stored in it.
// The files: cache_files.h.
//
// The one idea: files are the truth. A segment is there when its file is, its head says what it holds, and
// the file's time when it was used. So there is nothing to keep in line with them: a start reads the heads.
// Whatever changes which segments there are (a last name, room for a new one, eviction, sweeping) does so in
// a turn, under a flock, so that processes keep the limits together; reading takes no lock.
//
// Files of others in the directory count against the limit and are never touched. No turn is waited for
// longer than 1 s, and after one such wait none at all until the lock is seen free again. What is thrown
// comes from failed allocations and the cryptography library. Any number of threads.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "prefix/cache_files.h"
#include "prefix/eviction_policy.h"
#include "prefix/segment_file.h"

namespace dsv32 {

using Warn = std::function<void(const std::string&)>;

struct CacheLimits {
  // Of everything in the directory; default: a tenth of what is free, at most 256 GB.
  std::optional<uint64_t> max_bytes;
  std::optional<uint64_t> min_free_bytes;  // stays free on the disk; default: 5 % of it, at most 10 GB
  EvictionPolicy policy = EvictionPolicy::lru;
};

struct CachedSegment {
  SegmentInfo segment;  // its tokens only where they were asked for
  UseRecord use;
};

class CacheDirectory {
 public:
  // Made when missing, parents too. Null after one warning when it cannot be used at all; one that cannot be
  // written is read. Limits are enforced.
  static std::unique_ptr<CacheDirectory> open(const std::string& path, const CacheLimits& limits,
                                              FileSystem& fs, Warn warn);

  CacheFiles& files() { return files_; }
  FileSystem& fs() { return files_.fs(); }
  bool can_write() const;
  uint64_t max_bytes() const { return max_bytes_; }

  // What the heads of a folder's segments say. Tokens need all of them to be read; without, each is read
  // once. `removes`: what bears a segment's name and is none is removed, and said once.
  std::vector<CachedSegment> segments_in(const std::string& folder, bool has_tokens, bool removes);
  // Of one file of the open folder of that name.
  std::optional<CachedSegment> segment_in(int folder, const std::string& folder_name, const std::string& file,
                                          bool has_tokens, bool removes);
  std::vector<CachedSegment> segments(bool removes);  // of all folders, without tokens

  // Runs `body` while no other process has its turn. Its result; false when the turn does not come: why has
  // been said.
  bool in_turn(const std::function<bool()>& body);

  // In a turn: removes leaves in the order of the policy until `n_bytes` more fit into `max_bytes`, and the
  // disk's free space stays. False when they do not fit. `kept`: the chain hash of a segment that must stay.
  bool make_room(uint64_t n_bytes, uint64_t max_bytes, const Hash256& kept = {});

  // A logical time, later than all that were seen here: that of the clock, unless the clock has gone back.
  uint64_t next_time();
  // In a turn: one more use of a segment, now. Counts to 999.
  void record_use(int folder, const std::string& segment);
  void record_creation(int folder, const std::string& file);  // no use so far

  // Removes what bears this name in a folder and says why, once; nothing is said of what has vanished. Not
  // for newer ones.
  void remove(int folder, const std::string& segment, SegmentFault why);

  // Says `reason` once, with what the cache does about it.
  void warn_once(const std::string& reason);
  // A store failed for a reason of the disk; the third one ends writing.
  void count_write_failure(const std::string& reason);

 private:
  CacheDirectory(CacheFiles files, Warn warn);
  void set_limits(const CacheLimits& limits);
  void open_lock();
  void begin_use();
  bool lock();
  std::optional<SegmentHead> known_head(const std::string& folder, const std::string& file);
  UseRecord use_of(const SegmentHead& segment, const FileInfo& file);

  CacheFiles files_;
  OwnedFd lock_;
  Warn warn_;
  uint64_t max_bytes_ = 0, min_free_bytes_ = 0;
  EvictionPolicy policy_ = EvictionPolicy::lru;

  std::mutex turn_mutex_;  // held in a turn
  std::atomic<bool> has_patience_{true};
  std::atomic<uint64_t> latest_{0};  // of the times that were seen

  std::mutex heads_mutex_;                                           // for the next one
  std::map<std::string, std::map<std::string, SegmentHead>> heads_;  // by folder and file

  mutable std::mutex state_mutex_;  // for what follows
  bool can_write_ = true;
  int n_write_failures_ = 0;
  std::set<std::string> warned_;
};

}  // namespace dsv32
