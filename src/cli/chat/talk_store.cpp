// See talk.h. The folder of talks, and the command `dsv32 talks`, which lists unreadable talks with the
// reason.
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <ctime>
#include <random>

#include <fcntl.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file_system.h"
#include "base/text.h"
#include "cli/chat/answer.h"
#include "cli/chat/chat.h"
#include "cli/chat/talk.h"
#include "cli/options/json.h"
#include "cli/terminal/streams.h"
#include "cli/terminal/user_files.h"

namespace dsv32 {
namespace {

constexpr int64_t kLeftoverAge = 3600, kSecond = 1000000000;  // in seconds, in nanoseconds
constexpr std::string_view kEnding = ".json", kTemporaryEnding = ".tmp";

std::string file_name(const std::string& name) { return name + std::string(kEnding); }
std::string lock_name(const std::string& name) { return "." + name + ".lock"; }

[[noreturn]] void fail_absent(const std::string& name) {
  fail(ErrorKind::usage, "there is no talk " + name, "dsv32 talks list names them");
}

// Empty when the file is this user's.
std::string why_foreign(const FileInfo& info) {
  return info.owner == geteuid() ? ""
                                 : format("it belongs to user %u, not to user %u", info.owner, geteuid());
}

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
  return shown_json(json) + "\n";
}

// Locks a talk for a change. Throws Error{usage} when a chat holds it.
TalkLock hold(const TalkStore& store, const std::string& name) {
  if (!store.has(name)) fail_absent(name);
  std::optional<TalkLock> lock = store.lock(name);
  if (!lock) fail(ErrorKind::usage, "the talk " + name + " is held in a chat");
  return std::move(*lock);
}

}  // namespace

TalkStore::TalkStore(const std::string& path, FileSystem& fs) : fs_(&fs), path_(path) {
  FileInfo info;
  int result = fs.make_directory(AT_FDCWD, path);
  if (result == 0 || result == -EEXIST) {
    directory_ = OwnedFd(fs, fs.open_directory(path));
    result = directory_.is_open() ? fs.stat(directory_.get(), info) : directory_.error();
  }
  std::string why = result < 0 ? describe_errno(result) : why_foreign(info);
  if (why.empty() && (info.mode & 022))
    why = format("others may write in it (mode %03o); chmod 700 it", info.mode & 0777u);
  if (!why.empty()) fail(ErrorKind::usage, "cannot keep talks in " + visible(path) + ": " + why);
  remove_leftovers();
}

bool TalkStore::has(const std::string& name) const {
  check_talk_name(name);
  FileInfo info;
  return fs_->stat_at(directory_.get(), file_name(name), info) != -ENOENT;
}

std::optional<Talk> TalkStore::load(const std::string& name) const {
  if (!has(name)) return std::nullopt;
  try {
    return parse_talk(read(name, kMaxTalkBytes));
  } catch (const Error& error) {
    fail(ErrorKind::usage,
         "cannot read the talk " + name + " from " + visible(path_) + "/" + file_name(name) + ": " +
             error.what(),
         "the file is left as it is; --talk with another name begins a talk");
  }
}

// The first bytes of a talk's file. Throws Error{usage} with the file's fault.
std::string TalkStore::read(const std::string& name, uint64_t n_most) const {
  const OwnedFd file(*fs_, fs_->open_at(directory_.get(), file_name(name), O_RDONLY));
  FileInfo info;
  const int result = file.is_open() ? fs_->stat(file.get(), info) : file.error();
  std::string why;
  if (result < 0)
    why = result == -ELOOP ? "it is a symbolic link" : describe_errno(result);
  else if (!info.is_regular())
    why = "it is no regular file";
  else if (info.n_bytes > kMaxTalkBytes)
    why = "it has " + std::to_string(info.n_bytes) + " bytes, expected at most " +
          std::to_string(kMaxTalkBytes);
  else
    why = why_foreign(info);
  std::string json(why.empty() ? std::min(info.n_bytes, n_most) : 0, '\0');
  const int64_t n_read = read_fully(*fs_, file.get(), json.data(), json.size(), 0);
  if (n_read < 0) why = describe_errno(n_read);
  if (!why.empty()) fail(ErrorKind::usage, why);
  json.resize(static_cast<size_t>(n_read));
  return json;
}

// Tries again when the lock's file was removed with its talk before this process had locked it.
std::optional<TalkLock> TalkStore::lock(const std::string& name) const {
  check_talk_name(name);
  const std::string file = lock_name(name);
  for (FileInfo held, found;;) {
    OwnedFd lock(*fs_, fs_->open_at(directory_.get(), file, O_RDWR | O_CREAT));
    const int result = lock.is_open() ? fs_->try_lock(lock.get()) : lock.error();
    if (result == -EWOULDBLOCK) return std::nullopt;
    if (result != 0) return TalkLock();
    const int looked = fs_->stat_at(directory_.get(), file, found);
    if (looked == -ENOENT) continue;
    if (looked != 0 || fs_->stat(lock.get(), held) != 0) return lock;
    if (held.is_of_same_file(found)) return lock;
  }
}

