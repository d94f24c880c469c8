// The program on a pseudo-terminal: tests type keys and look at the screen that a person would see.
//
// Talks, history and prefixes lie in `home`, where the next program with the same `home` finds them. Waits
// fail after half a minute.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "tests/support/screen.h"

namespace dsv32 {

// The program beside this test program; empty when it is not built.
std::string program_path();
// Whether the program is built and a pseudo-terminal can be opened.
bool can_have_terminal();

class ChatTerminal {
 public:
  // `home`: the folder of its files. `words`: its arguments. `program`: the program, or a shell to call it
  // from.
  ChatTerminal(const std::string& home, const std::vector<std::string>& words, size_t n_columns = 80,
               const std::string& program = program_path());
  ~ChatTerminal();  // kills the program if it still runs
  ChatTerminal(const ChatTerminal&) = delete;
  ChatTerminal& operator=(const ChatTerminal&) = delete;

  void type(const std::string& keys);
  void resize(size_t n_columns);
  // Reads until the condition is true. Returns false if it is not when the time is over or the program ended.
  bool await(const std::function<bool()>& condition, double seconds = 30);
  // Waits until written() has the text after byte `from`.
  bool await_text(const std::string& text, size_t from = 0);
  // Waits until the cursor is after an empty prompt.
  bool await_prompt();
  // Types the line and waits for the next prompt. Returns what was written meanwhile.
  std::string say(const std::string& line);
  // Reads for that time.
  void listen(double seconds);
  // Reads until the program ends. Returns its exit code, or 1000 + the signal that ended it.
  int end();
  void send_signal(int number) const;
  // The most memory that the program has had at once, in kB; 0 once it has ended.
  size_t peak_memory() const;
  // Sets the modes in which a shell without line editing reads, as such a shell does when it takes the
  // terminal.
  void set_plain_modes() const;
  // Whether the terminal passes on each key at once and does not echo it.
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
