// See chat.h. A message is the text typed between two prompts; a command begins with a slash.
#include "cli/chat/chat.h"

#include "base/error.h"
#include "base/text.h"
#include "cli/chat/answer.h"
#include "cli/options/flags.h"
#include "cli/options/inputs.h"
#include "cli/terminal/user_files.h"

namespace dsv32 {
namespace {

// What the next prompt is made of. Talks do not keep tools.
std::vector<Message> prompt_messages(const Talk& talk, const Options& options) {
  return options.tools.empty() ? talk.messages : with_tools(talk.messages, options.tools);
}

// A resumed talk's next prompt with an empty question: its prefix does not depend on the question.
std::vector<int32_t> known_prompt(Talk talk, const Tokenizer& tokenizer, const Options& options) {
  talk.ask({});
  return ChatFormat(tokenizer, options.chat_format).encode(prompt_messages(talk, options), talk.thinking);
}

void report_talk(const HeldTalk& talk, const std::string& model) {
  constexpr size_t kShownChars = 160;
  if (talk.name().empty()) return;
  if (!talk.is_resumed()) return say("talk " + talk.name() + " begins");
  say("talk " + talk.name() + " resumed: " + talk.summary());
  if (talk.model != model) say("note: the talk was held with " + visible(talk.model, false, 80));
  if (!talk.has_question() && !talk.has_answer()) return;
  const auto last = talk.messages.rbegin();
  say("  you: " + visible(talk.has_answer() ? last[1].content : last->content, false, kShownChars));
  say(talk.has_answer() ? "  answer: " + visible(last->content, false, kShownChars)
                        : "  no answer yet: /retry asks for it");
}

}  // namespace

int chat_command(const Options& options) {
  const Terminal terminal = examine_terminal(options.color);
  if (!terminal.is_out)
    fail(ErrorKind::usage, "chat needs a terminal on standard output",
         "dsv32 run answers a prompt in a pipe");
  HeldTalk talk(options, read_system(options));
  Model model(options);
  model.begin([&](PrefixCache& prefixes) {
    prefixes.prefetch(known_prompt(talk, model.tokenizer(), options), talk.decoded);
  });
  const std::string name = model_name(model.path());
  if (!options.quiet) {
    say(name + ", context " + with_thousands(model.facts().context) + " tokens, /help lists commands");
    report_talk(talk, name);
  }
  return Conversation(options, terminal, model, std::move(talk)).run();
}

Conversation::Conversation(const Options& options, const Terminal& terminal, Model& model, HeldTalk talk)
    : options_(with_recommended(options, model.file())),
      terminal_(terminal),
      model_(model),
      format_(model.tokenizer(), options.chat_format),
      editor_(terminal.is_in, terminal.can_draw, stop_,
              terminal.is_in && options.keeps_history ? history_path() : "", complete),
      seed_(choose_seed(options)),
      talk_(std::move(talk)) {
  talk_.model = model_name(model_.path());
}

// Saves the talk. If that fails, the chat goes on with one warning, even with --quiet. `answer`: the one
// under way, so far.
void Conversation::try_save(const Message* answer) {
  try {
    talk_.save(answer);
    is_unsaved_ = false;
  } catch (const Error& error) {
    if (!is_unsaved_) say(std::string("warning: ") + error.what() + "; the chat goes on");
    is_unsaved_ = true;
  }
}

// A terminal that cannot be written to has hung up, even if no SIGHUP came.
void Conversation::show(std::string_view text) {
  try {
    write_out_as_is(text);
  } catch (const Error&) {
    stop_.hang_up();
  }
}

// Tries once more to save a talk that could not be saved. Throws Error{io}.
int Conversation::leave() {
  if (is_unsaved_) talk_.save();
  if (talk_.has_file() && !options_.quiet)
    say("this talk is kept as " + talk_.name() + "; dsv32 chat --continue goes on with it");
  return stop_.exit_code();
}

// Ctrl-C ends an answer. At the prompt it drops the typed text; twice at an empty prompt it leaves.
int Conversation::run() {
  show_next_call();
  for (bool is_warned = false; !stop_.must_leave();) {
    stop_.forget_interrupt();
    std::string message;
    bool is_command = false;
    const LineEditor::Event event = read_message(message, is_command);
    if (event == LineEditor::Event::end) break;
    if (event == LineEditor::Event::interrupted) {
      if (stop_.must_leave() || (is_warned && message.empty())) break;
      is_warned = message.empty();
      show("\n");
      if (is_warned) say("Ctrl-C once more leaves, as Ctrl-D and /exit do");
      continue;
    }
    is_warned = false;
    if (message.empty()) continue;
    is_command ? do_command(message) : ask(message);
    if (has_left_) return leave();
  }
  if (terminal_.is_in) show("\n");
  return leave();
}

// A line that ends in a backslash goes on in the next; so do lines between two """. Pastes stay as they are.
LineEditor::Event Conversation::read_message(std::string& message, bool& is_command) {
  constexpr std::string_view kQuotes = "\"\"\"";
  const char* prompt = "> ";
  bool is_quoted = false, is_text = false;
  for (std::string line;; prompt = ". ") {
    const LineEditor::Event event = editor_.read(prompt, line);
    if (event != LineEditor::Event::line) {
      message += line;
      return event;
    }
    editor_.remember(line);
    std::string_view part = line;
    const bool is_typed = !editor_.has_paste();
    if (is_typed && message.empty() && !is_quoted && part.starts_with(kQuotes)) {
      is_quoted = true;
      part.remove_prefix(kQuotes.size());
    }
    const bool ends = is_quoted ? part.ends_with(kQuotes) : !is_typed || !part.ends_with('\\');
    if (is_quoted && ends) part.remove_suffix(kQuotes.size());
    if (!is_quoted && !ends) part.remove_suffix(1);
    message += part;
    is_text |= is_quoted || !is_typed;
    if (ends) break;
    message += '\n';
  }
  is_command = !is_text && !message.starts_with("//") && (message.starts_with('/') || find_command(message));
  if (is_command) message = as_sent(message);
  if (!is_text && message.starts_with("//")) message.erase(0, 1);
  return LineEditor::Event::line;
}

// Saves the question, or a call's result, before the model reads it, which may take long. When an attached
// file cannot be read, the message stays unsent, for /edit.
void Conversation::ask(const std::string& message) {
  try {
    const std::string text = attached_ + with_attachments(message);
    talk_.next_call() ? talk_.add_result(text) : talk_.ask(text);
  } catch (const Error& error) {
    draft_ = as_sent(message);
    return write_err(error_text(error.what(), "the message is not sent; /edit has it"));
  }
  attached_.clear();
  try_save();
  talk_.next_call() ? show_next_call() : answer();
}

// Answers the last message, which is the user's or the result of the last call.
void Conversation::answer() {
  StatusLine status(terminal_.can_redraw, options_.quiet);
  AnswerPrinter printer({.thinking = options_.shown_thinking(),
                         .escapes_out = true,
                         .has_color = terminal_.has_color,
                         .wraps = terminal_.can_redraw},
                        status, stop_, [this](const Message& answer) { try_save(&answer); });
  model_.reopen();
  options_.generation.sampling.seed = seed_++;
  options_.generation.thinking = thinks(format_.kind(), talk_.thinking);
  try {
    const GenerationResult result =
        generate(model_,
                 {.tokenizer = &model_.tokenizer(),
                  .prompt = format_.encode(prompt_messages(talk_, options_), talk_.thinking,
                                           most_encoded(model_.facts().context)),
                  .options = options_.generation,
                  .decoded = talk_.decoded,
                  .talk = 1},
                 printer);
    printer.print_calls(result.completion.calls);
    printer.finish(result.completion.thinking_closed);
    take_answer(result);
  } catch (const WarmGone& gone) {
    printer.finish(false, true);
    try_save();
    write_err(error_text(gone.what(), "/retry asks again"));
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::context_full) throw;
    write_err(error_text(error.what(), "/clear begins anew; dsv32 chat -c N holds more"));
  }
}

