// The requests of a batch that are being answered, and what is heard of them.
//
// As many as have a share of the buffers; which of them run, and which wait for room, is the engine's
// business. Whatever goes wrong on the way of one of them, from its prompt to the text of its answer, is what
// comes of it, and the others go on.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "cli/batch/batch_line.h"
#include "engine/request.h"

namespace dsv32 {

// A line that holds a request, its place among all that are answered, and its prompt as tokens.
struct BatchJob {
  BatchLine line;
  int64_t place = 0;
  Prompt prompt = {};  // once it has begun

  const BatchRequest& request() const { return std::get<BatchRequest>(line.content); }
};

class BatchRunner {
 public:
  // What is written of an answer.
  using Write = std::function<std::string(const BatchJob& job, const GenerationResult& result)>;
  // Both must outlive the object. At most so many requests at a time. `on_progress` is called in turn(), when
  // a prompt has been read further, and `on_notice` with what a person should know of a delay.
  BatchRunner(Answerer& answerer, int64_t n_at_a_time, const Tokenizer& tokenizer, Write write,
              std::function<void()> on_progress = {}, std::function<void(const std::string&)> on_notice = {});
  ~BatchRunner();

  // The prompt of a line's request. Throws Error for one that cannot be made.
  Prompt prompt_of(const BatchRequest& request) const;

  // One more may begin. What goes wrong with it then, turn() tells. Throws std::bad_alloc, and the job is as
  // it was.
  bool has_room() const;
  void begin(BatchJob&& job);

  struct Finished {
    BatchJob job;
    std::variant<GenerationResult, Error> outcome;
    std::string text;  // of an answer
  };
  // Goes a step further. Returns those that are done with it. Throws what befalls all of them.
  std::vector<Finished> turn();
  // Forgets those that run.
  void leave();

  int64_t n_running() const { return std::ssize(running_); }
  // Tokens of those that run, so far.
  struct Counts {
    int64_t n_prompt = 0, n_cached = 0, n_generated = 0;
  };
  Counts counts() const;

 private:
  struct Running;
  Finished conclude(Running& running) const;

  Answerer& answerer_;
  const int64_t n_at_a_time_;
  const Tokenizer& tokenizer_;
  const Write write_;
  const std::function<void()> on_progress_;
  const std::function<void(const std::string&)> on_notice_;
  std::vector<std::unique_ptr<Running>> running_;
};

}  // namespace dsv32
