// A thread that stores runs of pages, one job at a time, while the rest of the program goes on.
//
// A write that hangs cannot be ended: after some time it is left behind, with all that it uses (Shared), the
// pool included, and nothing is stored any more.
#pragma once

#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "prefix/prefix_store.h"
#include "prefix/prefix_tree.h"

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

class PageWriter {
 public:
  // `files`: the store's. `pool`: keeps what the pages' rows point to.
  PageWriter(std::shared_ptr<PrefixStore> store, FileSystem& files, std::shared_ptr<const void> pool);
  ~PageWriter();  // finishes the job it has, or leaves one that hangs behind
  PageWriter(const PageWriter&) = delete;
  PageWriter& operator=(const PageWriter&) = delete;

  bool is_busy();
  // When it is not busy. Without a thread the job is done at once, and nothing of it is stored.
  void start(std::unique_ptr<StoreJob> job);
  // The job that is done, or nothing. `waits`: for the one that is not done yet, as long as something of it
  // is written every 2 s.
  std::unique_ptr<StoreJob> take(bool waits);
  bool hangs() const { return hangs_; }

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
  std::thread thread_;
  bool hangs_ = false;
};

}  // namespace dsv32
