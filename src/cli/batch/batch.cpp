// See batch.h. `batch` writes JSON lines to a file, `run` text or JSON lines to standard output, both by the
// same loop.
#include "cli/batch/batch.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/error.h"
#include "base/stopwatch.h"
#include "base/text.h"
#include "cli/batch/batch_input.h"
#include "cli/batch/batch_output.h"
#include "cli/batch/batch_progress.h"
#include "cli/batch/batch_runner.h"
#include "cli/chat/completion_json.h"
#include "cli/options/help.h"
#include "cli/options/recommended.h"
#include "cli/terminal/signals.h"
#include "cli/terminal/streams.h"
#include "cli/terminal/terminal.h"
#include "cli/warm/asked_model.h"

namespace dsv32 {
namespace {

constexpr int kSomeFailed = 5;       // the exit code
constexpr int64_t kMostHeld = 1024;  // answers that wait for an earlier one
constexpr int kInputWaitMs = 200;    // between two looks at whether a signal came

class Batch {
 public:
  Batch(const Options& options, const Terminal& terminal, AskedModel& model, int64_t n_at_a_time,
        BatchInput& input, LineMaker maker, BatchOutput& output)
      : options_(options),
        terminal_(terminal),
        model_(model),
        input_(input),
        maker_(std::move(maker)),
        output_(output),
        runner_(
            model, n_at_a_time, model.tokenizer(),
            [this](const BatchJob& job, const GenerationResult& result) { return text_of(job, result); },
            [this] { show_progress(); }, [this](const std::string& line) { status_.erase(), say(line); }),
        status_(terminal.can_redraw, options.quiet) {}

  int run() {
    while (goes_on()) {
      fill();
      if (runner_.n_running() > 0)
        for (BatchRunner::Finished& finished : runner_.turn()) conclude(finished);
      show_progress();
      output_.check_place();
    }
    status_.erase();
    const bool is_batch = options_.command == Command::batch;
    if (!options_.quiet && (is_batch || terminal_.is_err || options_.verbose)) say(batch_summary(tally()));
    if (is_json())
      for (const std::string& line : batch_failures(tally_)) say(line);
    if (stop_.is_requested()) return stop_.exit_code();
    return tally_.n_all_failed() > 0 ? kSomeFailed : 0;
  }

 private:
  bool goes_on() {
    const bool is_first = stop_.is_requested() && !std::exchange(is_stopping_, true);
    if (is_first && runner_.n_running() > 0 && !options_.quiet) {
      status_.erase();
      say(format("finishing the %lld that are running; a second signal ends them too",
                 static_cast<long long>(runner_.n_running())));
    }
    if (is_stopping_ && runner_.n_running() > 0 && !model_.is_at_hand()) leave_running();
    return runner_.n_running() > 0 || (!is_stopping_ && (next_ || !is_at_end_));
  }

  // Another time they are answered: the model is not loaded for them, nor a process waited for that hangs.
  void leave_running() {
    status_.erase();
    if (!options_.quiet)
      say(format("the warm process does not answer: the %lld that are running are left",
                 as_ll(runner_.n_running())));
    runner_.leave();
  }

  // Reads lines and begins what there is room for.
  void fill() {
    while (!stop_.is_requested() && output_.n_held() < kMostHeld) {
      if (!next_ && !read_line()) return;
      if (!next_) continue;  // the line is answered already
      if (!runner_.has_room()) return;
      try {
        runner_.begin(std::move(*next_));
      } catch (...) {
        fail_job(*next_, current_error());
      }
      next_.reset();
    }
  }

  // False: there is none now. It may be answered at once; otherwise it is next_.
  bool read_line() {
    if (is_at_end_) return false;
    BatchLine line;
    const auto result = input_.next(line, maker_, runner_.n_running() > 0 ? 0 : kInputWaitMs);
    is_at_end_ = result == LineReader::Result::end;
    if (result != LineReader::Result::line) return false;
    const BatchOutput::Known known = output_.find(line.digest);
    if (known == BatchOutput::Known::no)
      accept(std::move(line));
    else
      ++(known == BatchOutput::Known::failed ? tally_.n_failed_before : tally_.n_answered_before);
    return true;
  }

  void accept(BatchLine line) {
    BatchJob job{std::move(line), n_places_++};
    if (const Error* refusal = job.line.refusal()) return fail_job(job, *refusal);
    next_ = std::move(job);
  }

  void conclude(const BatchRunner::Finished& finished) {
    if (const Error* error = std::get_if<Error>(&finished.outcome)) return fail_job(finished.job, *error);
    const auto& result = std::get<GenerationResult>(finished.outcome);
    ++tally_.n_answered;
    tally_.n_prompt += result.n_prompt_tokens;
    tally_.n_cached += result.n_cached_tokens;
    tally_.n_generated += result.n_completion_tokens;
    if (!is_json() && result.finish_reason != FinishReason::stop && !options_.quiet) {
      status_.erase();
      const bool has_begun = !result.completion.content.empty();
      say("note: " + finished.job.line.name() + (has_begun ? ": the answer is cut" : ": no answer began"));
    }
    put(finished.job, finished.text);
  }

