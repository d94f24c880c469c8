// Lets allocations of the program under test fail: the n-th, for every n until none is made that could.
//
// The test programs count every `operator new`, of all threads; memory that is taken otherwise (malloc,
// aligned_alloc, libraries in C) is not counted. One object at a time. What a test asserts is asserted after
// the object is gone, since the asserting allocates as well.
#pragma once

#include <cstdint>

namespace dsv32 {

class FailingAllocations {
 public:
  // From now on the allocation number `n` (from 0) throws std::bad_alloc; `lasts`: and every one after it.
  explicit FailingAllocations(int64_t n, bool lasts = false);
  ~FailingAllocations();
  FailingAllocations(const FailingAllocations&) = delete;
  FailingAllocations& operator=(const FailingAllocations&) = delete;

  // Whether an allocation failed since this object was made. No allocation fails any more.
  bool stop();
};

}  // namespace dsv32
