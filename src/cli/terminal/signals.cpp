// See signals.h. The handlers use only lock-free atomics, data of this file and what signal-safety(7) allows.
#include "cli/terminal/signals.h"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <string_view>

#include <termios.h>
#include <unistd.h>

namespace dsv32 {
namespace {

using Signals = GracefulStop::Signals;

std::atomic<Signals> signals{Signals::end};
std::atomic<int> pending{0};  // the signal's number
static_assert(std::atomic<Signals>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

void say_what_ends(int number) {
  const std::string_view line = number == SIGINT    ? "dsv32: ended by SIGINT\n"
                                : number == SIGTERM ? "dsv32: ended by SIGTERM\n"
                                : number == SIGUSR1 ? "dsv32: ended by SIGUSR1\n"
                                                    : "dsv32: ended by SIGHUP\n";
  [[maybe_unused]] const ssize_t n = write(STDERR_FILENO, line.data(), line.size());
}

void on_signal(int number) {
  int former = 0;
  const bool is_first = pending.compare_exchange_strong(former, number);
  if (signals == Signals::end || (signals == Signals::first_is_request && !is_first)) {
    if (isatty(STDERR_FILENO) == 1) [[maybe_unused]]  // ends a line of progress, or the typed ^C
      const ssize_t n = write(STDERR_FILENO, "\n", 1);
    say_what_ends(number);
    _exit(128 + number);
  }
  if (former == SIGINT) pending = number;  // the others replace an earlier SIGINT
}

bool is_ignored(int number) {
  struct sigaction action {};
  return sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

struct Held {
  termios former{}, ours{};
  std::atomic<bool> is_ours{false};  // false: the modes of `ours` are not to be set
  std::atomic<bool> was_lost{false};
} held;

void mark_pastes(bool on) {
  const char* const mode = on ? "\x1b[?2004h" : "\x1b[?2004l";
  [[maybe_unused]] const ssize_t n = write(STDOUT_FILENO, mode, 8);
}

bool may_set_modes() { return held.is_ours && tcgetpgrp(STDIN_FILENO) == getpgrp(); }

// Compares only the modes that shells set.
bool are_ours(const termios& modes) {
  constexpr tcflag_t kOfShells = ICANON | ECHO;
  return (modes.c_lflag & kOfShells) == (held.ours.c_lflag & kOfShells);
}

void take_again() {
  termios modes{};
  if (!may_set_modes() || tcgetattr(STDIN_FILENO, &modes) != 0 || are_ours(modes)) return;
  tcsetattr(STDIN_FILENO, TCSANOW, &held.ours);
  mark_pastes(true);
  held.was_lost = true;
}

void give_back() {
  held.is_ours = false;
  mark_pastes(false);
  tcsetattr(STDIN_FILENO, TCSADRAIN, &held.former);
}

void on_continue(int) {
  const int error = errno;
  take_again();
  if (may_set_modes()) mark_pastes(true);
  held.was_lost = true;  // a shell may have set our modes again itself
  errno = error;
}

// The default action stops the process, unless no shell could continue it.
void on_stop(int number) {
  const int error = errno;
  if (may_set_modes()) {
    mark_pastes(false);
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

// An ignored signal stays ignored: the parent is a shell without job control. Waiting calls are restarted.
void handle(int number, void (*handler)(int)) {
  if (is_ignored(number)) return;
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigaction(number, &action, nullptr);
}

}  // namespace

// SA_RESTART is off, so that a signal also ends a read that waits for the terminal.
void install_signal_handlers() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  for (const int number : {SIGINT, SIGTERM, SIGUSR1, SIGHUP}) sigaddset(&action.sa_mask, number);
  for (const int number : {SIGINT, SIGTERM, SIGUSR1}) sigaction(number, &action, nullptr);
  if (!is_ignored(SIGHUP)) sigaction(SIGHUP, &action, nullptr);  // nohup ignores it
  signal(SIGPIPE, SIG_DFL);
  signal(SIGXFSZ, SIG_IGN);  // then the write that exceeds a limit fails with a clearer error
}

GracefulStop::GracefulStop(Signals meaning) : former_(signals.exchange(meaning)) {
  if (meaning != Signals::end) pending = 0;
}

GracefulStop::~GracefulStop() { signals = former_; }

void GracefulStop::forget_interrupt() {
  int interrupt = SIGINT;
  pending.compare_exchange_strong(interrupt, 0);
}

void GracefulStop::hang_up() { on_signal(SIGHUP); }
int GracefulStop::exit_code() const { return pending == 0 ? 0 : 128 + pending; }

int GracefulStop::end() const {
  if (is_requested()) say_what_ends(pending);
  return exit_code();
}

bool GracefulStop::must_leave() const { return pending != 0 && pending != SIGINT; }

// A signal's key drops no keys that were typed before it.
HeldTerminal::HeldTerminal() {
  tcgetattr(STDIN_FILENO, &held.former);
  held.ours = held.former;
  held.ours.c_iflag &= ~tcflag_t{INLCR | ICRNL | IGNCR | ISTRIP};
  held.ours.c_oflag |= OPOST | ONLCR;
  held.ours.c_lflag &= ~tcflag_t{ICANON | ECHO | ECHONL | IEXTEN};
  held.ours.c_lflag |= ISIG | NOFLSH;
  held.ours.c_cc[VMIN] = 1, held.ours.c_cc[VTIME] = 0;
  tcsetattr(STDIN_FILENO, TCSADRAIN, &held.ours);
  held.is_ours = true;
  mark_pastes(true);
  handle(SIGTSTP, on_stop);
  handle(SIGCONT, on_continue);
}

HeldTerminal::~HeldTerminal() {
  handle(SIGTSTP, SIG_DFL);
  handle(SIGCONT, SIG_DFL);
  give_back();
}

HeldTerminal::Loan::Loan() { give_back(); }

HeldTerminal::Loan::~Loan() {
  tcsetattr(STDIN_FILENO, TCSADRAIN, &held.ours);
  mark_pastes(true);
  held.is_ours = true;
}

// A shell that brings a running process to the foreground sends it no signal.
bool HeldTerminal::was_lost() {
  take_again();
  return held.was_lost.exchange(false);
}

}  // namespace dsv32
