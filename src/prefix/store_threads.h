// The threads between store and pool: HeadReader reads segments' heads, PageReader reads pages, PageWriter
// stores pages. A thread that hangs is left behind, with the pool (base/thread.h). Create each object with
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
// however many segments there are. A segment is reported after all that it continues.
class HeadReader : public Offload {
 public:
  HeadReader(const PrefixStoreOptions& options, FileSystem& files, Warn warn);
  void begin();  // without a thread, does all the work here

  // What was found since the last call.
  struct Told {
    std::shared_ptr<PrefixStore> store;   // once it is open
    std::optional<CacheSpeeds> speeds;    // from the store's note
    std::vector<StoredSegment> segments;  // parents before children
    bool is_over = false;                 // nothing more will come; without a store yet: there is none
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
  size_t next_ = 0;                 // index in names_
  Told told_;                       // found, not taken yet
  bool is_begun_ = false;
};

// A page being read. `pool`: retained for the job by the job's maker.
struct PageRead {
  enum class State { waiting, reading, there, failed };
  DiskPage from;
  PoolPage pool;
  std::vector<uint8_t*> rows;  // [n_layers]
  State state = State::waiting;
  std::vector<uint8_t> keys;  // [n_layers, key_page_bytes], from when the page is read until they are taken
  bool has_keys = false;      // the keys' bytes count in n_key_bytes_
};

// A run of pages to read, in order. Their states change under the reader's mutex; while a state is `reading`,
// `keys` and the memory of `rows` belong to the reading thread.
struct ReadJob {
  std::vector<PageRead> pages;
  bool is_given_up = false;
};

// Reads stored pages into the pool. Rows go straight to the pool; keys wait in other memory until they are
// taken, so reading pauses while many wait.
class PageReader : public Offload {
 public:
  // `pool`: keeps what the pages' rows point to.
  PageReader(std::shared_ptr<PrefixStore> store, std::shared_ptr<const void> pool);

  // False, with the job unchanged, when no thread can be started.
  bool read(std::shared_ptr<ReadJob> job);

  // Waits until more than the first `n_known` pages have come, or one failed, or until `deadline`. n_there:
  // pages that are there, from the front; is_over: no more will come: all are there, or the next failed.
  struct Progress {
    int64_t n_there = 0;
    bool is_over = false, has_failed = false;
  };
  Progress wait_pages(const ReadJob& job, int64_t n_known, Deadline deadline);
  // The keys of pages [begin, end), which are there.
  std::vector<std::vector<uint8_t>> take_keys(ReadJob& job, int64_t begin, int64_t end);
  // Cancels the job: reads that have not begun never begin.
  void give_up(ReadJob& job);
  // Whether a thread is reading the page. If none is, a page of a job that was given up is the caller's
  // again.
  bool is_reading(const PageRead& page);

  // Waits until no read is in progress: true. False when a read hangs: after 2 s, later at once.
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
  bool hangs_ = false;  // the last wait_idle() returned false
};

// A run of consecutive pages of one prompt, to be stored. The job's maker retains the pool pages until the
// job is taken back.
struct StoreJob {
  std::vector<int32_t> path;  // the prompt's tokens up to the end of the run, whole pages
  int64_t first_page = 0;     // of the run
  Hash256 parent{};           // the segment of the page before the run, unless the run begins the prompt
  std::vector<PoolPage> pages;
  std::vector<std::vector<const uint8_t*>> rows;  // [pages][n_layers]
  std::vector<std::vector<uint8_t>> keys;         // [pages][n_layers, key_page_bytes]

  // The result.
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
  // Only when it is not busy. Without a thread the job ends at once, with nothing stored.
  void write(std::unique_ptr<StoreJob> job);
  // The finished job, or nothing. `waits`: waits for it, as long as some bytes are written every 2 s.
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
