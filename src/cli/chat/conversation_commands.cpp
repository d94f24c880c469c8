// What the commands of a chat do (chat_commands.h). What fails in one is told, and the chat goes on.
#include <algorithm>

#include <openssl/evp.h>

#include "base/error.h"
#include "base/text.h"
#include "cli/chat/answer.h"
#include "cli/chat/conversation.h"
#include "cli/chat/talks.h"
#include "cli/options/commands.h"
#include "cli/options/flags.h"
#include "cli/terminal/attachment.h"
#include "cli/terminal/external_editor.h"
#include "cli/terminal/streams.h"
#include "cli/terminal/word_wrap.h"

namespace dsv32 {
namespace {

std::string base64(const std::string& bytes) {
  std::string text(4 * ((bytes.size() + 2) / 3) + 1, '\0');
  const int n =
      EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                      reinterpret_cast<const unsigned char*>(bytes.data()), static_cast<int>(bytes.size()));
  text.resize(static_cast<size_t>(n));
  return text;
}

}  // namespace

Conversation::Next Conversation::do_command(const std::string& line) {
  const size_t space = std::min(line.find(' '), line.size());
  const std::string name = line.substr(0, space);
  std::string rest = line.substr(std::min(line.find_first_not_of(' ', space), line.size()));
  rest.resize(rest.find_last_not_of(' ') + 1);
  const ChatCommand* command = find_chat_command(name);
  if (command) try {
      return act(*command, rest);
    } catch (const Error& error) {
      write_err(error_text(error.what(), error.hint()));
      return Next::go_on;
    }
  const std::string near = nearest_chat_command(name);
  say(format("unknown command %s%s", visible(name, false, 40).c_str(),
             near.empty() ? ", /help lists them; // begins a message with a slash"
                          : format(" (did you mean %s?)", near.c_str()).c_str()));
  return Next::go_on;
}

Conversation::Next Conversation::act(const ChatCommand& command, const std::string& rest) {
  switch (command.action) {
    case ChatAction::help:
      write_err(WordWrap().wrap(chat_help(), terminal_.can_redraw ? columns() : 0));
      break;
    case ChatAction::file: attach(rest); break;
    case ChatAction::edit: edit(); break;
    case ChatAction::system: set_system(rest); break;
    case ChatAction::set: set(rest); break;
    case ChatAction::think: set_thinking(rest); break;
    case ChatAction::think_off: set_thinking("off"); break;
    case ChatAction::retry: regenerate(); break;
    case ChatAction::undo: undo(); break;
    case ChatAction::copy: copy(); break;
    case ChatAction::tokens: print_tokens(); break;
    case ChatAction::stats: print_stats(); break;
    case ChatAction::save: talk_.rename(rest), say("this talk is kept as " + talk_.name()); break;
    case ChatAction::talks: print_talks(); break;
    case ChatAction::clear: clear(); break;
    case ChatAction::leave: return Next::leave;
  }
  return Next::go_on;
}

void Conversation::attach(const std::string& path) {
  if (path.empty()) return say("/file needs a path");
  const std::string text = read_attachment(path);
  attached_ += text;
  say(format("%s, %s bytes, goes with the next message", path.c_str(),
             with_thousands(static_cast<int64_t>(text.size())).c_str()));
}

void Conversation::edit() {
  std::string text = draft_;
  bool is_done = false;
  editor_.lend_terminal([&] { is_done = edit_text(text); });
  stop_.forget_interrupt();  // it was the editor's
  draft_ = is_done ? "" : text;
  if (!is_done)
    fail(ErrorKind::io, format("the editor %s failed", visible(editor_command()).c_str()),
         text.empty() ? "" : "the text is not sent; /edit has it");
  if (text.empty()) return say("nothing was written");
  show(visible(text, true) + "\n");
  text = as_text(text);
  editor_.remember(text);
  ask(text);
}

void Conversation::set_system(const std::string& text) {
  if (!text.empty()) {
    talk_.set_system(text == "\"\"" ? "" : text);
    if (!talk_.name().empty()) try_save();
  }
  say(talk_.has_system() ? talk_.messages().front().content : "there is no system prompt");
}

