// See run.h. Input is read first, then the model is opened, then the answer is printed as it comes.
//
// What is said about the run goes to standard error: a line for a person at a terminal, more with --verbose.
#include "cli/chat/run.h"

#include <chrono>
#include <optional>
#include <utility>

#include <unistd.h>

#include "base/error.h"
#include "base/stopwatch.h"
#include "base/text.h"
#include "cli/chat/answer.h"
#include "cli/chat/completion_json.h"
#include "cli/chat/talk.h"
#include "cli/options/commands.h"
#include "cli/options/options.h"
#include "cli/options/prompt.h"
#include "cli/terminal/streams.h"
#include "cli/warm/model.h"
#include "text/chat_format.h"

namespace dsv32 {
namespace {

constexpr int kNoWholeAnswer = 6;  // the exit code

// Where nothing is drawn there is no seed to tell.
void report(const GenerationResult& result, const Options& options, const Terminal& terminal,
            const SamplingOptions& sampling) {
  if (options.quiet) return;
  const bool is_drawn = sampling.temperature > 0;
  const std::string seed_text = format("seed: %llu", static_cast<unsigned long long>(sampling.seed));
  if (options.verbose) {
    say(prefill_summary(result));
    say(decode_summary(result));
    if (result.buffer_tally.n_rows > 0) say(buffer_summary(result.buffer_tally));
    if (is_drawn) say(seed_text);
  } else if (terminal.is_err) {
    say(prefill_summary(result) + "; " + decode_summary(result) + (is_drawn ? "; " + seed_text : ""));
  }
}

// Nothing came before the end of the answer, or these limits cut it.
std::string why_short(const GenerationResult& result, bool is_as_asked, int64_t context) {
  if (result.finish_reason == FinishReason::stop) return "its end came first";
  if (is_as_asked)
    return format("the %s tokens of -n are used up", with_thousands(result.n_answer_tokens()).c_str());
  return format("the context of %s tokens is full, -c N holds more", with_thousands(context).c_str());
}

// Says so when an answer that nobody interrupted is empty or cut, unless -n 0 asked for none. Returns the
// exit code: an answer that had begun when -n cut it is as long as was asked for.
int conclude(const GenerationResult& result, int64_t max_answer, int64_t context, bool is_quiet) {
  const bool has_begun = !result.completion.content.empty();
  if (max_answer == 0 || (has_begun && result.finish_reason == FinishReason::stop)) return 0;
  const bool is_as_asked = result.n_answer_tokens() == max_answer;
  const std::string text =
      (has_begun ? "the answer is cut: " : "no answer began: ") + why_short(result, is_as_asked, context);
  const bool is_thinking = result.n_thinking_tokens == result.n_completion_tokens;
  const char* hint = !has_begun && is_thinking ? "--think-max N ends thinking in time" : "";
  if (!has_begun || !is_as_asked) return write_err(error_text(text, hint)), kNoWholeAnswer;
  if (!is_quiet) say("note: " + text);
  return 0;
}

Prompt talk_prompt(const Tokenizer& tokenizer, const SavedTalk& talk) {
  const ChatFormat format(tokenizer);
  return {format.encode(talk.messages, talk.thinking), format.render(talk.messages, talk.thinking),
          talk.thinking};
}

void write_line(const std::string& line) { write_out(line + "\n"); }

// Writes chunks, if there are any to be written, as the answer comes.
class RunListener : public AnswerListener {
 public:
  RunListener(Printer& printer, StatusLine& status, const GracefulStop& stop, bool prints,
              const std::optional<CompletionChunks>& chunks)
      : AnswerListener(printer, status, stop, prints), chunks_(chunks) {}
  void on_reasoning(const std::string& text) override {
    AnswerListener::on_reasoning(text);
    if (chunks_) write_chunk(chunks_->reasoning(text));
  }
  void on_answer(const std::string& text) override {
    AnswerListener::on_answer(text);
    if (chunks_) write_chunk(chunks_->answer(text));
  }
  void write_chunk(const std::string& chunk) {
    if (!std::exchange(has_begun_, true)) write_line(chunks_->first());
    write_line(chunk);
  }

