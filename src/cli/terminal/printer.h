// Puts thinking and answer where they belong: the answer on standard output, thinking on standard error.
//
// With colour, thinking is dim and a blank line parts it from the answer; without, the lines "thinking:" and
// "answer:" do. What goes to a terminal is escaped (visible()), what goes into a pipe is not changed. Every
// coloured write ends with a reset, so no way out leaves the terminal coloured. Where both go to one terminal
// lines may end between words (word_wrap.h). One printer per answer.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "cli/terminal/word_wrap.h"

namespace dsv32 {

enum class ThinkingDisplay { show, hide, on_stdout };

struct PrinterStyle {
  ThinkingDisplay thinking = ThinkingDisplay::show;
  bool escapes_out = false;       // standard output is a terminal
  bool has_color = false;         // on standard error
  size_t (*columns)() = nullptr;  // of the terminal that both streams are, now; null: nothing is wrapped
};

class Printer {
 public:
  using Sink = std::function<void(std::string_view)>;
  Printer(const PrinterStyle& style, Sink out, Sink err);

  // Whole characters, as they come; thinking comes before the answer.
  void print_reasoning(const std::string& text);
  void print_answer(const std::string& text);
  // The text goes on in a new row of the terminal: something else is shown in between.
  void break_row();
  // Ends the last line, an empty one too unless the answer was broken off. `is_thinking_closed`: </think>
  // came, perhaps with no answer after it.
  void finish(bool is_thinking_closed, bool is_broken_off = false);

 private:
  void print_out(std::string_view text);
  void print_err(const std::string& text, bool is_dim = false);
  std::string wrapped(std::string text);
  void end_reasoning();

  PrinterStyle style_;
  Sink out_, err_;
  WordWrap wrap_;
  bool is_reasoning_ = false, has_reasoned_ = false;
  char last_out_ = '\0', last_err_ = '\n';
};

}  // namespace dsv32
