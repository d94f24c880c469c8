// A terminal's window as a person sees it: its rows and its cursor.
//
// As much of a VT100 as the program and libedit use. Lines that the terminal broke are broken anew when the
// window changes its width, as modern terminals do.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dsv32 {

class Screen {
 public:
  // `joins`: emoji with joiners between them are as wide as one, as in some terminals. `stands_behind`: the
  // cursor of a full row stands behind its last column, as in tmux and screen; in others it is on it.
  explicit Screen(size_t n_columns = 80, bool joins = false, bool stands_behind = false)
      : n_columns_(n_columns), joins_(joins), stands_behind_(stands_behind) {}

  void feed(std::string_view bytes);
  void resize(size_t n_columns);

  // All rows from the first one ever written, without the spaces at their ends, each with a line end.
  std::string text() const;
  // The last row that is not empty.
  std::string last_row() const;
  std::string cursor_row() const { return shown(rows_[row_]); }
  // The cursor's row to the left of the cursor.
  std::string left_of_cursor() const;
  size_t row() const { return row_; }  // of the cursor, from the first one ever written
  // The text between ESC ] and BEL in the last such sequence.
  const std::string& command() const { return command_; }

 private:
  struct Row {
    std::vector<std::string> cells;  // a character each; an empty cell follows a wide character
    bool goes_on = false;            // in the next row, because this one was full
  };
  static std::string shown(const Row& row);
  void put(std::string_view character);
  void next_row();
  size_t cursor_column() const;
  void act(char final, const std::string& numbers);
  size_t take_sequence(std::string_view bytes);

  size_t n_columns_;
  bool joins_, stands_behind_;
  std::vector<Row> rows_{1};
  size_t row_ = 0, column_ = 0;  // column_ == n_columns_: a full row, whose end is still open
  std::string command_, half_;   // half_: an incomplete sequence or character
};

}  // namespace dsv32
