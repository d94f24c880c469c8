// See signals.h. Two lock-free atomics are all that the handler touches.
//
// SA_RESTART is off, so that a signal also ends a read that waits for the terminal.
#include "cli/signals.h"

#include <atomic>
#include <csignal>

#include <unistd.h>

namespace dsv32 {
namespace {

std::atomic<bool> is_graceful{false};
std::atomic<int> pending{0};  // the signal's number
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

void on_signal(int number) {
  if (is_graceful.load() && pending.exchange(number) == 0) return;
  _exit(128 + number);
}

}  // namespace

void install_signal_handlers() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  signal(SIGPIPE, SIG_DFL);
  signal(SIGXFSZ, SIG_IGN);  // a write that a limit ends is an error of its own, which says more
}

GracefulStop::GracefulStop() {
  pending = 0;
  is_graceful = true;
}

void GracefulStop::reset() { pending = 0; }

GracefulStop::~GracefulStop() { is_graceful = false; }

int GracefulStop::exit_code() const { return pending == 0 ? 0 : 128 + pending; }

}  // namespace dsv32