void Conversation::take_answer(const GenerationResult& result) {
  const SamplingOptions& sampling = options_.generation.sampling;
  stats_ = prefill_summary(result, true) + "; " + decode_summary(result);
  if (sampling.temperature > 0) stats_ = "seed: " + std::to_string(sampling.seed) + "; " + stats_;
  if (result.n_guessed > 0) stats_ += "; " + guess_summary(result.n_guessed, result.n_accepted);
  if (options_.verbose) say(stats_);
  buffer_tally_.n_rows += result.buffer_tally.n_rows, buffer_tally_.n_misses += result.buffer_tally.n_misses;
  if (result.finish_reason == FinishReason::length && result.n_held_tokens == model_.facts().context)
    say("the context is full: /clear begins anew; dsv32 chat -c N holds more");
  const Completion& answer = result.completion;
  if (answer.content.empty() && answer.calls.empty() && result.finish_reason != FinishReason::stop)
    return say("ended before the answer began: /retry asks again");
  if (!answer.call_fault.empty()) say("note: what looks like a call is none: " + answer.call_fault);
  if (answer.is_call_cut) say("a call was cut: /retry asks again");
  talk_.add_answer(result);
  try_save();
  show_next_call();
}

// Nothing is executed: the person types what the tool says, or names a file of it.
void Conversation::show_next_call() const {
  if (const ToolCall* call = talk_.next_call())
    say("type the result of " + visible(call->name, false, 80) + ", @PATH adds a file");
}

}  // namespace dsv32
