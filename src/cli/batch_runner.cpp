#include "cli/batch_runner.h"

#include <algorithm>
#include <utility>

#include "text/chat_format.h"

namespace dsv32 {

// A request on the loop, and what is heard of it: a piece of text is a token, near enough for progress.
struct BatchRunner::Running : Listener {
  Running(Engine& engine, BatchJob own_job) : job(std::move(own_job)), session(engine) {}
  void on_prefill(int64_t n_done, int64_t /*n_total*/, int64_t n_cached) override {
    counts.n_prompt = n_done, counts.n_cached = n_cached;
  }
  void on_reasoning(const std::string& /*text*/) override { ++counts.n_generated; }
  void on_answer(const std::string& /*text*/) override { ++counts.n_generated; }

  BatchJob job;
  Session session;
  int64_t number = 0;  // on the loop
  Counts counts;
};

BatchRunner::BatchRunner(Engine& engine, const Tokenizer& tokenizer)
    : engine_(engine), tokenizer_(tokenizer) {}

BatchRunner::~BatchRunner() {
  for (const std::unique_ptr<Running>& running : running_) engine_.loop().drop(running->number);
}

Prompt BatchRunner::prompt_of(const BatchRequest& request) const {
  const bool thinking = request.options.thinking;
  if (request.messages.empty()) return make_prompt(tokenizer_, request.prompt, request.is_raw, thinking);
  Prompt prompt;
  prompt.ids = ChatFormat(tokenizer_).encode(request.messages, thinking);
  prompt.thinking = thinking;
  return prompt;
}

int64_t BatchRunner::most_tokens(const BatchJob& job) const {
  const int64_t context = engine_.plan().cache.max_context, n_most = job.request().options.max_tokens;
  const int64_t n_prompt = std::ssize(job.prompt.ids);
  // With a page that is shared up to its middle, and copied.
  return (n_most < 0 ? context : std::min(context, n_prompt + n_most)) + kPageTokens;
}

bool BatchRunner::has_room(const BatchJob& job) const {
  if (running_.empty()) return true;
  int64_t n_tokens = most_tokens(job);
  for (const std::unique_ptr<Running>& running : running_) n_tokens += most_tokens(running->job);
  const CachePlan& plan = engine_.plan().cache;
  return n_running() < plan.max_seqs && n_tokens <= plan.pool_tokens;
}

void BatchRunner::begin(BatchJob job) {
  auto running = std::make_unique<Running>(engine_, std::move(job));
  GenerationOptions options = running->job.request().options;
  options.thinking = running->job.prompt.thinking;
  running->number = engine_.loop().add(
      {&running->session, &tokenizer_, running->job.prompt.ids, std::move(options)}, *running);
  running_.push_back(std::move(running));
}

std::vector<BatchRunner::Finished> BatchRunner::turn() {
  Loop& loop = engine_.loop();
  loop.turn();
  std::vector<Finished> finished;
  std::erase_if(running_, [&](const std::unique_ptr<Running>& running) {
    if (!loop.is_done(running->number)) return false;
    auto outcome = outcome_of(loop, running->number);
    finished.push_back({std::move(running->job), std::move(outcome)});
    return true;
  });
  return finished;
}

std::variant<GenerationResult, Error> BatchRunner::outcome_of(Loop& loop, int64_t number) try {
  return loop.take(number);
} catch (const Error& error) {
  return error;
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
