// Pages on disk, shared by processes, found by the tokens they stand for under one fingerprint and salt.
//
// Any doubt is a miss. A page is handed out only after its segment's header, tokens and the page's checksum
// have been verified; what fails is removed and forgotten. No call throws: a fault ends in "run without the
// cache" and one line through `warn`, which any thread may call.
//
// Segments form a tree: a segment continues the tokens of its parent from the end of one of the parent's
// pages on, or begins a prompt. Its chain hash names it.
//
// No call waits longer than 2 s for another process. An object is not carried over a fork. The program
// ignores SIGXFSZ, or a limit on the size of files would end it.
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

// What `body` gives or, when memory is lacking or a library fails, nothing of it: a miss. Errors of the type
// `Passed` are thrown on.
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
  std::string directory;  // made when missing (its parents too), 0700
  std::string salt;       // sequences with another salt are invisible
  SegmentHead sizes;      // fingerprint and sizes of every segment here
  CacheLimits limits;
};

// What was measured on the runs so far; 0: not yet.
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
  // Null, after one warning, when the directory cannot be used at all; one that cannot be written is read.
  // Segments over the limit are evicted here already.
  static std::unique_ptr<PrefixStore> open(const PrefixStoreOptions& options, FileSystem& fs, Warn warn);
  ~PrefixStore();  // writes the uses that are still held back

  // What is on disk for this fingerprint and salt, parents before children, without those whose parents are
  // missing. One thread at a time.
  std::vector<StoredSegment> segments();
  // The same file by file: the names, and what is known once a file's head has been read: its segment and
  // those read before it that continue it, or nothing yet. find(): any number of threads.
  std::vector<std::string> segment_files();
  std::vector<StoredSegment> find(const std::string& file);

  const SegmentHead& sizes() const { return sizes_; }

  // Reads `first` and the pages that follow it in its segment, in few large requests. True when all are there
  // and verified; else the targets hold anything. A damaged segment is removed with a warning; one that
  // vanished is a quiet false. Any number of threads.
  bool load_pages(const DiskPage& first, std::span<const PageTarget> pages);

  // Stores 1 to 16 whole pages of a prompt, from `first_page` on, that follow the tokens of a stored segment
  // there (first_page 0: of none); tokens: [pages.size() * 64]. Evicts to stay under the limits. The segment,
  // also when it was there already; nothing when it was not stored. Durable when it returns. One thread at a
  // time.
  std::optional<Hash256> store(const Hash256& parent, int64_t first_page, std::span<const int32_t> tokens,
                               std::span<const PageSource> pages);

  // Counts a hit and a use of each segment; a later call writes them to the disk. Any thread.
  void record_use(std::span<const Hash256> segments);

  // Removes a segment whose pages verified and yet made trouble further on. Any thread.
  void discard(const Hash256& segment);

  // Removes all that this object wrote, which was of no worth. No store is in progress.
  void take_back();

  // What earlier runs measured with this fingerprint, zeros where nothing is known; what later ones will
  // find.
  CacheSpeeds speeds();
  void record_speeds(const CacheSpeeds& speeds);
  // Where the model lay, for list_models(). Nothing where no prefixes of it were stored.
  void record_model(const std::string& path);

  bool can_write() const { return directory_->can_write(); }
  ReadStats read_stats() const;  // any thread

 private:
  using Clock = std::chrono::steady_clock;
  // Where segments may go on.
  struct Place {
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
  const Hash256 root_;            // of the chains here
  std::vector<Hash256> written_;  // by store(), in its order

  mutable std::mutex mutex_;  // for what follows; of the file calls only closing happens under it
  // The last 64 files stay open: a segment that another process evicts can be read to the end.
  std::deque<std::shared_ptr<const SegmentFile>> open_;
  std::vector<Hash256> uses_;  // that are not on the disk yet, in their order
  // Of the files that find() has read: by chain, and those that wait for their parents, by these.
  std::map<Hash256, Place> reached_;
  std::multimap<Hash256, StoredSegment> waiting_;
  ReadStats read_;
  int n_reading_ = 0;
  Clock::time_point reading_since_;  // which read_ does not count yet
};

}  // namespace dsv32
