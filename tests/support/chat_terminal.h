// The program on a pseudo-terminal: what is typed goes in, what a person would see comes out.
//
// Each has folders of its own for talks, history and prefixes, which the next program of the same folder
// finds. What takes longer than half a minute has failed.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "tests/support/screen.h"

namespace dsv32 {

// Of the folder where this test program lies; empty when it is not built.
std::string program_path();
// There is a program, and pseudo-terminals can be had.
bool can_have_terminal();

class ChatTerminal {
 public:
  // `home`: the folder. `words`: behind the program's name. `program`: a shell in which it is to be called,
  // or the program.
  ChatTerminal(const std::string& home, const std::vector<std::string>& words, size_t n_columns = 80,
               const std::string& program = program_path());
  ~ChatTerminal();  // kills what still runs
  ChatTerminal(const ChatTerminal&) = delete;
  ChatTerminal& operator=(const ChatTerminal&) = delete;

  void type(const std::string& keys);
  void resize(size_t n_columns);
  // Reads until it holds. False when it does not within the time or the program has ended.
  bool await(const std::function<bool()>& condition, double seconds = 30);
  // Until the text comes behind `from` bytes of what was written, as it was written.
  bool await_text(const std::string& text, size_t from = 0);
  // Until the cursor stands behind an empty prompt.
  bool await_prompt();
  // Types the line and waits for the next prompt. Returns what was written meanwhile.
  std::string say(const std::string& line);
  // Reads what comes in that time.
  void listen(double seconds);
  // Reads to the end of the program. Its exit code, or 1000 and the signal that ended it.
  int end();
  void send_signal(int number) const;
  // Sets the modes of a shell that reads lines plainly, as one does that takes the terminal.
  void set_plain_modes() const;
  // It sends keys as they come, and does not echo them.
  bool is_edited() const;

  const std::string& written() const { return written_; }
  const Screen& screen() const { return screen_; }

 private:
  bool read_some(int wait_ms);

  pid_t pid_ = -1;
  int fd_ = -1;
  std::string written_;
  Screen screen_;
};

}  // namespace dsv32
