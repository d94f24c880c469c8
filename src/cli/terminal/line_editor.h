// One line from a person: with editing, history, completion and pastes at a terminal, plainly otherwise.
//
// Editing is libedit's. Signals end the waiting (Event::interrupted) with the terminal in order; Ctrl-Z gives
// it back, and takes it again. A line that begins with a space is not kept (history_file.h), and one with a
// paste of several lines only as long as the program runs.
//
// A text that is pasted is taken as a whole (bracketed paste), however many lines it has: one of several
// lines stands in the line by a name, "[paste 1: 12 lines]", until the line is sent. An @ in it names no file
// (attachment.h). From its beginning to its end an editor keeps the terminal from echoing: what is typed
// between two lines waits for the next.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cli/terminal/signals.h"

namespace dsv32 {

class LineEditor {
 public:
  enum class Event { line, end, interrupted };

  // What Tab does behind `before`, the line up to the cursor: puts in `more`, or shows the choices.
  struct Completion {
    std::string more;
    std::vector<std::string> choices;
  };
  using Completer = Completion (*)(std::string_view before);

  // `stop` must outlive the editor. An empty `history_path`: no file. `can_draw`: the terminal is one that
  // moves its cursor, and tells what is pasted.
  LineEditor(bool is_terminal, bool can_draw, const GracefulStop& stop, const std::string& history_path,
             Completer complete);
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  // `line` is without its line end, and may have line ends in it that were pasted. A terminal shows `prompt`.
  // Interrupted, it is what was typed so far.
  Event read(const char* prompt, std::string& line);
  // The last line holds a paste that stands by its name: it begins no command, and its end continues nothing.
  bool has_paste() const;

  // For the history, at once.
  void remember(const std::string& line);

  // While it runs the terminal is as it was before the editor came. What it throws is thrown.
  void lend_terminal(const std::function<void()>& user);

 private:
  struct Edit;  // libedit's state; null when the input is no terminal
  Event read_plainly(std::string& line);

  const GracefulStop& stop_;
  std::unique_ptr<Edit> edit_;
  std::string waiting_;  // read and not yet taken
};

// The file in the folder for state, which is made; empty when there is none.
std::string history_path();

}  // namespace dsv32
