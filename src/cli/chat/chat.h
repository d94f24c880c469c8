// The commands of this room, and Conversation: a person at a terminal talks with the model.
//
// Nothing that a person has typed is lost. A question is saved before the model reads it, an answer every
// second while it comes. Signals only ask for an end, and an answer is saved even when the terminal is gone.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/chat/talk.h"
#include "cli/terminal/line_editor.h"
#include "cli/terminal/signals.h"
#include "cli/terminal/streams.h"
#include "cli/warm/model.h"
#include "text/chat_format.h"

namespace dsv32 {

// The commands return the exit code and throw Error.
//
// `dsv32 run`: one prompt in, one answer out. Standard output is the answer and nothing else, or with --json
// one object; tool calls are lines after the answer. With --talk or --continue the prompt is a talk's next
// question (talk.h). Exit code 6: lacks_whole_answer() (answer.h); 129, 130, 143: a signal ended it.
int run_command(const Options& options);

// `dsv32 chat`: a talk at the terminal. Error{usage} when standard output is no terminal.
int chat_command(const Options& options);

// `dsv32 talks`: lists and deletes the talks that are kept. Error{usage} when there is no such talk, or when
// a chat holds the one to be deleted.
int talks_command(const Options& options);

class Conversation {
 public:
  // The arguments must outlive it.
  Conversation(const Options& options, const Terminal& terminal, Model& model, HeldTalk talk);
  // Runs until the person leaves, or a signal asks for it. Returns the exit code. Throws Error{io} when the
  // talk cannot be saved at the end.
  int run();

  // A command that can be typed in place of a message.
  struct ChatCommand {
    const char* names;  // with spaces between them
    const char *argument, *text;
    bool is_harmless;  // may be suggested for a mistyped name: it deletes nothing and does not leave
    void (Conversation::*run)(const std::string& rest);
  };
  static std::span<const ChatCommand> commands();
  static std::string help();  // fits a window of 24 rows and 80 columns
  // Null when there is no such command; `name` with its slash.
  static const ChatCommand* find_command(const std::string& name);
  // What Tab does: completes commands, their arguments, paths, and @paths in a message.
  static LineEditor::Expansion complete(std::string_view before);

 private:
  LineEditor::Event read_message(std::string& message, bool& is_command);
  void ask(const std::string& message);
  void answer();
  void take_answer(const GenerationResult& result);
  void show_next_call() const;
  void try_save(const Message* answer = nullptr);
  void show(std::string_view text);
  int leave();

  // conversation_commands.cpp
  static std::vector<std::string> names(bool only_harmless);
  void do_command(const std::string& line);
  void print_help(const std::string&);
  void attach(const std::string& path);
  void edit(const std::string&);
  void set_system(const std::string& text);
  void set(const std::string& words);
  void set_schema(const std::string& given);
  void set_thinking(const std::string& word);
  void stop_thinking(const std::string&) { set_thinking("off"); }
  void print_settings(const std::string& name) const;
  void retry(const std::string&);
  void undo(const std::string&);
  void print_stats(const std::string&);
  void save_as(const std::string& name);
  void print_talks(const std::string&);
  void clear(const std::string&);
  void exit(const std::string&) { has_left_ = true; }

  Options options_;
  const Terminal& terminal_;
  Model& model_;
  const ChatFormat format_;
  GracefulStop stop_{GracefulStop::Signals::are_requests};
  LineEditor editor_;
  uint64_t seed_;                      // of the next answer
  Forward::BufferTally buffer_tally_;  // of all answers since the talk began
  HeldTalk talk_;
  std::string attached_, draft_;  // texts of the files for the next message; the text that /edit begins with
  bool is_unsaved_ = false;       // the last save failed, and a warning was shown
  bool has_left_ = false;
  std::string stats_;  // of the last answer
};

// The names of flags that /set takes.
std::vector<std::string> chat_settings();

}  // namespace dsv32
