// Offload (thread.h), in its own file because tests replace start_thread() of thread.cpp.
#include "base/thread.h"

#include <new>

namespace dsv32 {

size_t Offload::start(size_t n) try {
  for (; n > 0 && !is_ending_; --n, ++n_running_) {
    std::function<void()> body = [self = shared_from_this()] { self->run(); };
    if (start_thread(threads_.emplace_back(), std::move(body))) continue;
    threads_.pop_back();
    break;
  }
  return n_running_;
} catch (const std::bad_alloc&) {
  return n_running_;
}

void Offload::run() noexcept {
  Lock lock(mutex_);
  try {
    work(lock);
  } catch (const std::exception&) {
  }
  if (!lock.owns_lock()) lock.lock();
  --n_running_;
  changed_.notify_all();
}

bool Offload::stop(std::chrono::seconds patience) noexcept {
  Lock lock(mutex_);
  is_ending_ = true;
  changed_.notify_all();
  const auto has_ended = [this] { return n_running_ == 0; };
  const bool is_over = threads_.empty() ? has_ended() : changed_.wait_for(lock, patience, has_ended);
  std::vector<std::thread> threads = std::exchange(threads_, {});
  lock.unlock();
  for (std::thread& thread : threads) is_over ? thread.join() : leave_behind(thread);
  return is_over;
}

}  // namespace dsv32
