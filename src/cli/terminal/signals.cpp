// See signals.h. Two lock-free atomics are all that the handler touches.
//
// SA_RESTART is off, so that a signal also ends a read that waits for the terminal.
#include "cli/terminal/signals.h"

#include <atomic>
#include <csignal>
#include <string_view>

#include <unistd.h>

namespace dsv32 {
namespace {

enum class Reaction { ends, first_is_request, is_request };

std::atomic<Reaction> reaction{Reaction::ends};
std::atomic<int> pending{0};  // the signal's number
static_assert(std::atomic<Reaction>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

// Safe in a handler.
void say_what_ends(int number) {
  const std::string_view line = number == SIGINT    ? "dsv32: ended by SIGINT\n"
                                : number == SIGTERM ? "dsv32: ended by SIGTERM\n"
                                                    : "dsv32: ended by SIGHUP\n";
  [[maybe_unused]] const ssize_t n = write(STDERR_FILENO, line.data(), line.size());
}

void on_signal(int number) {
  int former = 0;
  const bool is_first = pending.compare_exchange_strong(former, number);
  if (reaction == Reaction::ends || (reaction == Reaction::first_is_request && !is_first)) {
    if (isatty(STDERR_FILENO) == 1) [[maybe_unused]]  // behind progress, or the ^C that was typed
      const ssize_t n = write(STDERR_FILENO, "\n", 1);
    say_what_ends(number);
    _exit(128 + number);
  }
  if (former == SIGINT) pending = number;  // what only interrupts gives way to what ends
}

bool is_ignored(int number) {
  struct sigaction action {};
  return sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

void install_signal_handlers() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&action.sa_mask, number);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  if (!is_ignored(SIGHUP)) sigaction(SIGHUP, &action, nullptr);  // nohup asks to go on
  signal(SIGPIPE, SIG_DFL);
  signal(SIGXFSZ, SIG_IGN);  // a write that a limit ends is an error of its own, which says more
}

GracefulStop::GracefulStop(Second second) {
  pending = 0;
  reaction = second == Second::ends ? Reaction::first_is_request : Reaction::is_request;
}

void GracefulStop::forget_interrupt() {
  int interrupt = SIGINT;
  pending.compare_exchange_strong(interrupt, 0);
}

void GracefulStop::hang_up() { on_signal(SIGHUP); }

GracefulStop::~GracefulStop() { reaction = Reaction::ends; }

int GracefulStop::exit_code() const { return pending == 0 ? 0 : 128 + pending; }

int GracefulStop::end() const {
  if (is_requested()) say_what_ends(pending);
  return exit_code();
}

bool GracefulStop::must_leave() const { return pending != 0 && pending != SIGINT; }

EndsAtOnce::EndsAtOnce() : former_(static_cast<int>(reaction.exchange(Reaction::ends))) {}

EndsAtOnce::~EndsAtOnce() { reaction = static_cast<Reaction>(former_); }

}  // namespace dsv32
