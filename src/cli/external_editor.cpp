// See external_editor.h. The shell takes the variable apart, which may hold an editor's flags too.
#include "cli/external_editor.h"

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

std::string editor_command() {
  for (const char* name : {"VISUAL", "EDITOR"})
    if (const char* value = std::getenv(name); value && *value) return value;
  return "vi";
}

std::string write_draft(const std::string& draft) {
  std::error_code error;
  std::string path = (std::filesystem::temp_directory_path(error) / "dsv32-XXXXXX.md").string();
  const int fd = mkstemps(path.data(), 3);
  const bool is_written = fd >= 0 && write(fd, draft.data(), draft.size()) == std::ssize(draft);
  const int reason = errno;
  if (fd >= 0) close(fd);
  if (!is_written)
    fail(ErrorKind::io, format("cannot write %s: %s", visible(path).c_str(), std::strerror(reason)));
  return path;
}

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

std::string edit_text(const std::string& draft) {
  const std::string path = write_draft(draft);
  if (!run_editor(path))
    fail(ErrorKind::io, format("the editor %s failed; the text is in %s", visible(editor_command()).c_str(),
                               visible(path).c_str()));
  std::string text = read_text(path, kMostEditedBytes);
  unlink(path.c_str());
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

}  // namespace dsv32
