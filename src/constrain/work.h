// What a constraint may cost until it is compiled: time and memory in one sum. It is counted, not measured,
// so that the same schemas are refused on every machine.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/error.h"
#include "base/worker_pool.h"

namespace dsv32 {

class Work {
 public:
  static constexpr int64_t kMost = 100'000'000;  // about 200 MB or 2 s

  // `is_stopped`: looked at all the time; null: it is never stopped.
  explicit Work(const std::atomic<bool>* is_stopped = nullptr, int64_t most = kMost)
      : is_stopped_(is_stopped), most_(most) {}

  // One is about ten nanoseconds. Throws Error{usage} beyond kMost; Interrupted beyond a smaller `most`, and
  // when it is stopped.
  void spend(int64_t n) {
    if (is_over_) return;
    n_spent_ += n;
    if ((is_stopped_ && *is_stopped_) || (n_spent_ > most_ && most_ < kMost)) throw Interrupted();
    if (n_spent_ > most_) fail(ErrorKind::usage, "it needs more than 200 MB or 2 s to compile");
  }
  // Bytes that are kept.
  void keep(int64_t n) { n_bytes_ += n, spend(n); }
  // What follows is not bounded, as an answer has begun.
  void end() { is_over_ = true; }

  int64_t n_bytes() const { return n_bytes_; }

 private:
  const std::atomic<bool>* is_stopped_;
  const int64_t most_;
  int64_t n_spent_ = 0, n_bytes_ = 0;
  bool is_over_ = false;
};

}  // namespace dsv32
