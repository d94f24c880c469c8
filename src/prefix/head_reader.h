// Threads that open the store and read what its segments say of themselves, while the rest of the program
// goes on.
//
// The one idea: a start takes as long as a few reads, however many segments there are. Several threads read
// heads; whoever waits takes what has come by then. A segment is told of when all that it continues has been.
// What hangs cannot be ended: what the threads use is theirs too (Shared).
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "prefix/prefix_store.h"

namespace dsv32 {

class HeadReader {
 public:
  // Begins. Without a thread it is all done here.
  HeadReader(const PrefixStoreOptions& options, FileSystem& files, Warn warn);
  ~HeadReader();  // stop()
  HeadReader(const HeadReader&) = delete;
  HeadReader& operator=(const HeadReader&) = delete;

  // What has come since the last time.
  struct Told {
    std::shared_ptr<PrefixStore> store;   // once it is open
    std::optional<CacheSpeeds> speeds;    // its note of them
    std::vector<StoredSegment> segments;  // parents before children
    bool is_over = false;                 // nothing more will come; without a store: there is none
  };
  // Waits until it is over, or until `deadline`; with `just_opened` no longer than until the store is open.
  Told wait(std::optional<std::chrono::steady_clock::time_point> deadline, bool just_opened = false);

  // No read begins any more. Waits up to 2 s for those in progress: true. False: one hangs and is left
  // behind.
  bool stop();

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace dsv32
