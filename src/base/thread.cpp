#include "base/thread.h"

#include <atomic>
#include <exception>
#include <utility>

namespace dsv32 {
namespace {

std::atomic<bool> any_left_behind = false;

}  // namespace

bool start_thread(std::thread& thread, std::function<void()> body) try {
  thread = std::thread(std::move(body));
  return true;
} catch (const std::exception&) {
  return false;
}

void leave_behind(std::thread& thread) {
  any_left_behind = true;
  thread.detach();
}

bool are_threads_left_behind() { return any_left_behind; }

}  // namespace dsv32
