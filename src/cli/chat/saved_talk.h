// A conversation that outlives its process: one JSON file for each talk, in a folder of its user's.
//
//   <folder>/              0700
//     NAME.json            0600; {"dsv32_talk":1,"used_ms":,"model":,"thinking":,"decoded":[],"messages":[]}
//     .NAME.lock           empty; locked by whoever goes on with the talk, for as long as that lives
//     .NAME.<16 hex>.tmp   one being written, or a crash's leftover; removed when it is an hour old
//
// The one idea: a file is written beside its name, made durable and then renamed over it. Whoever reads sees
// the talk as it was or as it is, never half of it. The file's inode changes with every save, so that whoever
// goes on with a talk holds the lock of another file, which is never renamed and removed only with the talk,
// by who holds it.
//
// What is in the folder counts as input from outside: a talk that is damaged, of a newer version, a symbolic
// link or another user's is refused and stays as it is. The talk used last is the one with the latest time
// written in it, because copying and restoring change the clock of the file; only a talk whose time cannot be
// read counts with that clock, so that --continue complains about it and does not pass to an older one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_system.h"
#include "cli/options/options.h"
#include "context/timeline.h"
#include "text/chat_format.h"

namespace dsv32 {

inline constexpr size_t kMaxTalkBytes = size_t{64} << 20;  // of a file, read or written

// The messages are at most one of the system, then a user's and an assistant's in turns; the last question
// may have no answer yet.
struct SavedTalk {
  std::string model;     // as model_name() gives it
  bool thinking = true;  // as /think left it
  int64_t used_ms = 0;   // milliseconds since 1970
  std::vector<Message> messages;
  std::vector<TokenRun> decoded = {};  // of the talk as a prompt; what its rows on disk are found by
};

// One line. Malformed UTF-8 becomes U+FFFD, everything else comes back from parse_talk() as it was.
std::string talk_json(const SavedTalk& talk);

// Throws Error{usage} that tells what is wrong with the file ("it is damaged, ...").
SavedTalk parse_talk(std::string_view json);

// "just now", "1 minute ago", "3 days ago", of times as in used_ms. A time to come is just now.
std::string time_ago(int64_t then, int64_t now);
int64_t now_ms();

using TalkLock = OwnedFd;  // until it goes or the process ends, however it ends

// One thread at a time; any number of processes.
class TalkFolder {
 public:
  // Makes the folder, but none above it. Throws Error{usage} when it cannot be used, or others may write in
  // it.
  explicit TalkFolder(const std::string& path, FileSystem& fs = real_file_system());

  bool has(const std::string& name) const;
  // Nothing when there is no such talk. Throws Error{usage} naming the file and the reason.
  std::optional<SavedTalk> load(const std::string& name) const;

  // The right to save `name`; nothing while another holds it. One that is not open where nothing can be
  // locked.
  std::optional<TalkLock> lock(const std::string& name) const;

  // The same to begin a talk: `name` becomes the first of NAME, NAME-2, NAME-3, ... that nobody has or holds.
  TalkLock lock_new(std::string& name) const;

  // Of talks whose lock the caller holds. Both return when that is on the disk. rename(): `lock` becomes that
  // of the other name. Throw Error{usage} when there is no such talk, or already one of the other name, or
  // that one is held; Error{io}.
  void rename(const std::string& name, const std::string& to, TalkLock& lock) const;
  void remove(const std::string& name) const;

  // Returns when the talk is on the disk. Throws Error{io}; on the disk is then the talk as it was or as it
  // is, whole.
  void save(const std::string& name, const SavedTalk& talk) const;

  // Of all talks, those that cannot be read too, sorted. Throws Error{usage}.
  std::vector<std::string> names() const;

  // The name of the talk used last; of two with the same time the first by name. Throws Error{usage}.
  std::optional<std::string> latest() const;

 private:
  std::string read(const std::string& name) const;
  int64_t time_used(const std::string& name) const;
  bool has_lock_of(const OwnedFd& lock, const std::string& file) const;
  void remove_lock(const std::string& name) const;
  void remove_leftovers() const;
  int replace(const std::string& name, std::string_view json) const;

  FileSystem* fs_;
  std::string path_;
  OwnedFd directory_;
};

}  // namespace dsv32
