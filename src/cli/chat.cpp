// See chat.h. A message is what was typed between two prompts; a command begins with a slash.
//
// The one idea: what a person has typed outlives whatever comes after it. A question is saved before it is
// read, signals only ask for an end, and a terminal that is gone keeps no answer from being saved.
#include "cli/chat.h"

#include <chrono>
#include <optional>

#include <unistd.h>

#include "base/error.h"
#include "base/text.h"
#include "cli/answer.h"
#include "cli/flag_parser.h"
#include "cli/help.h"
#include "cli/line_editor.h"
#include "cli/loaded_model.h"
#include "cli/prompt.h"
#include "cli/run.h"
#include "cli/saved_talk.h"
#include "cli/state_folder.h"
#include "cli/streams.h"
#include "engine/session.h"
#include "text/chat_format.h"

namespace dsv32 {
namespace {

constexpr const char* kHelp = R"(/help, /?            this list
/clear, /new         forget the conversation, keep the system prompt
/regen               answer the last message again
/think [on|off]      think before answering, or not; /nothink is /think off
/stats               context and speeds
/exit, /quit, /bye   leave, as Ctrl-D does
A line that ends in \ goes on in the next one; """ begins and ends a text of several lines.
Ctrl-C ends an answer; what was said stays.
)";

void say(const std::string& text) { write_err(visible(text, true) + "\n"); }

// The conversation that a chat begins with.
struct Talk {
  std::optional<TalkFolder> folder;  // nothing: it is not saved
  std::string name;
  std::optional<TalkLock> lock;
  bool is_resumed = false;
  SavedTalk saved;
};

// Another chat holds the talk: this one goes on with what is saved of it, under a name of its own.
void take_other_name(Talk& talk) {
  const std::string former = talk.name;
  talk.lock = talk.folder->lock_new(talk.name);
  say(format("the talk %s is held in another chat; this one is kept as %s", former.c_str(),
             talk.name.c_str()));
}

Talk find_talk(const Options& options) {
  Talk talk;
  talk.saved.thinking = options.generation.thinking;
  if (options.session.empty() && !options.continues) return talk;
  const std::string state = state_folder();
  if (state.empty())
    fail(ErrorKind::usage,
         "there is no folder for talks: neither XDG_STATE_HOME nor HOME is an absolute path");
  talk.folder.emplace(state + "/talks");
  const std::optional<std::string> last = options.continues ? talk.folder->latest() : options.session;
  if (!last)
    fail(ErrorKind::usage, "there is no talk to continue",
         "dsv32 chat --session NAME begins one that is saved");
  talk.name = *last;
  talk.lock = talk.folder->lock(talk.name);
  std::optional<SavedTalk> saved = talk.folder->load(talk.name);
  if (!talk.lock) take_other_name(talk);
  if (!talk.lock->is_open())
    say("warning: the talk cannot be locked: another chat with it would take its place on disk");
  talk.is_resumed = saved.has_value();
  if (!saved) return talk;
  talk.saved = std::move(*saved);
  if (options.is_thinking_given) talk.saved.thinking = options.generation.thinking;
  return talk;
}

// /regen asks it once more; another question takes its place.
bool has_unanswered(const std::vector<Message>& messages) {
  return !messages.empty() && messages.back().role == Message::Role::user;
}

bool has_system(const std::vector<Message>& messages) {
  return !messages.empty() && messages[0].role == Message::Role::system;
}

// A system prompt given now takes the saved one's place.
Talk open_talk(const Options& options) {
  const std::string system = read_system(options);
  Talk talk = find_talk(options);
  std::vector<Message>& messages = talk.saved.messages;
  if (system.empty()) return talk;
  if (has_system(messages)) messages.erase(messages.begin());
  messages.insert(messages.begin(), {Message::Role::system, system, {}});
  return talk;
}

// What a resumed talk shares with its next prompt, whatever the message will be.
std::vector<int32_t> known_prompt(const SavedTalk& saved, const Tokenizer& tokenizer) {
  std::vector<Message> messages = saved.messages;
  if (has_unanswered(messages)) messages.pop_back();
  messages.push_back({Message::Role::user, {}, {}});
  return ChatFormat(tokenizer).encode(messages, saved.thinking);
}

void report_talk(const Talk& talk, const std::string& model) {
  constexpr size_t kShownChars = 160;
  if (talk.name.empty()) return;
  if (!talk.is_resumed) return say(format("talk %s begins", talk.name.c_str()));
  const std::vector<Message>& messages = talk.saved.messages;
  const bool is_unanswered = has_unanswered(messages);
  const size_t n_turns = (messages.size() - is_unanswered) / 2;
  say(format("talk %s resumed: %zu turn%s, used %s", talk.name.c_str(), n_turns, n_turns == 1 ? "" : "s",
             time_ago(talk.saved.used_ms, now_ms()).c_str()));
  if (talk.saved.model != model)
    say(format("note: the talk was held with %s", visible(talk.saved.model, false, 80).c_str()));
  if (n_turns == 0 && !is_unanswered) return;
  const auto question = messages.end() - (is_unanswered ? 1 : 2);
  say("  you: " + visible(question->content, false, kShownChars));
  say(is_unanswered ? "  no answer yet: /regen asks for it"
                    : "  answer: " + visible(messages.back().content, false, kShownChars));
}

class Chat {
 public:
  Chat(const Options& options, const Terminal& terminal, LoadedModel& model, Talk talk);
  int run();

 private:
  enum class Next { go_on, leave };

  LineEditor::Event read_message(std::string& message);
  Next do_command(const std::string& line);
  void clear();
  void save();
  void try_save();
  void show(std::string_view text);
  int leave();
  void ask(const std::string& message);
  void regenerate();
  void set_thinking(const std::string& word);
  void print_stats() const;
  void answer();
  void conclude(const GenerationResult& result);

  const Options& options_;
  const Terminal& terminal_;
  LoadedModel& model_;
  const ChatFormat format_;
  GracefulStop stop_{GracefulStop::Second::is_request};
  LineEditor editor_;
  Session session_;
  GenerationOptions generation_;
  uint64_t seed_;  // of the next answer
  Talk talk_;
  std::vector<Message>& messages_;  // the talk's
  bool is_unsaved_ = false;         // as has been told
  std::string stats_ = "no answers yet";
};

Chat::Chat(const Options& options, const Terminal& terminal, LoadedModel& model, Talk talk)
    : options_(options),
      terminal_(terminal),
      model_(model),
      format_(*model.tokenizer),
      editor_(terminal.is_in, stop_, terminal.is_in ? history_path() : ""),
      session_(model.engine),
      generation_(options.generation),
      seed_(choose_seed(options)),
      talk_(std::move(talk)),
      messages_(talk_.saved.messages) {
  generation_.thinking = talk_.saved.thinking;
}

void Chat::clear() { messages_.erase(messages_.begin() + has_system(messages_), messages_.end()); }

void Chat::save() {
  if (!talk_.folder) return;
  talk_.saved.model = model_name(model_.file.path());
  talk_.saved.thinking = generation_.thinking;
  talk_.saved.used_ms = now_ms();
  talk_.folder->save(talk_.name, talk_.saved);
}

// A talk that cannot be saved goes on; that is told once, and even when quiet, for saving was asked for.
void Chat::try_save() {
  try {
    save();
    is_unsaved_ = false;
  } catch (const Error& error) {
    if (!is_unsaved_) say(format("warning: %s; the chat goes on", error.what()));
    is_unsaved_ = true;
  }
}

// A terminal that cannot be written to has hung up, whether or not its signal came.
void Chat::show(std::string_view text) {
  try {
    write_out(text);
  } catch (const Error&) {
    stop_.hang_up();
  }
}

// What could not be saved before is tried once more. Throws Error{io}.
int Chat::leave() {
  if (is_unsaved_) save();
  return stop_.exit_code();
}

// Ctrl-C ends an answer; at the prompt it clears the line, and twice within a second it leaves.
int Chat::run() {
  auto interrupted_at = std::chrono::steady_clock::time_point{};
  while (!stop_.must_leave()) {
    stop_.forget_interrupt();
    std::string message;
    const LineEditor::Event event = read_message(message);
    if (event == LineEditor::Event::end) break;
    if (event == LineEditor::Event::interrupted) {
      const auto now = std::chrono::steady_clock::now();
      if (stop_.must_leave() || now - interrupted_at < std::chrono::seconds(1)) break;
      interrupted_at = now;
      show("\n");
      continue;
    }
    if (message.empty()) continue;
    if (message[0] != '/')
      ask(message);
    else if (do_command(message) == Next::leave)
      return leave();
  }
  if (terminal_.is_in) show("\n");
  return leave();
}

// A line that ends in a backslash goes on; so does everything between two """.
LineEditor::Event Chat::read_message(std::string& message) {
  constexpr std::string_view kQuotes = "\"\"\"";
  const char* prompt = "> ";
  bool is_quoted = false;
  for (std::string line;; prompt = ". ") {
    const LineEditor::Event event = editor_.read(prompt, line);
    if (event != LineEditor::Event::line) return event;
    editor_.remember(line);
    std::string_view part = line;
    if (message.empty() && !is_quoted && part.starts_with(kQuotes)) {
      is_quoted = true;
      part.remove_prefix(kQuotes.size());
    }
    const bool ends = is_quoted ? part.ends_with(kQuotes) : !part.ends_with('\\');
    if (is_quoted && ends) part.remove_suffix(kQuotes.size());
    if (!is_quoted && !ends) part.remove_suffix(1);
    message += part;
    if (ends) return event;
    message += '\n';
  }
}

Chat::Next Chat::do_command(const std::string& line) {
  static const std::vector<std::string> kNames{"/help", "/?",     "/clear",   "/new",   "/exit", "/quit",
                                               "/bye",  "/think", "/nothink", "/regen", "/stats"};
  const size_t space = line.find(' ');
  const std::string name = line.substr(0, space);
  const std::string rest = space == std::string::npos ? "" : line.substr(line.find_last_of(' ') + 1);
  if (name == "/exit" || name == "/quit" || name == "/bye") return Next::leave;
  if (name == "/help" || name == "/?")
    write_err(kHelp);
  else if (name == "/clear" || name == "/new")
    clear(), try_save();
  else if (name == "/think")
    set_thinking(rest);
  else if (name == "/nothink")
    set_thinking("off");
  else if (name == "/regen")
    regenerate();
  else if (name == "/stats")
    print_stats();
  else {
    const std::string near = nearest(name, kNames);
    say(format("unknown command %s%s", visible(name, false, 40).c_str(),
               near.empty() ? ", /help lists them" : format(" (did you mean %s?)", near.c_str()).c_str()));
  }
  return Next::go_on;
}

void Chat::set_thinking(const std::string& word) {
  if (word == "on" || word == "off")
    generation_.thinking = word == "on";
  else if (!word.empty())
    return say("/think takes on or off");
  say(generation_.thinking ? "thinking is on" : "thinking is off");
}

// Saved before it is answered: reading it may take long, and much can happen.
void Chat::ask(const std::string& message) {
  if (has_unanswered(messages_)) messages_.pop_back();
  messages_.push_back({Message::Role::user, message, {}});
  try_save();
  answer();
}

// The former answer stays when no other begins.
void Chat::regenerate() {
  std::optional<Message> former;
  if (!messages_.empty() && messages_.back().role == Message::Role::assistant) {
    former = std::move(messages_.back());
    messages_.pop_back();
  }
  if (!has_unanswered(messages_)) return say("there is no answer yet");
  answer();
  if (former && has_unanswered(messages_)) messages_.push_back(std::move(*former));
}

void Chat::print_stats() const {
  if (talk_.folder) say("talk: " + talk_.name);
  const int64_t n_tokens = static_cast<int64_t>(session_.tokens().size());
  say(format("context: %s of %s tokens", with_thousands(n_tokens).c_str(),
             with_thousands(n_tokens + session_.context_left()).c_str()));
  say(stats_);
  const std::string buffer = buffer_summary(model_.engine.forward().buffer_tally());
  if (!buffer.empty()) say(buffer);
}

// Answers the last message, which is the user's.
void Chat::answer() {
  const auto out = [this](std::string_view text) { show(text); };
  Printer printer({options_.shown_thinking(), true, terminal_.has_color}, out, write_err);
  StatusLine status(terminal_.can_redraw && !options_.quiet);
  AnswerListener listener(printer, status, stop_, true);
  if (options_.shown_thinking() == ThinkingDisplay::hide) listener.count_reasoning();
  generation_.sampling.seed = seed_++;
  stop_.forget_interrupt();
  try {
    const std::vector<int32_t> prompt = format_.encode(messages_, generation_.thinking);
    const GenerationResult result =
        generate(session_, *model_.tokenizer, prompt, generation_, listener, talk_.saved.decoded);
    status.erase();
    printer.finish(result.completion.thinking_closed);
    conclude(result);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::context_full) throw;
    status.erase();
    write_err(error_text(error.what(), "/clear begins anew; dsv32 chat -c N holds more"));
  }
}

void Chat::conclude(const GenerationResult& result) {
  stats_ = format("seed: %llu; ", static_cast<unsigned long long>(generation_.sampling.seed)) +
           prefill_summary(result) + "; " + decode_summary(result);
  if (options_.verbose) say(stats_);
  if (result.finish_reason == FinishReason::length && session_.context_left() == 0)
    say("the context is full: /clear begins anew; dsv32 chat -c N holds more");
  if (result.completion.content.empty() && result.finish_reason != FinishReason::stop)
    return say("ended before the answer began: /regen asks again");
  messages_.push_back({Message::Role::assistant, result.completion.content, result.completion.reasoning});
  talk_.saved.decoded = session_.decoded();
  try_save();
}

}  // namespace

int chat_command(const Options& options) {
  const Terminal terminal = examine_terminal(options.color);
  if (!terminal.is_out)
    fail(ErrorKind::usage, "chat needs a terminal on standard output",
         "dsv32 run answers a prompt in a pipe");
  Talk talk = open_talk(options);
  StatusLine status(terminal.can_redraw && !options.quiet);
  status.show("opening the model");
  LoadedModel model(options, [&](PrefixCache& prefixes, const Tokenizer& tokenizer) {
    prefixes.prefetch(known_prompt(talk.saved, tokenizer), talk.saved.decoded);
  });
  status.erase();
  report_model(model, options);
  const std::string name = model_name(model.file.path());
  if (!options.quiet) {
    say(format("%s, context %s tokens, /help lists commands", name.c_str(),
               with_thousands(model.engine.plan().cache.max_context).c_str()));
    report_talk(talk, name);
  }
  return Chat(options, terminal, model, std::move(talk)).run();
}

}  // namespace dsv32
