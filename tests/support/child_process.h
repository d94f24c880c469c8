// Runs code in a child process. It cannot throw into the test's frames, and reports only its exit code.
#pragma once

#include <cerrno>

#include <sys/wait.h>
#include <unistd.h>

namespace dsv32 {

// `body` returns the exit code; 99 when it throws.
template <typename Body>
pid_t fork_child(const Body& body) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  try {
    _exit(body());
  } catch (...) {
    _exit(99);
  }
}

constexpr int kKilledBy = 1000;  // plus the signal

// Waits for the child. Returns its exit code, or kKilledBy + the signal.
inline int wait_for(pid_t pid) {
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : kKilledBy + WTERMSIG(status);
}

}  // namespace dsv32
