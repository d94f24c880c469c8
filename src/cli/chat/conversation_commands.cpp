// The commands of a chat: their table, their help, their completion by Tab, and their functions. An error in
// a command is shown, and the chat goes on.
#include <algorithm>
#include <filesystem>
#include <optional>

#include "base/error.h"
#include "base/text.h"
#include "cli/chat/answer.h"
#include "cli/chat/chat.h"
#include "cli/options/flags.h"
#include "cli/options/schema.h"
#include "cli/terminal/streams.h"
#include "cli/terminal/user_files.h"

namespace dsv32 {
namespace {

// The text after `part` that all candidates with this beginning share; if it is empty, these candidates.
LineEditor::Expansion expand(std::string_view part, std::vector<std::string> candidates) {
  std::erase_if(candidates, [&](const std::string& candidate) { return !candidate.starts_with(part); });
  if (candidates.empty()) return {};
  std::string common = candidates.front();
  for (const std::string& candidate : candidates)
    common.resize(static_cast<size_t>(std::ranges::mismatch(common, candidate).in1 - common.begin()));
  const bool is_whole = candidates.size() == 1 && !common.ends_with('/');
  if (common.size() > part.size()) return {common.substr(part.size()) + (is_whole ? " " : ""), {}};
  if (candidates.size() == 1) return {};
  std::ranges::sort(candidates);
  return {{}, candidates};
}

// Completes files, and folders with a slash; hidden ones only when their dot is typed.
LineEditor::Expansion expand_path(std::string_view typed) {
  namespace fs = std::filesystem;
  const std::string folder(typed.substr(0, typed.rfind('/') + 1));
  const std::string_view part = typed.substr(folder.size());
  std::vector<std::string> names;
  std::error_code error;
  const fs::directory_iterator entries(folder.empty() ? "." : attachment_path(folder), error);
  for (auto entry = begin(entries); !error && entry != end(entries); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with('.') && !part.starts_with('.')) continue;
    names.push_back(name + (entry->is_directory(error) ? "/" : ""));
  }
  return expand(part, std::move(names));
}

// A schema may be long, and there may be none.
std::string shown_setting(const std::string& value) {
  constexpr size_t kShownChars = 80;
  return value.empty() ? "off" : visible(value, false, kShownChars);
}

}  // namespace

std::span<const Conversation::ChatCommand> Conversation::commands() {
  using C = Conversation;
  static constexpr ChatCommand kCommands[] = {
      {"/help /?", "", "this list", true, &C::print_help},
      {"/file", "PATH", "add a file to the next message, like @PATH", true, &C::attach},
      {"/edit", "", "write the next message in $VISUAL, $EDITOR or vi", true, &C::edit},
      {"/system", "[TEXT]", "show the system prompt, or set it; \"\" is none", true, &C::set_system},
      {"/set", "[NAME [VALUE]]", "show or set the sampling options: ", true, &C::set},
      {"/think", "[on|off]", "think before answering, or not", true, &C::set_thinking},
      {"/nothink", "", "the same as /think off", true, &C::stop_thinking},
      {"/retry /regen", "", "answer the last message again", false, &C::retry},
      {"/undo", "", "take back the last message, for /edit, and its answer", false, &C::undo},
      {"/stats", "", "context used, tokens from the cache, speeds", true, &C::print_stats},
      {"/save", "NAME", "keep the talk under this name", true, &C::save_as},
      {"/talks", "", "the talks that are kept", true, &C::print_talks},
      {"/clear /new", "", "begin another talk with the same system prompt", false, &C::clear},
      {"/exit /quit /bye exit quit", "", "leave, as Ctrl-D does", false, &C::exit},
  };
  return kCommands;
}

std::string Conversation::help() {
  std::string text;
  for (const ChatCommand& command : commands()) {
    const std::string names = replaced(command.names, " ", ", ") + " " + command.argument;
    text += format("%-21s %s\n", names.c_str(), command.text);
    if (command.run == &Conversation::set)
      text += format("%22s%s\n", "", joined(chat_settings(), " ").c_str());
  }
  return text +
         R"(A line that ends in \ goes on in the next one; """ begins and ends a text of
several lines; a text that is pasted is one message. // begins a message with a
slash. Tab completes commands and paths. Ctrl-C stops an answer; its text is
kept.
)";
}

const Conversation::ChatCommand* Conversation::find_command(const std::string& name) {
  for (const ChatCommand& command : commands())
    if (std::ranges::count(split(command.names, ' '), name) > 0) return &command;
  return nullptr;
}

std::vector<std::string> chat_settings() {
  std::vector<std::string> names;
  for (const GenerationOption& option : generation_options())
    if (option.setting) names.emplace_back(option.setting);
  return names;
}

LineEditor::Expansion Conversation::complete(std::string_view before) {
  const size_t space = before.find(' '), last = before.rfind(' ') + 1;
  const std::string_view word = before.substr(last);
  if (before.starts_with('/') && space == before.npos) return expand(before, names(false));
  const ChatCommand* command = find_command(std::string(before.substr(0, space)));
  const auto run = command ? command->run : nullptr;
  if (run == &Conversation::attach) return expand_path(before.substr(space + 1));
  if (run == &Conversation::set && last == space + 1) return expand(word, chat_settings());
  if (run == &Conversation::set && before.substr(space + 1).starts_with("schema ")) return expand_path(word);
  if (run == &Conversation::set_thinking) return expand(word, {"on", "off"});
  return word.starts_with('@') ? expand_path(word.substr(1)) : LineEditor::Expansion();
}

