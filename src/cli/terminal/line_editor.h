// Reads lines from a person; at a terminal that moves its cursor with editing, history, completion and
// pastes.
//
// libedit does the editing. A signal ends the wait for a line (Event::interrupted) and leaves the terminal in
// order; Ctrl-Z gives the terminal back until the program goes on. The history (user_files.h) skips lines
// that begin with a space, and keeps lines with a paste of several lines only while the program runs.
//
// A paste is taken as a whole (bracketed paste). A long one, or one of several lines, shows as a name,
// "[paste 1: 12 lines]", until the line is sent. An @ in a paste names no file (kTextAt). While the editor
// exists the terminal does not echo; keys typed between two lines belong to the second.
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
  // cursor; one that does not edits by itself.
  LineEditor(bool is_terminal, bool can_draw, const GracefulStop& stop, const std::string& history_path,
             Expand expand);
  ~LineEditor();

  // `line` has no line end at its end, but may contain pasted ones; when interrupted, it has the keys typed
  // so far. A terminal shows `prompt`. Throws Error{usage} for input that is no text.
  Event read(const char* prompt, std::string& line);
  // Whether the last line holds a named paste. Such a line is no command, and no line continues it.
  bool has_paste() const;

  // Adds a line to the history at once.
  void remember(const std::string& line);

  // edit_text(), with the terminal's modes as they were before the editor.
  bool edit_elsewhere(std::string& text);

 private:
  struct Edit;  // libedit's state; null when it does not edit
  Event read_plainly(const char* prompt, std::string& line);

  const GracefulStop& stop_;
  const bool is_terminal_;
  std::unique_ptr<Edit> edit_;
  std::optional<LineReader> plain_;  // without edit_
};

// Draws the edited line in the window: its rows, and the cursor. Terminals differ in what they do with a full
// row and with joined emoji. So this class ends each row itself, with a line end, and counts a character with
// the most columns that any terminal gives it.
class LineDrawing {
 public:
  // Returns the output after which the window shows `before`, the cursor, and `after`; empty when it shows
  // them already. The text is UTF-8 and is escaped here; a line end ends the row. Of more rows than the
  // window has, those around the cursor are shown.
  std::string show(std::string_view before, std::string_view after, const WindowSize& window);
  // Call when the cursor is on a row where nothing is drawn yet.
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

// The length in bytes of the key sequence at the beginning of `input`, which begins with ESC and [ or O; 0
// when the sequence is incomplete. A byte that belongs to no sequence ends this one and is not counted, so
// that a cut sequence swallows nothing.
size_t sequence_length(std::string_view input);

// The C1 control character, which no keyboard types, that libedit gets for a key. `sequence`: the key's,
// without ESC. 0: the key does nothing, such as function keys and the mouse.
wchar_t character_of(std::string_view sequence);

}  // namespace dsv32