 private:
  const std::optional<CompletionChunks>& chunks_;
  bool has_begun_ = false;
};

// A file that was meant for -m, probably.
void warn_of_model_in_prompt(const Options& options) {
  const std::string word = options.words.empty() ? "" : options.words.front();
  if (options.quiet || !word.ends_with(".gguf") || access(word.c_str(), R_OK) != 0) return;
  say(format("note: %s is taken as a part of the prompt; -m %s names it as the model", word.c_str(),
             word.c_str()));
}

// The talk that is gone on with; none unless one is named. The question is saved before it is answered.
std::optional<Talk> ask_in_talk(const Options& options, const PromptText& text) {
  if (options.talk.empty() && !options.continues) return std::nullopt;
  std::optional<Talk> talk(std::in_place, options, text.system);
  talk->ask(text.user);
  talk->save();
  return talk;
}

void keep_answer(Talk& talk, const Completion& completion, const std::vector<TokenRun>& decoded) {
  if (completion.content.empty()) return;
  talk.messages().push_back({Message::Role::assistant, completion.content, completion.reasoning});
  talk.saved.decoded = decoded;
  talk.save();
}

}  // namespace

int run_command(const Options& options) {
  const Terminal terminal = examine_terminal(options.color);
  const PromptText text = read_prompt(options, terminal.is_in);
  warn_of_model_in_prompt(options);
  std::optional<Talk> talk = ask_in_talk(options, text);
  const auto start = std::chrono::steady_clock::now();
  const auto in_form = [&](const Tokenizer& tokenizer) {
    if (talk) return talk_prompt(tokenizer, talk->saved);
    return make_prompt(tokenizer, text, options.is_raw, options.generation.thinking);
  };
  Model model(options, [&](PrefixCache& prefixes, const Tokenizer& tokenizer) {
    prefixes.prefetch(in_form(tokenizer).ids, talk ? talk->saved.decoded : std::vector<TokenRun>());
  });
  const double load_seconds = seconds_since(start);
  StatusLine status(terminal.can_redraw, options.quiet);

  const Prompt prompt = in_form(model.tokenizer());
  if (prompt.is_raw && !options.is_raw && !options.quiet)
    say("note: the prompt begins with the model's first token and is taken as rendered already");
  GenerationOptions generation = with_recommended(options, model.file()).generation;
  generation.thinking = prompt.thinking;
  generation.sampling.seed = choose_seed(options);

  Printer printer({options.shown_thinking(), terminal.is_out, terminal.has_color}, write_out, write_err);
  const GracefulStop stop;
  std::optional<CompletionChunks> chunks;
  if (options.is_streamed) chunks.emplace(model_name(model.path()));
  RunListener listener(printer, status, stop, !options.json, chunks);
  if (options.json || options.shown_thinking() == ThinkingDisplay::hide) listener.count_reasoning();
  if (options.json || !terminal.is_out) listener.count_answer();
  const GenerationResult result = generate(model,
                                           {.tokenizer = &model.tokenizer(),
                                            .prompt = prompt.ids,
                                            .options = generation,
                                            .decoded = talk ? talk->saved.decoded : std::vector<TokenRun>()},
                                           listener);
  status.erase();
  if (talk) talk->saved.model = model_name(model.path());
  if (talk) keep_answer(*talk, result.completion, result.decoded);
  const CompletionContext context{.model_name = model_name(model.path()),
                                  .seed = generation.sampling.seed,
                                  .load_seconds = load_seconds,
                                  .thinking = prompt.thinking};
  const bool is_interrupted = result.finish_reason == FinishReason::interrupted;
  const bool has_answer = !is_interrupted || result.n_completion_tokens > 0;
  if (!options.json)
    printer.finish(result.completion.thinking_closed, is_interrupted);
  else if (chunks && has_answer)
    listener.write_chunk(chunks->last(result, model.tokenizer(), context));
  else if (has_answer)
    write_line(completion_json(result, model.tokenizer(), context));
  report(result, options, terminal, generation.sampling);
  if (is_interrupted) return stop.end();
  return conclude(result, generation.max_answer, model.facts().context, options.quiet);
}

}  // namespace dsv32
