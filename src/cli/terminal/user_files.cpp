// See user_files.h. libedit's own writers of history do not append: they rewrite the whole file, or count its
// entries wrongly.
#include "cli/terminal/user_files.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "cli/terminal/streams.h"

namespace dsv32 {
namespace {

// The variable of each UserFolder, and its default below the home folder.
constexpr std::pair<const char*, const char*> kPlaces[] = {{"XDG_CONFIG_HOME", "/.config"},
                                                           {"XDG_CACHE_HOME", "/.cache"},
                                                           {"XDG_DATA_HOME", "/.local/share"},
                                                           {"XDG_STATE_HOME", "/.local/state"},
                                                           {"XDG_RUNTIME_DIR", "/.local/state"}};

constexpr std::string_view kFirstLine = "_HiStOrY_V2_\n";
constexpr const char* kTemporary = ".history.tmp";  // the lock allows one at a time
constexpr std::chrono::seconds kLockPatience{5};    // a process that was stopped may hold it
constexpr size_t kMostAttachedBytes = size_t{16} << 20, kMostEditedBytes = size_t{64} << 20;
constexpr std::string_view kSpaces = " \t\n", kTextAtBytes = "\ufdd0";

bool is_folder(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error);
}

// The last bytes of a regular file, at most `n_most`; nothing when they cannot be read.
std::optional<std::string> read_end(FileSystem& fs, const OwnedFd& file, uint64_t n_most, FileInfo& info) {
  if (!file.is_open() || fs.stat(file.get(), info) != 0 || !info.is_regular()) return std::nullopt;
  std::string end(std::min(info.n_bytes, n_most), '\0');
  const int64_t n_read = read_fully(fs, file.get(), end.data(), end.size(), info.n_bytes - end.size());
  return n_read == std::ssize(end) ? std::optional(std::move(end)) : std::nullopt;
}

std::string encoded(const std::string& entry) {
  std::string line;
  for (const char c : entry) {
    const bool is_plain = c > ' ' && c <= '~' && c != '\\';
    line += is_plain ? std::string(1, c) : format("\\%03o", static_cast<unsigned char>(c));
  }
  return line + '\n';
}

// The first line, then the last entries, each with its line end.
std::string shortened(std::string text, bool is_cut) {
  if (is_cut) text.erase(0, text.find('\n') == text.npos ? text.size() : text.find('\n') + 1);
  if (text.starts_with(kFirstLine)) text.erase(0, kFirstLine.size());
  if (!text.empty() && text.back() != '\n') text += '\n';
  size_t n_lines = 0, begin = text.size();
  while (begin > 0 && (text[begin - 1] != '\n' || n_lines++ < HistoryFile::kMaxLines)) --begin;
  return std::string(kFirstLine) + text.substr(begin);
}

// A temporary file for the user alone.
struct Draft {
  std::error_code error;
  std::string path = (std::filesystem::temp_directory_path(error) / "dsv32-XXXXXX.md").string();
  OwnedFd file{real_file_system(), mkostemps(path.data(), 3, O_CLOEXEC)};
  ~Draft() {
    if (file.is_open()) unlink(path.c_str());
  }
};

// Through a shell, since the variable may hold the editor's flags too.
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

std::string user_folder(UserFolder folder) {
  const auto& [variable, below_home] = kPlaces[static_cast<size_t>(folder)];
  const char *named = std::getenv(variable), *home = std::getenv("HOME");
  if (named && *named == '/') return std::string(named) + "/dsv32";
  if (home && *home == '/' && is_folder(home)) return std::string(home) + below_home + "/dsv32";
  return {};
}

// On some systems mkdir() has other errors for a folder that exists, so only a missing folder is an error.
std::string make_user_folder(UserFolder folder) {
  const std::string path = user_folder(folder);
  for (size_t at = 0; !path.empty() && at != path.npos;) {
    at = path.find('/', at + 1);
    const std::string part = path.substr(0, at);
    const int why = mkdir(part.c_str(), 0700) == 0 ? 0 : errno;
    if (why != 0 && !is_folder(part))
      fail(ErrorKind::io, "cannot make the folder " + visible(part) + ": " + std::strerror(why));
  }
  return path;
}

HistoryFile::HistoryFile(const std::string& path, FileSystem& fs) : fs_(&fs) {
  std::error_code error;
  const std::filesystem::path real = std::filesystem::weakly_canonical(path, error);
  if (path.empty() || error) return;
  path_ = real.string(), folder_ = real.parent_path().string(), name_ = real.filename().string();
}

bool HistoryFile::shorten() const {
  const OwnedFd folder(*fs_, fs_->open_directory(folder_));
  if (!folder.is_open()) return false;
  const bool is_locked = lock_within(*fs_, folder.get(), kLockPatience) == 0;
  const OwnedFd file(*fs_, fs_->open_at(folder.get(), name_, O_RDONLY));
  FileInfo info;
  const std::optional<std::string> end = read_end(*fs_, file, kMaxBytes, info);
  if (!end || !is_locked) return end.has_value();
  const bool is_cut = info.n_bytes > end->size();
  const std::string wanted = shortened(*end, is_cut);
  if (!is_cut && wanted == *end) return true;
  fs_->unlink(folder.get(), kTemporary);
  return replace_file(*fs_, folder.get(), name_, kTemporary, wanted) == 0 || !is_cut;
}

void HistoryFile::append(const std::string& entry) const {
  const OwnedFd folder(*fs_, fs_->open_directory(folder_));
  if (!folder.is_open()) return;
  const bool is_locked = lock_within(*fs_, folder.get(), kLockPatience) == 0;
  const OwnedFd file(*fs_, fs_->open_at(folder.get(), name_, O_RDWR | O_CREAT | O_APPEND));
  FileInfo info;
  const std::optional<std::string> end = read_end(*fs_, file, 1, info);
  if (!end) return;
  std::string line = encoded(entry);
  if (end->empty()) line.insert(0, kFirstLine);
  if (!end->empty() && *end != "\n") line.insert(0, "\n");  // a crash may have left half a line
  if (write_fully(*fs_, file.get(), as_bytes(line), info.n_bytes) != 0 && is_locked) [[maybe_unused]]
    const int failed = ftruncate(file.get(), static_cast<off_t>(info.n_bytes));
}

std::string history_path() {
  try {
    const std::string folder = make_user_folder(UserFolder::state);
    return folder.empty() ? folder : folder + "/history";
  } catch (const Error&) {
    return {};  // talks cannot be kept either, and their error is shown
  }
}

std::string as_typed(std::string text) { return replaced(std::move(text), kTextAtBytes, "\ufffd"); }
std::string as_text(std::string text) { return replaced(as_typed(std::move(text)), "@", kTextAtBytes); }
std::string as_sent(std::string text) { return replaced(std::move(text), kTextAtBytes, "@"); }

std::string attachment_path(std::string_view path) {
  const char* home = std::getenv("HOME");
  return path.starts_with("~/") && home ? home + std::string(path.substr(1)) : std::string(path);
}

std::string read_attachment(const std::string& path) {
  const std::string real = attachment_path(path);
  std::error_code error;
  if (!std::filesystem::is_regular_file(real, error))  // reading a pipe would wait
    fail(ErrorKind::usage, visible(path) + " is no file");
  std::string text = read_text(real, kMostAttachedBytes);
  if (!text.ends_with('\n')) text += '\n';
  return path + ":\n" + text + "\n";
}

std::string attachment_note(const std::string& path, const std::string& text) {
  return path + ", " + with_thousands(std::ssize(text)) + " bytes, goes with ";
}

std::string with_attachments(const std::string& message) {
  std::string files;
  std::vector<std::string> notes;
  std::error_code error;
  for (size_t at = 0, end = 0; at < message.size(); at = end + 1) {
    end = std::min(message.find_first_of(kSpaces, at), message.size());
    const std::string name = as_sent(message.substr(at, end - at));
    if (!name.starts_with('@')) continue;
    const std::string path = name.substr(1);
    const bool is_typed = message[at] == '@';
    const bool is_there =
        path.find('\0') == path.npos && std::filesystem::is_regular_file(attachment_path(path), error);
    if (is_there && is_typed) {
      const std::string file = read_attachment(path);
      notes.push_back(attachment_note(path, file) + "the message");
      files += file;
    } else if (is_there) {
      notes.push_back("note: @" + path + " was not typed and is sent as it is; /file adds the file");
    } else if (is_typed && path.find_first_of("./") != path.npos) {
      notes.push_back("note: there is no file " + path + "; @" + path + " is sent as it is");
    }
  }
  for (const std::string& line : notes) say(line);
  return files + as_sent(message);
}

std::string editor_command() {
  for (const char* name : {"VISUAL", "EDITOR"})
    if (const char* value = std::getenv(name); value && *value) return value;
  return "vi";
}

bool edit_text(std::string& text) {
  const Draft draft;
  if (!draft.file.is_open() || write(draft.file.get(), text.data(), text.size()) != std::ssize(text))
    fail(ErrorKind::io, "cannot write " + visible(draft.path) + ": " + std::strerror(errno));
  const bool is_done = run_editor(draft.path);
  text = read_text(draft.path, kMostEditedBytes);
  if (text.ends_with('\n')) text.pop_back();
  return is_done;
}

}  // namespace dsv32