// By the flags of the same names.
void Conversation::set(const std::string& words) {
  const size_t space = std::min(words.find(' '), words.size());
  const std::string name = words.substr(0, space), value = words.substr(std::min(space + 1, words.size()));
  const bool is_known = std::ranges::count(chat_settings(), name) > 0;
  if (words.empty() || (is_known && value.empty())) return print_settings(name);
  if (!is_known) return say("/set takes one of " + joined(chat_settings(), ", ") + ", and its value");
  if (name == "think") return set_thinking(value);
  find_flag(flags_of(Command::chat), name)->apply(options_, {"/set " + name, value});
  if (name == "seed") seed_ = choose_seed(options_);
  print_settings("");
}

// Of this name; empty: of all.
void Conversation::print_settings(const std::string& name) const {
  GenerationOptions options = options_.generation;
  options.sampling.seed = seed_;
  std::string line;
  for (const GenerationOption& option : generation_options())
    if (option.setting && (name.empty() || name == option.setting))
      line += (line.empty() ? "" : ", ") + std::string(option.setting) + " " + text_of(option.field(options));
  say(line);
}

void Conversation::set_thinking(const std::string& word) {
  if (word == "on" || word == "off")
    options_.generation.thinking = word == "on";
  else if (!word.empty())
    return say("think takes on or off");
  say(options_.generation.thinking ? "thinking is on" : "thinking is off");
}

void Conversation::undo() {
  constexpr size_t kShownChars = 60;
  std::vector<Message>& messages = talk_.messages();
  if (!talk_.has_unanswered() && messages.size() > talk_.has_system()) messages.pop_back();
  if (!talk_.has_unanswered()) return say("there is nothing to take back");
  draft_ = messages.back().content;
  messages.pop_back();
  try_save();
  say(format("taken back: %s; /edit has it", visible(draft_, false, kShownChars).c_str()));
}

// The terminal puts it there, if it knows OSC 52 and allows it.
void Conversation::copy() {
  if (talk_.messages().empty() || talk_.messages().back().role != Message::Role::assistant)
    return say("there is no answer yet");
  const std::string& text = talk_.messages().back().content;
  show("\x1b]52;c;" + base64(text) + "\a");
  say(format("%s bytes went to the terminal's clipboard",
             with_thousands(static_cast<int64_t>(text.size())).c_str()));
}

// Of the first messages, as the next prompt has them: thinking is not kept for it.
size_t Conversation::n_tokens(size_t n_messages) const {
  const auto messages = std::span<const Message>(talk_.saved.messages).first(n_messages);
  return messages.empty() ? 0 : format_.encode(messages, false).size();
}

// Of each message what it adds to the prompt.
void Conversation::print_tokens() {
  constexpr size_t kShownChars = 50;
  const std::vector<Message>& messages = talk_.messages();
  size_t n_before = 0;
  for (size_t i = 0; i < messages.size(); ++i) {
    const size_t n = n_tokens(i + 1);
    const char* who = messages[i].role == Message::Role::user     ? "you"
                      : messages[i].role == Message::Role::system ? "system"
                                                                  : "answer";
    say(format("%9s  %-6s  %s", with_thousands(static_cast<int64_t>(n - n_before)).c_str(), who,
               visible(messages[i].content, false, kShownChars).c_str()));
    n_before = n;
  }
  const int64_t n_context = model_.facts().context;
  say(format("%9s  of %s tokens of context", with_thousands(static_cast<int64_t>(n_before)).c_str(),
             with_thousands(n_context).c_str()));
}

void Conversation::print_stats() {
  if (!talk_.name().empty()) say("talk: " + talk_.name());
  say(format("context: %s of %s tokens",
             with_thousands(static_cast<int64_t>(n_tokens(talk_.messages().size()))).c_str(),
             with_thousands(model_.facts().context).c_str()));
  say(stats_.empty() ? "no answers yet" : stats_);
  const std::string buffer = buffer_summary(buffer_tally_);
  if (!buffer.empty()) say(buffer);
}

void Conversation::print_talks() { write_err(talks_list(talk_.folder(), talk_.name())); }

void Conversation::clear() {
  if (talk_.is_kept() && !talk_.name().empty())
    say(format("the talk is kept as %s; another begins", talk_.name().c_str()));
  talk_.begin_anew();
  stats_.clear();
  buffer_tally_ = {};
}

}  // namespace dsv32
