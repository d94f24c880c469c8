// Counts the memory of one kind that a backend has taken and may take. Every allocation is counted before it
// is made, so that the user's limit holds exactly.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>

#include "base/error.h"
#include "base/text.h"

namespace dsv32 {

// The most bytes that a backend may take; nothing: all that the machine has.
struct MemoryLimits {
  std::optional<uint64_t> device = {}, host = {};
};

// from - n_bytes, at least 0.
inline uint64_t less_bytes(uint64_t from, uint64_t n_bytes) { return from - std::min(from, n_bytes); }

// Throws an error that names what does not fit, the bytes wanted and free, and what helps.
[[noreturn]] inline void fail_memory(const char* what, uint64_t n_wanted, uint64_t n_free, const char* hint) {
  fail(ErrorKind::memory,
       format("not enough memory for %s: %s wanted, %s free", what, human_bytes(n_wanted).c_str(),
              human_bytes(n_free).c_str()),
       hint);
}

class MemoryBudget {
 public:
  explicit MemoryBudget(std::optional<uint64_t> limit) : limit_(limit.value_or(kNoLimit)) {}

  uint64_t n_bytes_used() const { return n_used_; }

  // The machine's free bytes, cut to the limit.
  uint64_t n_bytes_free(uint64_t n_machine_free) const {
    return std::min(n_machine_free, less_bytes(limit_, n_used_));
  }
  // With a limit: what is left of it, even beyond n_machine_free: some machines' memory grows as it is
  // touched.
  uint64_t n_bytes_allowed(uint64_t n_machine_free) const {
    return limit_ == kNoLimit ? n_machine_free : less_bytes(limit_, n_used_);
  }

  bool holds(uint64_t n_bytes) const { return n_bytes <= less_bytes(limit_, n_used_); }
  void take(uint64_t n_bytes) { n_used_ += n_bytes; }
  void give(uint64_t n_bytes) { n_used_ -= n_bytes; }

 private:
  static constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();
  uint64_t limit_, n_used_ = 0;
};

}  // namespace dsv32
