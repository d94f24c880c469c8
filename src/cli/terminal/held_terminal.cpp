// See held_terminal.h. What the handlers touch is of this file alone; they call nothing but what
// signal-safety(7) allows.
#include "cli/terminal/held_terminal.h"

#include <atomic>
#include <cerrno>
#include <csignal>

#include <termios.h>
#include <unistd.h>

namespace dsv32 {
namespace {

struct Held {
  termios former{}, ours{};
  std::atomic<bool> is_ours{false};  // false: the modes below are not to be set
  bool marks_pastes = false;
  std::atomic<bool> was_continued{false}, was_lost{false};
} held;

void mark_held_pastes(bool on) {
  const char* const mode = on ? "\x1b[?2004h" : "\x1b[?2004l";
  if (held.marks_pastes) [[maybe_unused]]
    const ssize_t n = write(STDOUT_FILENO, mode, 8);
}

bool may_set_modes() { return held.is_ours && tcgetpgrp(STDIN_FILENO) == getpgrp(); }

// As far as a shell sets them: others change for a moment while a line is edited.
bool are_ours(const termios& modes) {
  constexpr tcflag_t kOfShells = ICANON | ECHO;
  return (modes.c_lflag & kOfShells) == (held.ours.c_lflag & kOfShells);
}

void take_again() {
  termios modes{};
  if (!may_set_modes() || tcgetattr(STDIN_FILENO, &modes) != 0 || are_ours(modes)) return;
  tcsetattr(STDIN_FILENO, TCSANOW, &held.ours);
  mark_held_pastes(true);
  held.was_lost = true;
}

void on_continue(int) {
  const int error = errno;
  take_again();
  if (may_set_modes()) mark_held_pastes(true);
  held.was_continued = true;
  errno = error;
}

// The default action stops the process, unless no shell is there that could let it go on.
void on_stop(int number) {
  const int error = errno;
  if (may_set_modes()) {
    mark_held_pastes(false);
    tcsetattr(STDIN_FILENO, TCSANOW, &held.former);
  }
  struct sigaction standard {
  }, handler{};
  standard.sa_handler = SIG_DFL;
  sigaction(number, &standard, &handler);
  raise(number);
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, number);
  pthread_sigmask(SIG_UNBLOCK, &stop, nullptr);  // here it stops
  sigaction(number, &handler, nullptr);
  take_again();
  errno = error;
}

// Unless it is ignored, which is for the child of a shell without job control. What waits goes on.
void handle(int number, void (*handler)(int)) {
  struct sigaction action {};
  if (sigaction(number, nullptr, &action) != 0 || action.sa_handler == SIG_IGN) return;
  action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigaction(number, &action, nullptr);
}

}  // namespace

HeldTerminal::HeldTerminal(bool marks_pastes) {
  tcgetattr(STDIN_FILENO, &held.former);
  held.marks_pastes = marks_pastes;
  mark_held_pastes(true);
  handle(SIGTSTP, on_stop);
  handle(SIGCONT, on_continue);
}

HeldTerminal::~HeldTerminal() {
  handle(SIGTSTP, SIG_DFL);
  handle(SIGCONT, SIG_DFL);
  held.is_ours = false;
  mark_held_pastes(false);
  tcsetattr(STDIN_FILENO, TCSADRAIN, &held.former);
}

// A handler that comes between sets nothing, and fate() mends that.
void HeldTerminal::keep_modes() {
  held.is_ours = false;
  tcgetattr(STDIN_FILENO, &held.ours);
  held.is_ours = true;
}

void HeldTerminal::lend(const std::function<void()>& user) {
  struct Loan {
    Loan() {
      held.is_ours = false;
      mark_held_pastes(false);
      tcsetattr(STDIN_FILENO, TCSADRAIN, &held.former);
    }
    ~Loan() {
      tcsetattr(STDIN_FILENO, TCSADRAIN, &held.ours);
      mark_held_pastes(true);
      held.is_ours = true;
    }
  } const loan;
  user();
}

// A shell that brings a running process to the foreground sends it no signal.
HeldTerminal::Fate HeldTerminal::fate() {
  take_again();
  const bool was_continued = held.was_continued.exchange(false);
  if (held.was_lost.exchange(false)) return Fate::taken_again;
  return was_continued ? Fate::continued : Fate::kept;
}

}  // namespace dsv32
