// Threads that read stored pages into the pool, while the rest of the program goes on.
//
// The one idea: a job is a list of pages in the order in which they are wanted; it is finished from the
// front. Whoever waits takes the pages that are there and may leave the others, whose pages are given back
// when their reads end. Rows go straight to the pool; keys wait in memory of their own until they are taken,
// so reading pauses while many wait.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "context/latent_cache.h"
#include "context/prefix_store.h"
#include "context/prefix_tree.h"

namespace dsv32 {

// One page on its way. `pool`: retained for the job by whoever made it.
struct PageRead {
  DiskPage from;
  PoolPage pool;
  std::vector<uint8_t*> rows;  // [n_layers]
  std::vector<uint8_t> keys;   // [n_layers, key_page_bytes], from when it is read until it is taken
  enum class State { waiting, reading, there, failed } state = State::waiting;
};

// The reads of one prompt. States change under the reader's mutex; what `rows` point to and `keys` belong to
// the reading thread until the state says `there`.
struct ReadJob {
  std::vector<PageRead> pages;
  int64_t n_in_progress = 0;  // requests
};

class PageReader {
 public:
  // row_bytes, key_bytes: of a page, all layers. The store must outlive it.
  PageReader(PrefixStore& store, size_t row_bytes, size_t key_bytes);
  ~PageReader();  // waits for reads in progress
  PageReader(const PageReader&) = delete;
  PageReader& operator=(const PageReader&) = delete;

  void start(std::shared_ptr<ReadJob> job);

  // Waits until at least one page more than the first `n_known` has come or failed, or until `deadline`.
  // Returns how many pages from the front are there; `is_over`: no more will come, since all are there or
  // the next one `has_failed`.
  struct Progress {
    int64_t n_there = 0;
    bool is_over = false, has_failed = false;
  };
  Progress wait(const ReadJob& job, int64_t n_known,
                std::optional<std::chrono::steady_clock::time_point> deadline);
  // Reads that have not begun do not begin: the places of their pages, which are the caller's again.
  std::vector<size_t> cancel(ReadJob& job);
  // Says that the keys of so many pages have been taken.
  void give_back(int64_t n_pages);
  // No thread touches the job's pages any more, nor will.
  bool is_idle(const ReadJob& job);

 private:
  // Consecutive pages of one segment.
  struct Request {
    std::shared_ptr<ReadJob> job;
    size_t begin, end;
  };
  void run();
  void read(const Request& request);
  bool can_begin() const;

  PrefixStore& store_;
  const size_t key_bytes_, request_pages_;
  std::mutex mutex_;
  std::condition_variable has_work_, has_news_;
  std::deque<Request> requests_;
  int64_t n_waiting_ = 0;  // pages whose keys are in memory
  bool is_ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace dsv32
