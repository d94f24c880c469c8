// The threads between the store and the pool: one kind reads what segments say of themselves, one reads
// pages, one stores them. One that hangs is left behind, with the pool (base/thread.h). Create each with
// offloaded().
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/thread.h"
#include "prefix/prefix_store.h"
#include "prefix/prefix_tree.h"

namespace dsv32 {

// Opens the store and reads its segments' heads, several at a time: a start takes as long as a few reads,
// however many segments there are. A segment is told of when all that it continues has been.
class HeadReader : public Offload {
 public:
  HeadReader(const PrefixStoreOptions& options, FileSystem& files, Warn warn);
  void begin();  // without a thread it is all done here

  // What has come since the last time.
  struct Told {
    std::shared_ptr<PrefixStore> store;   // once it is open
    std::optional<CacheSpeeds> speeds;    // its note of them
    std::vector<StoredSegment> segments;  // parents before children
    bool is_over = false;                 // nothing more will come; without a store: there is none
  };
  // Waits until it is over, or until `deadline`.
  Told wait_told(Deadline deadline);

 private:
  void work(Lock& lock) override;
  void open(Lock& lock);

  const PrefixStoreOptions options_;
  FileSystem& files_;
  const Warn warn_;
  std::shared_ptr<PrefixStore> store_;
  std::vector<std::string> names_;  // of segments' files
  size_t next_ = 0;                 // of them
  Told told_;                       // and not taken yet
  bool is_begun_ = false;
};

// One page on its way. `pool`: retained for the job by its maker.
struct PageRead {
  enum class State { waiting, reading, there, failed };
  DiskPage from;
  PoolPage pool;
  std::vector<uint8_t*> rows;  // [n_layers]
  State state = State::waiting;
  std::vector<uint8_t> keys;  // [n_layers, key_page_bytes], from when the page is read until they are taken
  bool has_keys = false;      // these, or room for them, counts as taken
};

// The reads of one run of pages, in the order in which they are wanted. Their states change under the
// reader's mutex; what `rows` point to and `keys` belong to the reading thread while the state says
// `reading`.
struct ReadJob {
  std::vector<PageRead> pages;
  bool is_given_up = false;
};

// Reads stored pages into the pool. Rows go straight there; keys wait in memory of their own until they are
// taken, so reading pauses while many wait.
class PageReader : public Offload {
 public:
  // `pool`: keeps what the pages' rows point to.
  PageReader(std::shared_ptr<PrefixStore> store, std::shared_ptr<const void> pool);

  // False when no thread is to be had: then the job is as it was.
  bool read(std::shared_ptr<ReadJob> job);

  // Waits until more than the first `n_known` pages have come, or one failed, or until `deadline`. n_there:
  // pages from the front; is_over: no more will come, since all are there or the next one failed.
  struct Progress {
    int64_t n_there = 0;
    bool is_over = false, has_failed = false;
  };
  Progress wait_pages(const ReadJob& job, int64_t n_known, Deadline deadline);
  // The keys of pages [begin, end), which are there.
  std::vector<std::vector<uint8_t>> take_keys(ReadJob& job, int64_t begin, int64_t end);
  // Nothing of the job is wanted any more, and what has not begun does not begin.
  void give_up(ReadJob& job);
  // When no thread reads a page of a job that was given up, the page is the caller's again.
  bool is_reading(const PageRead& page);

  // Waits until no read is in progress: true. False when one hangs, for which 2 s are waited once.
  bool wait_idle();

 private:
  struct Request {  // consecutive pages of one segment
    std::shared_ptr<ReadJob> job;
    size_t begin, end;
    std::span<PageRead> pages() const { return std::span(job->pages).subspan(begin, end - begin); }
  };
  void work(Lock& lock) override;
  bool can_begin() const;
  bool load(const Request& request) const;
  void drop_keys(PageRead& page);

  const std::shared_ptr<const void> pool_;
  const std::shared_ptr<PrefixStore> store_;
  const size_t key_bytes_;  // of a page
  std::deque<Request> requests_;
  size_t n_key_bytes_ = 0;  // of keys that wait in memory
  int n_reading_ = 0;
  bool hangs_ = false;  // as was seen once
};

// A run of pages of one prompt that follow one another. The pool pages stay as they are until the job is
// given back: its maker retains them.
struct StoreJob {
  std::vector<int32_t> path;  // the prompt's tokens up to the end of the run, whole pages
  int64_t first_page = 0;     // of the run
  Hash256 parent{};           // the segment with the page ahead of the run, unless that begins the prompt
  std::vector<PoolPage> pages;
  std::vector<std::vector<const uint8_t*>> rows;  // [pages][n_layers]
  std::vector<std::vector<uint8_t>> keys;         // [pages][n_layers, key_page_bytes]

  // What became of it.
  struct Stored {
    Hash256 segment;
    int64_t first_page, n_pages;
  };
  std::vector<Stored> stored;
  bool is_complete = false;
};

// Stores runs of pages, one job at a time. After a write that hangs nothing is stored any more.
class PageWriter : public Offload {
 public:
  // `files`: the store's. `pool`: keeps what the pages' rows point to.
  PageWriter(std::shared_ptr<PrefixStore> store, FileSystem& files, std::shared_ptr<const void> pool);

  bool is_busy();
  // When it is not busy. Without a thread the job is done at once, and nothing of it is stored.
  void write(std::unique_ptr<StoreJob> job);
  // The job that is done, or nothing. `waits`: for it, as long as something of it is written every 2 s.
  std::unique_ptr<StoreJob> take(bool waits);
  bool hangs() const { return hangs_; }

 private:
  void work(Lock& lock) override;

  const std::shared_ptr<const void> pool_;
  const std::shared_ptr<PrefixStore> store_;
  FileSystem& files_;
  std::unique_ptr<StoreJob> job_;
  bool is_done_ = false;  // the job
  bool hangs_ = false;
};

}  // namespace dsv32
