// See warm_wire.h.
#include "cli/warm/warm_wire.h"

#include <cerrno>
#include <cstring>
#include <filesystem>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/sha256.h"
#include "base/text.h"
#include "cli/options/flags.h"
#include "cli/terminal/user_files.h"

namespace dsv32 {
namespace {

// Throws Error{io} when there is no path for it.
std::string socket_folder() {
  const std::string folder = user_folder(UserFolder::runtime);
  if (folder.empty())
    fail(ErrorKind::io, "neither XDG_RUNTIME_DIR nor HOME names a folder for sockets",
         "set XDG_RUNTIME_DIR to a folder of yours");
  return folder;
}

// Throws Error{io} unless the folder is this user's alone. False: there is no folder.
bool is_folder_safe(const std::string& folder) {
  struct stat info {};
  if (lstat(folder.c_str(), &info) != 0) return false;
  if (!S_ISDIR(info.st_mode) || info.st_uid != geteuid() || (info.st_mode & 077) != 0)
    fail(ErrorKind::io, format("%s is no folder of this user alone", visible(folder).c_str()),
         "if it is yours, chmod 700 it");
  return true;
}

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path)
    fail(ErrorKind::io,
         format("%s is too long for a socket, expected at most %zu bytes", visible(path).c_str(),
                sizeof address.sun_path - 1),
         "XDG_RUNTIME_DIR names another folder");
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

// There is a connection for each request of a batch, more than the files that a process may have by default.
void allow_many_files() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0)
    limit.rlim_cur = limit.rlim_max, setrlimit(RLIMIT_NOFILE, &limit);
}

OwnedFd make_socket(int flags) {
  allow_many_files();
  OwnedFd made(real_file_system(), socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | flags, 0));
  if (!made.is_open()) fail_file("make", "a socket");
  return made;
}

// Zeros when there is no file.
FileInfo file_at(const std::string& path) {
  FileInfo info;
  real_file_system().stat_at(AT_FDCWD, path, info);
  return info;
}

// Adds all flags that decide an engine and its prefixes, as they would be typed.
void add_engine(Sha256& hash, Options options) {
  options.engine.model_path.clear(), options.engine.added_paths.clear();  // the files themselves are hashed
  std::error_code error;
  if (options.uses_cache)
    options.cache.directory = std::filesystem::absolute(cache_directory(options), error).string();
  else
    options.cache = {};
  for (const Flag& flag : engine_flags())
    if (flag.is_of(Command::warm_start)) hash.add_field(flag.text_in(options));
}

}  // namespace

// Without the ctime: chmod, a link or a rename let the process go on. If the model was written to, the
// process sees that by itself, and refuses what it is asked.
std::string warm_path(const Options& options, const GgufFile& file) {
  constexpr size_t kDigits = 16;
  Sha256 hash;
  hash.add_field(version_text());
  for (const MappedFile& part : file.files()) {
    FileStamp stamp = part.stamp();
    stamp.changed_ns = 0;
    for (const uint64_t number : stamp.numbers()) hash.add_number(number);
  }
  add_engine(hash, options);
  return socket_folder() + "/warm-" + hex(hash.finish()).substr(0, kDigits) + ".sock";
}

std::vector<std::string> warm_paths() {
  std::vector<std::string> paths;
  const std::string folder = socket_folder();
  if (!is_folder_safe(folder)) return paths;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error))
    if (const std::string name = entry.path().filename().string();
        name.starts_with("warm-") && name.ends_with(".sock"))
      paths.push_back(entry.path().string());
  return paths;
}

std::string warm_log(const std::string& path) { return path.substr(0, path.rfind('.')) + ".log"; }

OwnedFd lock_warm(const std::string& path) {
  if (!is_folder_safe(make_user_folder(UserFolder::runtime)))
    fail_file("make the folder", user_folder(UserFolder::runtime));
  address_of(path);  // fails now instead of after loading
  const std::string log = warm_log(path);
  if (is_special_file(log))
    fail(ErrorKind::io, visible(log) + " is no regular file, expected the log of a warm process",
         "remove it");
  FileSystem& fs = real_file_system();
  OwnedFd file;
  FileInfo opened;
  do {
    file = OwnedFd(fs, fs.open_at(AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND));
    if (!file.is_open()) errno = -file.error(), fail_file("open", log);
    const int locked = lock_within(fs, file.get(), std::chrono::milliseconds(0));
    if (locked == -EWOULDBLOCK) return {};
    if (locked != 0) errno = -locked, fail_file("lock", log);
    fs.stat(file.get(), opened);
  } while (!opened.is_of_same_file(file_at(log)));    // it was removed meanwhile
  const bool is_held = connect_warm(path).is_open();  // by a process whose log was removed
  return is_held ? OwnedFd() : std::move(file);
}

WarmListener::WarmListener(const std::string& path) : path_(path), socket_(make_socket(SOCK_NONBLOCK)) {
  constexpr int kMostWaiting = 1024;
  const sockaddr_un address = address_of(path);
  unlink(path.c_str());
  if (bind(fd(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      chmod(path.c_str(), 0600) != 0 || listen(fd(), kMostWaiting) != 0)
    fail_file("listen at", path);
  file_ = file_at(path);
}

WarmListener::~WarmListener() {
  if (socket_.is_open() && is_there()) unlink(path_.c_str());
}

bool WarmListener::is_there() const { return file_at(path_).is_of_same_file(file_); }

OwnedFd WarmListener::accept() const {
  return {real_file_system(), accept4(fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)};
}

OwnedFd connect_warm(const std::string& path) {
  if (!is_folder_safe(std::filesystem::path(path).parent_path().string())) return {};
  const sockaddr_un address = address_of(path);
  OwnedFd socket = make_socket(0);
  const timeval patience{kWarmPatienceMs / 1000, 0};
  setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  while (connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    if (errno == EINTR) continue;
    if (errno == ENOENT || errno == ECONNREFUSED || errno == EAGAIN) return {};
    fail_file("connect to", path);
  }
  return socket;
}

LineReader::Result WarmLink::next_line(std::string& line, int wait_ms) try {
  if (!socket_.is_open()) return LineReader::Result::end;
  LineReader::Line next;
  const LineReader::Result result = lines_.next(next, wait_ms);
  if (result != LineReader::Result::line) return result;
  line = std::move(next.text);
  return next.has_end && !next.is_too_long ? result : LineReader::Result::end;
} catch (const Error&) {  // the other end is gone and has not read everything
  return LineReader::Result::end;
}

void WarmLink::queue(std::string_view line) {
  unsent_ += line;
  unsent_ += '\n';
}

bool WarmLink::send() {
  while (n_unsent() > 0) {
    const ssize_t n =
        ::send(socket_.get(), unsent_.data() + n_sent_, n_unsent(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno == EAGAIN;
    n_sent_ += static_cast<size_t>(n);
    if (2 * n_sent_ < unsent_.size()) continue;  // moves the rest only when half is sent
    unsent_ = unsent_.substr(n_sent_);
    n_sent_ = 0;
  }
  return true;
}

short WarmLink::events() const { return static_cast<short>(POLLIN | (n_unsent() > 0 ? POLLOUT : 0)); }

void fail_unread() { throw WarmGone("a warm process sent an unreadable line"); }

}  // namespace dsv32
