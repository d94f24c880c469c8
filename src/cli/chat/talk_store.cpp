// See talk.h.
#include <algorithm>
#include <cerrno>
#include <ctime>
#include <random>

#include <fcntl.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file_system.h"
#include "base/text.h"
#include "cli/chat/talk.h"
#include "cli/terminal/streams.h"
#include "cli/terminal/user_files.h"

namespace dsv32 {
namespace {

constexpr int64_t kLeftoverAge = 3600, kSecond = 1000000000;  // in seconds, in nanoseconds
constexpr std::string_view kEnding = ".json", kTemporaryEnding = ".tmp";

std::string file_name(const std::string& name) { return name + std::string(kEnding); }
std::string lock_name(const std::string& name) { return "." + name + ".lock"; }

[[noreturn]] void fail_taken(const std::string& name) {
  fail(ErrorKind::usage, "there is a talk " + name + " already");
}

// Of renaming and deleting.
void check_change(int result, const std::string& what, const std::string& name) {
  if (result == -ENOENT) fail_absent(name);
  if (result != 0)
    fail(ErrorKind::io, "cannot " + what + " the talk " + name + ": " + describe_errno(result));
}

// Empty when it is this user's.
std::string why_foreign(const FileInfo& info) {
  return info.owner == geteuid() ? ""
                                 : format("it belongs to user %u, not to user %u", info.owner, geteuid());
}

}  // namespace

void fail_absent(const std::string& name) {
  fail(ErrorKind::usage, "there is no talk " + name, "dsv32 talks list names them");
}

TalkStore::TalkStore(const std::string& path, FileSystem& fs) : fs_(&fs), path_(path) {
  const auto check = [&](const std::string& why) {
    if (why.empty()) return;
    fail(ErrorKind::usage, "cannot keep talks in " + visible(path) + ": " + why);
  };
  const auto check_result = [&](int result) { check(result < 0 ? describe_errno(result) : ""); };
  const int made = fs.make_directory(AT_FDCWD, path);
  if (made != -EEXIST) check_result(made);
  directory_ = OwnedFd(fs, fs.open_directory(path));
  check_result(directory_.error());
  FileInfo info;
  check_result(fs.stat(directory_.get(), info));
  check(why_foreign(info));
  if (info.mode & 022) check(format("others may write in it (mode %03o); chmod 700 it", info.mode & 0777u));
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
    return parse_talk(read(name));
  } catch (const Error& error) {
    fail(ErrorKind::usage,
         "cannot read the talk " + name + " from " + visible(path_) + "/" + file_name(name) + ": " +
             error.what(),
         "the file is left as it is; --talk with another name begins a talk");
  }
}

// The file's bytes. Throws Error{usage} that tells what is wrong with it.
std::string TalkStore::read(const std::string& name) const {
  const auto check = [](const std::string& why) {
    if (!why.empty()) fail(ErrorKind::usage, why);
  };
  const auto check_result = [&](int64_t result) { check(result < 0 ? describe_errno(result) : ""); };
  const OwnedFd file(*fs_, fs_->open_at(directory_.get(), file_name(name), O_RDONLY));
  if (file.error() == -ELOOP) check("it is a symbolic link");
  check_result(file.error());
  FileInfo info;
  check_result(fs_->stat(file.get(), info));
  if (!info.is_regular) check("it is no regular file");
  check(why_foreign(info));
  if (info.n_bytes > kMaxTalkBytes)
    check(format("it has %llu bytes, expected at most %zu", static_cast<unsigned long long>(info.n_bytes),
                 kMaxTalkBytes));
  std::string json(info.n_bytes, '\0');
  const int64_t n_read = read_fully(*fs_, file.get(), {{json.data(), json.size()}}, 0);
  check_result(n_read);
  json.resize(static_cast<size_t>(n_read));
  return json;
}

