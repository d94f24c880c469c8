// One line from a person: with editing, history, completion and pastes at a terminal, plainly otherwise.
//
// libedit edits. Signals end the waiting (Event::interrupted) with the terminal in order; Ctrl-Z gives it
// back and takes it again. A line that begins with a space is not kept in the history (user_files.h), and one
// with a paste of several lines only as long as the program runs.
//
// Pasted text is taken as a whole (bracketed paste). One of several lines stands in the line by a name,
// "[paste 1: 12 lines]", until the line is sent. An @ in it names no file (kTextAt). While the editor exists
// the terminal does not echo: what is typed between two lines waits for the next.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/terminal/signals.h"
#include "cli/terminal/streams.h"

namespace dsv32 {

class LineEditor {
 public:
  enum class Event { line, end, interrupted };

  // What Tab does after `before`, the line up to the cursor: inserts `more`, or shows the choices.
  struct Expansion {
    std::string more;
    std::vector<std::string> choices;
  };
  using Expand = Expansion (*)(std::string_view before);

  // `stop` must outlive the editor. An empty `history_path`: no file. `can_draw`: the terminal moves its
  // cursor and marks pastes.
  LineEditor(bool is_terminal, bool can_draw, const GracefulStop& stop, const std::string& history_path,
             Expand expand);
  ~LineEditor();

  // `line` comes without its line end, but may contain pasted ones; when interrupted, it is what was typed so
  // far. A terminal shows `prompt`. Throws Error{usage} for input that is no text.
  Event read(const char* prompt, std::string& line);
  // Whether the last line holds a named paste: then it is no command, and its end continues nothing.
  bool has_paste() const;

  // Adds a line to the history at once.
  void remember(const std::string& line);

  // edit_text(), with the terminal's modes as they were before the editor.
  bool edit_elsewhere(std::string& text);

 private:
  struct Edit;  // libedit's state; null when the input is no terminal
  Event read_plainly(std::string& line);

  const GracefulStop& stop_;
  std::unique_ptr<Edit> edit_;
  std::optional<LineReader> plain_;  // without edit_
};

// The line that is edited, as it stands in the window: its rows, and the cursor among them. Each row ends
// where this class says, with a line end of its own, and a character counts with the most columns that any
// terminal gives it. So the rows are where they are expected, whatever a terminal does with a full row or
// with emoji that join.
class LineDrawing {
 public:
  // What to write so that the window shows `before`, the cursor, and `after`; empty when it does already. The
  // text is UTF-8 and is escaped here; a line end breaks the row. Of more rows than the window has, those
  // around the cursor are shown.
  std::string show(std::string_view before, std::string_view after, const WindowSize& window);
  // The cursor is on a row where nothing is drawn yet.
  void begin() { drawn_.reset(); }
  size_t width() const { return width_; }  // of the window at the last drawing

 private:
  // A text broken into rows, and where the cursor is.
  struct Rows {
    std::vector<std::string> rows{1};
    size_t at_row = 0;
    std::string left;  // what is left of the cursor in its row
    bool operator==(const Rows&) const = default;
    bool is_at_end() const { return at_row + 1 == rows.size() && left == rows.back(); }
  };
  static Rows break_rows(std::string_view before, std::string_view after, const WindowSize& window);
  std::string to_first_row(size_t width) const;

  std::optional<Rows> drawn_;
  size_t width_ = 0;
};

// Keys that a terminal sends as a sequence of bytes after ESC. `input` begins with ESC and [ or O: the bytes
// of its first sequence, or 0 when it is incomplete. A byte that belongs to no sequence ends it and is not
// counted, so that a sequence that was cut swallows nothing.
size_t sequence_length(std::string_view input);

// The C1 control character, which no keyboard types, that stands for a sequence, given without its ESC; 0 for
// one that does nothing, as function keys and the mouse.
wchar_t character_of(std::string_view sequence);

}  // namespace dsv32
