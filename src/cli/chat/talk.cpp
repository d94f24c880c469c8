// See talk.h.
#include "cli/chat/talk.h"

#include <ctime>

#include "base/error.h"
#include "base/text.h"
#include "cli/terminal/streams.h"
#include "cli/terminal/user_folders.h"

namespace dsv32 {
namespace {

std::string name_of_now() {
  char text[32];
  const time_t now = std::time(nullptr);
  tm parts{};
  localtime_r(&now, &parts);
  return {text, std::strftime(text, sizeof text, "%Y-%m-%d-%H%M", &parts)};
}

}  // namespace

TalkFolder open_talk_folder() {
  const std::string state = make_user_folder(UserFolder::state);
  if (state.empty())
    fail(ErrorKind::usage, "there is no folder for talks: neither XDG_STATE_HOME nor HOME names one");
  return TalkFolder(state + "/talks");
}

Talk::Talk(const Options& options, const std::string& system) {
  const bool is_named = !options.talk.empty() || options.continues;
  saved.thinking = options.generation.thinking;
  is_kept_ = options.keeps_talk;
  try {
    if (is_kept_ || is_named) folder();
  } catch (const Error& error) {
    if (is_named) throw;
    is_kept_ = false;
    say(format("warning: this talk is not kept: %s", error.what()));
  }
  if (is_named) find(options);
  if (!system.empty()) set_system(system);
}

const TalkFolder& Talk::folder() {
  if (!folder_) folder_.emplace(open_talk_folder());
  return *folder_;
}

void Talk::find(const Options& options) {
  const std::optional<std::string> last = options.continues ? folder_->latest() : options.talk;
  if (!last)
    fail(ErrorKind::usage, "there is no talk to continue", "dsv32 chat begins one, and so does --talk NAME");
  name_ = *last;
  if (is_kept_) lock_ = folder_->lock(name_);
  std::optional<SavedTalk> found = folder_->load(name_);
  is_resumed_ = found.has_value();
  if (found) saved = std::move(*found);
  if (options.is_thinking_given()) saved.thinking = options.generation.thinking;
  if (!is_kept_) return;
  if (!lock_) {
    const std::string former = name_;
    lock_ = folder_->lock_new(name_);
    say(format("the talk %s is held in another chat; this one is kept as %s", former.c_str(), name_.c_str()));
  }
  if (!lock_->is_open())
    say("warning: the talk cannot be locked: another chat with it would take its place on disk");
}

bool Talk::has_unanswered() const {
  return !saved.messages.empty() && saved.messages.back().role == Message::Role::user;
}

bool Talk::has_system() const {
  return !saved.messages.empty() && saved.messages[0].role == Message::Role::system;
}

void Talk::set_system(const std::string& text) {
  if (has_system()) saved.messages.erase(saved.messages.begin());
  if (!text.empty()) saved.messages.insert(saved.messages.begin(), {Message::Role::system, text, {}});
}

void Talk::ask(const std::string& question) {
  if (has_unanswered()) saved.messages.pop_back();
  saved.messages.push_back({Message::Role::user, question, {}});
}

void Talk::take_name() {
  name_ = name_of_now();
  lock_ = folder_->lock_new(name_);
}

void Talk::save() {
  if (!is_kept_) return;
  if (name_.empty()) take_name();
  saved.used_ms = now_ms();
  folder_->save(name_, saved);
}

void Talk::save_with(const Message& answer) {
  saved.messages.push_back(answer);
  try {
    save();
  } catch (...) {
    saved.messages.pop_back();
    throw;
  }
  saved.messages.pop_back();
}

void Talk::begin_anew() {
  saved.messages.erase(saved.messages.begin() + has_system(), saved.messages.end());
  saved.decoded.clear();
  name_.clear();
  lock_.reset();
  is_resumed_ = false;
}

void Talk::rename(const std::string& name) {
  check_talk_name(name);
  folder();
  if (is_kept_ && !name_.empty()) {
    folder_->rename(name_, name, *lock_);
  } else {
    std::optional<TalkLock> taken = folder_->lock(name);
    if (!taken || folder_->has(name))
      fail(ErrorKind::usage, format("there is a talk %s already", name.c_str()));
    lock_ = std::move(taken);
    is_kept_ = true;
  }
  name_ = name;
  save();
}

std::string talk_summary(const SavedTalk& talk) {
  size_t n_turns = 0;
  for (const Message& message : talk.messages) n_turns += message.role == Message::Role::assistant;
  return format("%zu turn%s, used %s", n_turns, n_turns == 1 ? "" : "s",
                time_ago(talk.used_ms, now_ms()).c_str());
}

}  // namespace dsv32
