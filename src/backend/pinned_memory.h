// Host memory that a device reads and writes at the link's full rate, pinned in the background.
//
// alloc() only reserves addresses. Threads then make piece after piece ready, in the order of the calls: they
// make its pages present and have the driver pin it. The host may use the memory meanwhile; before a device
// uses a piece, call wait(). So the pinning of a large cache hides behind the loading of weights. On a
// machine of several NUMA nodes a thread on the page's node makes it present. Safe to call from several
// threads.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "base/numa.h"
#include "base/thread.h"

namespace dsv32 {

// A device driver's functions for memory whose pages are present. Called by any thread.
struct PinningDriver {
  std::function<bool(void* memory, size_t n_bytes)> pin;  // false: pinning failed
  std::function<void(void* memory)> unpin;
};

class PinnedMemory {
 public:
  explicit PinnedMemory(PinningDriver driver, NumaNodes nodes = {})
      : driver_(std::move(driver)), nodes_(std::move(nodes)) {}
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  // Zeroed memory; null when the system has no addresses left. The error names `what` when pinning fails.
  // Each n_part_bytes are divided over the NUMA nodes, if nothing touches them before wait() returns; 0: not
  // divided.
  void* alloc(size_t n_bytes, const char* what, size_t n_part_bytes = 0);
  // Returns the number of bytes freed.
  size_t free(void* memory);
  // Waits until the piece with this address is pinned; returns at once for other memory. Throws
  // Error{memory}.
  void wait(const void* inside);

 private:
  enum class State { queued, under_way, ready, failed };
  struct Piece {
    size_t n_bytes = 0, n_part_bytes = 0;
    std::string what;
    State state = State::queued;
  };
  void make_ready(uint8_t* memory);
  bool make_present(uint8_t* memory, const Piece& piece) const;

  const PinningDriver driver_;
  const NumaNodes nodes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint8_t*, Piece> pieces_;  // by address
  // Each takes whole pieces. One thread fills 10 GB/s with huge pages, 1 to 3 GB/s without, and less where a
  // virtual machine gets its memory only when touched.
  const std::shared_ptr<Offload> threads_ = Offload::make(4);
};

// Makes every page present without changing a byte, even while other threads write there: for Linux without
// MADV_POPULATE_WRITE.
void touch_pages(uint8_t* memory, size_t n_bytes);

}  // namespace dsv32
