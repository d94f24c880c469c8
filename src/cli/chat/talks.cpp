// See talks.h. What cannot be read is listed with the reason, and is in nobody's way.
#include "cli/chat/talks.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "cli/chat/talk.h"
#include "cli/options/json.h"
#include "cli/terminal/streams.h"

namespace dsv32 {
namespace {

// A talk, or why it cannot be read.
struct Found {
  std::string name;
  SavedTalk talk;
  std::string damage;
};

std::vector<Found> find_all(const TalkFolder& folder) {
  std::vector<Found> all;
  for (const std::string& name : folder.names()) try {
      all.push_back({name, folder.load(name).value_or(SavedTalk()), ""});
    } catch (const Error& error) {
      all.push_back({name, {}, error.what()});
    }
  std::ranges::stable_sort(all, std::ranges::greater(),
                           [](const Found& found) { return found.talk.used_ms; });
  return all;
}

// The first question.
std::string subject_of(const SavedTalk& talk) {
  for (const Message& message : talk.messages)
    if (message.role == Message::Role::user) return message.content;
  return {};
}

std::string as_row(const Found& found, bool is_current) {
  constexpr size_t kShownChars = 60;
  const std::string name = found.name + (is_current ? " (this one)" : "");
  if (!found.damage.empty()) return format("%-20s  %s\n", name.c_str(), visible(found.damage).c_str());
  return format("%-20s  %-32s  %s\n", name.c_str(), talk_summary(found.talk).c_str(),
                visible(subject_of(found.talk), false, kShownChars).c_str());
}

std::string as_json(const Found& found) {
  Json json{{"name", found.name}};
  if (found.damage.empty())
    json.update({{"used_ms", found.talk.used_ms},
                 {"model", sanitize_utf8(found.talk.model)},
                 {"messages", found.talk.messages.size()},
                 {"subject", sanitize_utf8(subject_of(found.talk))}});
  else
    json["damage"] = sanitize_utf8(found.damage);
  return json.dump() + "\n";
}

const char* role_of(const Message& message) {
  switch (message.role) {
    case Message::Role::system: return "system";
    case Message::Role::user: return "user";
    case Message::Role::assistant: return "assistant";
  }
  return "";
}

std::string as_text(const SavedTalk& talk, const char* heading) {
  std::string text;
  for (const Message& message : talk.messages) {
    text += format("%s%s\n\n", heading, role_of(message)) + message.content;
    text += text.ends_with('\n') ? "\n" : "\n\n";
  }
  return text;
}

std::string as_messages(const SavedTalk& talk) {
  Json messages = Json::array();
  for (const Message& message : talk.messages) {
    Json object{{"role", role_of(message)}, {"content", sanitize_utf8(message.content)}};
    if (!message.reasoning.empty()) object["reasoning_content"] = sanitize_utf8(message.reasoning);
    messages.push_back(object);
  }
  return Json{{"messages", messages}}.dump() + "\n";
}

SavedTalk load(const TalkFolder& folder, const std::string& name) {
  std::optional<SavedTalk> talk = folder.load(name);
  if (!talk)
    fail(ErrorKind::usage, format("there is no talk %s", name.c_str()), "dsv32 talks list names them");
  return std::move(*talk);
}

// A talk that a chat goes on with is left alone.
TalkLock hold(const TalkFolder& folder, const std::string& name) {
  if (!folder.has(name))
    fail(ErrorKind::usage, format("there is no talk %s", name.c_str()), "dsv32 talks list names them");
  std::optional<TalkLock> lock = folder.lock(name);
  if (!lock) fail(ErrorKind::usage, format("the talk %s is held in a chat", name.c_str()));
  return std::move(*lock);
}

void check_words(const Options& options, size_t least, size_t most) {
  if (options.words.size() < least || options.words.size() > most)
    fail(ErrorKind::usage,
         options.command == Command::talks_rename ? "talks rename needs a talk's name and its new one"
                                                  : "the name of a talk is needed",
         "dsv32 talks list names them");
}

}  // namespace

std::string talks_list(const TalkFolder& folder, const std::string& current) {
  std::string text;
  for (const Found& found : find_all(folder)) text += as_row(found, found.name == current);
  return text;
}

int talks_command(const Options& options) {
  const TalkFolder folder = open_talk_folder();
  std::string text;
  switch (options.command) {
    case Command::talks_show:
      check_words(options, 1, 1);
      text = as_text(load(folder, options.words[0]), "");
      break;
    case Command::talks_export: {
      check_words(options, 1, 1);
      const SavedTalk talk = load(folder, options.words[0]);
      text = options.json ? as_messages(talk) : as_text(talk, "## ");
      break;
    }
    case Command::talks_rename: {
      check_words(options, 2, 2);
      TalkLock lock = hold(folder, options.words[0]);
      folder.rename(options.words[0], options.words[1], lock);
      break;
    }
    case Command::talks_delete:
      check_words(options, 1, SIZE_MAX);
      for (const std::string& name : options.words) {
        const TalkLock lock = hold(folder, name);
        folder.remove(name);
      }
      break;
    default:
      if (!options.json) text = talks_list(folder);
      if (options.json)
        for (const Found& found : find_all(folder)) text += as_json(found);
  }
  write_out(text);
  return 0;
}

}  // namespace dsv32
