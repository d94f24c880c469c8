// See chat_commands.h.
#include "cli/chat/chat_commands.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "cli/options/flags.h"
#include "cli/terminal/attachment.h"

namespace dsv32 {
namespace {

constexpr const char* kSetHelp = "show what answers are drawn by, or set it: ";

constexpr ChatCommand kCommands[] = {
    {ChatAction::help, "/help /?", "", "this list", true},
    {ChatAction::file, "/file", "PATH", "a file goes with the next message, as @PATH in one does", true},
    {ChatAction::edit, "/edit", "", "write the next message in $VISUAL, $EDITOR or vi", true},
    {ChatAction::system, "/system", "[TEXT]", "show the system prompt, or set it; \"\" is none", true},
    {ChatAction::set, "/set", "[NAME [VALUE]]", kSetHelp, true},
    {ChatAction::think, "/think", "[on|off]", "think before answering, or not", true},
    {ChatAction::think_off, "/nothink", "", "the same as /think off", true},
    {ChatAction::retry, "/retry /regen", "", "answer the last message again", false},
    {ChatAction::undo, "/undo", "", "take back the last message, for /edit, and its answer", false},
    {ChatAction::copy, "/copy", "", "the last answer to the terminal's clipboard", true},
    {ChatAction::tokens, "/tokens", "", "what the context holds", true},
    {ChatAction::stats, "/stats", "", "context used, tokens from the cache, speeds", true},
    {ChatAction::save, "/save", "NAME", "keep the talk under this name", true},
    {ChatAction::talks, "/talks", "", "the talks that are kept", true},
    {ChatAction::clear, "/clear /new", "", "begin another talk with the same system prompt", false},
    {ChatAction::leave, "/exit /quit /bye exit quit", "", "leave, as Ctrl-D does", false},
};

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> words;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    words.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

std::vector<std::string> names_of(bool only_harmless) {
  std::vector<std::string> names;
  for (const ChatCommand& command : kCommands)
    if (command.is_harmless || !only_harmless)
      std::ranges::copy(split(command.names), std::back_inserter(names));
  return names;
}

// What the candidates that begin with `part` have in common behind it; the choices when that is nothing.
LineEditor::Completion complete(std::string_view part, std::vector<std::string> candidates) {
  std::erase_if(candidates, [&](const std::string& candidate) { return !candidate.starts_with(part); });
  if (candidates.empty()) return {};
  std::string common = candidates.front();
  for (const std::string& candidate : candidates)
    common.resize(static_cast<size_t>(std::ranges::mismatch(common, candidate).in1 - common.begin()));
  if (common.size() > part.size()) {
    const bool is_whole = candidates.size() == 1 && !common.ends_with('/');
    return {common.substr(part.size()) + (is_whole ? " " : ""), {}};
  }
  std::ranges::sort(candidates);
  return {{}, candidates.size() > 1 ? candidates : std::vector<std::string>{}};
}

// Files and folders, these with a slash. Those that are hidden only to who asks for them.
LineEditor::Completion complete_path(std::string_view typed) {
  namespace fs = std::filesystem;
  const size_t slash = typed.rfind('/');
  const std::string folder(typed.substr(0, slash == std::string_view::npos ? 0 : slash + 1));
  const std::string_view part = typed.substr(folder.size());
  std::vector<std::string> names;
  std::error_code error;
  const fs::directory_iterator entries(folder.empty() ? "." : attachment_path(folder), error);
  for (auto entry = begin(entries); !error && entry != end(entries); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with('.') && !part.starts_with('.')) continue;
    names.push_back(name + (entry->is_directory(error) ? "/" : ""));
  }
  return complete(part, std::move(names));
}

}  // namespace

std::span<const ChatCommand> chat_commands() { return kCommands; }

// Of 22 rows of 80 columns at most: a window of 24 shows it all.
std::string chat_help() {
  std::string text;
  for (const ChatCommand& command : kCommands) {
    std::string names;
    for (const std::string& name : split(command.names)) names += (names.empty() ? "" : ", ") + name;
    const std::string settings = command.action == ChatAction::set ? joined(chat_settings(), ", ") : "";
    text += fitted(
        format("%-21s %s%s\n", (names + " " + command.argument).c_str(), command.text, settings.c_str()), 79);
  }
  return text +
         R"(A line that ends in \ goes on in the next one; """ begins and ends a text of
several lines; a text that is pasted is one message. // begins a message with a
slash. Tab completes commands and paths. Ctrl-C ends an answer; what was said
stays.
)";
}

const ChatCommand* find_chat_command(const std::string& name) {
  for (const ChatCommand& command : kCommands)
    if (std::ranges::count(split(command.names), name) > 0) return &command;
  return nullptr;
}

std::string nearest_chat_command(const std::string& name) { return nearest(name, names_of(true)); }

std::vector<std::string> chat_settings() {
  std::vector<std::string> names;
  for (const GenerationOption& option : generation_options())
    if (option.setting) names.emplace_back(option.setting);
  return names;
}

LineEditor::Completion complete_chat_line(std::string_view before) {
  const size_t space = before.find(' '), last = before.rfind(' ') + 1;
  const std::string name(before.substr(0, space));
  if (before.starts_with('/') && space == std::string_view::npos) return complete(before, names_of(false));
  const ChatCommand* command = find_chat_command(name);
  if (command && command->action == ChatAction::file) return complete_path(before.substr(space + 1));
  if (command && command->action == ChatAction::set && last == space + 1)
    return complete(before.substr(last), chat_settings());
  if (command && command->action == ChatAction::think) return complete(before.substr(last), {"on", "off"});
  if (!before.substr(last).starts_with('@')) return {};
  return complete_path(before.substr(last + 1));
}

}  // namespace dsv32
