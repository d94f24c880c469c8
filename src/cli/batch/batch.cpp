// See batch.h. `batch` writes JSON lines to a file, `run` text or JSON lines to standard output, both by the
// same loop.
#include "cli/batch/batch.h"

#include <chrono>
#include <deque>
#include <utility>

#include "base/error.h"
#include "base/stopwatch.h"
#include "base/text.h"
#include "cli/chat/answer.h"
#include "cli/options/flags.h"
#include "cli/terminal/signals.h"
#include "cli/warm/model.h"

namespace dsv32 {
namespace {

constexpr int kSomeFailed = 5;       // the exit code
constexpr int64_t kMostHeld = 1024;  // answers that wait for an earlier one
constexpr int kInputWaitMs = 200;    // between checks for a signal

class Batch : Listener {
 public:
  // `seed`: the seeds of lines are derived from it.
  Batch(const Options& options, BatchSource source, const std::string& output_path, uint64_t seed)
      : options_(options),
        defaults_(request_of({read_system(options), {}}, options)),
        input_(std::move(source), options.batch.shard),
        output_(output_path, options.batch, input_.stamp()),
        model_(options_),
        maker_(open(seed)),
        runner_(
            model_, options_.batch.n_at_a_time(model_.facts().max_seqs), model_.tokenizer(),
            [this](const auto& item) { return text_of(item); }, this, model_.facts().context) {}

  int run() {
    while (goes_on()) {
      fill();
      if (runner_.n_running() > 0)
        for (const std::unique_ptr<BatchItem>& item : runner_.advance()) finish(*item);
      show_progress();
      output_.check_place();
    }
    const bool is_batch = options_.command == Command::batch;
    if (!options_.quiet && (is_batch || terminal_.is_err || options_.verbose)) say(batch_summary(tally()));
    if (options_.verbose && tally_.n_guessed > 0) say(guess_summary(tally_.n_guessed, tally_.n_accepted));
    if (is_json())
      for (const std::string& line : batch_failures(tally_)) say(line);
    if (const std::string rest = batch_rest(tally(), output_.is_kept());
        stop_.is_requested() && !rest.empty() && !options_.quiet)
      say(rest);
    if (stop_.is_requested()) return stop_.exit_code();
    return tally_.n_all_failed() > 0 ? kSomeFailed : has_cut_document_ ? kNoWholeAnswer : 0;
  }

 private:
  // Opens the model. Returns what makes the items of its lines.
  LineMaker open(uint64_t seed) {
    model_.begin();
    if (options_.verbose)
      say("at a time: " + std::to_string(options_.batch.n_at_a_time(model_.facts().max_seqs)) + ", " +
          with_thousands(model_.facts().pool_tokens) + " tokens together");
    defaults_.options = with_recommended(options_, model_.file()).generation;
    defaults_.options.sampling.seed = seed;
    return {rough_digest(model_.file()), std::move(defaults_)};
  }

  bool goes_on() {
    const auto now = std::chrono::steady_clock::now();
    if (stop_.is_requested() && !stopping_at_) {
      stopping_at_ = now;
      if (runner_.n_running() > 0 && !options_.quiet)
        say("finishing the " + std::to_string(runner_.n_running()) +
            " that are running; a second signal ends them too");
    }
    const bool is_over = stopping_at_ && options_.batch.drain && now - *stopping_at_ >= *options_.batch.drain;
    if (is_over && runner_.n_running() > 0) leave_running();
    return runner_.n_running() > 0 || (!stopping_at_ && (!waiting_.empty() || !is_at_end_));
  }

  // Leaves the running items to a later run, and with --ordered what waits for them to be written.
  void leave_running() {
    const int64_t n = runner_.n_running(), n_held = output_.n_held();
    if (!options_.quiet)
      say("the time of --drain is over: " + std::to_string(n) + " running " +
          (n == 1 ? "request" : "requests") +
          (n_held > 0 ? ", and " + std::to_string(n_held) + " with an answer behind them in the order,"
                      : "") +
          (n + n_held == 1 ? " is" : " are") + " left for a later run");
    runner_.leave();
    const auto [n_answered, n_failed] = output_.drop_held();
    tally_.n_answered -= n_answered, tally_.n_failed -= n_failed;
    n_left_ += n + n_held;
  }

