// Threads that the system may refuse to start, and tasks on threads that may hang in a system call.
//
// A task co-owns all that it uses (the pool, the store, open files), so a thread that hangs is left behind
// with these. The process then ends without waiting for it.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace dsv32 {

// The body must own or share all that it uses, and throw nothing. False, with `thread` unchanged, when the
// system gives no thread or no memory for it.
bool start_thread(std::thread& thread, std::function<void()> body);

// Whether Offload left any thread behind. main() then ends the process at once, because what the thread uses
// must stay whole. Any thread.
bool are_threads_left_behind();

// Runs tasks in their order, on threads that share this object with its owner.
class Offload : public std::enable_shared_from_this<Offload> {
 public:
  // With at most so many threads, which start as tasks come. The end of the owner's pointer is a stop().
  static std::shared_ptr<Offload> make(size_t n_most);

  using Clock = std::chrono::steady_clock;
  using Deadline = Clock::time_point;
  static constexpr std::chrono::seconds kPatience{2};

  // False when there is no thread for it. The task must share or own all that it uses, and throw nothing.
  bool run(std::function<void()> task);
  // Waits until `is_done`, which the end of a task may make true, or until `deadline`. Returns whether it is.
  template <typename IsDone>
  bool wait(Deadline deadline, const IsDone& is_done) {
    Lock lock(mutex_);
    return changed_.wait_until(lock, deadline, is_done);
  }

  // Begins no more tasks, and waits up to `patience` for those in progress. False: a thread hangs and is left
  // behind.
  bool stop(std::chrono::seconds patience = kPatience) noexcept;
  const std::atomic<bool>& is_ending() const { return is_ending_; }  // long tasks should ask

 private:
  using Lock = std::unique_lock<std::mutex>;
  explicit Offload(size_t n_most) : n_most_(n_most) {}
  void start() noexcept;
  void work() noexcept;

  const size_t n_most_;
  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  std::vector<std::thread> threads_;
  size_t n_running_ = 0;
  std::atomic<bool> is_ending_ = false;
};

}  // namespace dsv32
