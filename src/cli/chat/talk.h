// The conversation that a command goes on with: which one, under what name it is kept, and when it is saved.
//
// The one idea: what is not asked for by name gets one of its own, the time of its first message, so that
// nothing has to be decided before one talks and nothing is lost afterwards. A talk that another process
// holds goes on as a copy.
#pragma once

#include <optional>
#include <string>

#include "cli/chat/saved_talk.h"
#include "cli/options/options.h"

namespace dsv32 {

class Talk {
 public:
  // The one that --talk or --continue names; else one that begins, kept unless --no-save. A system prompt
  // given takes the place of a saved one. Throws Error{usage} when the one named cannot be read, or there is
  // no folder for it; without one that nobody named is told of and not kept.
  Talk(const Options& options, const std::string& system);

  SavedTalk saved;
  std::vector<Message>& messages() { return saved.messages; }
  bool is_resumed() const { return is_resumed_; }
  const std::string& name() const {
    return name_;
  }  // empty before the first message of one that nobody named

  // The last message is a question.
  bool has_unanswered() const;
  bool has_system() const;
  void set_system(const std::string& text);  // empty: none
  // The user's next one. One that was not answered gives way.
  void ask(const std::string& question);

  bool is_kept() const { return is_kept_; }
  // Throws Error{io, usage}. Nothing for one that is not kept.
  void save();
  // The same when an answer is under way: with as much of it.
  void save_with(const Message& answer);
  // From here on another one, of the same system prompt; this one stays.
  void begin_anew();
  // Keeps it under this name from now on. Throws Error{usage, io}.
  void rename(const std::string& name);
  // Where talks are kept. Throws Error{usage}.
  const TalkFolder& folder();

 private:
  void find(const Options& options);
  void take_name();

  std::optional<TalkFolder> folder_;
  std::string name_;
  std::optional<TalkLock> lock_;
  bool is_kept_ = false, is_resumed_ = false;
};

// The user's. Throws Error{usage}.
TalkFolder open_talk_folder();

// "2 turns, used 3 days ago".
std::string talk_summary(const SavedTalk& talk);

}  // namespace dsv32
