// One line from a person: with editing and history at a terminal, plainly otherwise.
//
// Editing is libedit's. Signals end the waiting (Event::interrupted) with the terminal in order. A line that
// begins with a space is not kept (history_file.h).
#pragma once

#include <memory>
#include <string>

#include "cli/signals.h"

namespace dsv32 {

class LineEditor {
 public:
  enum class Event { line, end, interrupted };

  // `stop` must outlive the editor. An empty `history_path`: no file.
  LineEditor(bool is_terminal, const GracefulStop& stop, const std::string& history_path);
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  // `line` is without its line end. A terminal shows `prompt`.
  Event read(const char* prompt, std::string& line);

  // For the history, at once.
  void remember(const std::string& line);

 private:
  struct Edit;  // libedit's state; null when the input is no terminal
  Event read_plainly(std::string& line);

  const GracefulStop& stop_;
  std::unique_ptr<Edit> edit_;
  std::string waiting_;  // read and not yet taken
};

// The file in state_folder(), which is made; empty when there is none.
std::string history_path();

}  // namespace dsv32
