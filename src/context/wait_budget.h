// How long one operation may still wait for other processes, all its locks together. One thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

namespace dsv32 {

class WaitBudget {
 public:
  explicit WaitBudget(std::chrono::microseconds most) : left_(most) {}

  // Sleeps a moment, longer each time up to 10 ms; false when nothing is left.
  bool wait() {
    if (left_.count() <= 0) return false;
    const auto begin = std::chrono::steady_clock::now();
    std::this_thread::sleep_for(std::min(step_, left_));
    left_ -= std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - begin);
    step_ = std::min(step_ * 2, std::chrono::microseconds(10'000));
    return true;
  }

 private:
  std::chrono::microseconds left_, step_{200};
};

}  // namespace dsv32
