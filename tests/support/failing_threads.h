// Refuses the n-th thread to the program under test. Tests do this for every n until none is refused.
//
// Counts the threads of start_thread(). One object at a time.
#pragma once

#include <cstdint>

namespace dsv32 {

class FailingThreads {
 public:
  // Thread number `n` from now on (from 0) is refused; `lasts`: so is every later one.
  explicit FailingThreads(int64_t n, bool lasts = false);
  ~FailingThreads();
  FailingThreads(const FailingThreads&) = delete;
  FailingThreads& operator=(const FailingThreads&) = delete;

  // Ends the refusals. Returns whether a thread has been refused since this object was made.
  bool stop();
};

}  // namespace dsv32
