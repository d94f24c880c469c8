// See external_editor.h. The shell takes the variable apart, which may hold an editor's flags too.
#include "cli/terminal/external_editor.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"

namespace dsv32 {
namespace {

constexpr size_t kMostEditedBytes = size_t{64} << 20;

// A file that goes with its owner.
struct Draft {
  std::string path;
  explicit Draft(const std::string& text) {
    std::error_code error;
    path = (std::filesystem::temp_directory_path(error) / "dsv32-XXXXXX.md").string();
    const int fd = mkstemps(path.data(), 3);
    const bool is_written = fd >= 0 && write(fd, text.data(), text.size()) == std::ssize(text);
    const int reason = errno;
    if (fd >= 0) close(fd);
    if (is_written) return;
    if (fd >= 0) unlink(path.c_str());
    fail(ErrorKind::io, format("cannot write %s: %s", visible(path).c_str(), std::strerror(reason)));
  }
  ~Draft() { unlink(path.c_str()); }
  Draft(const Draft&) = delete;
  Draft& operator=(const Draft&) = delete;
};

bool run_editor(const std::string& path) {
  const std::string command = editor_command() + " \"$1\"";
  const pid_t child = fork();
  if (child == 0) {
    execl("/bin/sh", "sh", "-c", command.c_str(), "sh", path.c_str(), nullptr);
    _exit(127);
  }
  int status = -1;
  while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  return child > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace

std::string editor_command() {
  for (const char* name : {"VISUAL", "EDITOR"})
    if (const char* value = std::getenv(name); value && *value) return value;
  return "vi";
}

bool edit_text(std::string& text) {
  const Draft draft(text);
  const bool is_done = run_editor(draft.path);
  text = read_text(draft.path, kMostEditedBytes);
  if (text.ends_with('\n')) text.pop_back();
  return is_done;
}

}  // namespace dsv32
