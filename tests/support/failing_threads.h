// Lets the system refuse threads to the program under test: the n-th, for every n until none is asked for.
//
// Of the threads that start_thread() makes. One object at a time.
#pragma once

#include <cstdint>

namespace dsv32 {

class FailingThreads {
 public:
  // From now on thread number `n` (from 0) is not to be had; `lasts`: nor any one after it.
  explicit FailingThreads(int64_t n, bool lasts = false);
  ~FailingThreads();
  FailingThreads(const FailingThreads&) = delete;
  FailingThreads& operator=(const FailingThreads&) = delete;

  // Whether a thread was refused since this object was made. None is any more.
  bool stop();
};

}  // namespace dsv32
