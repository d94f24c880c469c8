// The command `dsv32 talks`. What cannot be read is listed with the reason.
#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "cli/chat/chat.h"
#include "cli/chat/talk.h"
#include "cli/options/json.h"
#include "cli/terminal/streams.h"

namespace dsv32 {
namespace {

// A talk, or why it cannot be read.
struct Found {
  std::string name;
  Talk talk;
  std::string damage;
};

std::vector<Found> find_all(const TalkStore& store) {
  std::vector<Found> all;
  for (const std::string& name : store.names()) try {
      all.push_back({name, store.load(name).value_or(Talk()), ""});
    } catch (const Error& error) {
      all.push_back({name, {}, error.what()});
    }
  std::ranges::stable_sort(all, std::ranges::greater(),
                           [](const Found& found) { return found.talk.used_ms; });
  return all;
}

std::string as_json(const Found& found) {
  Json json{{"name", found.name}};
  if (found.damage.empty())
    json.update({{"used_ms", found.talk.used_ms},
                 {"model", sanitize_utf8(found.talk.model)},
                 {"messages", found.talk.messages.size()},
                 {"subject", sanitize_utf8(found.talk.first_question())}});
  else
    json["damage"] = sanitize_utf8(found.damage);
  return json.dump() + "\n";
}

std::string as_text(const Talk& talk, const char* heading) {
  std::string text;
  for (const Message& message : talk.messages) {
    text += std::string(heading) + role_name(message.role) + "\n\n" + message.content;
    text += text.ends_with('\n') ? "\n" : "\n\n";
  }
  return text;
}

std::string as_messages(const Talk& talk) {
  Json messages = Json::array();
  for (const Message& message : talk.messages) {
    Json object{{"role", role_name(message.role)}, {"content", sanitize_utf8(message.content)}};
    if (!message.reasoning.empty()) object["reasoning_content"] = sanitize_utf8(message.reasoning);
    messages.push_back(object);
  }
  return Json{{"messages", messages}}.dump() + "\n";
}

Talk load(const TalkStore& store, const std::string& name) {
  std::optional<Talk> talk = store.load(name);
  if (!talk) fail_absent(name);
  return std::move(*talk);
}

// A talk that a chat goes on with is left alone.
TalkLock hold(const TalkStore& store, const std::string& name) {
  if (!store.has(name)) fail_absent(name);
  std::optional<TalkLock> lock = store.lock(name);
  if (!lock) fail(ErrorKind::usage, "the talk " + name + " is held in a chat");
  return std::move(*lock);
}

void check_words(const Options& options) {
  const bool is_rename = options.command == Command::talks_rename;
  const size_t n = options.words.size(), n_wanted = is_rename ? 2 : 1;
  if (n == n_wanted || (n > n_wanted && options.command == Command::talks_delete)) return;
  fail(ErrorKind::usage,
       is_rename ? "talks rename needs a talk's name and its new one" : "the name of a talk is needed",
       "dsv32 talks list names them");
}

}  // namespace

std::string talks_list(const TalkStore& store, const std::string& current) {
  constexpr size_t kShownChars = 60;
  std::string text;
  for (const auto& [found_name, talk, damage] : find_all(store)) {
    const std::string name = found_name + (found_name == current ? " (this one)" : "");
    text += damage.empty() ? format("%-20s  %-32s  %s\n", name.c_str(), talk.summary().c_str(),
                                    visible(talk.first_question(), false, kShownChars).c_str())
                           : format("%-20s  %s\n", name.c_str(), visible(damage).c_str());
  }
  return text;
}

int talks_command(const Options& options) {
  const TalkStore store = open_talk_store();
  const std::vector<std::string>& names = options.words;
  std::string text;
  if (options.command != Command::talks_list) check_words(options);
  if (options.command == Command::talks_show) {
    text = as_text(load(store, names[0]), "");
  } else if (options.command == Command::talks_export) {
    const Talk talk = load(store, names[0]);
    text = options.json ? as_messages(talk) : as_text(talk, "## ");
  } else if (options.command == Command::talks_rename) {
    TalkLock lock = hold(store, names[0]);
    store.rename(names[0], names[1], lock);
  } else if (options.command == Command::talks_delete) {
    for (const std::string& name : names) {
      const TalkLock lock = hold(store, name);
      store.remove(name);
    }
  } else if (options.json) {
    for (const Found& found : find_all(store)) text += as_json(found);
  } else {
    text = talks_list(store);
  }
  write_out(text);
  return 0;
}

}  // namespace dsv32
