#include "tests/support/failing_allocations.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <limits>
#include <new>

namespace {

constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
std::atomic<int64_t> n_until_failure{kNone};  // below 0: number n is past
std::atomic<bool> is_lasting{false}, has_failed{false};

bool fails() {
  if (n_until_failure.load(std::memory_order_relaxed) == kNone) return false;
  const int64_t n = n_until_failure.fetch_sub(1);
  if (n != 0 && !(n < 0 && is_lasting)) return false;
  return has_failed = true;
}

void* allocate(std::size_t n_bytes, std::size_t alignment) {
  if (fails()) throw std::bad_alloc();
  const std::size_t padded = (n_bytes + alignment - 1) / alignment * alignment;
  void* memory = alignment <= alignof(std::max_align_t) ? std::malloc(n_bytes > 0 ? n_bytes : 1)
                                                        : std::aligned_alloc(alignment, padded);
  if (!memory) throw std::bad_alloc();
  return memory;
}

}  // namespace

// The standard library's other forms call the first two. A sanitizer replaces the forms for arrays and those
// that do not throw by its own, so these are defined here too.
void* operator new(std::size_t n_bytes) { return allocate(n_bytes, 1); }
void* operator new(std::size_t n_bytes, std::align_val_t alignment) {
  return allocate(n_bytes, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t n_bytes, const std::nothrow_t&) noexcept try {
  return allocate(n_bytes, 1);
} catch (const std::bad_alloc&) {
  return nullptr;
}
void* operator new[](std::size_t n_bytes) { return allocate(n_bytes, 1); }
void* operator new[](std::size_t n_bytes, std::align_val_t alignment) {
  return allocate(n_bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void* operator new[](std::size_t n_bytes, const std::nothrow_t&) noexcept try {
  return allocate(n_bytes, 1);
} catch (const std::bad_alloc&) {
  return nullptr;
}
void operator delete[](void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace dsv32 {

FailingAllocations::FailingAllocations(int64_t n, bool lasts) {
  has_failed = false;
  is_lasting = lasts;
  n_until_failure = n;
}

FailingAllocations::~FailingAllocations() { stop(); }

bool FailingAllocations::stop() {
  n_until_failure = kNone;
  return has_failed;
}

}  // namespace dsv32