  // Whether requests can be begun: those under way in a warm process that ends are answered first.
  bool is_open() {
    if (model_.is_open()) return true;
    if (runner_.n_running() > 0) return false;
    model_.reopen();
    return true;
  }

  // Reads lines and begins items while there is room.
  void fill() {
    while (!stop_.is_requested()) {
      if (waiting_.empty() && (output_.n_held() >= kMostHeld || !read_line())) return;
      if (waiting_.empty()) continue;  // the line has its outcome already
      if (!runner_.has_room() || !is_open()) return;
      BatchItem item = std::move(waiting_.front());
      waiting_.pop_front();
      try {
        runner_.begin(std::move(item));
      } catch (...) {
        item.error = current_error();
        finish(item);
      }
    }
  }

  // Reads a line into waiting_, unless its outcome is known at once. False: no line is there now.
  bool read_line() {
    if (is_at_end_) return false;
    BatchItem item;
    const auto result = input_.next(item, maker_, runner_.n_running() > 0 ? 0 : kInputWaitMs);
    is_at_end_ = result == LineReader::Result::end;
    if (result != LineReader::Result::line) return false;
    const BatchOutput::Known known = output_.find(item.digest);
    if (known != BatchOutput::Known::no) {
      ++(known == BatchOutput::Known::failed ? tally_.n_failed_before : tally_.n_answered_before);
      return true;
    }
    item.place = n_places_++;
    if (item.error)  // the error names the line's number, which is the name of an item that has no other
      fail_item(item, item.name() == std::to_string(item.number) ? "" : item.name() + ": ");
    else
      waiting_.push_back(std::move(item));
    return true;
  }

  void finish(BatchItem& item) {
    if (item.error) return fail_item(item, item.name() + ": ");
    if (std::exchange(item.is_lost, false)) return waiting_.push_back(std::move(item));
    ++tally_.n_answered;
    tally_.tokens +=
        {item.result.n_prompt_tokens, item.result.n_cached_tokens, item.result.n_completion_tokens};
    tally_.n_guessed += item.result.n_guessed, tally_.n_accepted += item.result.n_accepted;
    const bool asked_for_none = item.request.options.max_answer == 0;
    if (!is_json() && item.result.finish_reason != FinishReason::stop && !asked_for_none) {
      has_cut_document_ |= lacks_whole_answer(item.result, item.request.options, true);
      if (!options_.quiet)
        say("note: " + item.name() +
            (item.result.completion.has_begun() ? ": the answer is cut" : ": no answer"));
    }
    output_.put(item.place, std::move(item.text));
  }

  void fail_item(const BatchItem& item, const std::string& name) {
    ++tally_.n_failed;
    tally_.add_failure(name, *item.error);
    if (is_json()) return output_.put(item.place, failure_line(item, *item.error), true);
    write_err(error_text(name + item.error->what(), item.error->hint()));
    output_.put(item.place, "", true);
  }

  void on_prefill(int64_t, int64_t, int64_t) override { show_progress(); }
  void show_progress() { status_.show(batch_progress(tally())); }
  bool is_json() const { return options_.json || options_.command == Command::batch; }

  // JSON, or "==> name <==", the answer, and an empty line.
  std::string text_of(const BatchItem& item) const {
    if (is_json())
      return answer_line(item, AnswerJson({.model_name = model_name(model_.path()),
                                           .seed = item.request.options.sampling.seed,
                                           .load_seconds = {},
                                           .thinking = item.prompt.thinking,
                                           .has_drafts = model_.facts().has_drafts,
                                           .is_text_completion = item.request.is_completion},
                                          model_.tokenizer())
                                   .whole(item.result));
    std::string content = item.result.completion.content;
    const std::string calls = call_lines(item.result.completion.calls);
    content += (calls.empty() || content.empty() || content.ends_with('\n') ? "" : "\n") + calls;
    return "==> " + visible(item.name()) + " <==\n" + (terminal_.is_out ? visible(content, true) : content) +
           (content.ends_with('\n') ? "\n" : "\n\n");
  }

