// Threads that the system may refuse to start, and work on threads that may hang in a system call.
//
// A thread co-owns all that it uses (the pool, the store, open files), so a thread that hangs is left behind
// with these. The process then ends without waiting for it.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
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

// Detaches a thread that hangs.
void leave_behind(std::thread& thread);

// Whether any thread was left behind. main() then ends the process at once, because what the thread uses must
// stay whole. Any thread.
bool are_threads_left_behind();

// Background work, on threads that share this object with its owner. Create it with offloaded(): the end of
// the owner's pointer ends the work.
class Offload : public std::enable_shared_from_this<Offload> {
 public:
  virtual ~Offload() = default;
  using Clock = std::chrono::steady_clock;
  using Deadline = Clock::time_point;
  static constexpr std::chrono::seconds kPatience{2};

  // Begins no more work, and waits up to `patience` for work in progress: true. False: a thread hangs and is
  // left behind.
  bool stop(std::chrono::seconds patience = kPatience) noexcept;

 protected:
  using Lock = std::unique_lock<std::mutex>;
  // Runs on each thread, `lock` holding mutex_. An exception, for lack of memory, ends only that thread.
  virtual void work(Lock& lock) = 0;
  // With mutex_ held: starts n more threads, or as many as the system gives. Returns how many are running.
  size_t start(size_t n);
  void run() noexcept;

  std::mutex mutex_;  // guards the members below and the state of the work
  std::condition_variable changed_;
  size_t n_running_ = 0;
  std::atomic<bool> is_ending_ = false;

 private:
  std::vector<std::thread> threads_;
};

template <typename Work, typename... Args>
std::shared_ptr<Work> offloaded(Args&&... args) {
  auto work = std::make_shared<Work>(std::forward<Args>(args)...);
  return {work.get(), [work](Work*) { work->stop(); }};
}

}  // namespace dsv32
