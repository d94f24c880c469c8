// Threads that the system may refuse, and work on threads that may hang in a call which never returns.
//
// A thread shares the ownership of all that it uses (the pool, the store, open files), so one that hangs is
// left behind with it. The process then ends without waiting for it.
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

// The body owns or shares all that it uses, and throws nothing. False, with `thread` as it was, when the
// system gives no thread or no memory for it.
bool start_thread(std::thread& thread, std::function<void()> body);

// Nobody will wait for this thread.
void leave_behind(std::thread& thread);

// Whether any was. main() then ends the process at once, for what the thread uses must stay whole. Any
// thread.
bool are_threads_left_behind();

// Work beside the program, on threads that share this object with its owner. Create it with offloaded(): when
// the owner's pointer goes, the work ends.
class Offload : public std::enable_shared_from_this<Offload> {
 public:
  virtual ~Offload() = default;
  using Clock = std::chrono::steady_clock;
  using Deadline = Clock::time_point;
  static constexpr std::chrono::seconds kPatience{2};

  // No work begins any more. Waits so long for what is in progress: true. False: a thread hangs and is left
  // behind.
  bool stop(std::chrono::seconds patience = kPatience) noexcept;

 protected:
  using Lock = std::unique_lock<std::mutex>;
  // On each thread, `lock` holding mutex_. What it throws, for lack of memory, ends the thread alone.
  virtual void work(Lock& lock) = 0;
  // With mutex_ held: as many of n more threads as can be had. Returns how many work.
  size_t start(size_t n);
  void run() noexcept;

  std::mutex mutex_;  // for what follows and the state of the work
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
