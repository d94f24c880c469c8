// Pages on disk, shared by processes, found by the tokens they stand for under one fingerprint and salt.
//
// The one idea: any doubt is a miss. A page is handed out only after its segment's header, tokens and the
// page's checksum have been verified; what fails is removed and forgotten. No call throws or reports an
// error: a fault ends in "run without the cache" and one line through `warn`, which any thread may call.
//
// Segments form a tree: a segment continues the tokens of its parent, from the end of one of the parent's
// pages on, or begins a prompt (parent -1). So a prompt that leaves a segment in its middle writes none of it
// again.
// Ids belong to this object; they stay the same while it lives, whatever happens to the files.
//
// No call waits longer than 2 s for another process. An object is not carried over a fork. The program
// ignores SIGXFSZ, or a limit on the size of files ends it where it should only end the storing.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "prefix/cache_directory.h"
#include "prefix/prefix_tree.h"
#include "prefix/read_meter.h"
#include "prefix/segment_registry.h"

namespace dsv32 {

struct PrefixStoreOptions {
  std::string directory;                  // made when missing (its parents too), 0700
  std::array<uint8_t, 32> fingerprint{};  // of all that decides the bytes of a page
  std::string salt;                       // sequences with another salt are invisible
  int64_t n_layers = 0, rows_page_bytes = 0, keys_page_bytes = 0;  // of a page; bytes of one layer
  CacheLimits limits;
};

struct StoredSegment {
  int64_t id = -1, parent = -1;  // parent -1: begins a prompt
  int64_t first_page = 0;        // of the prompt; what comes before it is the parent's, or its parent's
  std::vector<int32_t> tokens;   // [n_pages * 64]
  UseRecord use;
  int64_t n_pages() const;
};

// What was measured on the runs so far; 0: not yet.
struct CacheSpeeds {
  double read_bytes_per_second = 0, prefill_tokens_per_second = 0;
  bool operator==(const CacheSpeeds&) const = default;
};

class PrefixStore {
 public:
  // Nothing, after one warning, when the directory cannot be used at all. One that cannot be written
  // (read-only, full) is read. Segments over the limit are evicted here already.
  static std::unique_ptr<PrefixStore> open(const PrefixStoreOptions& options, FileSystem& fs, Warn warn);
  ~PrefixStore();  // writes the uses that are still held back

  // What is on disk for this fingerprint and salt, parents before children. Segments whose parents are
  // missing are left out. One thread at a time.
  std::vector<StoredSegment> segments();
  // The same file by file: the names, and what is known once the file's head has been read, which is its
  // segment and those read before it that continue it, or nothing yet. find(): any number of threads.
  std::vector<std::string> segment_files();
  std::vector<StoredSegment> find(const std::string& file);

  // Fingerprint and sizes of every segment here.
  const SegmentHead& sizes() const { return sizes_; }

  // Reads pages [first_page, first_page + pages.size()) of `segment`, which it has (counted from the
  // segment's own first), in few large requests. True when all of it is there and verified; else the targets
  // hold anything. A damaged segment is removed with a warning; one that vanished is a quiet false. Any
  // number of threads.
  bool load_pages(int64_t segment, int32_t first_page, std::span<const PageTarget> pages);

  // Stores 1 to 16 whole pages that follow a stored page (none: begin a prompt); tokens: [pages.size() * 64].
  // Evicts to stay under the limits. The segment's id, also when it was there already; nothing when it was
  // not stored. Durable when it returns. One thread at a time.
  std::optional<int64_t> store(const DiskPage& before, std::span<const int32_t> tokens,
                               std::span<const PageSource> pages);

  // A request used these segments: counts a hit and a use of each. Written to the disk with a later call.
  // Any thread.
  void record_use(std::span<const int64_t> segments);

  // Removes a segment whose pages verified and yet made trouble further on. Any thread.
  void discard(int64_t segment);

  // Removes all that this object wrote, which was of no worth. No store is in progress.
  void take_back();

  // What earlier runs measured with this fingerprint; zeros where nothing is known.
  CacheSpeeds speeds();
  // Kept for later runs.
  void record_speeds(const CacheSpeeds& speeds);
  // Where the model lay whose prefixes these are, for list_models(). Nothing where none were stored.
  void record_model(const std::string& path);

  bool can_write() const { return directory_->can_write(); }
  ReadStats read_stats() const { return meter_.stats(); }  // any thread

 private:
  PrefixStore(const PrefixStoreOptions& options, std::unique_ptr<CacheDirectory> directory);
  std::vector<StoredSegment> reach(CachedSegment segment);
  void remove(int64_t id, SegmentFault why);
  bool try_load(int64_t id, int64_t first, std::span<const PageTarget> pages);
  std::shared_ptr<const SegmentFile> open_file(int64_t id, SegmentFault& fault);
  std::shared_ptr<const SegmentFile> open_anew(const SegmentHead& segment, SegmentFault& fault);
  void write_uses();
  void write_uses_in_turn();
  std::optional<int64_t> try_store(const DiskPage& before, std::span<const int32_t> tokens,
                                   std::span<const PageSource> pages);

  const std::unique_ptr<CacheDirectory> directory_;
  const SegmentHead sizes_;
  const Hash256 root_;  // of the chains here
  SegmentRegistry registry_;
  std::vector<int64_t> written_;  // by store(), in its order

  // Of the files that find() has read: where segments may go on, by chain, and those that wait for their
  // parents, by these.
  struct KnownPlace {
    int64_t id, first_page, next_page;
  };
  std::mutex reached_mutex_;
  std::map<Hash256, KnownPlace> reached_;
  std::multimap<Hash256, CachedSegment> waiting_;
  ReadMeter meter_;
};

}  // namespace dsv32
