// Threads that run tasks in their order. One that hangs in a system call is left behind, with all that its
// task shares (base/thread.h). Create with offloaded().
#pragma once

#include <deque>
#include <functional>
#include <utility>

#include "base/thread.h"

namespace dsv32 {

class DiskThreads : public Offload {
 public:
  explicit DiskThreads(size_t n_most) : n_most_(n_most) {}  // threads

  // False when there is no thread for it. The task must share or own all that it uses, and throw nothing.
  // Tasks that have not begun when the object ends never begin.
  bool run(std::function<void()> task) {
    const Lock lock(mutex_);
    tasks_.push_back(std::move(task));
    if (start(n_running_ < n_most_ ? 1 : 0) == 0) return tasks_.pop_back(), false;
    changed_.notify_all();
    return true;
  }

  // Waits until `is_done`, which the end of a task may make true, or until `deadline`. Returns whether it is.
  template <typename IsDone>
  bool wait(Deadline deadline, const IsDone& is_done) {
    Lock lock(mutex_);
    return changed_.wait_until(lock, deadline, is_done);
  }

 private:
  void work(Lock& lock) override {
    for (;;) {
      changed_.wait(lock, [this] { return is_ending_ || !tasks_.empty(); });
      if (is_ending_) return;
      std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
      task = {};
      lock.lock();
      changed_.notify_all();
    }
  }

  const size_t n_most_;
  std::deque<std::function<void()>> tasks_;
};

}  // namespace dsv32
