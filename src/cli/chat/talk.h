// Conversations that outlive their process.
//
// Talk is one conversation; TalkStore is the folder with a JSON file for each; HeldTalk is the talk that a
// command goes on with.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_system.h"
#include "cli/options/options.h"
#include "engine/request.h"
#include "text/chat_format.h"

namespace dsv32 {

inline constexpr size_t kMaxTalkBytes = size_t{64} << 20;  // of a file, read or written

// The messages: the system's, if there is one, then the user's and the assistant's in turns. The last
// question may have no answer yet. Results of tools follow an answer with calls, in their order; a question
// may come before all are there.
struct Talk {
  std::string model;     // by model_name()
  bool thinking = true;  // as /think left it
  int64_t used_ms = 0;   // milliseconds since 1970
  std::vector<Message> messages;
  std::vector<TokenRun> decoded = {};  // the talk's history, for prefixes on disk

  bool has_system() const { return !messages.empty() && messages[0].role == Message::Role::system; }
  // Whether the last message is the user's; the assistant's.
  bool has_question() const { return !messages.empty() && messages.back().role == Message::Role::user; }
  bool has_answer() const { return !messages.empty() && messages.back().role == Message::Role::assistant; }
  // The call of the last answer whose result is the next message; null: none waits.
  const ToolCall* next_call() const;
  // Whether the assistant's message is next.
  bool awaits_answer() const;
  void set_system(const std::string& text);  // empty: none
  // Adds the user's next question, or replaces one that was not answered.
  void ask(const std::string& question);
  void add_result(const std::string& text);  // of next_call()
  void add_answer(const GenerationResult& answer);
  std::string first_question() const;
  std::string summary() const;  // "2 turns, used 3 days ago"
};

// One line. Malformed UTF-8 becomes U+FFFD, everything else comes back from parse_talk() as it was.
std::string talk_json(const Talk& talk);

// Throws Error{usage} with the file's fault ("it is damaged, ...").
Talk parse_talk(std::string_view json);

// "just now", "1 minute ago", "3 days ago"; times as in used_ms. A future time is "just now".
std::string time_ago(int64_t then, int64_t now);
int64_t now_ms();

using TalkLock = OwnedFd;  // locked until it is closed or the process ends

// The folder:
//
//   <folder>/              0700
//     NAME.json            0600; {"dsv32_talk":2,"used_ms":,"model":,"thinking":,"decoded":[],"messages":[]}
//     .NAME.lock           empty; locked by the process that goes on with the talk
//     .NAME.<16 hex>.tmp   a file being written, or a crash's leftover; removed when it is an hour old
//
// A file is written beside its name, made durable and then renamed over it, so that a reader never sees half
// a talk. Since that changes the file's inode, the lock is another file, which is never renamed and is
// removed only with the talk, by its holder.
//
// The files are input from outside: a talk that is damaged, of a newer version, a symbolic link or another
// user's is refused and stays as it is. The talk used last is the one with the latest used_ms, because
// copying and restoring change the file's own time. A talk whose used_ms cannot be read counts with the
// file's own time, so that --continue complains about it instead of taking an older one.
//
// One thread at a time; any number of processes.
class TalkStore {
 public:
  // Makes the folder, but not its parents. Throws Error{usage} when it is unusable or writable for others.
  explicit TalkStore(const std::string& path, FileSystem& fs = real_file_system());

  bool has(const std::string& name) const;
  // Nothing when there is no such talk. Throws Error{usage} naming the file and the reason.
  std::optional<Talk> load(const std::string& name) const;

  // The right to save `name`; nothing while another process holds it. Not open where locking is impossible.
  std::optional<TalkLock> lock(const std::string& name) const;
  // The lock for a new talk: `name` becomes the first of NAME, NAME-2, NAME-3, ... that is free and not held.
  TalkLock lock_new(std::string& name) const;
  // The lock for a new talk of just this name. Throws Error{usage} when the name is taken or held.
  TalkLock lock_free(const std::string& name) const;

  // The caller holds the talk's lock. Returns when the talk is gone from the disk. Throws Error{usage} when
  // there is no such talk, Error{io}.
  void remove(const std::string& name) const;

  // Returns when the talk is on the disk. After Error{io} the disk has the former talk or this one.
  void save(const std::string& name, const Talk& talk) const;

  // The names of all talks, unreadable ones too, sorted. Throws Error{usage}.
  std::vector<std::string> names() const;
  // The name of the talk used last; of two with the same time the first by name. Throws Error{usage}.
  std::optional<std::string> latest() const;

 private:
  std::string read(const std::string& name, uint64_t n_most) const;
  int64_t used_ms(const std::string& name) const;
  void remove_leftovers() const;

  FileSystem* fs_;
  std::string path_;
  OwnedFd directory_;
};

// The user's store. Throws Error{usage}.
TalkStore open_talk_store();

// The talk that a command goes on with. Unless the user names it, its name is the time of its first message.
// If another process holds the talk, the command goes on with a copy.
class HeldTalk : public Talk {
 public:
  // The talk that --talk or --continue names; else a new one, kept unless --no-save. `system`, unless empty,
  // replaces the saved system prompt. Throws Error{usage} when a named talk cannot be read, or the folder
  // cannot be used; for a talk without a name an unusable folder is a warning, and the talk is not kept.
  HeldTalk(const Options& options, const std::string& system);

  bool is_resumed() const { return is_resumed_; }
  const std::string& name() const { return name_; }  // empty before the first save of an unnamed talk
  bool has_file() const { return is_kept_ && !name_.empty(); }

  // Saves the talk, if it is kept, and with it `answer`, the one under way. Throws Error{io, usage}.
  void save(const Message* answer = nullptr);
  // Begins another talk with the same system prompt. The former one stays on disk.
  void begin_anew();
  // Keeps the talk under this name from now on. Throws Error{usage, io}.
  void rename(const std::string& name);
  // Throws Error{usage}.
  const TalkStore& store();

 private:
  void resume(const Options& options);

  std::optional<TalkStore> store_;
  std::string name_;
  std::optional<TalkLock> lock_;
  bool is_kept_, is_resumed_ = false;
};

// A line for each talk that is kept, the one used last first: its name, turns, age and first words. `current`
// is marked as this one.
std::string talks_list(const TalkStore& store, const std::string& current = {});

}  // namespace dsv32
