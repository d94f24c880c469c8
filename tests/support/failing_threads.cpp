// In the test programs the linker (--wrap) puts this start_thread() in the place of the real one.
#include "tests/support/failing_threads.h"

#include <atomic>
#include <functional>
#include <limits>
#include <utility>

#include "base/thread.h"

namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

std::atomic<int64_t> n_until_refusal = kNever;
std::atomic<bool> refusals_last = false, has_refused = false;

}  // namespace

extern "C" __attribute__((weak)) bool __real__ZN5dsv3212start_threadERSt6threadSt8functionIFvvEE(
    std::thread& thread, std::function<void()> body);

extern "C" bool __wrap__ZN5dsv3212start_threadERSt6threadSt8functionIFvvEE(std::thread& thread,
                                                                           std::function<void()> body) {
  const int64_t n = n_until_refusal == kNever ? kNever : n_until_refusal--;
  if (n == 0 || (n < 0 && refusals_last)) {
    has_refused = true;
    return false;
  }
  return __real__ZN5dsv3212start_threadERSt6threadSt8functionIFvvEE(thread, std::move(body));
}

namespace dsv32 {

FailingThreads::FailingThreads(int64_t n, bool lasts) {
  has_refused = false, refusals_last = lasts, n_until_refusal = n;
}

FailingThreads::~FailingThreads() { stop(); }

bool FailingThreads::stop() {
  n_until_refusal = kNever;
  return has_refused;
}

}  // namespace dsv32
