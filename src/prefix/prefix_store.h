// Pages on disk, shared by processes and found by their tokens, under one fingerprint and salt.
//
// Any doubt is a miss. A page is handed out only after its segment's header, tokens and the page's checksum
// have been verified; a segment that fails is removed. No call throws: after a fault the program runs without
// the cache, with one line through `warn`, which any thread may call.
//
// Segments form a tree: a segment continues the tokens of its parent from the end of one of the parent's
// pages on, or begins a prompt. Its chain hash names it.
//
// No call waits longer than 2 s for another process. An object must not be used after a fork. The program
// must ignore SIGXFSZ, or a limit on file sizes would end it.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "prefix/cache_directory.h"
#include "prefix/prefix_tree.h"

namespace dsv32 {

// The result of `body` or, when memory is lacking or a library fails, a default value: a miss. Exceptions of
// the type `Passed` are thrown on.
struct NoError {};
template <typename Passed = NoError, typename Body>
auto or_miss(const Body& body, const char** why = nullptr) -> decltype(body()) {
  try {
    return body();
  } catch (const Passed&) {
    throw;
  } catch (const std::exception&) {
    if (why) *why = "there was too little memory";
    return decltype(body())();
  }
}

struct PrefixStoreOptions {
  std::string directory;  // created when missing (its parents too), 0700
  std::string salt;       // sequences with another salt are not found
  SegmentHead sizes;      // fingerprint and sizes of every segment here
  CacheLimits limits;
};

// Speeds measured so far; 0: not measured.
struct CacheSpeeds {
  double read_bytes_per_second = 0, prefill_tokens_per_second = 0;
  bool operator==(const CacheSpeeds&) const = default;
};

struct ReadStats {
  uint64_t n_bytes = 0;
  double seconds = 0;  // during which at least one read was in progress
};

class PrefixStore {
 public:
  // Null, after one warning, when the directory cannot be used; one that cannot be written is only read.
  // Evicts segments over the limit.
  static std::unique_ptr<PrefixStore> open(const PrefixStoreOptions& options, FileSystem& fs, Warn warn);
  ~PrefixStore();  // writes the pending uses

  // The segments on disk for this fingerprint and salt, parents before children, without those whose parents
  // are missing. One thread at a time.
  std::vector<StoredSegment> segments();
  // The same file by file. segment_files(): the names. find(): reads a file's head; returns its segment, and
  // those read before that continue it, or nothing while its parent has not been read. find(): any number of
  // threads.
  std::vector<std::string> segment_files();
  std::vector<StoredSegment> find(const std::string& file);

  const SegmentHead& sizes() const { return sizes_; }

  // Reads `first` and the pages that follow it in its segment, in few large requests. True when all were read
  // and verified; otherwise the targets' content is undefined. A damaged segment is removed with a warning;
  // for a vanished one, false without a warning. Any number of threads.
  bool load_pages(const DiskPage& first, std::span<const PageTarget> pages);

  // Stores 1 to 16 whole pages of a prompt, from `first_page` on, that continue the stored segment `parent`
  // (first_page 0: none); tokens: [pages.size() * 64]. Evicts to stay under the limits. Returns the segment,
  // also when it was stored already; nothing when it is not stored. Durable on return. One thread at a time.
  std::optional<Hash256> store(const Hash256& parent, int64_t first_page, std::span<const int32_t> tokens,
                               std::span<const PageSource> pages);

  // Counts a hit and a use of each segment; a later call writes them to the disk. Any thread.
  void record_use(std::span<const Hash256> segments);

  // Removes a segment whose pages verified but led to logits that are not finite. Any thread.
  void discard(const Hash256& segment);

  // Removes all segments that this object wrote. No store() may be in progress.
  void take_back();

  // The speeds that earlier runs measured with this fingerprint, 0 where unknown; record_speeds(): for later
  // runs.
  CacheSpeeds speeds();
  void record_speeds(const CacheSpeeds& speeds);
  // Records the model file's path for list_models(), if prefixes of the model were stored.
  void record_model(const std::string& path);

  bool can_write() const { return directory_->can_write(); }
  ReadStats read_stats() const;  // any thread

 private:
  using Clock = std::chrono::steady_clock;
  // A segment's pages; others may continue it from the end of each.
  struct PageRange {
    int64_t first_page, end_page;
  };

  PrefixStore(const PrefixStoreOptions& options, std::unique_ptr<CacheDirectory> directory);
  OwnedFd open_folder() const { return directory_->open_folder(sizes_.fingerprint); }
  std::vector<StoredSegment> reach(StoredSegment first);
  void remove(const Hash256& segment, SegmentFault why);
  std::shared_ptr<const SegmentFile> known_file(const Hash256& segment) const;
  std::shared_ptr<const SegmentFile> open_file(const Hash256& segment, SegmentFault& fault);
  void note_read(int n_begun, uint64_t n_bytes);
  double read_seconds() const;
  void write_uses();
  void flush_uses();

  const std::unique_ptr<CacheDirectory> directory_;
  const SegmentHead sizes_;
  const Hash256 root_;            // of the chains of segments
  std::vector<Hash256> written_;  // by store(), in its order

  mutable std::mutex mutex_;  // guards the members below; the only file call made under it is closing
  // The last 64 files stay open: a segment that another process evicts can be read to the end.
  std::deque<std::shared_ptr<const SegmentFile>> open_;
  std::vector<Hash256> uses_;  // not on the disk yet, in order
  // The segments that find() has read: by chain hash, and those that wait for their parents, by parent.
  std::map<Hash256, PageRange> reached_;
  std::multimap<Hash256, StoredSegment> waiting_;
  ReadStats read_;
  int n_reading_ = 0;
  Clock::time_point reading_since_;  // the time from then on is not in read_ yet
};

}  // namespace dsv32
