// Threads that read stored pages into the pool, while the rest of the program goes on.
//
// The one idea: a job is a list of pages in the order in which they are wanted. Whoever waits takes what is
// there and may give up the rest, whose pages are given back when their reads end. Rows go straight to the
// pool; keys wait in memory of their own until they are taken, so reading pauses while many wait.
//
// A read that hangs cannot be ended. What the threads use is theirs too (Shared), the pool included.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "prefix/prefix_store.h"
#include "prefix/prefix_tree.h"

namespace dsv32 {

// One page on its way. `pool`: retained for the job by whoever made it.
struct PageRead {
  enum class State { waiting, reading, there, failed };
  DiskPage from;
  PoolPage pool;
  std::vector<uint8_t*> rows;  // [n_layers]
  State state = State::waiting;
  std::vector<uint8_t> keys;  // [n_layers, key_page_bytes], from when the page is read until they are taken
  bool has_keys = false;      // these, or room for them, counts as taken
};

// The reads of one run of pages. Their states change under the reader's mutex; what `rows` point to and
// `keys` belong to the reading thread while the state says `reading`.
struct ReadJob {
  std::vector<PageRead> pages;
  bool is_given_up = false;
};

class PageReader {
 public:
  // `pool`: keeps what the pages' rows point to.
  PageReader(std::shared_ptr<PrefixStore> store, std::shared_ptr<const void> pool);
  ~PageReader();  // stop()
  PageReader(const PageReader&) = delete;
  PageReader& operator=(const PageReader&) = delete;

  // False when no thread is to be had: then the job is as it was.
  bool start(std::shared_ptr<ReadJob> job);

  // Waits until at least one page more than the first `n_known` has come or failed, or until `deadline`.
  // Returns how many pages from the front are there; `is_over`: no more will come, since all are there or the
  // next one `has_failed`.
  struct Progress {
    int64_t n_there = 0;
    bool is_over = false, has_failed = false;
  };
  Progress wait(const ReadJob& job, int64_t n_known,
                std::optional<std::chrono::steady_clock::time_point> deadline);
  // The keys of pages [begin, end), which are there.
  std::vector<std::vector<uint8_t>> take_keys(ReadJob& job, int64_t begin, int64_t end);
  // Nothing of the job is wanted any more, and what has not begun does not begin.
  void give_up(ReadJob& job);
  // Whether a thread reads this page. When it does not and its job was given up, the page is the caller's
  // again.
  bool is_reading(const PageRead& page);

  // Waits until no read is in progress: true. False when one hangs, for which 2 s are waited once.
  bool wait_idle();

  // No read begins any more. Waits up to 2 s for those in progress, and leaves one that hangs behind.
  void stop();

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
  std::vector<std::thread> threads_;
  bool hangs_ = false;  // as was seen once
};

}  // namespace dsv32
