// See saved_talk.h.
//
// The time stands before the messages, so that the beginning of a file is enough to know it.
#include "cli/chat/saved_talk.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <limits>
#include <random>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file_system.h"
#include "base/text.h"
#include "cli/options/json.h"

namespace dsv32 {
namespace {

constexpr const char* kVersionKey = "dsv32_talk";
constexpr uint64_t kVersion = 1;
constexpr int kTalkDepth = 16;         // of nested JSON
constexpr size_t kHeadBytes = 4096;    // that hold the time
constexpr time_t kLeftoverAge = 3600;  // seconds
constexpr std::string_view kEnding = ".json", kTemporaryEnding = ".tmp", kLockEnding = ".lock";

std::string file_name(const std::string& name) { return name + std::string(kEnding); }
std::string lock_name(const std::string& name) { return "." + name + std::string(kLockEnding); }

const char* role_name(Message::Role role) {
  switch (role) {
    case Message::Role::system: return "system";
    case Message::Role::user: return "user";
    case Message::Role::assistant: return "assistant";
  }
  return "";
}

[[noreturn]] void fail_damaged(const std::string& what) { fail(ErrorKind::usage, "it is damaged, " + what); }

// The value of `key`; `where` is "" or such as "messages[3].".
const ReadJson& value_of(const ReadJson& object, const char* key, const std::string& where) {
  const auto found = object.find(key);
  if (found == object.end()) fail_damaged(where + key + " is missing");
  return *found;
}

std::string text_of(const ReadJson& object, const char* key, const std::string& where) {
  const ReadJson& value = value_of(object, key, where);
  if (!value.is_string()) fail_damaged(where + key + " is no text");
  return value.get<std::string>();
}

ReadJson parse_json(std::string_view json) {
  try {
    return parse_outside_json(json, kTalkDepth);
  } catch (const Error& error) {
    fail_damaged(error.what());
  }
}

void check_version(const ReadJson& root) {
  if (!root.is_object() || !root.contains(kVersionKey)) fail(ErrorKind::usage, "it is no talk of dsv32");
  const ReadJson& version = root[kVersionKey];
  if (!version.is_number_unsigned()) fail_damaged(format("%s is no version", kVersionKey));
  const uint64_t found = version.get<uint64_t>();
  if (found > kVersion)
    fail(ErrorKind::usage,
         format("it is of the newer version %llu, this program reads version %llu",
                static_cast<unsigned long long>(found), static_cast<unsigned long long>(kVersion)));
  if (found < kVersion) fail_damaged(format("%s is no version", kVersionKey));
}

int64_t parse_time(const ReadJson& value) {
  constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
  if (!value.is_number_unsigned() || value.get<uint64_t>() > kMost)
    fail_damaged("used_ms is no number of milliseconds");
  return value.get<int64_t>();
}

// A talk may begin with the system's message; after it user and assistant take turns.
Message parse_message(const ReadJson& object, const std::vector<Message>& before) {
  using Role = Message::Role;
  const std::string where = format("messages[%zu].", before.size());
  if (!object.is_object()) fail_damaged(format("messages[%zu] is no object", before.size()));
  const bool has_question = !before.empty() && before.back().role == Role::user;
  const std::string role = text_of(object, "role", where);
  Message message{has_question ? Role::assistant : Role::user, text_of(object, "content", where),
                  text_of(object, "reasoning", where)};
  if (before.empty() && role == role_name(Role::system)) message.role = Role::system;
  if (role != role_name(message.role))
    fail_damaged(format("%srole is '%s', expected %s", where.c_str(), visible(role, false, 40).c_str(),
                        role_name(message.role)));
  return message;
}

std::vector<Message> parse_messages(const ReadJson& list) {
  if (!list.is_array()) fail_damaged("messages is no list");
  std::vector<Message> messages;
  messages.reserve(list.size());
  for (const ReadJson& object : list) messages.push_back(parse_message(object, messages));
  return messages;
}

std::vector<TokenRun> parse_runs(const ReadJson& list) {
  std::vector<TokenRun> runs;
  const auto position = [](const ReadJson& value) {
    return value.is_number_unsigned() && value.get<uint64_t>() < kMadeByDecode ? value.get<int64_t>() : -1;
  };
  if (!list.is_array()) fail_damaged("decoded is no list");
  for (const ReadJson& run : list) {
    if (!run.is_array() || run.size() != 2) fail_damaged("decoded holds no pairs");
    runs.push_back({position(run[0]), position(run[1])});
    if (runs.back().begin < 0 || runs.back().end < 0) fail_damaged("decoded holds no positions");
  }
  return runs;
}

// The time in the beginning of a file, which may be cut anywhere. Negative when it is not there.
int64_t time_in(std::string_view head) {
  bool is_time = false;
  int64_t time = -1;
  const auto look = [&](int depth, ReadJson::parse_event_t event, const ReadJson& parsed) {
    if (depth == 1 && event == ReadJson::parse_event_t::key)
      is_time = parsed == "used_ms";
    else if (depth == 1 && event == ReadJson::parse_event_t::value && is_time)
      time = parse_time(parsed);
    return true;
  };
  try {
    [[maybe_unused]] const ReadJson cut = ReadJson::parse(head, look, false);
  } catch (const Error&) {
    return -1;
  }
  return time;
}

}  // namespace

std::string talk_json(const SavedTalk& talk) {
  Json messages = Json::array();
  for (const Message& message : talk.messages)
    messages.push_back(
        {{"role", role_name(message.role)}, {"content", message.content}, {"reasoning", message.reasoning}});
  Json decoded = Json::array();
  for (const TokenRun& run : talk.decoded) decoded.push_back({run.begin, run.end});
  const Json root{{kVersionKey, kVersion},         {"used_ms", talk.used_ms},
                  {"model", talk.model},           {"thinking", talk.thinking},
                  {"decoded", std::move(decoded)}, {"messages", std::move(messages)}};
  return root.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

SavedTalk parse_talk(std::string_view json) {
  const ReadJson root = parse_json(json);
  check_version(root);
  SavedTalk talk;
  talk.used_ms = parse_time(value_of(root, "used_ms", ""));
  talk.model = text_of(root, "model", "");
  const ReadJson& thinking = value_of(root, "thinking", "");
  if (!thinking.is_boolean()) fail_damaged("thinking is neither true nor false");
  talk.thinking = thinking.get<bool>();
  if (root.contains("decoded")) talk.decoded = parse_runs(root["decoded"]);
  talk.messages = parse_messages(value_of(root, "messages", ""));
  return talk;
}

std::string time_ago(int64_t then, int64_t now) {
  struct Unit {
    const char* name;
    int64_t n_seconds;
  };
  constexpr Unit kUnits[] = {{"year", 365 * 86400}, {"day", 86400}, {"hour", 3600}, {"minute", 60}};
  const int64_t n_seconds = now > then ? (now - then) / 1000 : 0;
  for (const Unit& unit : kUnits) {
    const int64_t n = n_seconds / unit.n_seconds;
    if (n > 0) return format("%lld %s%s ago", static_cast<long long>(n), unit.name, n == 1 ? "" : "s");
  }
  return "just now";
}

int64_t now_ms() {
  const auto since_1970 = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(since_1970).count();
}

TalkFolder::TalkFolder(const std::string& path, FileSystem& fs) : fs_(&fs), path_(path) {
  const auto fail_folder = [&](const std::string& why) {
    fail(ErrorKind::usage, format("cannot keep talks in %s: %s", visible(path).c_str(), why.c_str()));
  };
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) fail_folder(describe_errno(-errno));
  directory_ = OwnedFd(fs, fs.open_directory(path));
  if (!directory_.is_open()) fail_folder(describe_errno(directory_.error()));
  FileInfo info;
  if (const int result = fs.stat(directory_.get(), info); result != 0) fail_folder(describe_errno(result));
  if (info.owner != geteuid())
    fail_folder(format("it belongs to user %u, not to user %u", info.owner, geteuid()));
  if (info.mode & 022)
    fail_folder(format("others may write in it (mode %03o); chmod 700 it", info.mode & 0777u));
  remove_leftovers();
}

bool TalkFolder::has(const std::string& name) const {
  check_talk_name(name);
  FileInfo info;
  return fs_->stat_at(directory_.get(), file_name(name), info) != -ENOENT;
}

std::optional<SavedTalk> TalkFolder::load(const std::string& name) const {
  if (!has(name)) return std::nullopt;
  try {
    return parse_talk(read(name));
  } catch (const Error& error) {
    fail(ErrorKind::usage,
         format("cannot read the talk %s from %s/%s: %s", name.c_str(), visible(path_).c_str(),
                file_name(name).c_str(), error.what()),
         "the file is left as it is; --talk with another name begins a talk");
  }
}

// The file of a lock may have been removed, with its talk, before it was locked here.
std::optional<TalkLock> TalkFolder::lock(const std::string& name) const {
  check_talk_name(name);
  for (;;) {
    const std::string file = lock_name(name);
    OwnedFd lock(*fs_, fs_->open_at(directory_.get(), file, O_RDWR | O_CREAT));
    const int result = lock.is_open() ? fs_->try_lock(lock.get()) : lock.error();
    if (result == -EWOULDBLOCK) return std::nullopt;
    if (result != 0) return TalkLock();
    if (has_lock_of(lock, file)) return lock;
  }
}

bool TalkFolder::has_lock_of(const OwnedFd& lock, const std::string& file) const {
  FileInfo held, found;
  const int result = fs_->stat_at(directory_.get(), file, found);
  if (fs_->stat(lock.get(), held) != 0 || (result != 0 && result != -ENOENT)) return true;
  return result == 0 && held.inode == found.inode && held.device == found.device;
}

void TalkFolder::remove_lock(const std::string& name) const {
  fs_->unlink(directory_.get(), lock_name(name));
}

void TalkFolder::rename(const std::string& name, const std::string& to, TalkLock& lock) const {
  std::optional<TalkLock> taken = this->lock(to);
  const int result = taken ? fs_->rename_new(directory_.get(), file_name(name), file_name(to)) : -EWOULDBLOCK;
  if (result == -EWOULDBLOCK || result == -EEXIST)
    fail(ErrorKind::usage, format("there is a talk %s already", to.c_str()));
  if (result == -ENOENT) fail(ErrorKind::usage, format("there is no talk %s", name.c_str()));
  if (result != 0)
    fail(ErrorKind::io,
         format("cannot rename the talk %s: %s", name.c_str(), describe_errno(result).c_str()));
  remove_lock(name);
  lock = std::move(*taken);
  fs_->fsync(directory_.get());
}

void TalkFolder::remove(const std::string& name) const {
  const int result = fs_->unlink(directory_.get(), file_name(name));
  remove_lock(name);
  if (result == -ENOENT) fail(ErrorKind::usage, format("there is no talk %s", name.c_str()));
  if (result != 0)
    fail(ErrorKind::io,
         format("cannot delete the talk %s: %s", name.c_str(), describe_errno(result).c_str()));
  fs_->fsync(directory_.get());
}

// Who holds the lock of a name without a file may begin a talk there.
TalkLock TalkFolder::lock_new(std::string& name) const {
  const std::string base = name;
  for (int number = 1;; ++number) {
    const std::string ending = number > 1 ? format("-%d", number) : "";
    name = base.substr(0, kMaxTalkName - ending.size()) + ending;
    std::optional<TalkLock> taken = lock(name);
    if (taken && !has(name)) return std::move(*taken);
  }
}

// The file's bytes. Throws Error{usage} that tells what is wrong with it.
std::string TalkFolder::read(const std::string& name) const {
  const auto fail_file = [](const std::string& why) { fail(ErrorKind::usage, why); };
  const OwnedFd file(*fs_, fs_->open_at(directory_.get(), file_name(name), O_RDONLY));
  if (file.error() == -ELOOP) fail_file("it is a symbolic link");
  if (!file.is_open()) fail_file(describe_errno(file.error()));
  FileInfo info;
  if (const int result = fs_->stat(file.get(), info); result != 0) fail_file(describe_errno(result));
  if (!info.is_regular) fail_file("it is no regular file");
  if (info.owner != geteuid())
    fail_file(format("it belongs to user %u, not to user %u", info.owner, geteuid()));
  if (info.n_bytes > kMaxTalkBytes)
    fail_file(format("it has %llu bytes, expected at most %zu", static_cast<unsigned long long>(info.n_bytes),
                     kMaxTalkBytes));
  std::string json(info.n_bytes, '\0');
  const int64_t n_read = read_fully(*fs_, file.get(), {{json.data(), json.size()}}, 0);
  if (n_read < 0) fail_file(describe_errno(n_read));
  json.resize(static_cast<size_t>(n_read));
  return json;
}

void TalkFolder::save(const std::string& name, const SavedTalk& talk) const {
  check_talk_name(name);
  const auto fail_save = [&](const std::string& why) {
    fail(ErrorKind::io, format("cannot save the talk in %s/%s: %s", visible(path_).c_str(),
                               file_name(name).c_str(), why.c_str()));
  };
  const std::string json = talk_json(talk);
  if (json.size() > kMaxTalkBytes) fail_save(format("it is longer than %zu bytes", kMaxTalkBytes));
  if (const int result = replace(name, json); result != 0) fail_save(describe_errno(result));
}

// 0, or a negative errno. The temporary name is random: another process may be writing the same talk.
int TalkFolder::replace(const std::string& name, std::string_view json) const {
  std::random_device random;
  const std::string temporary =
      format(".%s.%08x%08x%s", name.c_str(), random(), random(), kTemporaryEnding.data());
  return replace_file(*fs_, directory_.get(), file_name(name), temporary, json);
}

std::vector<std::string> TalkFolder::names() const {
  std::vector<std::string> names;
  if (const int result = fs_->list(directory_.get(), names); result != 0)
    fail(ErrorKind::usage,
         format("cannot list %s: %s", visible(path_).c_str(), describe_errno(result).c_str()));
  std::erase_if(names, [](const std::string& name) { return !name.ends_with(kEnding); });
  for (std::string& name : names) name.resize(name.size() - kEnding.size());
  std::erase_if(names, [](const std::string& name) { return !is_talk_name(name); });
  std::ranges::sort(names);
  return names;
}

std::optional<std::string> TalkFolder::latest() const {
  std::optional<std::string> last;
  int64_t last_time = 0;
  for (const std::string& name : names()) {
    const int64_t time = time_used(name);
    if (last && time <= last_time) continue;
    last = name, last_time = time;
  }
  return last;
}

int64_t TalkFolder::time_used(const std::string& name) const {
  const OwnedFd file(*fs_, fs_->open_at(directory_.get(), file_name(name), O_RDONLY));
  FileInfo info;
  if (file.is_open() && fs_->stat(file.get(), info) == 0 && info.is_regular && info.owner == geteuid()) {
    std::string head(kHeadBytes, '\0');
    const int64_t n_read = read_fully(*fs_, file.get(), {{head.data(), head.size()}}, 0);
    const int64_t time =
        time_in(std::string_view(head).substr(0, static_cast<size_t>(std::max<int64_t>(n_read, 0))));
    if (time >= 0) return time;
  }
  struct stat clock {};
  if (fstatat(directory_.get(), file_name(name).c_str(), &clock, AT_SYMLINK_NOFOLLOW) != 0) return 0;
  return static_cast<int64_t>(clock.st_mtim.tv_sec) * 1000 + clock.st_mtim.tv_nsec / 1000000;
}

// An hour: whoever is still writing a file has begun it within seconds.
void TalkFolder::remove_leftovers() const {
  std::vector<std::string> names;
  if (fs_->list(directory_.get(), names) != 0) return;
  const time_t now = std::time(nullptr);
  for (const std::string& name : names) {
    struct stat info {};
    if (!name.starts_with('.') || !name.ends_with(kTemporaryEnding)) continue;
    if (fstatat(directory_.get(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) continue;
    if (S_ISREG(info.st_mode) && info.st_mtime < now - kLeftoverAge) fs_->unlink(directory_.get(), name);
  }
}

}  // namespace dsv32
