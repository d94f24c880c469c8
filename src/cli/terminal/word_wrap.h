// Lines that end between words: text for a terminal, as it comes piece by piece.
//
// The one idea: a word is shown at once, letter by letter, and taken back when it does not fit: the cursor
// goes to where it began, the rest of the line is erased, and it stands on the next one. Words that are
// longer than a line are left to the terminal.
#pragma once

#include <string>
#include <string_view>

namespace dsv32 {

// Columns that a terminal gives to well-formed, printable UTF-8: 2 for wide characters, 0 for those that
// join.
size_t columns_of(std::string_view text);

class WordWrap {
 public:
  // `text`: whole characters, escaped (visible()), which follow what was wrapped before. `width`: columns of
  // the window now; 0: nothing is wrapped. Returns what to write.
  std::string wrap(std::string_view text, size_t width);

 private:
  void place(std::string_view character, size_t width, std::string& out);

  size_t column_ = 0;  // where the next character goes
  std::string word_;   // the last one so far
  size_t word_columns_ = 0;
};

}  // namespace dsv32
