// Host memory that a device reads and writes at the link's full rate, pinned in the background.
//
// alloc() only reserves addresses. Threads then make piece after piece ready, in the order of the calls: they
// make its pages present and have the driver pin it. The memory can be used meanwhile; before a device uses a
// piece, wait(). So the pinning of a large cache hides behind the loading of weights. On a machine of several
// NUMA nodes pages are made present from the node that they belong to. Safe to call from several threads.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/numa.h"

namespace dsv32 {

// What a device's driver does with memory whose pages are present. Called by any thread.
struct PinningDriver {
  std::function<bool(void* memory, size_t n_bytes)> pin;  // false: it does not
  std::function<void(void* memory)> unpin;
};

class PinnedMemory {
 public:
  explicit PinnedMemory(PinningDriver driver, NumaNodes nodes = {})
      : driver_(std::move(driver)), nodes_(std::move(nodes)) {}
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  // Zeroed memory; null when the system has no addresses left. `what` is named when pinning fails. Of every
  // n_part_bytes each node has its part, if nobody touches them before wait() returns; 0: no matter.
  void* alloc(size_t n_bytes, const char* what, size_t n_part_bytes = 0);
  // Returns how many bytes that were.
  size_t free(void* memory);
  // Until the piece that holds this address is pinned; at once when it is none of ours. Throws Error{memory}.
  void wait(const void* inside);

 private:
  enum class State { queued, ready, failed };
  struct Piece {
    size_t n_bytes = 0, n_part_bytes = 0;
    std::string what;
    State state = State::queued;
  };
  void add_thread();
  void work();
  void make_ready(std::unique_lock<std::mutex>& lock);
  bool make_present(uint8_t* memory, const Piece& piece) const;

  const PinningDriver driver_;
  const NumaNodes nodes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint8_t*, Piece> pieces_;  // by address
  std::deque<uint8_t*> queue_;
  bool is_ending_ = false;
  std::vector<std::thread> threads_;
};

// Makes every page present without changing a byte, whatever others write to them meanwhile: for kernels that
// do not know MADV_POPULATE_WRITE.
void touch_pages(uint8_t* memory, size_t n_bytes);

}  // namespace dsv32
