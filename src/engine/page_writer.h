// A thread that stores runs of pages, one job at a time, while the rest of the program goes on.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "context/prefix_store.h"
#include "context/prefix_tree.h"

namespace dsv32 {

// A run of pages of one prompt that follow one another. The pool pages stay as they are until the job is
// given back: whoever makes it retains them.
struct StoreJob {
  std::vector<int32_t> path;  // the prompt's tokens up to the end of the run, whole pages
  int64_t first_page = 0;     // of the run
  DiskPage before;            // the stored page ahead of the run; none: the run begins the prompt
  std::vector<PoolPage> pages;
  std::vector<std::vector<const uint8_t*>> rows;  // [pages][n_layers]
  std::vector<std::vector<uint8_t>> keys;         // [pages][n_layers, key_page_bytes]

  // What became of it.
  struct Stored {
    int64_t segment = -1, first_page = 0, n_pages = 0;
  };
  std::vector<Stored> stored;
  bool is_complete = false;
};

// Stores a job's pages segment by segment, in their order; stops at the first that is not stored.
void store_job(PrefixStore& store, StoreJob& job);

class PageWriter {
 public:
  explicit PageWriter(PrefixStore& store);  // which must outlive it
  ~PageWriter();                            // finishes the job it has
  PageWriter(const PageWriter&) = delete;
  PageWriter& operator=(const PageWriter&) = delete;

  bool is_busy();
  void start(std::unique_ptr<StoreJob> job);  // when it is not busy
  // The job that is done, or nothing. `waits`: for the one that is not done yet.
  std::unique_ptr<StoreJob> take(bool waits);

 private:
  void run();

  PrefixStore& store_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::unique_ptr<StoreJob> wanted_, done_;
  bool is_storing_ = false, is_ending_ = false;
  std::thread thread_;
};

}  // namespace dsv32
