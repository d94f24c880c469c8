// What goes on between a person at a terminal and the model: lines in, answers out, commands beside them.
//
// The one idea: what a person has typed outlives whatever comes after it. A question is saved before it is
// read, an answer every second while it comes, signals only ask for an end, and a terminal that is gone keeps
// no answer from being saved.
#pragma once

#include <string>
#include <string_view>

#include "cli/chat/chat_commands.h"
#include "cli/chat/talk.h"
#include "cli/terminal/line_editor.h"
#include "cli/terminal/signals.h"
#include "cli/terminal/terminal.h"
#include "cli/warm/model.h"
#include "text/chat_format.h"

namespace dsv32 {

class Conversation {
 public:
  // What it is given must outlive it.
  Conversation(const Options& options, const Terminal& terminal, Model& model, Talk talk);
  // Until the person leaves, or a signal asks for it. Returns the exit code. Throws Error{io} when a talk
  // that is kept could not be saved at last.
  int run();

 private:
  enum class Next { go_on, leave };

  LineEditor::Event read_message(std::string& message, bool& is_command);
  void ask(const std::string& message);
  void answer();
  void conclude(const GenerationResult& result);
  void save();
  void try_save(const Message* answer = nullptr);
  void show(std::string_view text);
  int leave();

  // conversation_commands.cpp
  Next do_command(const std::string& line);
  Next act(const ChatCommand& command, const std::string& rest);
  void attach(const std::string& path);
  void edit();
  void set_system(const std::string& text);
  void set(const std::string& words);
  void set_thinking(const std::string& word);
  void print_settings(const std::string& name) const;
  void regenerate();
  void undo();
  void copy();
  void print_tokens();
  size_t n_tokens(size_t n_messages) const;
  void print_stats();
  void print_talks();
  void clear();

  Options options_;
  const Terminal& terminal_;
  Model& model_;
  const ChatFormat format_;
  GracefulStop stop_{GracefulStop::Second::is_request};
  LineEditor editor_;
  uint64_t seed_;                      // of the next answer
  Forward::BufferTally buffer_tally_;  // of all since the talk began
  Talk talk_;
  std::string attached_, draft_;  // what goes with the next message, and what /edit begins with
  bool is_unsaved_ = false;       // as has been told
  std::string stats_;             // of the last answer
};

}  // namespace dsv32
