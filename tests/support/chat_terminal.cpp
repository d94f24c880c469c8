// See chat_terminal.h.
#include "tests/support/chat_terminal.h"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <termios.h>
#include <unistd.h>

#include "base/stopwatch.h"
#include "tests/support/child_process.h"

namespace dsv32 {
namespace {

constexpr int kPatienceMs = 20;

winsize window(size_t n_columns) { return {24, static_cast<unsigned short>(n_columns), 0, 0}; }

[[noreturn]] void exec_program(const std::string& program, const std::string& home,
                               const std::vector<std::string>& words) {
  for (const auto& [name, value] :
       std::initializer_list<std::pair<const char*, std::string>>{{"XDG_STATE_HOME", home + "/state"},
                                                                  {"XDG_CACHE_HOME", home + "/cache"},
                                                                  {"XDG_RUNTIME_DIR", home + "/runtime"},
                                                                  {"TERM", "xterm"},
                                                                  {"PS1", "SHELL$ "},
                                                                  {"HISTFILE", "/dev/null"},
                                                                  {"TMPDIR", home}})
    setenv(name, value.c_str(), 1);
  unsetenv("NO_COLOR");
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  std::signal(SIGHUP, SIG_DFL);  // the tests may run where it is ignored
  std::vector<char*> argv{const_cast<char*>(program.c_str())};
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  execv(program.c_str(), argv.data());
  _exit(98);
}

}  // namespace

std::string program_path() {
  std::error_code error;
  const std::filesystem::path path =
      std::filesystem::read_symlink("/proc/self/exe", error).parent_path() / "dsv32";
  return std::filesystem::exists(path, error) ? path.string() : "";
}

bool can_have_terminal() {
  int ours = -1, theirs = -1;
  if (program_path().empty() || openpty(&ours, &theirs, nullptr, nullptr, nullptr) != 0) return false;
  close(ours), close(theirs);
  return true;
}

ChatTerminal::ChatTerminal(const std::string& home, const std::vector<std::string>& words, size_t n_columns,
                           const std::string& program)
    : screen_(n_columns) {
  winsize size = window(n_columns);
  pid_ = forkpty(&fd_, nullptr, nullptr, &size);
  if (pid_ < 0) throw std::runtime_error("no pseudo-terminal");
  if (pid_ == 0) exec_program(program, home, words);
  fcntl(fd_, F_SETFD, FD_CLOEXEC);
}

ChatTerminal::~ChatTerminal() {
  if (pid_ > 0) kill(pid_, SIGKILL), wait_for(pid_);
  close(fd_);
}

bool ChatTerminal::read_some(int wait_ms) {
  pollfd readable{fd_, POLLIN, 0};
  if (poll(&readable, 1, wait_ms) <= 0) return true;
  char block[4096];
  const ssize_t n = read(fd_, block, sizeof block);
  if (n <= 0) return n < 0 && errno == EINTR;
  written_.append(block, static_cast<size_t>(n));
  screen_.feed({block, static_cast<size_t>(n)});
  return true;
}

void ChatTerminal::type(const std::string& keys) {
  for (size_t at = 0; at < keys.size();) {
    const ssize_t n = write(fd_, keys.data() + at, std::min<size_t>(keys.size() - at, 1024));
    if (n > 0) at += static_cast<size_t>(n);
    if (n < 0 && errno != EINTR && errno != EAGAIN) return;
    if (at < keys.size()) read_some(0);
  }
}

void ChatTerminal::resize(size_t n_columns) {
  const winsize size = window(n_columns);
  screen_.resize(n_columns);
  ioctl(fd_, TIOCSWINSZ, &size);
}

bool ChatTerminal::await(const std::function<bool()>& condition, double seconds) {
  const auto start = std::chrono::steady_clock::now();
  while (!condition())
    if (seconds_since(start) > seconds || !read_some(kPatienceMs)) return condition();
  return true;
}

bool ChatTerminal::await_text(const std::string& text, size_t from) {
  return await([&] { return written_.find(text, from) != std::string::npos; });
}

bool ChatTerminal::await_prompt() {
  return await([&] { return screen_.cursor_row() == ">"; });
}

std::string ChatTerminal::say(const std::string& line) {
  const size_t from = written_.size();
  type(line + "\n");
  await([&] { return written_.find('\n', from) != std::string::npos && screen_.cursor_row() == ">"; });
  return written_.substr(from);
}

void ChatTerminal::listen(double seconds) {
  await([] { return false; }, seconds);
}

size_t ChatTerminal::peak_memory() const {
  std::ifstream status("/proc/" + std::to_string(pid_) + "/status");
  for (std::string name; status >> name;)
    if (size_t n = 0; name == "VmHWM:" && status >> n) return n;
  return 0;
}

int ChatTerminal::end() {
  constexpr double kMostSeconds = 30;
  await([] { return false; }, kMostSeconds);
  kill(pid_, SIGKILL);  // no effect if it has ended
  const int code = wait_for(pid_);
  pid_ = -1;
  return code;
}

void ChatTerminal::send_signal(int number) const { kill(pid_, number); }

void ChatTerminal::set_plain_modes() const {
  termios modes{};
  tcgetattr(fd_, &modes);
  modes.c_lflag |= ICANON | ECHO;
  tcsetattr(fd_, TCSANOW, &modes);
}

bool ChatTerminal::is_edited() const {
  termios modes{};
  return tcgetattr(fd_, &modes) == 0 && (modes.c_lflag & (ICANON | ECHO)) == 0;
}

}  // namespace dsv32
