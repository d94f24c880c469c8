// The line that is edited, as it stands in the window: its rows, and the cursor among them.
//
// The one idea: rows end where this says, each with a line end of its own, and of a character's width the
// most is taken that any terminal gives it. So rows stand where they are thought to stand, whatever a
// terminal makes of a full row, or of emoji that join; the cursor goes to its place behind what is written
// there.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/terminal/terminal.h"

namespace dsv32 {

class LineDrawing {
 public:
  // What to write so that the window shows `before`, the cursor, and `after`; empty when it does. UTF-8,
  // which is escaped here; a line end breaks the row. Of more rows than the window has, those around the
  // cursor are shown.
  std::string show(std::string_view before, std::string_view after, const WindowSize& window);
  // The same once more, though nothing has changed.
  std::string show_again(std::string_view before, std::string_view after, const WindowSize& window);
  // The cursor is on a row where nothing is drawn yet.
  void begin() { rows_.clear(); }
  size_t width() const { return width_; }  // of the window, when it was drawn last

 private:
  struct Rows;
  std::string redraw(Rows rows, size_t first);
  size_t rows_above(size_t width) const;

  std::vector<std::string> rows_;  // that are drawn; none: nothing is
  std::string left_;               // of the cursor, in its row
  size_t at_row_ = 0, width_ = 0;
};

}  // namespace dsv32
