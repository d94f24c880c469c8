// The directory of the disk cache, whatever models it serves: its lock, its index, its limits. What is in it:
// cache_files.h.
//
// The one idea: files are the truth. A segment counts when its file is whole; the index only says so faster,
// and is brought in line with the files at each open and made anew when it is damaged. Whatever changes files
// (a segment's last name, room for a new one, eviction, sweeping) does so inside a write transaction of the
// index, so that processes take turns without another lock.
//
// Files of others in the directory count against the limit and are never touched. Nothing here throws;
// nothing waits longer than 2 s for other processes, and after one such wait nothing waits at all until the
// lock is seen free again. Any number of threads, one after the other in the index.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "context/cache_files.h"
#include "context/prefix_index.h"

namespace dsv32 {

using Warn = std::function<void(const std::string&)>;

struct CacheLimits {
  // Of everything in the directory; default: a tenth of what is free, at most 256 GB.
  std::optional<uint64_t> max_bytes;
  std::optional<uint64_t> min_free_bytes;  // stays free on the disk; default: 5 % of it, at most 10 GB
  EvictionPolicy policy = EvictionPolicy::lru;
};

class CacheDirectory {
 public:
  using Access = PrefixIndex::Access;

  // Made when missing, parents too. Null after one warning when it cannot be used at all. Limits are
  // enforced.
  static std::unique_ptr<CacheDirectory> open(const std::string& path, const CacheLimits& limits,
                                              FileSystem& fs, Warn warn);

  CacheFiles& files() { return files_; }
  FileSystem& fs() { return files_.fs(); }
  bool can_write() const;
  uint64_t max_bytes() const { return max_bytes_; }

  // Runs `body` in a transaction of the index. A write transaction is committed when `body` returns true,
  // else undone. False when that did not happen; why has been said. `body` may throw IndexFailure, and may
  // run more than once.
  // `budget`: of the whole operation this is a part of, from patience().
  bool with_index(Access access, WaitBudget& budget, const std::function<bool(PrefixIndex&)>& body);
  bool with_index(Access access, const std::function<bool(PrefixIndex&)>& body);
  WaitBudget patience() const { return WaitBudget(has_patience_ ? kMaxWait : std::chrono::seconds(0)); }

  // Within a write transaction: removes leaves in the order of the policy until `n_bytes` more fit under the
  // limits. `is_kept`: entries that must stay. False when they do not fit. `max_bytes`: instead of the limit.
  bool make_room(PrefixIndex& index, uint64_t n_bytes, const std::function<bool(const IndexEntry&)>& is_kept);
  bool make_room(PrefixIndex& index, uint64_t n_bytes, const std::function<bool(const IndexEntry&)>& is_kept,
                 uint64_t max_bytes);

  // Removes a segment's file; its entry goes with the next write transaction.
  void remove_file(const IndexEntry& entry);

  // Says `reason` once, with what the cache does about it.
  void warn_once(const std::string& reason);
  // A store failed for a reason of the disk; the third one ends writing.
  void count_write_failure(const std::string& reason);

  static constexpr std::chrono::seconds kMaxWait{2};  // of one operation, for other processes

 private:
  class Transaction;
  CacheDirectory(CacheFiles files, Warn warn);
  void set_limits(const CacheLimits& limits);
  bool begin_use();
  void open_lock();

  void lock(LockKind kind, WaitBudget& budget);
  void run(Access access, bool is_anew, WaitBudget& budget, const std::function<bool(PrefixIndex&)>& body,
           bool& is_done);
  bool is_index_current();
  void open_index(WaitBudget& budget);
  void remove_index();
  void use_memory_index(WaitBudget& budget);

  void reconcile(PrefixIndex& index);
  void adopt(PrefixIndex& index, int folder, const std::string& folder_name, const std::string& name,
             uint64_t now);

  CacheFiles files_;
  OwnedFd lock_;
  Warn warn_;
  uint64_t max_bytes_ = 0, min_free_bytes_ = 0;
  EvictionPolicy policy_ = EvictionPolicy::lru;

  std::atomic<bool> has_patience_{true};
  std::mutex index_mutex_;  // held by with_index, for the next four
  std::unique_ptr<PrefixIndex> index_;
  FileInfo index_file_;
  bool is_memory_index_ = false;
  IndexFailure::Kind last_failure_ = IndexFailure::fault;

  mutable std::mutex state_mutex_;  // for what follows
  bool can_write_ = true;
  int n_write_failures_ = 0;
  std::set<std::string> warned_;
  std::set<std::string> removed_;  // names of files that are gone and whose entries may be in the index
};

}  // namespace dsv32
