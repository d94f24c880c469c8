// The commands that answer many prompts: `dsv32 batch`, and `dsv32 run` with --each or --lines.
//
// Lines come in one by one and go out as they are answered. Every line is answered once, if only by saying
// why not: whatever goes wrong with one, from its prompt to the text of its answer, is its own outcome.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/batch/batch_item.h"
#include "cli/options/options.h"

namespace dsv32 {

// Return the exit code: 0; 5 when a line failed, in this run or in an earlier one that is gone on with; 129 /
// 130 / 143 after a signal, with what was running then finished. Throw Error.
int batch_command(const Options& options);
int run_many(const Options& options);

// The prompt of a line's request. Throws Error for one that cannot be made.
Prompt prompt_of(const BatchRequest& request, const Tokenizer& tokenizer);

// The items that are being answered. Which of them run, and which wait for room, is the engine's business.
class BatchRunner {
 public:
  using Write = std::function<std::string(const BatchItem& item)>;  // the text of an answer
  // All must outlive the object. At most so many items at a time.
  BatchRunner(Answerer& answerer, int64_t n_at_a_time, const Tokenizer& tokenizer, Write write,
              Listener* watcher = nullptr);
  ~BatchRunner() { leave(); }

  bool has_room() const { return n_running() < n_at_a_time_; }
  int64_t n_running() const { return std::ssize(running_); }
  TokenCounts counts() const;  // of those that run, so far

  // One more begins. What goes wrong with it, turn() tells. Throws std::bad_alloc, and `item` is as it was.
  void begin(BatchItem&& item);
  // Goes a step further. Returns those that are done. Throws what ends all of them.
  std::vector<std::unique_ptr<BatchItem>> turn();
  // Forgets those that run.
  void leave();

 private:
  void conclude(BatchItem& item) const;

  Answerer& answerer_;
  const int64_t n_at_a_time_;
  const Tokenizer& tokenizer_;
  const Write write_;
  Listener* const watcher_;
  std::vector<std::unique_ptr<BatchItem>> running_;
};

// How far a batch is.
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
  TokenCounts tokens;
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
