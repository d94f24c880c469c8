// Threads that read stored pages into the pool, while the rest of the program goes on.
//
// The one idea: a job is a list of pages in the order in which they are wanted, and it is read slab by slab:
// the first layers of all pages, then the next ones. Whoever waits takes what is there and may leave the
// rest, whose pages are given back when their reads end. Rows go straight to the pool; keys wait in memory of
// their own until they are taken, so reading pauses while many wait.
//
// A read that hangs cannot be ended. What the threads use is theirs too (Shared), and is never freed then.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "context/prefix_store.h"
#include "context/prefix_tree.h"

namespace dsv32 {

// One page on its way. `pool`: retained for the job by whoever made it.
struct PageRead {
  enum class State { waiting, reading, there, failed };
  struct Slab {
    State state = State::waiting;
    std::vector<uint8_t>
        keys;  // [n_layers of the slab, key_page_bytes], from when it is read until it is taken
  };
  DiskPage from;
  PoolPage pool;
  std::vector<uint8_t*> rows;  // [n_layers]
  std::vector<Slab> slabs;     // [n_slabs], made by start()
};

// The reads of one run of pages. What is below `pages[i].slabs` changes under the reader's mutex; what `rows`
// point to and `keys` belong to the reading thread while the state says `reading`.
struct ReadJob {
  std::vector<PageRead> pages;
  size_t n_wanted = 0;        // from the front; the others are not read any more
  int64_t n_in_progress = 0;  // requests
};

class PageReader {
 public:
  explicit PageReader(std::shared_ptr<PrefixStore> store);
  ~PageReader();  // stop()
  PageReader(const PageReader&) = delete;
  PageReader& operator=(const PageReader&) = delete;

  void start(std::shared_ptr<ReadJob> job);

  // Waits until the slab of at least one page more than the first `n_known` has come or failed, or until
  // `deadline`. Returns of how many pages from the front the slab is there; `is_over`: no more will come,
  // since all that are wanted are there or the next one `has_failed`.
  struct Progress {
    int64_t n_there = 0;
    bool is_over = false, has_failed = false;
  };
  Progress wait(const ReadJob& job, int64_t slab, int64_t n_known,
                std::optional<std::chrono::steady_clock::time_point> deadline);
  // The keys of pages [begin, end) of a slab that is there.
  std::vector<std::vector<uint8_t>> take_keys(ReadJob& job, int64_t slab, int64_t begin, int64_t end);
  // Only the first n_pages are wanted any more. Reads of the others that have not begun do not begin; the
  // places of those that no thread touches, which are the caller's again.
  std::vector<size_t> cut(ReadJob& job, int64_t n_pages);
  // No thread touches the job's pages any more, nor will.
  bool is_idle(const ReadJob& job);

  // No read begins any more. Waits up to 2 s for those in progress; false: one hangs, and may write to its
  // pages for as long as the process lives.
  bool stop();

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
  std::vector<std::thread> threads_;
  bool has_stopped_ = false, has_ended_ = false;
};

}  // namespace dsv32
