// How text takes up columns and rows of a terminal's window: answers that are wrapped as they come, and the
// line that is edited.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/terminal/terminal.h"

namespace dsv32 {

// Columns that a terminal gives to printable UTF-8: 2 for wide characters, 0 for those that join.
size_t columns_of(std::string_view text);

// Ends lines between words in a text that comes piece by piece. A word is shown at once, letter by letter,
// and taken back when it does not fit: the cursor goes to where it began, the rest of the line is erased, and
// the word stands on the next one. Words longer than a line are left to the terminal.
class WordWrap {
 public:
  // `text`: whole characters, escaped (visible()), that follow the text of the last call. `width`: columns of
  // the window; 0: nothing is wrapped. Returns what to write.
  std::string wrap(std::string_view text, size_t width);

 private:
  void place(std::string_view character, size_t width, std::string& out);

  size_t column_ = 0;  // where the next character goes
  std::string word_;   // the last one so far
  size_t word_columns_ = 0;
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
  // The same, drawn anew even if nothing has changed.
  std::string show_again(std::string_view before, std::string_view after, const WindowSize& window);
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
  std::string redraw(Rows rows, size_t first);
  std::string to_first_row(size_t width) const;

  std::optional<Rows> drawn_;
  size_t width_ = 0;
};

}  // namespace dsv32
