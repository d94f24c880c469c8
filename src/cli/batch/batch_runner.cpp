#include "cli/batch/batch_runner.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/error.h"
#include "text/chat_format.h"

namespace dsv32 {

// A request on the loop, and what is heard of it: a piece of text is a token, near enough for progress.
struct BatchRunner::Running : Listener {
  Running(BatchJob&& own_job, const BatchRunner& its_runner) : job(std::move(own_job)), runner(its_runner) {}
  void on_prefill(int64_t n_done, int64_t /*n_total*/, int64_t n_cached) override {
    counts = {n_done, n_cached, 0};  // perhaps anew
    if (runner.on_progress_) runner.on_progress_();
  }
  void on_notice(const std::string& line) override {
    if (runner.on_notice_) runner.on_notice_(line);
  }
  void on_reasoning(const std::string& /*text*/) override { ++counts.n_generated; }
  void on_answer(const std::string& /*text*/) override { ++counts.n_generated; }

  BatchJob job;
  const BatchRunner& runner;
  int64_t number = 0;                  // the answerer's
  std::optional<Error> did_not_begin;  // why; the answerer does not know it
  Counts counts;
};

BatchRunner::BatchRunner(Answerer& answerer, int64_t n_at_a_time, const Tokenizer& tokenizer, Write write,
                         std::function<void()> on_progress, std::function<void(const std::string&)> on_notice)
    : answerer_(answerer),
      n_at_a_time_(n_at_a_time),
      tokenizer_(tokenizer),
      write_(std::move(write)),
      on_progress_(std::move(on_progress)),
      on_notice_(std::move(on_notice)) {}

BatchRunner::~BatchRunner() { leave(); }

void BatchRunner::leave() {
  for (const std::unique_ptr<Running>& running : running_)
    if (!running->did_not_begin) answerer_.drop(running->number);
  running_.clear();
}

Prompt BatchRunner::prompt_of(const BatchRequest& request) const {
  const bool thinking = request.options.thinking;
  if (request.messages.empty()) return make_prompt(tokenizer_, request.prompt, request.is_raw, thinking);
  Prompt prompt;
  prompt.ids = ChatFormat(tokenizer_).encode(request.messages, thinking);
  prompt.thinking = thinking;
  return prompt;
}

bool BatchRunner::has_room() const { return n_running() < n_at_a_time_; }

void BatchRunner::begin(BatchJob&& job) {
  running_.reserve(running_.size() + 1);
  running_.push_back(std::make_unique<Running>(std::move(job), *this));
  Running& running = *running_.back();
  try {
    running.job.prompt = prompt_of(running.job.request());
    GenerationOptions options = running.job.request().options;
    options.thinking = running.job.prompt.thinking;
    running.number =
        answerer_.add({nullptr, &tokenizer_, running.job.prompt.ids, std::move(options)}, running);
  } catch (...) {
    running.did_not_begin = current_error();
  }
}

std::vector<BatchRunner::Finished> BatchRunner::turn() {
  answerer_.turn();
  std::vector<Finished> finished;
  finished.reserve(running_.size());
  std::erase_if(running_, [&](const std::unique_ptr<Running>& running) {
    const bool is_done = running->did_not_begin || answerer_.is_done(running->number);
    if (is_done) finished.push_back(conclude(*running));
    return is_done;
  });
  return finished;
}

BatchRunner::Finished BatchRunner::conclude(Running& running) const {
  Finished finished{std::move(running.job), GenerationResult(), {}};
  try {
    if (running.did_not_begin) throw Error(*running.did_not_begin);
    GenerationResult result = answerer_.take(running.number);
    finished.text = write_(finished.job, result);
    finished.outcome = std::move(result);
  } catch (...) {
    finished.outcome = current_error();
  }
  return finished;
}

BatchRunner::Counts BatchRunner::counts() const {
  Counts sum;
  for (const std::unique_ptr<Running>& running : running_) {
    sum.n_prompt += running->counts.n_prompt;
    sum.n_cached += running->counts.n_cached;
    sum.n_generated += running->counts.n_generated;
  }
  return sum;
}

}  // namespace dsv32
