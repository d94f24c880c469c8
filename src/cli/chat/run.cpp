// The command `dsv32 run`: reads the input, opens the model, prints the answer as it comes.
//
// A report goes to standard error: one line at a terminal, more with --verbose.
#include <chrono>
#include <optional>
#include <random>

#include <unistd.h>

#include "base/error.h"
#include "base/stopwatch.h"
#include "base/text.h"
#include "cli/chat/answer.h"
#include "cli/chat/chat.h"
#include "cli/chat/talk.h"
#include "cli/options/flags.h"
#include "cli/options/inputs.h"
#include "cli/options/request_json.h"
#include "cli/warm/model.h"

namespace dsv32 {
namespace {

// The seed is shown when tokens were drawn at random.
void report(const GenerationResult& result, const Options& options, const Terminal& terminal,
            const SamplingOptions& sampling) {
  if (options.quiet || (!options.verbose && !terminal.is_err)) return;
  std::vector<std::string> parts{prefill_summary(result, options.verbose), decode_summary(result)};
  if (options.verbose && result.n_guessed > 0)
    parts.push_back(guess_summary(result.n_guessed, result.n_accepted));
  if (options.verbose && result.buffer_tally.n_rows > 0) parts.push_back(buffer_summary(result.buffer_tally));
  if (sampling.temperature > 0) parts.push_back("seed: " + std::to_string(sampling.seed));
  say(joined(parts, options.verbose ? "\n" : "; "));
}

// Reports an answer that is empty or cut, though not interrupted, unless -n 0 asked for none. Returns the
// exit code.
int report_end(const GenerationResult& result, const GenerationOptions& asked, int64_t context,
               bool is_quiet) {
  const bool has_begun = result.completion.has_begun(),
             has_ended = result.finish_reason == FinishReason::stop,
             is_at_total = result.n_completion_tokens == asked.max_tokens,
             is_as_asked = is_at_total || result.n_answer_tokens() == asked.max_answer,
             fails = lacks_whole_answer(result, asked, false);
  if (!fails && (has_ended || asked.max_answer == 0)) return 0;
  const std::string why =
      has_ended     ? "the model ended before it began one"
      : is_at_total ? "the " + with_thousands(asked.max_tokens) + " tokens of max_tokens are used up"
      : is_as_asked ? "the " + with_thousands(result.n_answer_tokens()) + " tokens of -n are used up"
                    : "the context of " + with_thousands(context) + " tokens is full, -c N holds more";
  const std::string text = (has_begun ? "the answer is cut: " : "no answer: ") + why;
  const bool is_thinking = result.n_thinking_tokens == result.n_completion_tokens;
  const char* hint = !has_begun && is_thinking ? "--think-max N ends thinking in time" : "";
  if (fails) return write_err(error_text(text, hint)), kNoWholeAnswer;
  if (!is_quiet) say("note: " + text);
  return 0;
}

// Notes a first word that was probably meant for -m.
void warn_of_model_in_prompt(const Options& options) {
  const std::string word = options.words.empty() ? "" : options.words.front();
  if (options.quiet || !word.ends_with(".gguf") || access(word.c_str(), R_OK) != 0) return;
  say("note: " + word + " is taken as a part of the prompt; -m " + word + " names it as the model");
}

// The named talk with the new question, saved before the answer; nothing when no talk is named.
std::optional<HeldTalk> ask_in_talk(const Options& options, const PromptText& text) {
  if (options.talk.empty() && !options.continues) return std::nullopt;
  std::optional<HeldTalk> talk(std::in_place, options, text.system);
  talk->ask(text.user);
  talk->save();
  return talk;
}

ChatRequest request_of(const Talk& talk, ChatRequest request) {
  request.messages = talk.messages;
  request.options.thinking = talk.thinking, request.is_thinking_asked = false;
  request.decoded = talk.decoded;
  return request;
}

void keep_answer(HeldTalk& talk, const GenerationResult& result, const std::string& model) {
  if (result.completion.content.empty()) return;
  talk.model = model;
  talk.add_answer(result);
  talk.save();
}

}  // namespace

int run_command(const Options& options) {
  const Terminal terminal = examine_terminal(options.color);
  const PromptText text = read_prompt(options, terminal.is_in);
  warn_of_model_in_prompt(options);
  request_of(text, options);  // what is wrong with it is said before the model is opened
  std::optional<HeldTalk> talk = ask_in_talk(options, text);
  const auto start = std::chrono::steady_clock::now();
  Model model(options);
  ChatRequest request = request_of(text, with_recommended(options, model.file()));
  if (talk) request = request_of(*talk, std::move(request));
  GenerationOptions& generation = request.options;
  const Tokenizer& tokenizer = model.tokenizer();
  const Prompt prompt = prompt_of(request, tokenizer, most_encoded(model.most_context()));
  check_prompt(tokenizer.n_vocab(), model.most_context(), prompt.ids);  // before anything is loaded
  model.begin([&](PrefixCache& prefixes) { prefixes.prefetch(prompt.ids, request.decoded); });
  const std::string name = model_name(model.path());
  const double load_seconds = seconds_since(start);
  StatusLine status(terminal.can_redraw, options.quiet);

  if (prompt.is_raw && !options.is_raw && !options.quiet)
    say("note: the prompt begins with the model's first token and is taken as rendered already");
  generation.thinking = prompt.thinking;
  if (request.has_random_seed)
    generation.sampling.seed = std::random_device{}();
  else if (!request.has_seed)
    generation.sampling.seed = choose_seed(options);

  AnswerJson json({.model_name = name,
                   .seed = generation.sampling.seed,
                   .load_seconds = load_seconds,
                   .thinking = prompt.thinking,
                   .has_drafts = model.facts().has_drafts},
                  model.tokenizer());
  GracefulStop stop;
  AnswerPrinter printer({.thinking = options.shown_thinking(),
                         .escapes_out = terminal.is_out,
                         .has_color = terminal.has_color,
                         .prints = !options.json,
                         .json = options.is_streamed ? &json : nullptr},
                        status, stop);
  GenerationResult result;
  try {
    result = generate(model,
                      {.tokenizer = &model.tokenizer(),
                       .prompt = prompt.ids,
                       .options = generation,
                       .decoded = request.decoded},
                      printer);
  } catch (const WarmGone&) {
    printer.finish(false, true);
    throw;
  }
  status.erase();
  if (talk) keep_answer(*talk, result, name);
  const bool is_interrupted = result.finish_reason == FinishReason::interrupted;
  printer.print_calls(result.completion.calls);
  if (!options.json)
    printer.finish(result.completion.thinking_closed, is_interrupted);
  else if (!is_interrupted || result.n_completion_tokens > 0)
    write_out(options.is_streamed ? json.last(result) : shown_json(json.whole(result)) + "\n");
  if (!result.completion.call_fault.empty() && !options.quiet)
    say("note: what looks like a call is none: " + result.completion.call_fault);
  report(result, options, terminal, generation.sampling);
  if (is_interrupted) return stop.end();
  return report_end(result, generation, model.facts().context, options.quiet);
}

}  // namespace dsv32
