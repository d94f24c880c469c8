// How far a batch is, in numbers, and the lines that tell: the one that is redrawn, and those at the end.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace dsv32 {

struct BatchTally {
  int64_t n_answered = 0, n_failed = 0;                // in this run
  int64_t n_answered_before = 0, n_failed_before = 0;  // in earlier ones: passed over
  int64_t n_running = 0;
  std::optional<int64_t> n_waiting;  // nothing: not known before they are read
  struct Failures {
    int64_t n = 0;
    std::string first;  // which line, and why
  };
  std::map<int, Failures> failures;  // in this run, by their status
  int64_t n_prompt = 0;              // tokens, those from the cache among them
  int64_t n_cached = 0, n_generated = 0;
  double seconds = 0;

  int64_t n_done() const { return n_answered + n_failed + n_answered_before + n_failed_before; }
  int64_t n_all_failed() const { return n_failed + n_failed_before; }
};

// "412 / 1,000  3 failed  8 running  580 waiting  6 min left  1,240 t/s in  38.1 t/s out  12,288 cached"
std::string batch_progress(const BatchTally& tally);

// "1,000 lines: 997 answered, 3 failed (412 before); 61,002 tokens in (12,288 from cache), 24,000 out, in 11
// min, 38.0 t/s out"
std::string batch_summary(const BatchTally& tally);

// "3 lines failed with status 400, the first is q7: top_k is -5, expected an integer from -1 to 2147483647",
// one for each status, and one for earlier runs.
std::vector<std::string> batch_failures(const BatchTally& tally);

}  // namespace dsv32