TalkLock TalkStore::lock_free(const std::string& name) const {
  std::optional<TalkLock> taken = lock(name);
  if (!taken || has(name)) fail(ErrorKind::usage, "there is a talk " + name + " already");
  return std::move(*taken);
}

// Who holds the lock of a name that has no file may begin a talk of this name.
TalkLock TalkStore::lock_new(std::string& name) const {
  const std::string base = name;
  for (int number = 1;; ++number) {
    const std::string ending = number > 1 ? format("-%d", number) : "";
    name = base.substr(0, kMaxTalkName - ending.size()) + ending;
    std::optional<TalkLock> taken = lock(name);
    if (taken && !has(name)) return std::move(*taken);
  }
}

void TalkStore::remove(const std::string& name) const {
  const int result = fs_->unlink(directory_.get(), file_name(name));
  fs_->unlink(directory_.get(), lock_name(name));
  if (result == -ENOENT) fail_absent(name);
  if (result != 0) fail(ErrorKind::io, "cannot delete the talk " + name + ": " + describe_errno(result));
  fs_->fsync(directory_.get());
}

// The temporary name is random: another process may be writing the same talk.
void TalkStore::save(const std::string& name, const Talk& talk) const {
  check_talk_name(name);
  const auto fail_save = [&](const std::string& why) {
    fail(ErrorKind::io, "cannot save the talk in " + visible(path_) + "/" + file_name(name) + ": " + why);
  };
  const std::string json = talk_json(talk);
  if (json.size() > kMaxTalkBytes) fail_save(format("it is longer than %zu bytes", kMaxTalkBytes));
  std::random_device random;
  const std::string temporary =
      format(".%s.%08x%08x%s", name.c_str(), random(), random(), kTemporaryEnding.data());
  const int result = replace_file(*fs_, directory_.get(), file_name(name), temporary, json);
  if (result != 0) fail_save(describe_errno(result));
}

std::vector<std::string> TalkStore::names() const {
  std::vector<std::string> names;
  if (const int result = fs_->list(directory_.get(), names); result != 0)
    fail(ErrorKind::usage, "cannot list " + visible(path_) + ": " + describe_errno(result));
  std::erase_if(names, [](std::string& name) {
    if (!name.ends_with(kEnding)) return true;
    name.resize(name.size() - kEnding.size());
    return !is_talk_name(name);
  });
  std::ranges::sort(names);
  return names;
}

std::optional<std::string> TalkStore::latest() const {
  std::optional<std::string> last;
  int64_t last_ms = -1;
  for (const std::string& name : names())
    if (const int64_t ms = used_ms(name); ms > last_ms) last = name, last_ms = ms;
  return last;
}

// This program writes the time in front, where it can be read without the whole talk.
int64_t TalkStore::used_ms(const std::string& name) const try {
  constexpr std::string_view kFront = R"({"dsv32_talk":2,"used_ms":)";
  const std::string head = read(name, kFront.size() + 20);
  int64_t ms = -1;
  if (head.starts_with(kFront)) std::from_chars(&head[kFront.size()], head.data() + head.size(), ms);
  return ms >= 0 ? ms : load(name).value().used_ms;
} catch (const std::exception&) {
  FileInfo info;
  return fs_->stat_at(directory_.get(), file_name(name), info) == 0 ? info.written_ns / (kSecond / 1000) : 0;
}

// A process writes a file within seconds, so an old temporary file is a leftover.
void TalkStore::remove_leftovers() const {
  std::vector<std::string> names;
  if (fs_->list(directory_.get(), names) != 0) return;
  for (const std::string& name : names) {
    FileInfo info;
    if (!name.starts_with('.') || !name.ends_with(kTemporaryEnding)) continue;
    if (fs_->stat_at(directory_.get(), name, info) != 0 || !info.is_regular()) continue;
    if (info.written_ns / kSecond < std::time(nullptr) - kLeftoverAge) fs_->unlink(directory_.get(), name);
  }
}

TalkStore open_talk_store() {
  const std::string state = make_user_folder(UserFolder::state);
  if (state.empty())
    fail(ErrorKind::usage, "there is no folder for talks: neither XDG_STATE_HOME nor HOME names one");
  return TalkStore(state + "/talks");
}

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
  std::string text;
  if (options.command == Command::talks_delete) {
    if (options.words.empty())
      fail(ErrorKind::usage, "the name of a talk is needed", "dsv32 talks list names them");
    for (const std::string& name : options.words) {
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
