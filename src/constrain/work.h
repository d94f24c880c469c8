// What a constraint may cost until it is compiled: time and memory in one sum. It is counted, not measured, so
// that the same schemas are refused on every machine.
#pragma once

#include <cstdint>
#include <stop_token>

#include "base/error.h"
#include "base/worker_pool.h"

namespace dsv32 {

class Work {
 public:
  explicit Work(std::stop_token stop = {}) : stop_(std::move(stop)) {}

  // One is about ten nanoseconds. Throws Error{usage} beyond kMost, and Interrupted when it is stopped.
  void spend(int64_t n) {
    if (is_over_) return;
    if (stop_.stop_requested()) throw Interrupted();
    if ((n_spent_ += n) > kMost) fail(ErrorKind::usage, "it needs more than 200 MB or 2 s to compile");
  }
  // Bytes that are kept.
  void take(int64_t n) { n_bytes_ += n, spend(n); }
  // What follows is not bounded, as an answer has begun.
  void end() { is_over_ = true; }

  int64_t n_bytes() const { return n_bytes_; }

  static constexpr int64_t kMost = 100'000'000;

 private:
  const std::stop_token stop_;
  int64_t n_spent_ = 0, n_bytes_ = 0;
  bool is_over_ = false;
};

}  // namespace dsv32
