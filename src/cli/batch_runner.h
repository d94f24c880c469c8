// The requests of a batch that are on the engine's loop: as many at a time as there is room for.
//
// A request begins when a session is free and the pool holds the most tokens that it and all that run may
// come to: none that has begun ever lacks room.
#pragma once

#include <memory>
#include <variant>
#include <vector>

#include "cli/batch_line.h"
#include "engine/loop.h"
#include "engine/session.h"

namespace dsv32 {

// A line that holds a request, its place among all that are answered, and its prompt as tokens.
struct BatchJob {
  BatchLine line;
  int64_t place = 0;
  Prompt prompt;

  const BatchRequest& request() const { return std::get<BatchRequest>(line.content); }
};

class BatchRunner {
 public:
  // Both must outlive the object.
  BatchRunner(Engine& engine, const Tokenizer& tokenizer);
  ~BatchRunner();

  // The prompt of a line's request. Throws Error for one that cannot be made.
  Prompt prompt_of(const BatchRequest& request) const;

  // There is room for it now; when nothing runs there always is.
  bool has_room(const BatchJob& job) const;
  void begin(BatchJob job);

  struct Finished {
    BatchJob job;
    std::variant<GenerationResult, Error> outcome;
  };
  // Makes the loop's next step. Returns those that are done with it.
  std::vector<Finished> turn();

  int64_t n_running() const { return std::ssize(running_); }
  // Tokens of those that run, so far.
  struct Counts {
    int64_t n_prompt = 0, n_cached = 0, n_generated = 0;
  };
  Counts counts() const;

 private:
  struct Running;
  int64_t most_tokens(const BatchJob& job) const;
  static std::variant<GenerationResult, Error> outcome_of(Loop& loop, int64_t number);

  Engine& engine_;
  const Tokenizer& tokenizer_;
  std::vector<std::unique_ptr<Running>> running_;
};

}  // namespace dsv32