// A lock's file may have been removed with its talk before it was locked here.
std::optional<TalkLock> TalkStore::lock(const std::string& name) const {
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

bool TalkStore::has_lock_of(const OwnedFd& lock, const std::string& file) const {
  FileInfo held, found;
  const int result = fs_->stat_at(directory_.get(), file, found);
  if (fs_->stat(lock.get(), held) != 0 || (result != 0 && result != -ENOENT)) return true;
  return result == 0 && held.inode == found.inode && held.device == found.device;
}

// The holder of the lock of a name without a file may begin a talk there.
TalkLock TalkStore::lock_new(std::string& name) const {
  const std::string base = name;
  for (int number = 1;; ++number) {
    const std::string ending = number > 1 ? format("-%d", number) : "";
    name = base.substr(0, kMaxTalkName - ending.size()) + ending;
    std::optional<TalkLock> taken = lock(name);
    if (taken && !has(name)) return std::move(*taken);
  }
}

void TalkStore::rename(const std::string& name, const std::string& to, TalkLock& lock) const {
  std::optional<TalkLock> taken = this->lock(to);
  const int result = taken ? fs_->rename_new(directory_.get(), file_name(name), file_name(to)) : -EEXIST;
  if (result == -EEXIST) fail_taken(to);
  check_change(result, "rename", name);
  fs_->unlink(directory_.get(), lock_name(name));
  lock = std::move(*taken);
  fs_->fsync(directory_.get());
}

void TalkStore::remove(const std::string& name) const {
  const int result = fs_->unlink(directory_.get(), file_name(name));
  fs_->unlink(directory_.get(), lock_name(name));
  check_change(result, "delete", name);
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

int64_t TalkStore::used_ms(const std::string& name) const {
  try {
    if (const std::optional<Talk> talk = load(name)) return talk->used_ms;
  } catch (const Error&) {
  }
  FileInfo info;
  return fs_->stat_at(directory_.get(), file_name(name), info) == 0 ? info.changed_ns / (kSecond / 1000) : 0;
}

// A process writes a file within seconds.
void TalkStore::remove_leftovers() const {
  std::vector<std::string> names;
  if (fs_->list(directory_.get(), names) != 0) return;
  for (const std::string& name : names) {
    FileInfo info;
    if (!name.starts_with('.') || !name.ends_with(kTemporaryEnding)) continue;
    if (fs_->stat_at(directory_.get(), name, info) != 0 || !info.is_regular) continue;
    if (info.changed_ns / kSecond < std::time(nullptr) - kLeftoverAge) fs_->unlink(directory_.get(), name);
  }
}

TalkStore open_talk_store() {
  const std::string state = make_user_folder(UserFolder::state);
  if (state.empty())
    fail(ErrorKind::usage, "there is no folder for talks: neither XDG_STATE_HOME nor HOME names one");
  return TalkStore(state + "/talks");
}

HeldTalk::HeldTalk(const Options& options, const std::string& system) : is_kept_(options.keeps_talk) {
  const bool is_named = !options.talk.empty() || options.continues;
  thinking = options.generation.thinking;
  try {
    if (is_kept_ || is_named) store();
  } catch (const Error& error) {
    if (is_named) throw;
    is_kept_ = false;
    say(std::string("warning: this talk is not kept: ") + error.what());
  }
  if (is_named) resume(options);
  if (!system.empty()) set_system(system);
}

const TalkStore& HeldTalk::store() {
  if (!store_) store_.emplace(open_talk_store());
  return *store_;
}

void HeldTalk::resume(const Options& options) {
  const std::optional<std::string> last = options.continues ? store_->latest() : options.talk;
  if (!last)
    fail(ErrorKind::usage, "there is no talk to continue", "dsv32 chat begins one, and so does --talk NAME");
  name_ = *last;
  if (is_kept_) lock_ = store_->lock(name_);
  if (std::optional<Talk> found = store_->load(name_)) {
    static_cast<Talk&>(*this) = std::move(*found);
    is_resumed_ = true;
  }
  if (options.is_thinking_given()) thinking = options.generation.thinking;
  if (!is_kept_) return;
  if (!lock_) {
    lock_ = store_->lock_new(name_);
    say("the talk " + *last + " is held in another chat; this one is kept as " + name_);
  }
  if (!lock_->is_open())
    say("warning: the talk cannot be locked: another chat with it would take its place on disk");
}

void HeldTalk::save(const Message* answer) {
  if (!is_kept_) return;
  if (name_.empty()) {
    char text[32];
    const time_t now = std::time(nullptr);
    tm parts{};
    localtime_r(&now, &parts);
    name_ = {text, std::strftime(text, sizeof text, "%Y-%m-%d-%H%M", &parts)};
    lock_ = store_->lock_new(name_);
  }
  used_ms = now_ms();
  Talk saved = *this;
  if (answer) saved.messages.push_back(*answer);
  store_->save(name_, saved);
}

void HeldTalk::begin_anew() {
  messages.erase(messages.begin() + has_system(), messages.end());
  decoded.clear();
  name_.clear();
  lock_.reset();
  is_resumed_ = false;
}

void HeldTalk::rename(const std::string& name) {
  check_talk_name(name);
  store();
  if (has_file()) {
    store_->rename(name_, name, *lock_);
  } else {
    std::optional<TalkLock> taken = store_->lock(name);
    if (!taken || store_->has(name)) fail_taken(name);
    lock_ = std::move(taken);
    is_kept_ = true;
  }
  name_ = name;
  save();
}

}  // namespace dsv32