std::vector<std::string> Conversation::names(bool only_harmless) {
  std::vector<std::string> names;
  for (const ChatCommand& command : commands())
    if (command.is_harmless || !only_harmless)
      std::ranges::copy(split(command.names, ' '), std::back_inserter(names));
  return names;
}

void Conversation::do_command(const std::string& line) {
  const size_t space = std::min(line.find(' '), line.size());
  const std::string name = line.substr(0, space);
  std::string rest = line.substr(std::min(line.find_first_not_of(' ', space), line.size()));
  rest.resize(rest.find_last_not_of(' ') + 1);
  if (const ChatCommand* command = find_command(name)) try {
      return (this->*command->run)(rest);
    } catch (const Error& error) {
      return write_err(error_text(error.what(), error.hint()));
    }
  const std::string near = nearest(name, names(true));
  say("unknown command " + visible(name, false, 40) +
      (near.empty() ? ", /help lists them; // begins a message with a slash"
                    : " (did you mean " + near + "?)"));
}

void Conversation::print_help(const std::string&) {
  write_err(WordWrap().wrap(help(), terminal_.can_redraw ? columns() : 0));
}

void Conversation::attach(const std::string& path) {
  if (path.empty()) return say("/file needs a path");
  const std::string text = read_attachment(path);
  attached_ += text;
  say(attachment_note(path, text) + "the next message");
}

void Conversation::edit(const std::string&) {
  std::string text = draft_;
  const bool is_done = editor_.edit_elsewhere(text);
  stop_.forget_interrupt();  // a Ctrl-C in the editor was for the editor
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
  say(talk_.has_system() ? talk_.messages.front().content : "there is no system prompt");
}

// Sets an option as the flag of the same name does.
void Conversation::set(const std::string& words) {
  const size_t space = std::min(words.find(' '), words.size());
  const std::string name = words.substr(0, space), value = words.substr(std::min(space + 1, words.size()));
  const bool is_known = std::ranges::count(chat_settings(), name) > 0;
  if (words.empty() || (is_known && value.empty())) return print_settings(name);
  if (!is_known) return say("/set takes one of " + joined(chat_settings(), ", ") + ", and its value");
  if (name == "think") return set_thinking(value);
  if (name == "schema") return set_schema(value);
  find_flag(flags_of(Command::chat), name)->field(options_).set({"/set " + name, value});
  if (name == "seed") seed_ = choose_seed(options_);
  print_settings("");
}

// Prints the setting of this name; all, if it is empty.
void Conversation::print_settings(const std::string& name) const {
  GenerationOptions options = options_.generation;
  options.sampling.seed = seed_, options.thinking = thinks(format_.kind(), talk_.thinking);
  std::string line;
  for (const GenerationOption& option : generation_options())
    if (option.setting && (name.empty() || name == option.setting))
      line += (line.empty() ? "" : ", ") + std::string(option.setting) + " " +
              shown_setting(text_of(option.field(options)));
  say(line);
}

// Asks for documents that a schema accepts, as --schema does, or for any text again. Talks do not keep it.
void Conversation::set_schema(const std::string& given) {
  if (given == "-") return say("the messages are on standard input, a schema cannot be read from it");
  if (!options_.tools.empty()) return say("an answer that may call tools is no document");
  GenerationOptions changed = options_.generation;
  changed.constraint = given == "off" ? "" : read_schema(attachment_path(given), options_);
  changed.check();
  options_.generation = std::move(changed);
  print_settings("schema");
}

void Conversation::set_thinking(const std::string& word) {
  if (word == "on" || word == "off")
    talk_.thinking = thinks(format_.kind(), word == "on", true);
  else if (!word.empty())
    return say("think takes on or off");
  say(thinks(format_.kind(), talk_.thinking) ? "thinking is on" : "thinking is off");
}

// The former answer stays when no new one begins.
void Conversation::retry(const std::string&) {
  std::vector<Message>& messages = talk_.messages;
  std::optional<Message> former;
  if (talk_.has_answer()) former = std::move(messages.back()), messages.pop_back();
  if (!talk_.awaits_answer()) return say("there is no answer yet");
  answer();
  if (former && talk_.awaits_answer()) messages.push_back(std::move(*former));
}

void Conversation::undo(const std::string&) {
  constexpr size_t kShownChars = 60;
  while (std::ssize(talk_.messages) > talk_.has_system() && !talk_.has_question()) talk_.messages.pop_back();
  if (!talk_.has_question()) return say("there is nothing to take back");
  draft_ = talk_.messages.back().content;
  talk_.messages.pop_back();
  try_save();
  say("taken back: " + visible(draft_, false, kShownChars) + "; /edit has it");
}

void Conversation::print_stats(const std::string&) {
  const int64_t n_tokens = talk_.messages.empty() ? 0 : std::ssize(format_.encode(talk_.messages, false));
  if (!talk_.name().empty()) say("talk: " + talk_.name());
  say("context: " + with_thousands(n_tokens) + " of " + with_thousands(model_.facts().context) + " tokens");
  say(stats_.empty() ? "no answers yet" : stats_);
  if (buffer_tally_.n_rows > 0) say(buffer_summary(buffer_tally_));
}

void Conversation::save_as(const std::string& name) {
  talk_.rename(name);
  say("this talk is kept as " + talk_.name());
}

void Conversation::print_talks(const std::string&) { write_err(talks_list(talk_.store(), talk_.name())); }

void Conversation::clear(const std::string&) {
  if (talk_.has_file()) say("the talk is kept as " + talk_.name() + "; another begins");
  talk_.begin_anew();
  stats_.clear();
  buffer_tally_ = {};
}

}  // namespace dsv32
