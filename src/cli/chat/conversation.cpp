// See conversation.h. A message is what was typed between two prompts; a command begins with a slash.
#include "cli/chat/conversation.h"

#include <chrono>
#include <functional>
#include <optional>

#include "base/error.h"
#include "base/stopwatch.h"
#include "cli/chat/answer.h"
#include "cli/options/commands.h"
#include "cli/options/options.h"
#include "cli/terminal/attachment.h"
#include "cli/terminal/streams.h"

namespace dsv32 {
namespace {

// An answer that is kept as far as it was shown, but for the last second.
class ChatListener : public AnswerListener {
 public:
  using Keep = std::function<void(const Message& answer)>;
  ChatListener(Printer& printer, StatusLine& status, const GracefulStop& stop, Keep keep)
      : AnswerListener(printer, status, stop, true), keep_(std::move(keep)) {}

  void on_reasoning(const std::string& text) override {
    AnswerListener::on_reasoning(text);
    answer_.reasoning += text;
  }
  void on_answer(const std::string& text) override {
    constexpr double kSecondsBetween = 1;
    AnswerListener::on_answer(text);
    answer_.content += text;
    if (seconds_since(kept_at_) < kSecondsBetween) return;
    keep_(answer_);
    kept_at_ = std::chrono::steady_clock::now();
  }

 private:
  Keep keep_;
  Message answer_{Message::Role::assistant, {}, {}};
  std::chrono::steady_clock::time_point kept_at_ = std::chrono::steady_clock::now();
};

}  // namespace

Conversation::Conversation(const Options& options, const Terminal& terminal, Model& model, Talk talk)
    : options_(with_recommended(options, model.file())),
      terminal_(terminal),
      model_(model),
      format_(model.tokenizer()),
      editor_(terminal.is_in, terminal.can_draw, stop_,
              terminal.is_in && options.keeps_history ? history_path() : "", complete_chat_line),
      seed_(choose_seed(options)),
      talk_(std::move(talk)) {
  options_.generation.thinking = talk_.saved.thinking;
}

void Conversation::save() {
  talk_.saved.model = model_name(model_.path());
  talk_.saved.thinking = options_.generation.thinking;
  talk_.save();
}

// A talk that cannot be saved goes on; that is told once, and even when quiet. `answer`: of one under way.
void Conversation::try_save(const Message* answer) {
  try {
    answer ? talk_.save_with(*answer) : save();
    is_unsaved_ = false;
  } catch (const Error& error) {
    if (!is_unsaved_) say(format("warning: %s; the chat goes on", error.what()));
    is_unsaved_ = true;
  }
}

// A terminal that cannot be written to has hung up, whether or not its signal came.
void Conversation::show(std::string_view text) {
  try {
    write_out_as_is(text);
  } catch (const Error&) {
    stop_.hang_up();
  }
}

// What could not be saved before is tried once more. Throws Error{io}.
int Conversation::leave() {
  if (is_unsaved_) save();
  if (talk_.is_kept() && !talk_.name().empty() && !options_.quiet)
    say(format("this talk is kept as %s; dsv32 chat --continue goes on with it", talk_.name().c_str()));
  return stop_.exit_code();
}

// Ctrl-C ends an answer; at the prompt it drops what is typed, and twice where nothing is it leaves.
int Conversation::run() {
  bool is_warned = false;
  while (!stop_.must_leave()) {
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
    if (is_command && do_command(message) == Next::leave) return leave();
    if (!is_command) ask(message);
  }
  if (terminal_.is_in) show("\n");
  return leave();
}

// A line that ends in a backslash goes on; so does everything between two """. What was pasted is taken as it
// is.
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
    if (!ends) {
      message += '\n';
      continue;
    }
    if (is_text) return event;
    if (message.starts_with("//"))
      message.erase(0, 1);
    else if ((is_command = message.starts_with('/') || find_chat_command(message)))
      message = as_sent(message);
    return event;
  }
}

// Saved before it is answered: reading it may take long, and much can happen. What goes with it that cannot
// be read leaves it unsent, for /edit.
void Conversation::ask(const std::string& message) {
  try {
    talk_.ask(attached_ + with_attachments(message, say));
  } catch (const Error& error) {
    draft_ = as_sent(message);
    return write_err(error_text(error.what(), "the message is not sent; /edit has it"));
  }
  attached_.clear();
  try_save();
  answer();
}

// The former answer stays when no other begins.
void Conversation::regenerate() {
  std::optional<Message> former;
  if (!talk_.messages().empty() && talk_.messages().back().role == Message::Role::assistant) {
    former = std::move(talk_.messages().back());
    talk_.messages().pop_back();
  }
  if (!talk_.has_unanswered()) return say("there is no answer yet");
  answer();
  if (former && talk_.has_unanswered()) talk_.messages().push_back(std::move(*former));
}

// Answers the last message, which is the user's.
void Conversation::answer() {
  const auto out = [this](std::string_view text) { show(text); };
  Printer printer(
      {options_.shown_thinking(), true, terminal_.has_color, terminal_.can_redraw ? columns : nullptr}, out,
      write_err);
  StatusLine status(terminal_.can_redraw, options_.quiet);
  ChatListener listener(printer, status, stop_, [this](const Message& answer) { try_save(&answer); });
  if (options_.shown_thinking() == ThinkingDisplay::hide) listener.count_reasoning();
  options_.generation.sampling.seed = seed_++;
  try {
    const GenerationResult result =
        generate(model_,
                 {.tokenizer = &model_.tokenizer(),
                  .prompt = format_.encode(talk_.messages(), options_.generation.thinking),
                  .options = options_.generation,
                  .decoded = talk_.saved.decoded,
                  .talk = 1},
                 listener);
    status.erase();
    printer.finish(result.completion.thinking_closed);
    conclude(result);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::context_full) throw;
    status.erase();
    write_err(error_text(error.what(), "/clear begins anew; dsv32 chat -c N holds more"));
  }
}

void Conversation::conclude(const GenerationResult& result) {
  stats_ = prefill_summary(result) + "; " + decode_summary(result);
  const SamplingOptions& sampling = options_.generation.sampling;
  if (sampling.temperature > 0)
    stats_ = format("seed: %llu; ", static_cast<unsigned long long>(sampling.seed)) + stats_;
  if (options_.verbose) say(stats_);
  buffer_tally_.n_rows += result.buffer_tally.n_rows, buffer_tally_.n_misses += result.buffer_tally.n_misses;
  if (result.finish_reason == FinishReason::length && result.n_held_tokens == model_.facts().context)
    say("the context is full: /clear begins anew; dsv32 chat -c N holds more");
  if (result.completion.content.empty() && result.finish_reason != FinishReason::stop)
    return say("ended before the answer began: /retry asks again");
  talk_.messages().push_back(
      {Message::Role::assistant, result.completion.content, result.completion.reasoning});
  talk_.saved.decoded = result.decoded;
  try_save();
}

}  // namespace dsv32