  BatchTally tally() const {
    BatchTally all = tally_;
    all.tokens += runner_.counts();
    all.n_running = runner_.n_running();
    const auto n_shards = static_cast<int64_t>(options_.batch.shard.n_shards);
    if (input_.n_lines())
      all.n_waiting = (*input_.n_lines() - input_.n_read()) / n_shards + std::ssize(waiting_) + n_left_;
    all.is_estimate = n_shards > 1;
    all.seconds = seconds_since(start_);
    return all;
  }

  const Options& options_;
  const Terminal terminal_ = examine_terminal(options_.color);
  StatusLine status_{terminal_.can_redraw, options_.quiet};
  ChatRequest defaults_;  // moved to maker_
  BatchInput input_;
  BatchOutput output_;
  Model model_;
  LineMaker maker_;
  const GracefulStop stop_;
  BatchRunner runner_;
  std::deque<BatchItem> waiting_;  // for room
  int64_t n_places_ = 0, n_left_ = 0;
  bool is_at_end_ = false;
  std::optional<std::chrono::steady_clock::time_point> stopping_at_;  // since when a signal asks for it
  bool has_cut_document_ = false;  // or call, in the text that is printed; JSON says so of each answer
  BatchTally tally_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace

int batch_command(const Options& options) {
  const Shard& shard = options.batch.shard;
  if (!shard.source.empty() && !options.quiet)
    say(format("shard %llu/%llu, by %s", ull(shard.number), ull(shard.n_shards), shard.source.c_str()));
  BatchSource source;
  source.path = options.batch.input_path.empty() ? options.words.front() : options.batch.input_path;
  source.is_text = options.batch.is_lines;
  return Batch(options, std::move(source), options.output_path, options.seed.value_or(0)).run();
}

int run_many(const Options& options) {
  BatchSource source;
  source.is_text = true;
  source.question = options.prompt.value_or(joined(options.words));
  if (options.batch.is_lines)
    source.path = options.files.empty() ? "-" : options.files.front();
  else
    source.files = options.files;
  source.read = [&](const std::string& file) { return read_input(file, options); };
  return Batch(options, std::move(source), "-", choose_seed(options)).run();
}

BatchRunner::BatchRunner(Answerer& answerer, int64_t n_at_a_time, const Tokenizer& tokenizer, Write write,
                         Listener* watcher, int64_t context)
    : answerer_(answerer),
      n_at_a_time_(n_at_a_time),
      tokenizer_(tokenizer),
      write_(std::move(write)),
      watcher_(watcher),
      n_most_(most_encoded(context)) {}

void BatchRunner::leave() {
  for (const std::unique_ptr<BatchItem>& item : running_)
    if (item->asked) answerer_.drop(*item->asked);
  running_.clear();
}

void BatchRunner::begin(BatchItem&& begun) {
  running_.reserve(running_.size() + 1);
  running_.push_back(std::make_unique<BatchItem>(std::move(begun)));
  BatchItem& item = *running_.back();
  item.watcher = watcher_;
  try {
    item.prompt = prompt_of(item.request, tokenizer_, n_most_);
    GenerationOptions options = item.request.options;
    options.thinking = item.prompt.thinking;
    item.asked = answerer_.add({nullptr, &tokenizer_, item.prompt.ids, std::move(options)}, item);
  } catch (...) {
    item.error = current_error();
  }
}

std::vector<std::unique_ptr<BatchItem>> BatchRunner::advance() {
  answerer_.advance();
  std::vector<std::unique_ptr<BatchItem>> done;
  done.reserve(running_.size());
  for (std::unique_ptr<BatchItem>& item : running_) {
    if (!item->error && !answerer_.is_done(*item->asked)) continue;
    take_outcome(*item);
    done.push_back(std::move(item));
  }
  std::erase(running_, nullptr);
  return done;
}

void BatchRunner::take_outcome(BatchItem& item) const {
  if (item.error) return;
  try {
    item.result = answerer_.take(*item.asked);
    item.text = write_(item);
  } catch (const WarmGone&) {
    item.is_lost = true, item.asked.reset(), item.counts = {};
  } catch (...) {
    item.error = current_error();
  }
}

TokenCounts BatchRunner::counts() const {
  TokenCounts sum;
  for (const std::unique_ptr<BatchItem>& item : running_) sum += item->counts;
  return sum;
}

}  // namespace dsv32
