// Host memory that the device reads and writes at the link's full rate, pinned in the background.
//
// alloc() only reserves addresses. A thread of its own then makes piece after piece ready, in the order in
// which they were asked for: all cores touch the pages, which is several times faster than leaving that to
// the driver, and the driver registers them. Who uses a piece waits for that piece; so the pinning of a large
// cache hides behind the loading of weights and behind the first layers. Safe to call from several threads.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <thread>

namespace dsv32::cuda {

class PinnedMemory {
 public:
  explicit PinnedMemory(int device) : device_(device) {}
  ~PinnedMemory();

  // Zeroed memory; null when the system has no addresses left. `what` is named when pinning fails.
  void* alloc(size_t n_bytes, const char* what);
  // Returns how many bytes that were.
  size_t free(void* memory);
  // Until the piece that holds this address is pinned; at once when it is none of ours. Throws Error{memory}.
  void wait(const void* inside);

 private:
  enum class State { queued, ready, failed };
  struct Piece {
    size_t n_bytes = 0;
    std::string what;
    State state = State::queued;
  };
  void work();
  bool pin(uint8_t* memory, size_t n_bytes) const;

  int device_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint8_t*, Piece> pieces_;  // by address
  std::deque<uint8_t*> queue_;
  bool is_ending_ = false;
  std::thread thread_;  // runs while there may be something queued
};

}  // namespace dsv32::cuda
