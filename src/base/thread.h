// Threads that the system may refuse, and threads that hang in a call which nothing ends.
//
// The one idea: such a thread owns all that it uses, so whoever started it may leave it behind at any time.
// The process then ends without waiting for it.
#pragma once

#include <memory>
#include <thread>

namespace dsv32 {

// What a thread does, and all that it uses.
struct ThreadBody {
  virtual ~ThreadBody() = default;
  virtual void run() noexcept = 0;
};

// False, with `thread` as it was, when the system gives no thread or no memory for it.
bool start_thread(std::thread& thread, std::shared_ptr<ThreadBody> body);

// Nobody will wait for this thread.
void leave_behind(std::thread& thread);

// Whether any was: what it uses must not be taken apart, so that main ends the process at once. Any thread.
bool are_threads_left_behind();

}  // namespace dsv32