  void fail_job(const BatchJob& job, const Error& error) {
    ++tally_.n_failed;
    const bool says_which = job.line.refusal() && job.line.name() == std::to_string(job.line.number);
    const std::string message = (says_which ? "" : job.line.name() + ": ") + error.what();
    BatchTally::Failures& alike = tally_.failures[status_of(error)];
    if (alike.n++ == 0) alike.first = message;
    if (is_json()) return put(job, failure_line(job.line, error));
    status_.erase();
    write_err(error_text(message, error.hint()));
    put(job, "");
  }

  void put(const BatchJob& job, std::string text) {
    if (terminal_.is_out) status_.erase();
    output_.put(job.place, std::move(text));
  }

  void show_progress() { status_.show(batch_progress(tally())); }
  bool is_json() const { return options_.json || options_.command == Command::batch; }

  std::string text_of(const BatchJob& job, const GenerationResult& result) const {
    if (!is_json()) return block_of(job.line, result.completion.content);
    return answer_line(job.line, completion_json(result, model_.tokenizer(),
                                                 {.model_name = model_name(model_.path()),
                                                  .seed = job.request().options.sampling.seed,
                                                  .load_seconds = {},
                                                  .thinking = job.prompt.thinking,
                                                  .is_text_completion = job.request().is_completion}));
  }

  // "==> name <==", the answer, and an empty line.
  std::string block_of(const BatchLine& line, const std::string& content) const {
    const std::string end = content.ends_with('\n') ? "\n" : "\n\n";
    return "==> " + visible(line.name()) + " <==\n" + (terminal_.is_out ? visible(content, true) : content) +
           end;
  }

  BatchTally tally() const {
    BatchTally all = tally_;
    const BatchRunner::Counts running = runner_.counts();
    all.n_prompt += running.n_prompt, all.n_cached += running.n_cached;
    all.n_generated += running.n_generated;
    all.n_running = runner_.n_running();
    const auto n_shards = static_cast<int64_t>(options_.batch.shard.n_shards);
    if (input_.n_lines()) all.n_waiting = (*input_.n_lines() - input_.n_read()) / n_shards + (next_ ? 1 : 0);
    all.seconds = seconds_since(start_);
    return all;
  }

  const Options& options_;
  const Terminal& terminal_;
  AskedModel& model_;
  BatchInput& input_;
  LineMaker maker_;
  BatchOutput& output_;
  const GracefulStop stop_;
  BatchRunner runner_;
  StatusLine status_;
  std::optional<BatchJob> next_;  // there is no room for it yet
  int64_t n_places_ = 0;
  bool is_at_end_ = false, is_stopping_ = false;
  BatchTally tally_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

int answer_all(const Options& options, BatchSource source, const std::string& output_path, uint64_t seed) {
  const Terminal terminal = examine_terminal(options.color);
  const BatchOptions& batch = options.batch;
  BatchRequest defaults;
  defaults.prompt.system = read_system(options);
  defaults.is_raw = options.is_raw;
  BatchInput input(std::move(source), batch.shard);
  BatchOutput output(output_path, {batch.is_ordered, batch.retries_failed}, input.stamp());

  StatusLine status(terminal.can_redraw, options.quiet);
  status.show("opening the model");
  Options on_engine = options;
  on_engine.engine.max_seqs = batch.n_parallel.value_or(kAsManyAsSuit), on_engine.engine.pool = kAllContexts;
  AskedModel model(on_engine);
  status.erase();
  const EngineFacts& facts = model.facts();
  report_model(model.opened(), facts, options);
  const int64_t n_at_a_time = std::min(facts.max_seqs, batch.n_parallel.value_or(facts.max_seqs));
  if (options.verbose)
    say(format("at a time: %lld, %s tokens together", static_cast<long long>(n_at_a_time),
               with_thousands(facts.pool_tokens).c_str()));
  defaults.options = with_recommended(options, model.opened().file).generation;
  defaults.options.sampling.seed = seed;
  UnknownFields unknown([&](const std::string& name) {
    if (!options.quiet)
      say("warning: the field " + visible(name, false, 40) + " is not known and passed over");
  });
  LineMaker maker(rough_digest(model.opened().file), std::move(defaults), std::move(unknown));
  return Batch(options, terminal, model, n_at_a_time, input, std::move(maker), output).run();
}

std::string question_of(const Options& options) {
  const std::string text = options.prompt.value_or(""), words = joined(options.words);
  return text.empty() || words.empty() ? text + words : text + " " + words;
}

}  // namespace

int batch_command(const Options& options) {
  BatchSource source;
  source.path = options.batch.input_path.empty() ? options.words.front() : options.batch.input_path;
  source.is_text = options.batch.is_lines;
  return answer_all(options, std::move(source), options.output_path, options.seed.value_or(0));
}

int run_many(const Options& options) {
  Options many = options;
  many.batch.is_ordered = true;
  BatchSource source;
  source.is_text = true;
  source.question = question_of(options);
  if (options.batch.is_lines)
    source.path = options.files.empty() ? "-" : options.files.front();
  else
    source.files = options.files;
  source.read = [&](const std::string& file) {
    Options one = options;
    one.files = {file};
    one.system_text.clear(), one.system_file.clear();
    return read_prompt(one, true).user;
  };
  return answer_all(many, std::move(source), "-", choose_seed(options));
}

}  // namespace dsv32
