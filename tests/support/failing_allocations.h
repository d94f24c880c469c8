// Makes the n-th allocation of the program under test fail. Tests do this for every n until none fails.
//
// The test programs count every `operator new`, of all threads; memory that is taken otherwise (malloc,
// aligned_alloc, libraries in C) is not counted. One object at a time. Tests assert after the object is gone,
// since assertions allocate as well.
#pragma once

#include <cstdint>

namespace dsv32 {

class FailingAllocations {
 public:
  // Allocation number `n` from now on (from 0) throws std::bad_alloc; `lasts`: so does every later one.
  explicit FailingAllocations(int64_t n, bool lasts = false);
  ~FailingAllocations();
  FailingAllocations(const FailingAllocations&) = delete;
  FailingAllocations& operator=(const FailingAllocations&) = delete;

  // Ends the failures. Returns whether an allocation has failed since this object was made.
  bool stop();
};

}  // namespace dsv32
