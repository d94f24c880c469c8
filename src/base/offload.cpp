// Offload (thread.h), in its own file because tests replace start_thread() of thread.cpp.
#include "base/thread.h"

#include <new>

namespace dsv32 {
namespace {

std::atomic<bool> any_left_behind = false;

}  // namespace

bool are_threads_left_behind() { return any_left_behind; }

std::shared_ptr<Offload> Offload::make(size_t n_most) {
  const std::shared_ptr<Offload> shared(new Offload(n_most));
  return {shared.get(), [shared](Offload* offload) { offload->stop(); }};
}

bool Offload::run(std::function<void()> task) {
  const Lock lock(mutex_);
  tasks_.push_back(std::move(task));
  if (n_running_ < n_most_ && !is_ending_) start();
  if (n_running_ == 0) return tasks_.pop_back(), false;
  changed_.notify_all();
  return true;
}

void Offload::start() noexcept try {
  std::function<void()> body = [self = shared_from_this()] { self->work(); };
  if (start_thread(threads_.emplace_back(), std::move(body)))
    ++n_running_;
  else
    threads_.pop_back();
} catch (const std::bad_alloc&) {  // goes on with the threads that there are
}

void Offload::work() noexcept {
  Lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return is_ending_ || !tasks_.empty(); });
    if (is_ending_) break;
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    task = {};
    lock.lock();
    changed_.notify_all();
  }
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
  if (!threads.empty() && !is_over) any_left_behind = true;
  for (std::thread& thread : threads) is_over ? thread.join() : thread.detach();
  return is_over;
}

}  // namespace dsv32
