// How much was read, and how long that took: the time during which anybody reads. Any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>

namespace dsv32 {

struct ReadStats {
  uint64_t n_bytes = 0;
  double seconds = 0;  // during which at least one read was in progress
};

class ReadMeter {
 public:
  void begin() {
    const std::lock_guard guard(mutex_);
    if (n_reading_++ == 0) since_ = Clock::now();
  }
  void end(uint64_t n_bytes) {
    const std::lock_guard guard(mutex_);
    stats_ = {stats_.n_bytes + n_bytes, seconds()};
    since_ = Clock::now();
    --n_reading_;
  }
  ReadStats stats() const {
    const std::lock_guard guard(mutex_);
    return {stats_.n_bytes, seconds()};
  }

 private:
  using Clock = std::chrono::steady_clock;
  double seconds() const {
    const std::chrono::duration<double> reading = Clock::now() - since_;
    return stats_.seconds + (n_reading_ > 0 ? reading.count() : 0);
  }

  mutable std::mutex mutex_;
  ReadStats stats_;
  int64_t n_reading_ = 0;
  Clock::time_point since_;  // which `stats_` does not know yet
};

}  // namespace dsv32
